"""Which runs belong together, what they are called, and the curves in their records."""

import json
import logging
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from fedbac.core.settings import FloatArray
from fedbac.errors import ConfigError
from fedbac.report.theme import SERIES, Look
from fedbac.rounds import metrics
from fedbac.runs.store import StoredRun
from fedbac.runs.summary import leaves, summarize
from fedbac.statistics import Ranking, deviation, standing

log = logging.getLogger("fedbac")

OWN_COLOURS = ("fed-bac", "ifca-edges", "hierfavg", "fedfork", "fedavg", "local", "ditto", "fedper-edges")
"""Methods that have one of the palette's colours to themselves, in its order."""
MOST = 3
"""Settings that a label names; where more differ, the folder says more."""
LONGEST = 30
"""Characters of a value in a label."""


def own_look(method: str) -> Look:
    """Return how a method that has a colour to itself is drawn, in reports and elsewhere."""
    return Look.at(OWN_COLOURS.index(method))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    label: str
    runs: tuple[StoredRun, ...]
    look: Look

    @property
    def num_seeds(self) -> int:
        """How many seeds there are; a run that was given twice is no repetition."""
        return len(self.by_seed)

    @property
    def by_seed(self) -> dict[int, float]:
        """Final distributed accuracy by seed; of a run that was given twice, the latter."""
        return {int(run.config["experiment"]["seed"]): float(run.summary["accuracy"]) for run in self.runs}

    @property
    def accuracy(self) -> float:
        """Mean final distributed accuracy."""
        return float(np.mean(list(self.by_seed.values())))

    @property
    def spread(self) -> float:
        """Standard deviation of it over the seeds; over the last rounds when there is only one."""
        over_seeds = deviation(list(self.by_seed.values()))
        return float(self.runs[0].summary["accuracy_std_last"]) if over_seeds is None else over_seeds

    @property
    def spread_over(self) -> str | None:
        """What the spread is over, in words; None of a single round, which has none."""
        if self.num_seeds > 1:
            return f"{self.num_seeds} seeds"
        rounds = last_rounds(self.runs[0])
        return f"the last {rounds} rounds" if rounds > 1 else None

    @property
    def shown_spread(self) -> float | None:
        """The spread, where there is one to show."""
        return self.spread if self.spread_over else None

    def curves(self, values: Callable[[StoredRun], FloatArray]) -> list[tuple[FloatArray, FloatArray]]:
        """Return rounds and values of each run."""
        return [(rounds_of(run), values(run)) for run in self.runs]

    def mean_curve(self, values: Callable[[StoredRun], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return the mean over the runs, for the rounds that all of them have."""
        curves = self.curves(values)
        length = min(len(rounds) for rounds, _ in curves)
        return curves[0][0][:length], metrics.finite_mean(np.stack([curve[:length] for _, curve in curves]))


def begun(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs that have a complete round and say which have none, as in an interrupted comparison."""
    empty = [str(run.folder or run.name) for run in runs if not run.records]
    if empty and len(empty) == len(runs):
        raise ConfigError(f"no complete round yet in {', '.join(empty)}; try again after the first round")
    if empty:
        log.warning("Left out, as no round is complete yet: %s", ", ".join(empty))
    return [run for run in runs if run.records]


def summarized(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs with a summary of all their records; a run that was cut off has none, or an old one."""
    if not runs:
        raise ConfigError("no runs to report; give at least one run")
    for run in runs:
        if not run.records:
            raise ValueError(f"run {run.name!r} has no complete round yet; report it after its first round")
    old = [run for run in runs if run.summary.get("rounds") != len(run.records)]
    new = {id(run): run.summary | summarize(run.config["experiment"], run.records) for run in old}
    return [replace(run, summary=new[id(run)]) if id(run) in new else run for run in runs]


def look_up(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Return the value at a dotted path of a configuration, or the default where there is none."""
    node: Any = config
    for step in path.split("."):
        if not isinstance(node, Mapping) or node.get(step) is None:
            return default
        node = node[step]
    return node


def labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return a different label for every run: its name, with what sets it apart where names repeat."""
    return distinct(_names(runs), runs, [run.folder.name if run.folder else "" for run in runs])


def _names(runs: Sequence[StoredRun]) -> list[str]:
    """Return what runs are called; a seed that they share sets none apart."""
    shared = len({look_up(run.config, "experiment.seed") for run in runs}) == 1
    return [_method(run) if shared else run.name for run in runs]


def groups(runs: Sequence[StoredRun]) -> list[Group]:
    """Return the runs by everything but their seed, in order of appearance, each with its look."""
    members: dict[str, list[StoredRun]] = {}
    for run in runs:
        experiment = {key: value for key, value in run.config["experiment"].items() if key != "seed"}
        members.setdefault(json.dumps([experiment, data_of(run)], sort_keys=True, default=str), []).append(run)
    several = list(members.values())
    called = dict(zip(map(id, runs), _names(runs), strict=True))
    names = [_method(some[0]) if len(some) > 1 else called[id(some[0])] for some in several]
    names = distinct(names, [some[0] for some in several], list(map(_place, several)))
    looks = _looks([_method(some[0]) for some in several])
    return [Group(name, tuple(some), look) for name, some, look in zip(names, several, looks, strict=True)]


def compared(together: Sequence[Group]) -> Ranking:
    """Return how groups stand beside each other, by their labels."""
    return standing({group.label: group.by_seed for group in together})


def rounds_of(run: StoredRun) -> FloatArray:
    """Return the round numbers."""
    return numbers(run, "round")


def numbers(run: StoredRun, key: str) -> FloatArray:
    """Return a number of every record; NaN where there is none."""
    return np.array([np.nan if record.get(key) is None else float(record[key]) for record in run.records])


def last_rounds(run: StoredRun) -> int:
    """Return how many last rounds the final numbers are taken over."""
    return min(int(look_up(run.config, "experiment.evaluation.last_rounds", 10)), len(run.records))


def edge_names(run: StoredRun) -> list[str]:
    """Return what each edge is called, if the data say so, as a line has room for it and a terminal shows it."""
    names = run.config.get("edge_names")
    cut = [str(name)[:LONGEST] for name in names] if isinstance(names, list) else []
    return ["".join(letter if letter.isprintable() else " " for letter in name) for name in cut]


def edge_accuracy(run: StoredRun) -> FloatArray:
    """Return each edge's accuracy, the mean over the last rounds."""
    return metrics.edge_accuracy(run.records[-last_rounds(run) :])


def data_of(run: StoredRun) -> str | None:
    """Return the hash of the data set; of a fraction of it, the hash of the whole, since each seed draws its own."""
    sampled = look_up(run.config, "experiment.task.data_fraction", 1) != 1
    found: str | None = look_up(run.config, "data.source_sha256" if sampled else "data.sha256")
    return found


def _method(run: StoredRun) -> str:
    return str(look_up(run.config, "experiment.method.name", run.name))


def _place(runs: Sequence[StoredRun]) -> str:
    """Return the folder of a run, or what the folders of several seeds have in common, as those of a sweep do."""
    names = {run.folder.name for run in runs if run.folder is not None}
    if len(runs) > 1:
        names = {re.sub(r"[_-]seed\d+$", "", name) for name in names}
    return names.pop() if len(names) == 1 else ""


def _looks(methods: Sequence[str]) -> list[Look]:
    """Give every method its own colour, whatever else is in the report; past the palette, other dashes.

    Two methods of one colour cannot both have it: well-known ones keep theirs, then those that come first by name.
    """
    size = len(SERIES)
    hashes = [zlib.crc32(method.encode(errors="replace")) % size for method in methods]
    wanted = [OWN_COLOURS.index(m) if m in OWN_COLOURS else h for m, h in zip(methods, hashes, strict=True)]
    order = sorted(range(len(methods)), key=lambda i: (methods[i] not in OWN_COLOURS, methods[i], i))
    given: dict[int, int] = {}
    for place in order:
        nearest = (size * dash + (wanted[place] + step) % size for dash in range(len(methods)) for step in range(size))
        given[place] = next(index for index in nearest if index not in given.values())
    return [Look.at(given[place]) for place in range(len(methods))]


def distinct(names: Sequence[str], examples: Sequence[StoredRun], folders: Sequence[str]) -> list[str]:
    """Return a different label for each name: those that repeat with the settings that differ, or with their folder.

    ``examples`` are runs of the settings behind each name, ``folders`` where they are.
    """
    repeated = {name for name, number in Counter(names).items() if number > 1}
    labels = list(names)
    for name in repeated:
        places = [i for i, other in enumerate(names) if other == name]
        apart = _differences([_texts(examples[i].config["experiment"]) for i in places])
        for i, settings in zip(places, apart, strict=True):
            folder = folders[i].removeprefix(f"{name}_")
            words = settings if 0 < len(settings) <= MOST else [folder] * (folder != name)
            labels[i] = f"{name} [{', '.join(words)}]" if any(words) else name
    return _numbered(labels, examples)


def _numbered(labels: list[str], examples: Sequence[StoredRun]) -> list[str]:
    """Return labels that all differ: those of the same settings by their whole path, or as copies."""
    repeated = {label for label, number in Counter(labels).items() if number > 1}
    paths = [f"{label} [{run.folder}]" if label in repeated and run.folder else label
             for label, run in zip(labels, examples, strict=True)]  # fmt: skip
    counts: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
    copies = [next(counts[label]) for label in paths]
    return [label if copy == 1 else f"{label} (copy {copy})" for label, copy in zip(paths, copies, strict=True)]


def _texts(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of an experiment as text, but for the seed, which names have, and the method's name."""
    found = {path: value for path, value in leaves(experiment).items() if path not in ("seed", "method.name")}
    texts = {path: value if isinstance(value, str) else json.dumps(value, default=str) for path, value in found.items()}
    return {path: text if len(text) <= LONGEST else f"{text[:LONGEST]}…" for path, text in texts.items()}


def _differences(trees: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return for each of several experiments its settings that are not the same in all, in short.

    Where a choice is of another kind, the kind says it: the settings below it have nothing to be compared with.
    """
    paths = [path for path in dict.fromkeys(p for tree in trees for p in tree) if len({t.get(path) for t in trees}) > 1]
    chosen = {path.removesuffix("kind") for path in paths if path.endswith(".kind")}
    trees = [{path.removesuffix(".kind"): value for path, value in tree.items()} for tree in trees]
    paths = [
        path.removesuffix(".kind") for path in paths if path.endswith(".kind") or not path.startswith(tuple(chosen))
    ]
    last = Counter(path.rpartition(".")[2] for path in paths)
    # The last step of a path, or the last two where others end alike.
    short = {path: ".".join(path.split(".")[-1 if last[path.rpartition(".")[2]] == 1 else -2 :]) for path in paths}
    return [[f"{short[path]}={tree[path]}" for path in paths if path in tree] for tree in trees]
