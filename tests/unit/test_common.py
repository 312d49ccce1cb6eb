"""What a round is for all sites is worked out before it begins, and sums are simplified: the same comes out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac.core.rng import stream
from fedbac.engines import Simulator
from fedbac.rounds import common as common_module
from fedbac.rounds.beginning import start
from fedbac.rounds.cloud import Round
from fedbac.rounds.common import Common
from fedbac.rounds.survey import weighted
from tests.engines.test_expecting import loop, played, setting
from tests.engines.test_pausing import Diary


def test_what_was_asked_of_a_round_is_there_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, federation = setting()
    site = federation.sites[0]
    now = Common(experiment, 3)
    now.stream("selection", 0, site.index)
    now.seconds(site, 100, 200)
    expected = stream(experiment.seed, "selection", 4, 0, site.index).random(5)
    seconds_N = Common(experiment, 4).seconds(site, 100, 200)

    following = now.following()
    monkeypatch.setattr(common_module, "stream", lambda *_: pytest.fail("drawn again"))
    assert (following.round, following.rate) == (4, experiment.task.training.rate(4))
    np.testing.assert_array_equal(following.stream("selection", 0, site.index).random(5), expected)
    np.testing.assert_array_equal(following.seconds(site, 100, 200), seconds_N)


def test_a_stream_is_fresh_whenever_it_is_asked_for() -> None:
    experiment, _ = setting()
    following = Common(experiment, 3)
    following.stream("selection", 1, 2)
    following = following.following()
    first, second = (following.stream("selection", 1, 2).random(5) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_device_is_given_rounds_that_were_worked_out_while_it_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, federation = setting()
    plain, _ = played(experiment, federation, loop(experiment, federation))
    ahead: list[int] = []
    following = Common.following

    def noted(self: Common) -> Common:
        ahead.append(self.round + 1)
        return following(self)

    monkeypatch.setattr(Common, "following", noted)
    records, _ = played(experiment, federation, Diary(loop(experiment, federation)))
    assert ahead == list(range(2, experiment.task.rounds + 1))
    timeless = [[{k: v for k, v in record.items() if k != "seconds"} for record in some] for some in (records, plain)]
    assert timeless[0] == timeless[1]


def test_sites_that_hold_the_same_rows_are_sent_the_same_object() -> None:
    experiment, federation = setting()
    edges = Simulator(experiment, federation.sites, loop(experiment, federation))
    state = start(experiment, federation.build, federation.sites)
    orders = Round(experiment, federation.sites, edges, 1).begin(state).orders
    for part, spec in experiment.method.personalization.parts.items():
        owners = {id(order.bank[part]): tuple(order.owner_R[part]) for order in orders}
        assert len(owners) == len(set(owners.values())), "one object for the same owners"
        if spec.scope == "cloud":
            assert len(owners) == 1


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_means_of_a_survey_are_those_of_numpy_to_the_last_bit(models: int, groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value_VG, weight_G = rng.normal(size=(models, groups)), rng.integers(1, 100, groups)
    every_G = np.ones(groups, dtype=bool)  # what is chosen among groups lies group by group, and is added in order
    expected_V = np.average(value_VG[:, every_G], axis=1, weights=weight_G)
    np.testing.assert_array_equal(weighted(value_VG, weight_G), expected_V)
    with pytest.raises(ZeroDivisionError):
        weighted(value_VG, 0 * weight_G)
