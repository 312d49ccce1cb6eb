"""Tasks that change: against federations that are made anew by hand, from every round, and with every preset."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import fedbac
from fedbac import METHODS, Runtime
from fedbac.clustering import LowestLoss
from fedbac.config.changes import Change, held
from fedbac.config.experiment import Method
from fedbac.core.state import State
from fedbac.core.world import World
from fedbac.data import Shards, planted_groups
from fedbac.engines import connect, played
from fedbac.errors import ConfigError
from fedbac.personalization import PerCluster, PersonalHead
from fedbac.rounds.start import start
from fedbac.runs.replay import verify
from fedbac.runs.store import RunFolder
from fedbac.selection import Random, Thompson
from tests.covering import first
from tests.support import distance, prepare, without

DATA, SHARDS, _ = planted_groups(5, 3, 2, train=10, validation=4, test=15)
MOVING: dict[str, Any] = {
    "clustering": LowestLoss(num_clusters=2, period=1, threshold=1.0, start_labels="random"),
    "personalization": PerCluster(cluster_init="distinct"),
    "selection": Thompson(fraction=0.5),
}
SMALL = (
    "task.data_fraction=0.3",
    "task.clients_per_edge=2",
    "task.partition.min_edge_test=20",
    "task.network={kind: mlp, hidden: [16]}",
    "task.training={epochs: 1, learning_rate: 0.06}",
    "evaluation.last_rounds=2",
)
COMING_AND_GOING = (
    "task.changes=[{round: 2, share: 0.3}, {round: 3, what: leave, which: [1]}, {round: 4, what: join, which: [1]}, "
    "{round: 2, what: leave, who: clients, which: [0, 1, 4]}, {round: 3, what: join, which: [2]}]"
)
"""Edge 0 loses all its clients one by one, and edge 2 has only one of them at first."""


def method(**columns: Any) -> Method:
    return Method(name="test", **columns)


def go(
    row: Method, changes: Sequence[Change] = (), shards: Shards = SHARDS, since: State | None = None, **options: Any
) -> tuple[list[State], list[dict[str, Any]]]:
    """Play four rounds, or what is left of them after a state."""
    experiment, federation = prepare(row, DATA, shards, num_rounds=4, changes=tuple(changes), **options)
    edges = connect(experiment, federation, Runtime(device="cpu", trainer="torch", workers=1))
    states = [since or start(experiment, federation.build, federation.sites)]
    records = []
    for record, state in played(experiment, federation, edges, states[0]):
        records.append(record)
        states.append(state)
    edges.close()
    return states, records


@pytest.mark.parametrize(
    "columns", first(2, [{}, MOVING, {"personalization": PersonalHead()}]), ids=["mean", "moving", "heads"]
)
def test_a_swap_is_a_federation_in_which_edges_hold_each_others_data(columns: dict[str, Any]) -> None:
    states, records = go(method(**columns), [Change(round=3, which=(0, 3, 1))])
    train, validation, test = list(SHARDS.train), list(SHARDS.validation), list(SHARDS.test)
    for into, of in ((0, 3), (3, 1), (1, 0)):
        test[into] = SHARDS.test[of]
        for mine, theirs in zip(SHARDS.clients[into], SHARDS.clients[of], strict=True):
            train[mine], validation[mine] = SHARDS.train[theirs], SHARDS.validation[theirs]
    by_hand = replace(SHARDS, train=tuple(train), validation=tuple(validation), test=tuple(test))
    before, after = go(method(**columns)), go(method(**columns), shards=by_hand, since=states[2])
    assert distance(states[2].parts, before[0][2].parts) == 0
    assert distance(states[4].parts, after[0][-1].parts) == 0
    assert without(records) == without(before[1][:2]) + without(after[1])
    assert distance(states[4].parts, before[0][4].parts) > 0


def test_who_has_left_counts_nowhere() -> None:
    """The last edge leaves: the others go on as a federation without it."""
    states, records = go(method(), [Change(round=3, what="leave", which=(4,))])
    fewer = Shards(SHARDS.train[:12], SHARDS.validation[:12], SHARDS.test[:4], SHARDS.clients[:4])
    alone = replace(states[2], selection_M=states[2].selection_M[:4], links_M=states[2].links_M[:4],
                    label_N=states[2].label_N[:4], moved_N=states[2].moved_N[:4])  # fmt: skip
    after = go(method(), shards=fewer, since=alone)
    assert distance(states[4].parts, after[0][-1].parts) == 0
    assert [record["absent"] for record in records] == [[], [], [4], [4]]
    assert [record["accuracy"] for record in records[2:]] == [record["accuracy"] for record in after[1]]
    assert records[2]["accuracy_per_edge"][4] is None


def test_who_joins_was_not_there_before_and_is_then() -> None:
    _, records = go(method(selection=Random(fraction=1.0)), [
        Change(round=3, what="join", who="clients", which=(0, 7)), Change(round=4, what="leave", which=(2,)),
    ])  # fmt: skip
    by_round = [[client for site in record["selected"] for client in site] for record in records]
    everybody = list(range(15))
    assert by_round[0] == by_round[1] == [client for client in everybody if client not in (0, 7)]
    assert by_round[2] == everybody
    assert by_round[3] == [client for client in everybody if client not in (6, 7, 8)]


def test_availability_does_not_bring_back_who_is_away() -> None:
    world = World(availability=0.1)
    _, records = go(method(), [Change(round=2, what="leave", who="clients", which=(0, 1))], world=world)
    assert all(0 not in record["selected"][0] and 1 not in record["selected"][0] for record in records[1:])


@pytest.mark.parametrize("columns", first(1, [MOVING, {}]), ids=["moving", "mean"])
def test_a_run_goes_on_from_every_round(columns: dict[str, Any]) -> None:
    changes = [Change(round=2, share=0.5), Change(round=3, what="leave", which=(4,)), Change(round=4)]
    states, records = go(method(**columns), changes)
    for after in range(4):
        again = go(method(**columns), changes, since=states[after])
        assert distance(again[0][-1].parts, states[4].parts) == 0
        assert without(again[1]) == without(records[after:])


def test_what_is_drawn_is_drawn_apart() -> None:
    changes = [
        Change(round=5, what="leave", share=0.2),
        Change(round=3, share=0.5),
        Change(round=4, what="leave", who="clients", which=(0,)),
    ]
    for seed in range(10):
        before, after = held(changes, [2] * 10, seed, 2), held(changes, [2] * 10, seed, 5)
        assert before.there_N.all()
        assert (before.data_N == np.arange(20)).all()
        moved = np.flatnonzero(after.test_M != np.arange(10))
        gone = np.unique(np.flatnonzero(~after.there_N) // 2)
        assert moved.size == 5
        assert not np.isin(moved, [*gone, 0]).any()
        assert (~after.there_N).sum() == 5  # two edges with both of their clients, and client 0
        assert sorted(after.data_N) == list(range(20))
        assert (after.data_N[::2] // 2 == after.test_M).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("[{round: 9}]", "something changes in round 9, but task.rounds is 4"),
        ("[{round: 1}]", "greater than or equal to 2"),
        ("[{round: 2, which: [0, 99]}]", "no edge 99; edges are numbered from 0 to 11"),
        ("[{round: 2, which: [3]}]", "takes two edges"),
        ("[{round: 2, which: [3, 3]}]", "names one twice"),
        ("[{round: 2, who: clients, which: [1, 2]}]", "edges swap their data"),
        ("[{round: 2, what: leave, share: 1.0}]", "in round 2 nobody is there"),
        ("[{round: 2, share: 0.6}, {round: 3, what: leave, share: 0.6}]", "only 5 can be drawn"),
    ],
)
def test_what_cannot_be_is_said(changes: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedbac.run("hierfavg", "demo", rounds=4, settings=[*SMALL, f"task.changes={changes}"], progress=False)


def test_edges_of_other_sizes_cannot_swap() -> None:
    with pytest.raises(ValidationError, match=r"edges \[0, 1\] have \[2, 3\] clients"):
        prepare(method(), DATA, replace(SHARDS, clients=(range(2), range(2, 5), *SHARDS.clients[2:])),
                changes=(Change(round=2, which=(0, 1)),))  # fmt: skip


def test_a_swap_is_still_known_by_its_former_name(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert Change.model_validate({"round": 2, "what": "exchange"}) == Change(round=2, what="swap")
    assert caplog.text.count("'exchange' is now called 'swap'") == 1


def test_its_rounds_can_be_verified(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = fedbac.run("hierfavg", "demo", rounds=4, settings=[*SMALL, COMING_AND_GOING], out=folder,
                     workers=1, progress=False, device="cpu")  # fmt: skip
    assert [record["absent"] for record in run.records] == [[], [0, 2], [0, 1], [0]]
    assert all(verdict.difference is None for verdict in verify(RunFolder(folder)))


@pytest.mark.full
def test_actors_give_the_same_rounds() -> None:
    pytest.importorskip("ray")
    here, there = (
        fedbac.run("fedper-edges", "demo", rounds=5, settings=[*SMALL, COMING_AND_GOING, *engine],
                   workers=1, progress=False, device="cpu")
        for engine in ((), ("runtime.engine=ray", "runtime.actors=2"))  # they start again at every change
    )  # fmt: skip
    assert without(here.records) == without(there.records)


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_every_preset_lives_with_changes(name: str) -> None:
    run = fedbac.run(name, "demo", rounds=5, settings=[*SMALL, COMING_AND_GOING], workers=1, progress=False,
                     device="cpu")  # fmt: skip
    last = run.records[-1]
    assert last["accuracy"] > 0.15  # chance is 0.1
    assert last["accuracy_per_edge"][0] is None
    assert sum(one is None for one in last["accuracy_per_edge"]) == 1
