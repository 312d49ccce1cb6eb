"""What makes a comparison unequal, a line each: policies that do not act, and methods that look, send or hold more."""

from collections.abc import Mapping, Sequence

from fedbac.report.groups import Group, look_up
from fedbac.runs.store import StoredRun
from fedbac.runs.summary import leaves

MUCH = 1.5
"""How many times the bytes or weights of another method are worth a line."""


def guarded(together: Sequence[Group], measured_on: Mapping[str, Sequence[str]], side_by_side: bool) -> list[str]:
    """Return what a reader of a comparison should know; given the splits that each method's policies learn from.

    Runs of different tasks do not stand side by side: of them it is only said which policies do not act.
    """
    notes = [note for group in together for note in _idle(group)]
    if len(together) == 1 or not side_by_side:
        return notes
    looks = {group.label: group.runs[0].summary["decisions"] or 0 for group in together if _clusters(group.runs[0])}
    if len(set(looks.values())) > 1:
        most = sorted(looks, key=lambda label: -looks[label])
        told = ", ".join(f"{label} {looks[label]} times" for label in most)
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
    if decisions is not None and _clusters(run):
        used = [after for after in decisions if after < rounds]
        if not used:
            when = (
                "only after its last round, so no round used them" if decisions else f"in none of its {rounds} rounds"
            )
            notes.append(f"{group.label} chose clusters {when}.")
        elif len(used) == 1:
            when = f"after round {used[0]}" if used[0] else "before the first"
            notes.append(f"{group.label} chose clusters once, {when} of {rounds} rounds.")
    selection = leaves(look_up(run.config, "experiment.method.selection", {}))
    warmup = [value for path, value in selection.items() if path.rpartition(".")[2] == "warmup"]
    if any(isinstance(value, int) and value >= rounds for value in warmup):
        notes.append(f"{group.label} never selected clients by what it learned: all {rounds} rounds were warm-up.")
    return notes


def _clusters(run: StoredRun) -> bool:
    """Whether a run has clusters to choose."""
    clustering = look_up(run.config, "experiment.method.clustering", {})
    return str(look_up(clustering, "kind", "fixed")) != "fixed" and bool(look_up(clustering, "num_clusters") != 1)


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
