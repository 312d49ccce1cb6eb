"""Numbers that judge a run: distributed accuracy, fairness, rounds to a target, cluster dynamics."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbac.core.settings import FloatArray, IntArray


def distributed(accuracy_M: FloatArray, count_M: IntArray) -> dict[str, float]:
    """Return the distributed accuracy (unweighted mean over edges, C.13) with its spread, and the weighted mean."""
    return {
        "accuracy": float(accuracy_M.mean()),
        "accuracy_std": float(accuracy_M.std()),
        "accuracy_min": float(accuracy_M.min()),
        "accuracy_max": float(accuracy_M.max()),
        "accuracy_weighted": float(np.average(accuracy_M, weights=count_M)),
    }


def finite_mean(values: FloatArray) -> FloatArray:
    """Return the mean over the first axis of what is finite; NaN where nothing is."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def edge_accuracy(records: Sequence[Mapping[str, Any]]) -> FloatArray:
    """Return each edge's accuracy, the mean over these rounds; NaN of an edge that never answered."""
    told = [record["accuracy_per_edge"] for record in records]
    rows = [edges for edges in told if len(edges) == len(told[-1])]
    return finite_mean(np.array([[np.nan if one is None else float(one) for one in edges] for edges in rows]))


def over_edges(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return worst edge, best edge and σ: of what each edge has on average over these rounds.

    The one definition of them. The lowest number of each round, averaged, would count the noise of rounds as unfair.
    """
    accuracy_M = edge_accuracy(records)
    known_M = accuracy_M[np.isfinite(accuracy_M)]
    if not known_M.size:
        return dict.fromkeys(("edge_std", "edge_min", "edge_max"))
    return {"edge_std": float(known_M.std()), "edge_min": float(known_M.min()), "edge_max": float(known_M.max())}


def rounds_to_target(accuracy_T: Sequence[float], target: float, patience: int) -> int | None:
    """Return the first round of ``patience`` consecutive rounds at or above the target, counted from 1 (C.37)."""
    streak = 0
    for round_, accuracy in enumerate(accuracy_T, start=1):
        streak = streak + 1 if accuracy >= target else 0
        if streak == patience:
            return round_ - patience + 1
    return None


def total_bytes(nested: Mapping[str, Any]) -> int:
    """Return the sum over a nested ledger."""
    return sum(total_bytes(value) if isinstance(value, Mapping) else int(value) for value in nested.values())


def summarize(
    records: Sequence[Mapping[str, Any]], targets: Sequence[float], last: int, patience: int
) -> dict[str, Any]:
    """Return what a run's table shows, from its round records."""
    tail = records[-last:]

    def mean(key: str) -> float | None:
        """Over the last rounds, those that have a number."""
        known = [record[key] for record in tail if record[key] is not None]
        return float(np.mean(known)) if known else None

    accuracy_T = [record["accuracy"] for record in records]
    bytes_T = np.cumsum([total_bytes(record["bytes"]) for record in records])
    simulated: list[Any] = [record.get("simulated_seconds") for record in records]
    reached = {f"{target:g}": rounds_to_target(accuracy_T, target, patience) for target in targets}
    return {
        "rounds": len(records),
        "accuracy": mean("accuracy"),
        "accuracy_std_last": float(np.std([record["accuracy"] for record in tail])),
        "accuracy_best": float(max(accuracy_T)),
        **over_edges(tail),
        "accuracy_last": float(records[-1]["accuracy"]),
        "edge_std_last": float(records[-1]["accuracy_std"]),
        "edge_min_last": float(records[-1]["accuracy_min"]),
        **_judged(tail),
        "accuracy_weighted": mean("accuracy_weighted"),
        "accuracy_global": mean("accuracy_global"),
        "loss": mean("loss"),
        "decisions": _decisions(records),
        "moves": int(sum(record["moves"] for record in records)),
        "active_clusters": int(records[-1]["active_clusters"]),
        "failed_clients": _count(records, "failed"),
        "dropped_clients": _count(records, "dropped"),
        "late_clients": _count(records, "late"),
        "rounds_to_target": reached,
        "bytes_to_target": {key: None if at is None else int(bytes_T[at - 1]) for key, at in reached.items()},
        "bytes": _sum([record["bytes"] for record in records]),
        "bytes_total": int(bytes_T[-1]),
        "seconds": float(sum(record["seconds"] for record in records)),
        "simulated_seconds": None if None in simulated else float(sum(simulated)),
        **{name: records[-1][name] for name in ("epsilon",) if name in records[-1]},
    }


def _decisions(records: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how often clusters were chosen in time for a round; None if records do not say."""
    if any("decided" not in record for record in records):
        return None
    return sum(int(after) < len(records) for record in records for after in record["decided"])


JUDGED_AT = ("before_training", "after_training")
"""When models are judged: as the cloud has averaged them, or as sites have trained them."""


def _judged(tail: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return accuracy and edges by when models are judged; None where it is not known.

    A record has what it is not named for under its own name, in the last rounds.
    """
    both = [record for record in tail if not set(JUDGED_AT).isdisjoint(record)]
    told = {name: [record.get(name, record) for record in both] for name in JUDGED_AT}
    return {
        name: {"accuracy": float(np.mean([one["accuracy"] for one in rows])), **over_edges(rows)}
        if rows and None not in rows
        else None
        for name, rows in told.items()
    }


def _count(records: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(len(record.get(key, ())) for record in records)


def _sum(ledgers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = ledgers[0]
    return {
        key: _sum([ledger[key] for ledger in ledgers])
        if isinstance(first[key], Mapping)
        else int(sum(ledger[key] for ledger in ledgers))
        for key in first
    }
