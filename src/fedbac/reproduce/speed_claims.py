"""What the paper says about the way to a target: rounds (“Convergence Speed”), bytes (“Communication Cost Model”)."""

import math
from collections.abc import Callable

from fedbac.reproduce.artefacts import SIX
from fedbac.reproduce.measures import (
    COUNTS,
    OTHERS,
    Claim,
    bound,
    byte_ratios,
    noted,
    own_numbers,
    round_ratios,
    targets_of,
    values,
)
from fedbac.reproduce.names import task_name
from fedbac.reproduce.paper import READINGS, look_up, rounds_to
from fedbac.reproduce.results import Finding, Results
from fedbac.reproduce.verdicts import (
    FEWEST_SEEDS,
    Bound,
    Verdict,
    always,
    below,
    every,
    faster,
    near,
    positive,
    ratio_between,
)

Ratio = Callable[[list[float], Bound], Verdict]


def _on_the_way(
    results: Results, task: str, target: str, reading: str, judge: Ratio, count: str | None = None
) -> Verdict:
    """Judge the ratio of HierFAVG's rounds to a target, or bytes, to those of a reading."""
    never = _never(results, task, target, reading)
    if never:
        return never
    if count is None:
        ratios = round_ratios(results, task, target, "hierfavg", reading)
    else:
        ratios = byte_ratios(results, task, target, "hierfavg", reading, COUNTS[count])
    return judge([*ratios.values()], bound(results, task, target, "hierfavg", reading))


def _never(results: Results, task: str, target: str, reading: str) -> Verdict | None:
    """Return the verdict on a target that no run of a reading reaches."""
    rounds = [found.targets[target].round for found in results.of(task, reading).values()]
    if not rounds or any(at is not None for at in rounds):
        return None
    if len(rounds) < FEWEST_SEEDS:
        return Verdict("too few seeds", "never reached")
    paper = rounds_to(task, "fed-bac", float(target))
    if paper is None:
        return Verdict("not clear", "never reached, nor in the paper")
    return Verdict("does not hold", f"never reached, in the paper in round {paper:.0f}")


def _goals(results: Results, tasks: tuple[str, ...], both: bool) -> dict[str, tuple[str, str]]:
    """Return the targets of tasks by name; of those not run yet too. ``both``: that the paper's HierFAVG reaches."""
    return {
        f"{task_name(task)}, {float(target):.0%}" if target else task_name(task): (task, target)
        for task in tasks
        for target in targets_of(results, task) or [""]
        if not (both and target) or rounds_to(task, "hierfavg", float(target))
    }


def _towards(
    results: Results, tasks: tuple[str, ...], reading: str, judge: Ratio, both: bool, count: str | None = None
) -> Verdict:
    return every(
        {
            name: _on_the_way(results, task, target, reading, judge, count) if target else Verdict("not run")
            for name, (task, target) in _goals(results, tasks, both).items()
        }
    )


def _in_range(low: float, high: float) -> Ratio:
    return lambda ratios, mark: ratio_between(ratios, low, high, mark)


def _own_ratios(results: Results, low: float, high: float, scale: float = 1.0) -> str:
    """Return the paper's own ratios outside a range, read off its curves."""
    outside = []
    for name, (task, target) in _goals(results, SIX, both=True).items():
        base, ours = (rounds_to(task, method, float(target or 1)) for method in ("hierfavg", "fed-bac"))
        if base and ours and not low <= round(base / ours / scale, 1) <= high:
            outside.append(f"{base / ours / scale:.2f} ({name})")
    return own_numbers("curves", outside)


def convergence(results: Results) -> list[Claim]:
    """Convergence figure and "Convergence Speed"."""
    low, high = look_up("round_ratio_ranges", "all")
    narrow = look_up("round_ratio_ranges", "svhn")
    plateaus = {
        f"{OTHERS[other]} below {level} %": positive(
            [one - level / 100 for one in values(results, task, other).values()], claimed=-1
        )
        for task, levels in look_up("plateaus").items()
        for other, level in levels.items()
    }
    out = [Claim("HierFAVG and IFCA “plateau below 58 % and 66 %” on CIFAR-10, α = 0.5", every(plateaus))]
    for reading in READINGS:
        verdict = _towards(results, SIX, reading, faster, both=False)
        out.append(Claim(f"{reading} reaches every target in fewer rounds than HierFAVG", verdict))
        ranged = _towards(results, SIX, reading, _in_range(low, high), both=True)
        text = f"{reading} converges “{low:g}–{high:g}× faster depending on dataset and accuracy target” than HierFAVG"
        out.append(Claim(text, noted(ranged, _own_ratios(results, low, high))))
        for task, printed in look_up("round_ratios").items():
            for target, ratio in printed.items():
                text = f"{reading} reaches {float(target):.0%} on {task_name(task)} {ratio:g}× faster than HierFAVG"
                out.append(Claim(text, _on_the_way(results, task, target, reading, _in_range(ratio, ratio))))
        text = f"{reading} “reaches each SVHN target {narrow[0]:g}–{narrow[1]:g}× faster than HierFAVG”, α = 0.5"
        out.append(Claim(text, _towards(results, ("svhn",), reading, _in_range(*narrow), both=True)))
        only = {}
        for task, target in look_up("only_to_reach").items():
            goal = f"{float(target):.0%} on {task_name(task, alpha=False)}"
            for variant in (reading, *OTHERS):
                got = [found.targets[target].round is not None for found in results.of(task, variant).values()]
                wanted = variant == reading
                name = f"{variant} reaches {goal}" if wanted else f"{variant} does not reach {goal}"
                only[name] = always([one == wanted for one in got], "so")
        text = f"{reading} is “the only method to exceed 70 %” on CIFAR-10, and to reach 85 % on Fashion-MNIST, α = 0.5"
        out.append(Claim(text, every(only)))
        out += [*_against_ifca(results, reading), *_severe(results, reading)]
    return out


def _rounds(results: Results, task: str, target: str, variant: str) -> dict[int, float]:
    """Return the round of a target by seed; never is one round too late."""
    return {seed: found.targets[target].round or found.rounds + 1 for seed, found in results.of(task, variant).items()}


def _against_ifca(results: Results, reading: str) -> list[Claim]:
    task = "fashion-mnist"
    lower = [target for target in targets_of(results, task) if rounds_to(task, "ifca", float(target))]
    first = {
        f"{float(target):.0%}": faster(
            [*round_ratios(results, task, target, reading, "ifca").values()],
            bound(results, task, target, reading, "ifca"),
        )
        for target in lower
    }
    paper = look_up("overtakes", task, "ifca")
    overtakes = [*_overtakes(results, task, reading, "ifca").values()]
    return [
        Claim(f"on Fashion-MNIST, α = 0.5, “IFCA converges faster at lower targets” than {reading}", every(first)),
        Claim(f"{reading} “overtakes IFCA after approximately {paper} rounds” there", near(overtakes, paper)),
    ]


def _overtakes(results: Results, task: str, variant: str, other: str) -> dict[int, float]:
    """Return by seed the first kept round from which a variant stays above the other; one too late if it ends below."""
    ours, theirs = results.of(task, variant), results.of(task, other)
    out: dict[int, float] = {}
    for seed in sorted(set(ours) & set(theirs)):
        mine, its = ours[seed].curve, theirs[seed].curve
        if mine is None or its is None:
            continue
        common = [round_ for round_ in mine.round if round_ in its.round]
        behind = [round_ for round_ in common if (mine.at(round_) or 0) <= (its.at(round_) or 0)]
        last = max(behind, default=0)
        out[seed] = next((round_ for round_ in common if round_ > last), ours[seed].rounds + 1)
    return out


def _severe(results: Results, reading: str) -> list[Claim]:
    parts = {}
    for task, printed in look_up("by_round").items():
        for target, paper in printed.items():
            runs = results.of(task, reading).values()
            rounds = [found.targets[target].round for found in runs]
            shown = ", ".join("never" if at is None else str(at) for at in rounds)
            name = f"{float(target):.0%} on {task_name(task, alpha=False)} by round {paper}"
            parts[name] = always([at is not None and at <= paper for at in rounds], f"{shown}: so")
    parts["HierFAVG stays below 50% on CIFAR-10"] = always(
        [found.targets["0.5"].round is None for found in results.of("cifar10-severe", "hierfavg").values()], "so"
    )
    goals = (_rounds(results, "svhn-severe", "0.9", reading), _rounds(results, "svhn-severe", "0.8", "hierfavg"))
    parts["90% on SVHN before HierFAVG's 80%"] = below(*goals, unit="rounds", scale=1)
    text = (
        f"α = 0.1: {reading} “surpasses 80 % by round 40” on CIFAR-10, “90 % by round 53” on SVHN, HierFAVG far behind"
    )
    return [Claim(text, every(parts))]


def communication(results: Results) -> list[Claim]:
    """ "Communication Cost Model"; the paper counts training between clients and edges only."""
    out, (first, *_) = [], COUNTS
    per_round = look_up("bytes_per_round")
    for reading in READINGS:
        parts = {}
        for task in SIX:
            ours, theirs = (values(results, task, v, _per_round) for v in (reading, "hierfavg"))
            parts[task_name(task)] = ratio_between(
                [ours[s] / theirs[s] for s in set(ours) & set(theirs)], per_round, per_round
            )
        out.append(Claim(f"{reading} costs {per_round:g} times HierFAVG's bytes per round ({first})", every(parts)))
        fewer: dict[str, Verdict] = {}
        for task, printed in look_up("byte_ratios").items():
            for target, ratio in printed.items():
                goal = f"{float(target):.0%} on {task_name(task)}"
                inferred = "" if task == "cifar10" else "; the paper names no target, this one is inferred (C.38)"
                text = f"{reading} reaches {goal} with {ratio:g} times fewer bytes than HierFAVG ({first}{inferred})"
                out.append(Claim(text, _on_the_way(results, task, target, reading, _in_range(ratio, ratio), first)))
                fewer |= {
                    f"{goal}, {words}": _on_the_way(results, task, target, reading, faster, words) for words in COUNTS
                }
        out.append(Claim(f"{reading} needs fewer bytes than HierFAVG there, however they are counted", every(fewer)))
        pays = _towards(results, SIX, reading, faster, both=True, count=first)
        text = f"{reading}: “convergence speedups more than compensate for the doubled model payload” ({first})"
        out.append(Claim(text, noted(pays, _own_ratios(results, 1.0, math.inf, per_round))))
    return out


def _per_round(found: Finding) -> float:
    return found.bytes.client_train / found.rounds
