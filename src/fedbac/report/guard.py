"""What makes a comparison unequal, a line each: policies that do not act, and methods that look, send or hold more."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbac.report.groups import Group, look_up
from fedbac.runs.store import StoredRun
from fedbac.runs.summary import leaves

MUCH = 1.5
"""How many times the bytes or weights of another method are worth a line."""

WAITS = ("warmup", "first_split", "alone_rounds")
"""What settings are called that say for how many rounds a policy does not act yet, or no longer."""


def guarded(together: Sequence[Group], measured_on: Mapping[str, Sequence[str]], side_by_side: bool) -> list[str]:
    """Return what a reader of a comparison should know; given the splits that each method's policies learn from.

    Runs of different tasks do not stand side by side: of them it is only said which policies do not act.
    """
    notes = [note for group in together for note in _idle(group)]
    if len(together) == 1 or not side_by_side:
        return notes
    acting = [group for group in together if _clusters(group.runs[0]) and not all(map(_still, group.runs))]
    looks = {group.label: group.runs[0].summary["decisions"] or 0 for group in acting}
    if len(set(looks.values())) > 1:
        most = sorted(looks, key=lambda label: -looks[label])
        told = ", ".join(f"{label} {_times([looks[label]])}" for label in most)
        notes.append(f"They do not look for clusters equally often: {told}.")
    notes += _more("sent", "bytes", {group.label: _mean(group, "bytes_total") for group in together})
    weights = {group.label: look_up(group.runs[0].config, "weights") for group in together}
    notes += _more("predicts with", "weights", {label: float(w) for label, w in weights.items() if w})
    using = [group.label for group in together if "validation" in measured_on[group.label]]
    if 0 < len(using) < len(together):
        notes.append(
            f"Data held out for validation are used by {', '.join(using)} only; no other method trains on them."
        )
    return notes


def _idle(group: Group) -> list[str]:
    """Return which policies of a method did not act, or acted only once."""
    run, notes = group.runs[0], []
    rounds, decisions = len(run.records), _decisions(run)
    method = look_up(run.config, "experiment.method", {})
    planned = look_up(run.config, "experiment.task.rounds", rounds)
    waiting = waits(method, planned)
    if still := [run for run in group.runs if _still(run)]:
        unit = look_up(still[0].config, "experiment.method.unit", "edge")
        one = all(record["active_clusters"] == 1 for run in still for record in run.records)
        nothing = "split the one that all are in" if one else f"moved {'an' if unit == 'edge' else 'a'} {unit}"
        after = " after its first choice" * (0 in _in_time(still[0]))
        some = "" if len(still) == len(group.runs) else f", in {len(still)} of {len(group.runs)} runs"
        why = "".join(f" ({path}={value})" for path, value in waiting.items() if path.startswith("clustering."))
        looks = _times([len(_in_time(run)) for run in still])
        notes.append(f"{group.label} looked for clusters {looks} and never {nothing}{after}{some}{why}.")
    elif decisions is not None and _clusters(run):
        used = _in_time(run)
        if not used:
            when = (
                "only after its last round, so no round used them" if decisions else f"in none of its {rounds} rounds"
            )
            notes.append(f"{group.label} chose clusters {when}.")
        elif len(used) == 1:
            when = f"after round {used[0]}" if used[0] else "before the first"
            notes.append(f"{group.label} chose clusters once, {when} of {rounds} rounds.")
    if any(path.startswith("selection.") for path in waits(method, rounds)):
        notes.append(f"{group.label} never selected clients by what it learned: all {rounds} rounds were warm-up.")
    notes += [
        f"{group.label} never shared: all {planned} rounds are alone ({path}={value})."
        for path, value in waiting.items()
        if path.startswith("sharing.")
    ]
    shares = [
        record["notes"]["mean_share"]
        for run in group.runs
        for record in run.records
        if "mean_share" in record.get("notes", {}) and record["active_clusters"] > 1
    ]
    if shares and not any(shares):
        notes.append(f"{group.label} measured and never shared (mean_share=0).")
    return notes


def waits(method: Mapping[str, Any], rounds: int) -> dict[str, int]:
    """Return the settings for how long policies wait, or are alone, that leave none of so many rounds to act in."""
    return {
        path: value
        for path, value in leaves(method).items()
        if path.rpartition(".")[2] in WAITS and isinstance(value, int) and value >= rounds
    }


def _still(run: StoredRun) -> bool:
    """Whether a policy looked for clusters in rounds that another followed, and changed none."""
    return any(_in_time(run)) and _clusters(run) and not any(record["moves"] for record in run.records[:-1])


def _times(counts: Sequence[int]) -> str:
    """Return how often something happened, in words; over runs, from the fewest to the most."""
    least, most = min(counts), max(counts)
    if least < most:
        return f"{least} to {most} times"
    return {0: "never", 1: "once"}.get(most, f"{most} times")


def _clusters(run: StoredRun) -> bool:
    """Whether a run has clusters to choose."""
    clustering = look_up(run.config, "experiment.method.clustering", {})
    return str(look_up(clustering, "kind", "fixed")) != "fixed" and bool(look_up(clustering, "num_clusters") != 1)


def _in_time(run: StoredRun) -> list[int]:
    """Return after which rounds clusters were chosen in time for another."""
    return [after for after in _decisions(run) or () if after < len(run.records)]


def _decisions(run: StoredRun) -> list[int] | None:
    """Return after which rounds clusters were chosen, 0 before the first; None of runs that did not write it down."""
    if any("decided" not in record for record in run.records):
        return None
    return [after for record in run.records for after in record["decided"]]


def _mean(group: Group, key: str) -> float:
    return float(sum(run.summary[key] for run in group.runs) / len(group.runs))


def _more(verb: str, what: str, amounts: Mapping[str, float]) -> list[str]:
    """Return who has the most of something, if that is much more than another has."""
    if not amounts or max(amounts.values()) < MUCH * min(amounts.values()) or not min(amounts.values()):
        return []
    most, least = max(amounts, key=amounts.__getitem__), min(amounts, key=amounts.__getitem__)
    return [f"{most} {verb} {amounts[most] / amounts[least]:.1f} times the {what} of {least}."]
