"""What a run's folder says of it as a whole: where it comes from, and its summary, a function of its records."""

import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbac.errors import ConfigError
from fedbac.rounds import metrics
from fedbac.version import full_version

NEEDED: dict[str, type] = {
    "seed": int,
    "method.name": str,
    "task.dataset": str,
    "task.rounds": int,
    "task.targets": list,
    "evaluation.last_rounds": int,
    "evaluation.target_patience": int,
}
"""What tables and summaries need of an experiment, whatever version wrote it."""


NEWER = {
    "accuracy_last", "decisions", "edge_min_last", "edge_std_last", "edge_min", "edge_max", "edge_std",
    *metrics.JUDGED_AT,
}  # fmt: skip
"""Numbers that summaries without ``accuracy_last`` do not have, or define in another way."""


def check_experiment(experiment: Mapping[str, Any], source: Path) -> None:
    """Refuse an experiment that nothing can be said about; ``source`` is the file that it comes from."""
    for path, kind in NEEDED.items():
        node: Any = experiment
        for step in path.split("."):
            node = node.get(step) if isinstance(node, Mapping) else None
        if not isinstance(node, kind) or isinstance(node, bool):
            problem = "is missing" if node is None else f"is {node!r}"
            raise ConfigError(f"{source}: experiment.{path} {problem}; restore the file")


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the settings of a tree by their dotted paths."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        here = f"{path}.{name}".lstrip(".")
        found |= leaves(value, here) if isinstance(value, Mapping) else {here: value}
    return found


ALSO_LAST = ("predict_towards_mean",)
"""Kinds that decide after the last round in any case, however long their period."""


def long_periods(experiment: Mapping[str, Any]) -> list[str]:
    """Return which policies would decide fewer than five times in a run, and what to set."""
    rounds, method = experiment["task"]["rounds"], experiment["method"]
    return [
        f"{method['name']}: method.{path}={value} is longer than a fifth of the {rounds} rounds, so it acts seldom or "
        f"never; set it to {max(1, rounds // 5)} or less, or play more rounds"
        for path, value in leaves(method).items()
        if path.endswith("period") and isinstance(value, int) and value > 1 and 5 * value > rounds
        if method.get(path.partition(".")[0], {}).get("kind") not in ALSO_LAST
    ]


def summarize(experiment: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary of a run from its experiment, as its configuration has it, and its records."""
    task, judge = experiment["task"], experiment["evaluation"]
    return {
        "method": experiment["method"]["name"],
        "dataset": task["dataset"],
        "seed": experiment["seed"],
        "finished": len(records) == task["rounds"],
        **metrics.summarize(records, task["targets"], judge["last_rounds"], judge["target_patience"]),
    }


def written() -> dict[str, str]:
    """Return the facts of this moment and this process."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "fedbac": full_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def _command() -> str:
    """Return the command as it was typed, without the folders that its program is in."""
    program = Path(sys.argv[0] if sys.argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m
    words = shlex.join([name or "python", *sys.argv[1:]])
    return words.encode(errors="backslashreplace").decode()  # a file's name may be no text
