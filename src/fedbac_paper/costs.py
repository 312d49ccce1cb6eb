"""What differences from the originals cost methods of others in points of accuracy: results/methods/costs.json.

python benchmarks/paired.py costs [NAME ...]

A difference that costs a method more than half a point is no default: the name of a preset that has it says so, as
``ifca-edges`` does. (IFCA, CFL and others cluster clients; on edges they can be compared with what serves edges.)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

KEPT = Path("results/methods/costs.json")
TASKS, SEEDS = ("devices", "demo", "planted"), (0, 1, 2)
ABOUT = (
    "**Cost** of a difference: points of accuracy, the mean over three seeds of small versions of "
    f"{', '.join(f'`{task}`' for task in TASKS)} (`python benchmarks/paired.py costs`). A client with a part of its "
    "own is judged on its own mix of data."
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


class Difference(NamedTuple):
    """What is otherwise here than in the original, and the settings with which it is as there."""

    words: str
    original: tuple[str, ...]


OF_CLIENTS = ("method.unit=client", "method.topology.kind=flat")
EDGES = Difference("members are edges", OF_CLIENTS)
OWNERS = Difference("edges own the personal part", ("method.personalization.owner=client",))
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "ifca-edges": (EDGES,),
    "cfl-edges": (EDGES,),
    "chpfl-edges": (Difference("members are edges", ("method.unit=client",)),),
    "fedbabu-edges": (EDGES,),
    "fl-hc-edges": (EDGES, Difference("linkage is Ward's, not complete", ("method.clustering.linkage=complete",))),
    "fed-cam-edges": (
        EDGES,
        Difference("both networks are trained at once", ("method.personalization.order=alternate",)),
    ),
    "fedgwc": (Difference("half of the clients train, not a tenth", ("method.selection.fraction=0.1",)),),
    "ditto-edges": (OWNERS,),
    "fedper-edges": (OWNERS,),
    "fedrep-edges": (OWNERS,),
    "fedrod-edges": (OWNERS,),
    "fedala-edges": (OWNERS,),
    "apfl-edges": (OWNERS,),
    "pfedgraph-edges": (EDGES,),
}
"""Those that a setting can undo, by preset."""


def points(found: Mapping[str, Any], method: str, difference: Difference, task: str) -> list[float]:
    """Return by seed how many points a method lacks on a task because of a difference."""
    gaps = []
    for seed in SEEDS:
        theirs, ours = (found["runs"].get(key(method, one, task, seed)) for one in (difference.original, ()))
        if theirs is not None and ours is not None:
            gaps.append(100 * (theirs - ours))
    return gaps


def key(method: str, settings: Sequence[str], task: str, seed: int) -> str:
    """Return the name of a run."""
    return " ".join([method, task, str(seed), *settings])


def lines(method: str, folder: Path) -> list[str]:
    """Return what the page of a method says of its differences that were measured."""
    file = folder / KEPT.name
    if method not in DIFFERENCES or not file.exists():
        return []
    found, told = json.loads(file.read_text(encoding="utf-8")), []
    for difference in DIFFERENCES[method]:
        by_task = {task: points(found, method, difference, task) for task in TASKS}
        if all(len(gaps) == len(SEEDS) for gaps in by_task.values()):
            told.append(f"Cost, {difference.words}: {', '.join(f'{mean(gaps):+.1f}' for gaps in by_task.values())}.")
    return told
