"""Numbers of a result, by seed, that claims are about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedbac_paper.names import task_name
from fedbac_paper.results import Bytes, Finding, Results
from fedbac_paper.verdicts import Bound, Verdict, above, below, every

Number = Callable[[Finding], float]


@dataclass(frozen=True)
class Claim:
    """A sentence that may hold or not."""

    text: str
    verdict: Verdict


OTHERS = {"hierfavg": "HierFAVG", "ifca": "IFCA"}

COUNTS: dict[str, Callable[[Bytes], int]] = {
    "training between clients and edges": lambda sent: sent.client_train,
    "training in all": lambda sent: sent.train,
    "with evaluation and control": lambda sent: sent.everything,
}
"""What of the traffic is counted; the first is all that the paper counts (C.39)."""


def accuracy(finding: Finding) -> float:
    """The final distributed accuracy."""
    return finding.accuracy


def spread(finding: Finding) -> float:
    """The standard deviation over edges."""
    return finding.edge_std


def values(results: Results, task: str, variant: str, number: Number = accuracy) -> dict[int, float]:
    """Return a number of each seed of a cell."""
    return {seed: number(found) for seed, found in results.of(task, variant).items()}


def gap(results: Results, task: str, higher: str, lower: str, number: Number = accuracy) -> dict[int, float]:
    """Return by seed by how much one variant is above another."""
    return minus(values(results, task, higher, number), values(results, task, lower, number))


def minus(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    """Return the difference in each seed that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(set(a) & set(b))}


def in_all(results: Results, tasks: Sequence[str], higher: str, lower: str) -> Verdict:
    """Judge "one variant is more accurate than another in each of these settings"."""
    return every(
        {task_name(task): above(values(results, task, higher), values(results, task, lower)) for task in tasks}
    )


def fairer(results: Results, task: str, variant: str, other: str) -> Verdict:
    """Judge "a variant has the smaller standard deviation over edges"."""
    return below(values(results, task, variant, spread), values(results, task, other, spread))


def moves_by(found: Finding, round_: int) -> int | None:
    """Return the reassignments until a round, if the curve keeps it."""
    curve = found.curve
    return curve.moves[curve.round.index(round_)] if curve and round_ in curve.round else None


def own_numbers(place: str, contradictions: list[str]) -> str:
    """Return what the paper's own numbers say against its sentence."""
    return f"the paper's own {place}: {', '.join(contradictions)}" if contradictions else ""


def noted(verdict: Verdict, note: str) -> Verdict:
    """Add to a verdict's evidence what the paper's own numbers say."""
    return replace(verdict, detail=f"{verdict.detail}; {note}".removeprefix("; ")) if note else verdict


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
