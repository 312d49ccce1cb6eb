"""The outcome in plain words: who leads and by how much, and what a reader should beware of."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbac.report.groups import Group, compared, data_of, edge_accuracy, edge_names, groups, look_up, summarized
from fedbac.report.guard import guarded
from fedbac.report.table import Table, percent, seeds_table, table
from fedbac.rounds.metrics import JUDGED_AT
from fedbac.runs.provenance import DECIDES, in_words
from fedbac.runs.store import StoredRun
from fedbac.statistics import FEWEST_SEEDS

FEW_FAILURES = 0.1
"""Share of trainings that may fail before the outcome says little."""
LEAK = "test data: leaks the test set into training"


def outcome(runs: Sequence[StoredRun]) -> str:
    """Return in one sentence who leads and by how much, or that nobody clearly does."""
    runs = summarized(runs)
    if different(runs):
        return f"{len(runs)} runs of different tasks: each accuracy stands for itself."
    together = groups(runs)
    if len(together) > 1 and (early := too_early(runs)) is not None:
        return early
    if len(together) == 1:
        return _alone(together[0])
    found, by_label = compared(together), {group.label: group for group in together}
    first, *level = (by_label[label] for label in found.leaders)
    behind = [by_label[label] for label in found.behind]
    if found.few:
        return (
            f"Too few seeds to name a leader (methods are compared on {FEWEST_SEEDS} or more that they share): "
            f"{first.label} has {percent(first.accuracy)} % distributed accuracy, {_gaps(first, [*level, *behind])}."
        )
    if level:
        verb = "is" if len(level) == 1 else "are"
        trail = f"; it is {_gaps(first, behind)}" if behind else ""
        close = _join([_score(group) for group in level])
        over = _join(list(dict.fromkeys(group.spread_over for group in (first, *level) if group.spread_over)) or [""])
        basis = f" ± is over {over}." if over else ""
        return f"No clear winner: {_score(first)} is highest, but {close} {verb} not significantly lower{trail}.{basis}"
    return f"{first.label} leads with {percent(first.accuracy)} % distributed accuracy, {_gaps(first, behind)}."


def final(runs: Sequence[StoredRun]) -> tuple[Table, frozenset[int]]:
    """Return the table that ends a command, and which of its rows lead: none where nobody can be said to.

    One row per run; one per method, over its seeds, when a method ran with several.
    """
    together = groups(summarized(runs))
    if all(group.num_seeds == 1 for group in together):
        return table(runs), frozenset()
    return seeds_table(together), leading(together)


def leading(together: Sequence[Group]) -> frozenset[int]:
    """Return which groups lead: the best and all that are not significantly worse; none if nobody can be said to."""
    runs = [run for group in together for run in group.runs]
    found = compared(together)
    if len(together) == 1 or found.few or different(runs) or too_early(runs):
        return frozenset()
    return frozenset(place for place, group in enumerate(together) if group.label in found.leaders)


def too_early(runs: Sequence[StoredRun]) -> str | None:
    """Return why nobody can be said to lead yet: runs are shorter than what the final accuracy is a mean over."""
    windows = {int(look_up(run.config, "experiment.evaluation.last_rounds", 10)) for run in runs}
    shortest = min(len(run.records) for run in runs)
    if shortest >= max(windows):
        return None
    rounds = f"{shortest} round{'' if shortest == 1 else 's'}"
    return (
        f"Too early to name a leader: the final accuracy is the mean over the last {max(windows)} rounds "
        f"(evaluation.last_rounds), and the shortest run has {rounds}."
    )


def warnings(runs: Sequence[StoredRun]) -> list[str]:
    """Return what is to be said with every outcome: failed clients, idle policies, and unequal means."""
    together = groups(summarized(runs))
    splits = {group.label: [one for used in measured_on(group.runs[0]).values() for one in used] for group in together}
    return failures(runs) + guarded(together, splits, side_by_side=not different(runs))


def failures(runs: Sequence[StoredRun]) -> list[str]:
    """Return of whose clients so many diverged that the outcome says little, and what to do."""
    together = groups(runs)
    notes = []
    for group in together:
        records = [record for run in group.runs for record in run.records]
        failed = sum(len(record["failed"]) for record in records)
        lost = sum(len(record.get(key, ())) for record in records for key in ("dropped", "late"))
        trained = sum(len(clients) for record in records for clients in record.get("selected", ())) - lost
        if failed > FEW_FAILURES * trained:
            clipped = look_up(group.runs[0].config, "experiment.task.training.clip_norm") is not None
            notes.append(
                f"{f'{group.label}: ' if len(together) > 1 else ''}{failed} of {trained} client trainings failed "
                "(weights or losses were not finite), so this says little; lower task.training.learning_rate or "
                f"{'' if clipped else 'set '}task.training.clip_norm."
            )
    return notes


def caveats(runs: Sequence[StoredRun]) -> list[str]:
    """Return what limits the outcome, the worst first."""
    runs = summarized(runs)
    together, notes = groups(runs), warnings(runs)
    if differ := different(runs):
        notes.append(f"The runs differ in {_join(differ)}.")
    notes += _other_order(together)
    promised = {(group.label, run.config.get("privacy")): None for group in together for run in group.runs}
    notes += [f"{label}: {promise}." for label, promise in promised if promise is not None]
    if all(group.num_seeds == 1 for group in together):
        subject = "Each method ran once" if len(together) > 1 else "This is one run"
        shown = any(group.spread_over for group in together)
        spread = "± is the spread over the last rounds, not over" if shown else "nothing is known of the spread over"
        notes.append(f"{subject}: {spread} repeats with other seeds.")
    if len({tuple(sorted(_seed(run) for run in group.runs)) for group in together}) > 1:
        notes.append("The methods ran with different seeds, so on differently spread data.")
    if len({len(run.records) for run in runs}) > 1:
        notes.append("The runs are not equally long.")
    notes += [
        f"{run.name} was computed in {len(run.segments)} environments, which may round differently (see its facts)."
        for run in runs
        if len({in_words({key: segment.by.get(key) for key in DECIDES}) for segment in run.segments}) > 1
    ]
    notes += [
        f"{run.name} stopped after {len(run.records)} of {planned} rounds."
        for run in runs
        if len(run.records) < (planned := look_up(run.config, "experiment.task.rounds", 0))
    ]
    return notes


def _other_order(together: Sequence[Group]) -> list[str]:
    """Return who is highest before and after local training, where that is not the same; and who is judged when."""
    configs = {group.label: group.runs[0].config for group in together}
    points = dict.fromkeys(str(look_up(config, "experiment.evaluation.point")) for config in configs.values())
    if len(points) > 1:
        return [f"The methods are judged at different moments (evaluation.point): {_join(list(points))}."]
    late = [name for name, of in configs.items() if look_up(of, "experiment.method.judged") == "after_training"]
    if 0 < len(late) < len(together):
        verb = "is" if len(late) == 1 else "are"
        return [f"{_join(late)} {verb} judged after local training, as published, the others before it."]
    highest = {}
    for moment in JUDGED_AT:
        told = {group.label: [run.summary[moment] or {} for run in group.runs] for group in together}
        means = {name: sum(one["accuracy"] for one in some) / len(some) for name, some in told.items() if all(some)}
        if len(means) > 1:
            highest[moment] = max(means, key=means.__getitem__)
    if len(set(highest.values())) < 2:
        return []
    before, after = (highest[moment] for moment in JUDGED_AT)
    return [f"The moment decides who is highest: {before} before local training, {after} after it."]


def leaks(run: StoredRun) -> list[str]:
    """Return each way in which a run let test data into training."""
    columns = [field.rpartition(".")[2] for field, splits in measured_on(run).items() if "test" in splits]
    return [f"What {column} learns from was measured on {LEAK}." for column in columns]


def measured_on(run: StoredRun) -> dict[str, list[str]]:
    """Return the splits on which each policy of a run had models measured, by the field that decides it.

    A run states it (``measured_on`` in its ``config.yaml``). Runs of versions that did not are read by the names that
    settings about splits had then.
    """
    stated = look_up(run.config, "measured_on")
    if isinstance(stated, Mapping):
        return {str(field): list(splits) for field, splits in stated.items() if splits}
    found: dict[str, list[str]] = {}
    for column in ("clustering", "selection"):
        settings = look_up(run.config, f"experiment.method.{column}", {})
        splits = {*_values(settings, "reward_split"), *_values(settings, "reward_splits")}
        if column == "clustering" and look_up(settings, "kind") != "fixed":
            splits |= {look_up(run.config, "experiment.method.measurement.split", "train")}
        if splits:
            found[f"method.{column}"] = sorted(splits)
    return found


def _values(settings: Any, name: str) -> set[str]:
    """Return the texts that settings hold under a name, however deep."""
    if not isinstance(settings, Mapping):
        return set()
    own = settings.get(name, ())
    found = {own} if isinstance(own, str) else set(own)
    return found.union(*(_values(child, name) for child in settings.values()))


def different(runs: Sequence[StoredRun]) -> list[str]:
    """Return the settings, length apart, in which the runs' tasks differ: their accuracies are not comparable."""
    tasks: list[dict[str, Any]] = [{**look_up(run.config, "experiment.task", {}), "data": data_of(run)} for run in runs]
    keys = sorted({key for task in tasks for key in task} - {"rounds", "targets"})
    return [key for key in keys if any(task.get(key) != tasks[0].get(key) for task in tasks)]


def _seed(run: StoredRun) -> int:
    return int(look_up(run.config, "experiment.seed", 0))


def _alone(group: Group) -> str:
    reached = f"{group.label} reaches {percent(group.accuracy, group.shown_spread)} % distributed accuracy"
    if group.num_seeds > 1:
        return f"{reached}, the mean over {group.num_seeds} seeds ± its deviation over them."
    how = f"(± over {group.spread_over})" if group.spread_over else "in its last round"
    lowest, highest = (percent(group.runs[0].summary[key]) + " %" for key in ("edge_min", "edge_max"))
    if names := edge_names(group.runs[0]):
        accuracy_E = edge_accuracy(group.runs[0])
        worst, best = (names[int(end(accuracy_E))] for end in (np.nanargmin, np.nanargmax))
        lowest, highest = f"{lowest} ({worst})", f"{highest} ({best})"
    return f"{reached} {how}; its edges range from {lowest} to {highest}."


def _score(group: Group) -> str:
    return f"{group.label} ({percent(group.accuracy, group.shown_spread)} %)"


def _gaps(first: Group, others: Sequence[Group]) -> str:
    """Return the distances to the others; of many, only to the next and the last."""
    shown = others if len(others) <= 3 else [others[0], others[-1]]
    points = [f"{100 * (first.accuracy - group.accuracy):.1f}{' points' * (group is shown[0])}" for group in shown]
    names = [f"{group.label} ({percent(group.accuracy)} %)" for group in shown]
    return _join([f"{gap} above {name}" for gap, name in zip(points, names, strict=True)])


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
