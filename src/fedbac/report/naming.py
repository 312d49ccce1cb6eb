"""What runs are called where several have one name: by what sets them apart, never by a number."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from fedbac.runs.store import Run
from fedbac.runs.summary import leaves

MOST = 3
"""Settings that a label names; where more differ, the folder says more."""
LONGEST = 30
"""Characters of a value in a label."""


def distinct(names: Sequence[str], examples: Sequence[Run], folders: Sequence[str]) -> list[str]:
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


def _numbered(labels: list[str], examples: Sequence[Run]) -> list[str]:
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
    return [[f"{_short(path, last)}={tree[path]}" for path in paths if path in tree] for tree in trees]


def _short(path: str, last: Mapping[str, int]) -> str:
    """Return the last step of a path, or the last two where others end alike."""
    steps = path.split(".")
    return steps[-1] if last[steps[-1]] == 1 else ".".join(steps[-2:])
