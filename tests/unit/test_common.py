"""What a round is for all sites is worked out before it begins, and sums are simplified: the same comes out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbac import LateHead
from fedbac.clustering import Fixed
from fedbac.config.experiment import Experiment, Method
from fedbac.core.parts import Personalization
from fedbac.core.rng import stream
from fedbac.data import toy
from fedbac.engines import Simulator
from fedbac.engines.prefetch import Prepared
from fedbac.local import LoopTrainer
from fedbac.personalization import Shared
from fedbac.rounds import edge as common_module
from fedbac.rounds.cloud import Round, rounds
from fedbac.rounds.edge import Common, moment_of
from fedbac.rounds.measure import weighted
from fedbac.rounds.start import start
from fedbac.topology import Hierarchical
from tests.engines.queueing import Diary, loop, played, setting
from tests.schemes import InTurns, Warmed
from tests.support import PLAIN_SGD, deal, prepare


def test_what_was_asked_of_a_round_is_there_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, federation = setting()
    site = federation.sites[0]
    now = Prepared(experiment, 3)
    now.stream("selection", 0, site.index)
    now.seconds(site, 100, 200)
    expected = stream(experiment.seed, "selection", 4, 0, site.index).random(5)
    seconds_N = Common(experiment, 4).seconds(site, 100, 200)

    following = Prepared(experiment, 4, now)
    monkeypatch.setattr(common_module, "stream", lambda *_: pytest.fail("drawn again"))
    assert (following.round, following.rate) == (4, experiment.task.training.rate(4, experiment.task.rounds))
    np.testing.assert_array_equal(following.stream("selection", 0, site.index).random(5), expected)
    np.testing.assert_array_equal(following.seconds(site, 100, 200), seconds_N)


@pytest.mark.parametrize("scheme", [Shared(), InTurns(), Warmed(), LateHead(last=1)])
@pytest.mark.parametrize("edge_rounds", [1, 2])
def test_the_cloud_is_told_of_the_batches_that_clients_really_train_on(
    scheme: Personalization, edge_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all phases that run and all rounds of an edge; by the mean over clients."""
    data = toy(num_classes=4, train=50, test=30)
    topology = Hierarchical(edge_rounds=edge_rounds)
    method = Method(name="tried", clustering=Fixed(num_clusters=1), personalization=scheme, topology=topology)
    training = PLAIN_SGD.model_copy(update={"epochs": 3})
    experiment, federation = prepare(method, data, deal(data, [[9, 16], [3]]), training=training, num_rounds=1)
    trainer, batches = LoopTrainer(federation.network, scheme, federation.examples), 0
    predict = trainer._predict

    def counted(*words: Any) -> Tensor:
        nonlocal batches
        batches += 1
        return predict(*words)

    monkeypatch.setattr(trainer, "_predict", counted)
    edges = Simulator(experiment, federation.sites, trainer)
    list(rounds(experiment, federation.sites, edges, start(experiment, federation.build, federation.sites)))
    assert batches > 0
    assert moment_of(experiment, federation.sites, 1).steps == pytest.approx(batches / 3, rel=1e-12)


def test_a_stream_is_fresh_whenever_it_is_asked_for() -> None:
    experiment, _ = setting()
    before = Prepared(experiment, 3)
    before.stream("selection", 1, 2)
    following = Prepared(experiment, 4, before)
    first, second = (following.stream("selection", 1, 2).random(5) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_device_is_given_rounds_that_were_worked_out_while_it_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, federation = setting()
    plain, _ = played(experiment, federation, loop(experiment, federation))
    ahead: list[int] = []
    prepare_round = Prepared.__init__

    def noted(self: Prepared, experiment: Experiment, round_: int, before: Prepared | None = None) -> None:
        prepare_round(self, experiment, round_, before)
        if before is not None:
            ahead.append(round_)

    monkeypatch.setattr(Prepared, "__init__", noted)
    records, _ = played(experiment, federation, Diary(loop(experiment, federation)))
    assert ahead == list(range(2, experiment.task.rounds + 1))
    timeless = [[{k: v for k, v in record.items() if k != "seconds"} for record in some] for some in (records, plain)]
    assert timeless[0] == timeless[1]


def test_sites_that_hold_the_same_rows_are_sent_the_same_object() -> None:
    experiment, federation = setting()
    edges = Simulator(experiment, federation.sites, loop(experiment, federation))
    state = start(experiment, federation.build, federation.sites)
    orders = Round(experiment, federation.sites, edges, 1).order(state).orders
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
