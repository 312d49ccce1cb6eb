"""What runs are called where several have one name: by what sets them apart, never by a number."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedbac.runs.store import Run

MOST = 3
"""Settings that a label names; where more differ, the folder says more."""
LONGEST = 30
"""Characters of a value in a label."""


def distinct(names: Sequence[str], examples: Sequence[Run], folders: Sequence[str]) -> list[str]:
    """Return a different label for each name: those that repeat with the settings that differ, or with their folder.

    ``examples`` are runs of the settings behind each name, ``folders`` where they are.
    """
    repeated = {name for name, count in Counter(names).items() if count > 1}
    labels = list(names)
    for name in repeated:
        places = [i for i, other in enumerate(names) if other == name]
        apart = _differences([_leaves(examples[i].config["experiment"]) for i in places])
        for i, settings in zip(places, apart, strict=True):
            folder = folders[i].removeprefix(f"{name}_")
            words = settings if 0 < len(settings) <= MOST else [folder] * (folder != name)
            labels[i] = f"{name} [{', '.join(words)}]" if any(words) else name
    return _told_apart(labels, examples)


def _told_apart(labels: list[str], examples: Sequence[Run]) -> list[str]:
    """Return labels that all differ: those of the same settings by their whole path, or as copies."""
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    paths = [f"{label} [{run.folder}]" if label in repeated and run.folder else label
             for label, run in zip(labels, examples, strict=True)]  # fmt: skip
    seen: Counter[str] = Counter()
    out = []
    for label in paths:
        seen[label] += 1
        out.append(label if seen[label] == 1 else f"{label} (copy {seen[label]})")
    return out


def _leaves(tree: Any, path: str = "") -> dict[str, str]:
    """Return the values of an experiment by their paths, but for the seed, which names have, and the method's name."""
    if not isinstance(tree, Mapping):
        text = tree if isinstance(tree, str) else json.dumps(tree, default=str)
        return {path: text if len(text) <= LONGEST else f"{text[:LONGEST]}…"}
    found: dict[str, str] = {}
    for key, value in tree.items():
        place = f"{path}.{key}".lstrip(".")
        if place not in ("seed", "method.name"):
            found |= _leaves(value, place)
    return found


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
