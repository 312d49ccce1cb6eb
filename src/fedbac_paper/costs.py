"""What differences from the originals (``NOTES``) cost methods of others in points: results/methods/costs.json.

python benchmarks/paired.py costs [NAME ...]

A difference that costs a method more than half a point is no default, or the name of a preset that has it says so, as
``ifca-edges`` does. (IFCA, CFL and others cluster clients; on edges they can be compared with what serves edges.)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fedbac.presets.notes import EDGES, NOTES, OWNERS, Difference, Note

KEPT = Path("results/methods/costs.json")
TASKS, SEEDS = ("devices", "demo", "planted"), (0, 1, 2)
MORE = tuple(range(3, 12))
"""Seeds that decide on a difference which costs more than ``MOST`` on some task in the first three."""
MOST = 0.5
"""Points that a difference may cost."""
NAMED = (EDGES.words, OWNERS.words)
"""Differences that a preset's name tells, and that may cost more."""
TOLD = f"Costs are points on {', '.join(f'`{task}`' for task in TASKS)}."
ABOUT = (
    "**Cost** of a difference: how many points of accuracy better the original is on small versions of "
    f"{', '.join(f'`{task}`' for task in TASKS)}; after “on edges” those of `-edges`. They are means over three seeds, "
    "or over twelve if three show more than half a point on a task (`python benchmarks/paired.py costs`; variants: "
    "`benchmarks/originals.py`). Clients with parts of their own are judged on their own mix of data. No default costs "
    "over 0.5 points over all tasks, but what a name tells (`-edges`) may."
)
SHARED = (
    "**Not listed**, since all methods share it: each edge selects max(1, ⌊p·N_m⌋) of its N_m clients, or all if the "
    "method is not about selection; the task decides rounds, epochs, optimizer, devices, links and failures; an "
    "original that fine-tunes after its last round does so in the last rounds."
)
SMALL = (
    "task.data_fraction=0.3",
    "task.clients_per_edge=2",
    "task.partition.min_edge_test=20",
    "task.network={kind: mlp, hidden: [32]}",
    "task.training={epochs: 1, learning_rate: 0.06}",
    "task.rounds=20",
)
"""So that a run takes seconds."""


LAST = ("evaluation.last_rounds=1",)
"""To judge the last round alone, where the original does more after it."""
ACTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("fedala", "fedala-edges", "fedrep", "fedrep-edges", "fedbabu", "fedbabu-edges"), LAST),
    "cfl": ("method.clustering.first_split=10",),
    "cfl-edges": ("method.clustering.first_split=10",),
    "fedgwc": ("task.rounds=60", "method.clustering.epsilon=1e-4"),
    "fedgwc-edges": ("task.rounds=60",),
    "power-of-choice": ("task.clients_per_edge=5",),
    "oort": ("task.clients_per_edge=5", "task.rounds=60"),
    "cocs": ("task.clients_per_edge=5",),
}
"""Settings of presets, most of them so that their rule acts in so few rounds."""


def said() -> dict[str, tuple[Difference, ...]]:
    """Return what the page says of each preset.

    Of presets of one paper, the first alone says what has no price. A price is each preset's own: on edges a difference
    may cost more than on clients.
    """
    first: dict[str, Note] = {}
    found = {}
    for name, note in NOTES.items():
        leader = first.setdefault(note.reference, note)
        found[name] = tuple(
            one for one in note.differences if one.original or leader is note or one not in leader.differences
        )
    return found


def priced() -> dict[str, tuple[Difference, ...]]:
    """Return those that are measured."""
    found = {name: tuple(one for one in differences if one.original) for name, differences in said().items()}
    return {name: differences for name, differences in found.items() if differences}


def points(found: Mapping[str, Any], method: str, difference: Difference, task: str) -> list[float]:
    """Return by seed how many points a method lacks on a task because of a difference."""
    return _points(found, method, difference, task, asked(found, method, difference))


def asked(found: Mapping[str, Any], method: str, difference: Difference) -> tuple[int, ...]:
    """Return the seeds from which a difference has its price."""
    if difference.words in NAMED:
        return SEEDS
    first = [_points(found, method, difference, task, SEEDS) for task in TASKS]
    return SEEDS + MORE if any(gaps and mean(gaps) > MOST for gaps in first) else SEEDS


def _points(
    found: Mapping[str, Any], method: str, difference: Difference, task: str, seeds: Sequence[int]
) -> list[float]:
    gaps = []
    for seed in seeds:
        theirs, ours = (found["runs"].get(key(method, one, task, seed)) for one in (difference.original, ()))
        if theirs is not None and ours is not None:
            gaps.append(100 * (theirs - ours))
    return gaps


def needed(found: Mapping[str, Any], seed: int) -> list[tuple[str, tuple[str, ...], str]]:
    """Return the methods, settings and tasks to play with a seed, each once; ``MORE`` seeds follow from the first."""
    return list(
        dict.fromkeys(
            (name, original, task)
            for task in TASKS
            for name, differences in priced().items()
            for difference in differences
            if seed in asked(found, name, difference)
            for original in ((), difference.original)
        )
    )


def key(method: str, settings: Sequence[str], task: str, seed: int) -> str:
    """Return the name of a run."""
    return " ".join([method, task, str(seed), *changed(method, settings)])


def changed(method: str, settings: Sequence[str]) -> list[str]:
    """Return the settings of a run beside those of all."""
    return [*settings, *ACTING.get(method, ())]


def settings(method: str, original: Sequence[str]) -> list[str]:
    """Return all settings of a run; the last word on one counts."""
    return list({one.partition("=")[0]: one for one in (*SMALL, *changed(method, original))}.values())


def read(folder: Path) -> dict[str, Any]:
    """Return what is known."""
    file = folder / KEPT.name
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"runs": {}}
    return known


def lines(method: str, found: Mapping[str, Any]) -> list[str]:
    """Return what the page of a method says of its differences; what ``-edges`` shares is priced there for both."""
    every, base = said(), method.removesuffix("-edges")
    here, there = ({one.words: one for one in every.get(name, ())} for name in (base, f"{base}-edges"))
    if method != base:
        return [line(method, one, found) for words, one in there.items() if words not in here]
    told = [line(method, one, found).removesuffix(".") for one in here.values()]
    both = [price(f"{method}-edges", there[words], found) if words in there else "" for words in here]
    return [f"{one}; on edges {edges}." if edges else f"{one}." for one, edges in zip(told, both, strict=True)]


def line(method: str, difference: Difference, found: Mapping[str, Any]) -> str:
    """Return a difference in words, and what it costs a method."""
    if difference.unpriced:
        return f"{difference.words} No cost given: {difference.unpriced}."
    cost = price(method, difference, found)
    return f"{difference.words} Cost: {cost}." if cost else difference.words


def price(method: str, difference: Difference, found: Mapping[str, Any]) -> str:
    """Return the points by task, or nothing while some are missing."""
    by_task = _by_task(found, method, difference)
    return ", ".join(f"{round(mean(gaps), 1) + 0.0:+.1f}".replace("-", "−") for gaps in by_task)


def dear(method: str, difference: Difference, found: Mapping[str, Any]) -> bool:
    """Whether a difference that no name tells costs a method too much in the mean over the tasks."""
    by_task = _by_task(found, method, difference)
    return difference.words not in NAMED and bool(by_task) and mean(map(mean, by_task)) > MOST


def _by_task(found: Mapping[str, Any], method: str, difference: Difference) -> list[list[float]]:
    """Return its points by task and seed, or nothing while some are missing."""
    by_task = [points(found, method, difference, task) for task in TASKS]
    complete = all(len(gaps) == len(asked(found, method, difference)) for gaps in by_task)
    return by_task if complete else []
