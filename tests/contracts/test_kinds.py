"""Every kind that is registered keeps the contract of its column, with every value of its options."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedbac import (
    AGGREGATION,
    CLOCK,
    CLUSTERING,
    LINKS,
    METHODS,
    PERSONALIZATION,
    SELECTION,
    SHARING,
    STEP,
    TASKS,
    TOPOLOGY,
    Agglomerative,
    CosineSplits,
    CreditThompson,
    Distill,
    Evidence,
    GaussianRewards,
    KMeans,
    Krum,
    LatencyUCB,
    Merging,
    Moment,
    Oort,
    Random,
    ResourceScore,
    Shared,
    Thompson,
    TrimmedMean,
    contracts,
)
from fedbac.contracts import (
    check,
    check_aggregation,
    check_clock,
    check_clustering,
    check_personalization,
    check_selection,
    check_sharing,
    check_step,
    check_topology,
    check_transform,
)
from fedbac.contracts.common import check_reload, difference
from fedbac.core.policies import SelectionPolicy
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray
from fedbac.core.world import EQUAL
from tests.contracts.variants import variants
from tests.covering import of_each_kind

SELECTIONS = variants(SELECTION) | {
    "credit-without-warm-up": CreditThompson(shared=Thompson(warmup=0, initial_accuracy="skip")),
    "cs_ucb-with-queues": LatencyUCB(fairness=0.5),
    "oort-in-a-hurry": Oort(pacer_step=3, exploration_decay=0.5, blacklist_after=4),
    "resource_score-with-deadline": ResourceScore(deadline=2.0),
}
CLUSTERINGS = variants(CLUSTERING, period=5, first_split=1, warmup=5) | {
    "agglomerative-once": Agglomerative(warmup=3),
    "agglomerative-by-threshold": Agglomerative(warmup=3, period=4, metric="cosine", threshold=0.9, linkage="single"),
    "agglomerative-into-three": Agglomerative(warmup=3, period=4, num_clusters=3, linkage="complete"),
    "gaussian_rewards-that-split": GaussianRewards(epsilon=9.0, patience=1),
    "kmeans-once": KMeans(num_clusters=3),
    "cosine_splits-that-split": CosineSplits(first_split=1, thresholds="absolute", epsilon_1=9.0, epsilon_2=0.1),
    "merging-by-test-data": Merging(reward_splits=("test",)),
}
CLUSTERINGS |= {
    f"{kind}-by-default": cls() for kind, cls in CLUSTERING.kinds.items() if cls() not in CLUSTERINGS.values()
}
SHARINGS = variants(SHARING) | {"distill-at-once": Distill(ramp_rounds=0, neighbours=1, mean_period=1)}
TOPOLOGIES = variants(TOPOLOGY)
AGGREGATIONS = variants(AGGREGATION) | {"trimmed_mean-of-all": TrimmedMean(faulty=0), "krum-wary": Krum(faulty=0.49)}
STEPS = variants(STEP)
CLOCKS = variants(CLOCK)
SCHEMES = variants(PERSONALIZATION) | {"shared-proximal": Shared(proximal=0.3)}


@pytest.mark.parametrize("kind", LINKS.kinds)
def test_transforms(kind: str) -> None:
    check_transform(LINKS.kinds[kind]())


@pytest.mark.parametrize("policy", of_each_kind(SELECTIONS))
def test_selection(policy: Any) -> None:
    check_selection(policy)
    assert SELECTION.kinds[policy.kind] is type(policy)


@pytest.mark.parametrize("policy", of_each_kind(CLUSTERINGS))
def test_clustering(policy: Any) -> None:
    check_clustering(policy)
    assert CLUSTERING.kinds[policy.kind] is type(policy)


@pytest.mark.parametrize("policy", of_each_kind(SHARINGS))
def test_sharing(policy: Any) -> None:
    check_sharing(policy)
    assert SHARING.kinds[policy.kind] is type(policy)


@pytest.mark.parametrize("scheme", of_each_kind(SCHEMES))
def test_personalization(scheme: Any) -> None:
    check_personalization(scheme)
    assert PERSONALIZATION.kinds[scheme.kind] is type(scheme)


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_topology(topology: Any) -> None:
    check_topology(topology)
    assert TOPOLOGY.kinds[topology.kind] is type(topology)


@pytest.mark.parametrize("rule", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_aggregation(rule: Any) -> None:
    check_aggregation(rule)
    assert AGGREGATION.kinds[rule.kind] is type(rule)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_step(step: Any) -> None:
    check_step(step)
    assert STEP.kinds[step.kind] is type(step)


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_clock(clock: Any) -> None:
    check_clock(clock)
    assert CLOCK.kinds[clock.kind] is type(clock)


COLUMNS = {
    "clustering": CLUSTERING,
    "selection": SELECTION,
    "sharing": SHARING,
    "personalization": PERSONALIZATION,
    "topology": TOPOLOGY,
    "aggregation": AGGREGATION,
    "step": STEP,
    "clock": CLOCK,
}


@pytest.mark.parametrize("column", COLUMNS)
def test_check_finds_the_column(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hands a policy to the check of its column, and to no other; the checks themselves are above."""
    found: list[str] = []
    for name in COLUMNS:
        monkeypatch.setattr(contracts, f"check_{name}", lambda policy, name=name: found.append(name))
    for cls in COLUMNS[column].builtin:
        check(cls())
    assert found == [column] * len(COLUMNS[column].builtin)
    with pytest.raises(AssertionError, match="int belongs to no column"):
        check(3)
    for cls in (Random, Krum):
        with pytest.raises(AssertionError, match=rf"is a class: pass an instance, as in check\({cls.__name__}\(\)\)"):
            check(cls)


@pytest.mark.full
@pytest.mark.parametrize("num_members", [1, 2])
def test_members_may_be_one_or_two(num_members: int) -> None:
    for kind in SELECTION.builtin:
        check_selection(kind(), num_members)
    for cls in CLUSTERING.builtin:
        fields = {"num_clusters": None} if "num_clusters" in cls.model_fields else {}
        check_clustering(cls(**fields), num_members)
    for cls in SHARING.builtin:
        check_sharing(cls(), num_members)


@pytest.mark.parametrize("policy", SELECTIONS.values(), ids=SELECTIONS)
def test_the_stream_matters_where_not_everybody_is_selected(policy: SelectionPolicy) -> None:
    """Where all clients are alike, chance decides: in ask(), which may draw candidates, or in act()."""
    policy = policy.model_copy(update={"fraction": 0.4})  # type: ignore[attr-defined]
    begin = Evidence(
        round=1,
        num_rounds=100,
        num_classes=10,
        size_N=np.full(10, 5),
        profile=EQUAL.profile(0, tuple(range(10))),
        expected_N=np.ones(10),
    )
    masks = set()
    for i in range(20):
        ask = policy.ask(policy.init(10), begin, stream(0, "candidates", i))
        asked_N = np.ones(10, bool) if ask.among_N is None else ask.among_N
        seen = replace(begin, readings={query: np.where(asked_N, 1.0, np.nan) for query in ask.before})
        masks.add(tuple(policy.act(policy.init(10), seen, stream(0, "act", i)).tolist()))
    assert len(masks) > 1


@pytest.mark.parametrize("policy", variants(CLUSTERING, period=7, warmup=7).values())
def test_nothing_is_due_between_periods(policy: Any) -> None:
    due = [t for t in range(1, 30) if policy.ask(policy.init(6), Moment(t, 100)) is not None]
    if "period" in type(policy).model_fields:
        assert due == [7, 14, 21, 28]
    else:
        assert due in ([], list(range(1, 30)))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_all_parts_of_our_schemes_are_trained(scheme: Any) -> None:
    """By a phase, or, if they belong to no network, by the scheme itself."""
    moved = {part for phase in scheme.phases() for part in phase.moves}
    assert moved == {part for part, spec in scheme.parts.items() if spec.networks}


class Memory(NamedTuple):
    left: FloatArray
    right: FloatArray


NUMBERS = np.arange(3.0)


@pytest.mark.parametrize(
    "state",
    [Memory(np.array(3.0), np.zeros(2)), Memory(NUMBERS, NUMBERS), Memory(np.zeros(2), np.zeros((2, 0)))],
    ids=["a number", "one array twice", "an empty array"],
)
def test_any_named_tuple_of_arrays_survives_a_checkpoint(state: Memory) -> None:
    """Nobody writes to a state, so a policy of the user's may hold a single number, or one array in two places."""
    template = Memory(np.zeros_like(state.left), np.zeros_like(state.right))
    assert difference(check_reload("Memory", state, template), state) is None


def test_a_promise_holds_for_subclasses_with_settings_of_their_own() -> None:
    class Picky(Random):
        """A policy of the user's."""

        least: int = 3

    check(Picky(least=4))


def of_presets() -> dict[str, Any]:
    """Return the policies of all presets with the settings that they have there; the defaults are checked above."""
    found = {}
    for preset in METHODS.values():
        method = preset(TASKS["demo"])
        for policy in (method.clustering, method.selection, method.sharing, method.personalization, method.step):
            if policy != type(policy)():
                found[str(policy)] = policy
    return found


@pytest.mark.full
@pytest.mark.parametrize("policy", of_presets().values(), ids=of_presets())
def test_policies_of_presets_keep_their_promises(policy: Any) -> None:
    check(policy)
