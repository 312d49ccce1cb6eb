"""Presets that select: in whole rounds, with and without devices that differ, and after an interruption."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

import fedbac
from fedbac import Ask, Contextual, Evidence, LatencyUCB, Method, NoState, PowerOfChoice, Random, Task
from fedbac.core.queries import Query, Seconds
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.core.world import World
from fedbac.presets.methods import METHODS
from fedbac.presets.notes import NOTES
from tests.support import without
from tests.unit.tiny import tiny_data, tiny_run, tiny_task

PRESETS = ("power-of-choice", "ucb-cs", "oort", "cs-ucb", "cocs", "trindade")
HARD = World(dropout=0.3, deadline=0.04, availability=0.9)
"""Seconds: in the middle of what the clients of the tiny task take."""


def methods() -> dict[str, Method]:
    found = {name: METHODS[name](tiny_task()) for name in PRESETS}
    found["contextual"] = Method(name="contextual", selection=Contextual())
    found["last losses"] = Method(name="last", selection=PowerOfChoice(variant="last"))
    found["queues"] = Method(name="queues", selection=LatencyUCB(fairness=0.5))
    return found


OTHERS = ("contextual", "last losses", "queues")
METHOD = pytest.mark.parametrize("method", methods().values(), ids=methods())


def choosy(method: Method) -> Method:
    """Return the method at p = 0.6, where selection has a choice: three of five clients."""
    return method.model_copy(update={"selection": method.selection.model_copy(update={"fraction": 0.6})})  # type: ignore[attr-defined]


@METHOD
def test_presets_run_without_a_world(method: Method) -> None:
    records = tiny_run(method).records
    assert [len(clients) for record in records for clients in record["selected"]] == [4, 4, 4, 4]
    assert {record["simulated_seconds"] for record in records} == {None}


@METHOD
def test_presets_cope_with_clients_that_drop_out_are_late_or_away(method: Method) -> None:
    records = tiny_run(choosy(method), task=tiny_task(world=HARD, rounds=6)).records
    assert sum(len(record["dropped"]) for record in records) > 0
    assert sum(len(record["late"]) for record in records) > 0
    for record in records:
        assert all(1 <= len(clients) <= 3 for clients in record["selected"])
        assert record["simulated_seconds"] > 0


@pytest.mark.parametrize("method", [methods()[name] for name in OTHERS], ids=OTHERS)
def test_policies_without_a_preset_resume_exactly(method: Method, tmp_path: Path) -> None:
    task = tiny_task(world=HARD, rounds=4)
    playing = fedbac.play(choosy(method), task, dataset=tiny_data(), out=tmp_path, device="cpu", workers=1)
    next(playing)
    next(playing)
    playing.close()
    resumed = fedbac.resume(tmp_path, dataset=tiny_data())
    whole = tiny_run(choosy(method), task=task)
    assert without(resumed.records) == without(whole.records)


def played(method: Method, task: Task, rounds: int) -> list[dict[str, Any]]:
    return list(tiny_run(method, task=task.model_copy(update={"rounds": rounds})).records)


def test_selection_by_latency_makes_rounds_shorter_than_chance() -> None:
    world = World(speed_spread=1.5, bandwidth_spread=1.0)
    task = tiny_task(num_edges=1, clients_per_edge=10, world=world)
    quick = Method(name="quick", selection=LatencyUCB(fraction=0.2, fairness=0.1, target_share=0))
    chance = Method(name="chance", selection=Random(fraction=0.2))
    by_latency, by_chance = (
        sum(record["simulated_seconds"] for record in played(method, task, 40)[20:]) for method in (quick, chance)
    )
    assert by_latency < 0.8 * by_chance


class Watching(Random):
    """Keeps what it was told of durations: expected, and measured."""

    kind: Literal["watching"] = "watching"  # type: ignore[assignment]
    seen: ClassVar[list[tuple[FloatArray, FloatArray]]] = []

    def needs(self) -> frozenset[Query]:
        return frozenset({Seconds()})

    def ask(self, state: NoState, evidence: Evidence, rng: Rng) -> Ask:
        return Ask(after=(Seconds(),))

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        self.seen.append((evidence.durations, evidence[Seconds()]))
        return state


@pytest.mark.parametrize("world", [None, World()], ids=["without a world", "with one"])
def test_clients_take_as_long_as_was_expected(world: World | None) -> None:
    Watching.seen.clear()
    tiny_run(Method(name="watching", selection=Watching(fraction=0.6)), task=tiny_task(world=world))
    assert len(Watching.seen) == 4
    for expected_N, seconds_N in Watching.seen:
        statistic_N = ~np.isnan(seconds_N)
        assert statistic_N.sum() == 3
        np.testing.assert_array_equal(expected_N[statistic_N], seconds_N[statistic_N])
        assert (expected_N > 0).all()


def test_only_power_of_choice_sends_models_to_be_measured_and_to_candidates_only() -> None:
    task = tiny_task(num_edges=1, clients_per_edge=10, rounds=1)

    def evaluated(method: Method) -> int:
        return int(tiny_run(method, task=task).records[0]["bytes"]["client"]["down"]["evaluate"])

    whole = evaluated(Method(name="all", selection=PowerOfChoice(fraction=0.3, d_factor=4)))
    some = evaluated(Method(name="some", selection=PowerOfChoice(fraction=0.3, d_factor=2)))
    assert some * 10 == whole * 6 > 0
    for name in PRESETS[1:]:
        assert evaluated(METHODS[name](task)) == 0, name


def test_every_preset_has_a_note_and_only_readings_say_that_they_are() -> None:
    assert set(PRESETS) <= set(NOTES) <= set(METHODS)
    for name in PRESETS:
        note = NOTES[name]
        assert note.interpretation == (name == "trindade")
        assert note.reference.rpartition(", ")[2].isdigit(), "it ends with the year"
