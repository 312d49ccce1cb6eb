"""The way to a target accuracy: the rounds and bytes that methods need, as ratios, and the verdicts on them."""

from collections.abc import Callable

from fedbac.presets.tasks import TASKS
from fedbac.statistics import FEWEST_SEEDS
from fedbac_paper.claims import own_numbers
from fedbac_paper.paper import rounds_to
from fedbac_paper.results import Bytes, Finding, Results
from fedbac_paper.tasks import SIX, task_name
from fedbac_paper.verdicts import Bound, Verdict, every, ratio_between

BASE = "hierfavg"
"""What rounds and bytes are compared with."""
COUNTS: dict[str, Callable[[Bytes], int]] = {
    "training between clients and edges": lambda sent: sent.client_train,
    "all training": lambda sent: sent.train,
    "with evaluation and control": lambda sent: sent.everything,
}
"""What of the traffic is counted; the first is all that the paper counts (C.39)."""
RATIOS = "how.md#ratios"
"""Where the marks of ratios are explained."""

RatioRule = Callable[[list[float], Bound], Verdict]
"""Judges ratios, one per seed, that are perhaps only a bound."""


def round_ratios(results: Results, task: str, target: str, other: str, variant: str) -> dict[int, float]:
    """Return by seed how many times the rounds of ``variant`` the other needs.

    Never reaching the target counts as one round too late; where nobody ever does, there is no ratio.
    """
    return _ratios(results, task, target, other, variant, lambda found, at: found.targets[at].round, _too_late)


def byte_ratios(
    results: Results, task: str, target: str, other: str, variant: str, count: Callable[[Bytes], int]
) -> dict[int, float]:
    """Return by seed how many times the bytes of ``variant`` the other needs.

    Never reaching the target counts as the bytes of the whole run, or as those of the one that does if they are more:
    who never gets there never wins. Where nobody ever does, there is no ratio.
    """

    def sent(found: Finding, at: str) -> int | None:
        until = found.targets[at].bytes
        return None if until is None else count(until)

    return _ratios(results, task, target, other, variant, sent, lambda found: count(found.bytes))


def _too_late(found: Finding) -> int:
    return found.rounds + 1


def _ratios(
    results: Results,
    task: str,
    target: str,
    other: str,
    variant: str,
    needed: Callable[[Finding, str], int | None],
    missed: Callable[[Finding], int],
) -> dict[int, float]:
    ratios, anybody = {}, False
    for seed, (theirs, ours) in _pairs(results, task, target, other, variant).items():
        late, early = needed(theirs, target), needed(ours, target)
        anybody |= late is not None or early is not None
        top = max(missed(theirs), early or missed(ours)) if late is None else late
        bottom = max(missed(ours), late or missed(theirs)) if early is None else early
        ratios[seed] = top / bottom
    return ratios if anybody else {}


def bound(results: Results, task: str, target: str, other: str, variant: str) -> Bound:
    """Return what a mean of ratios is: a lower bound where the other never gets there, an upper where we do not."""
    pairs = _pairs(results, task, target, other, variant).values()
    late = any(theirs.targets[target].round is None for theirs, _ in pairs)
    early = any(ours.targets[target].round is None for _, ours in pairs)
    return "~" if late and early else ">" if late else "<" if early else ""


def _pairs(results: Results, task: str, target: str, other: str, variant: str) -> dict[int, tuple[Finding, Finding]]:
    theirs, ours = results.of(task, other), results.of(task, variant)
    both = {seed: (theirs[seed], ours[seed]) for seed in sorted(set(theirs) & set(ours))}
    return {seed: pair for seed, pair in both.items() if all(target in found.targets for found in pair)}


def reached(results: Results, task: str, target: str, variant: str) -> dict[int, int | None]:
    """Return by seed the round in which a target is reached, None for never."""
    runs = results.of(task, variant)
    return {seed: found.targets[target].round for seed, found in runs.items() if target in found.targets}


def targets_of(results: Results, task: str) -> list[str]:
    """Return the targets that are known for a task."""
    return sorted({key for f in results.findings if f.task == task for key in f.targets}, key=float)


def judge_target(
    results: Results, task: str, target: str, reading: str, judge: RatioRule, count: str | None = None
) -> Verdict:
    """Judge the ratio of HierFAVG's rounds to a target, or bytes, to those of a reading."""
    never = _never_reached(results, task, target, reading)
    if never:
        return never
    if count is None:
        ratios = round_ratios(results, task, target, BASE, reading)
    else:
        ratios = byte_ratios(results, task, target, BASE, reading, COUNTS[count])
    return judge([*ratios.values()], bound(results, task, target, BASE, reading))


def _never_reached(results: Results, task: str, target: str, reading: str) -> Verdict | None:
    """Return the verdict on a target that no run of a reading reaches."""
    rounds = reached(results, task, target, reading).values()
    if not rounds or any(at is not None for at in rounds):
        return None
    if len(rounds) < FEWEST_SEEDS:
        return Verdict("too few seeds", "never reached")
    paper = rounds_to(task, "fed-bac", float(target))
    if paper is None:
        return Verdict("not clear", "never reached, nor in the paper")
    return Verdict("does not hold", f"never reached, in the paper in round {paper:.0f}")


def goals(tasks: tuple[str, ...], by: str) -> dict[str, tuple[str, str]]:
    """Return by name the targets of tasks that a method of the paper reaches."""
    return {
        f"{task_name(task)}, {target:.0%}": (task, f"{target:g}")
        for task in tasks
        for target in TASKS[task].targets
        if rounds_to(task, by, target)
    }


def judge_targets(
    results: Results, tasks: tuple[str, ...], reading: str, judge: RatioRule, by: str, count: str | None = None
) -> Verdict:
    """Judge the ratios to all targets that a method of the paper reaches."""
    return every(
        {
            name: judge_target(results, task, target, reading, judge, count)
            for name, (task, target) in goals(tasks, by).items()
        }
    )


def in_range(low: float, high: float) -> RatioRule:
    """Return the rule "the ratio is in this range"."""
    return lambda ratios, mark: ratio_between(ratios, low, high, mark)


def own_ratios(low: float, high: float, scale: float = 1.0) -> str:
    """Return the paper's own ratios outside a range, read off its curves."""
    outside = []
    for name, (task, target) in goals(SIX, BASE).items():
        base, ours = (rounds_to(task, method, float(target)) for method in (BASE, "fed-bac"))
        if base and ours and not low <= round(base / ours / scale, 1) <= high:
            outside.append(f"{base / ours / scale:.2f} ({name})")
    return own_numbers("curves", outside)
