"""The records of runs as tidy rows: one a round, or one a round and edge."""

from collections.abc import Sequence
from typing import Any, Literal

from fedbac.errors import ConfigError, quoted
from fedbac.runs.store import Run

Row = dict[str, Any]
Per = Literal["round", "edge"]

PLAIN = (
    "accuracy", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_weighted", "accuracy_global", "loss",
    "active_clusters", "moves", "simulated_seconds", "seconds",
)  # fmt: skip
"""Numbers of a record that are columns as they are."""


def rows(runs: Sequence[Run], labels: Sequence[str], per: Per = "round") -> list[Row]:
    """Return the rows of runs, which their labels tell apart."""
    if per not in ("round", "edge"):
        raise ConfigError(f"per: {quoted(per)} is neither 'round' nor 'edge'")
    make = _of_round if per == "round" else _of_edges
    found = []
    for run, label in zip(runs, labels, strict=True):
        experiment = run.config["experiment"]
        who = {"run": label, "method": experiment["method"]["name"], "seed": experiment["seed"]}
        for record in run.records:
            found += [who | row for row in make(run, record)]
    return found


def _of_round(run: Run, record: Row) -> list[Row]:
    numbers = {key: record.get(key) for key in PLAIN}
    counts = {f"num_{key}": len(record.get(key, ())) for key in ("failed", "dropped", "late", "absent")}
    selected = sum(map(len, record.get("selected", ())))
    moved = {f"bytes_{purpose}": _bytes(record, purpose) for purpose in ("train", "evaluate", "control")}
    notes = {f"note_{name}": value for name, value in record.get("notes", {}).items()}
    return [{"round": record["round"], **numbers, "num_selected": selected, **counts, **moved, **notes}]


def _of_edges(run: Run, record: Row) -> list[Row]:
    """Return a row per edge; where clients are clustered one by one, or all meet at one site, edges have no cluster."""
    accuracy, labels, selected = record["accuracy_per_edge"], record["assignment"], record.get("selected", ())
    of_edges = run.config["experiment"]["method"].get("unit", "edge") == "edge" and len(labels) == len(accuracy)
    return [
        {
            "round": record["round"],
            "edge": edge,
            "accuracy": value,
            "cluster": labels[edge] if of_edges else None,
            "num_selected": len(selected[edge]) if len(selected) == len(accuracy) else None,
        }
        for edge, value in enumerate(accuracy)
    ]


def _bytes(record: Row, purpose: str) -> int:
    return sum(int(by.get(purpose, 0)) for tier in record["bytes"].values() for by in tier.values())
