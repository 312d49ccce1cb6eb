"""What the paper says about the way to a target: rounds (“Convergence Speed”), bytes (“Communication Cost Model”)."""

import math
from collections.abc import Callable

from fedbac.presets.tasks import TASKS
from fedbac_paper.artefacts import SIX
from fedbac_paper.measures import (
    COUNTS,
    OTHERS,
    Claim,
    bound,
    byte_ratios,
    noted,
    own_numbers,
    reached,
    round_ratios,
    values,
)
from fedbac_paper.names import task_name
from fedbac_paper.paper import READINGS, look_up, rounds_to
from fedbac_paper.results import Finding, Results
from fedbac_paper.verdicts import (
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
    rounds = reached(results, task, target, reading).values()
    if not rounds or any(at is not None for at in rounds):
        return None
    if len(rounds) < FEWEST_SEEDS:
        return Verdict("too few seeds", "never reached")
    paper = rounds_to(task, "fed-bac", float(target))
    if paper is None:
        return Verdict("not clear", "never reached, nor in the paper")
    return Verdict("does not hold", f"never reached, in the paper in round {paper:.0f}")


def _goals(tasks: tuple[str, ...], by: str) -> dict[str, tuple[str, str]]:
    """Return by name the targets of tasks that a method of the paper reaches."""
    return {
        f"{task_name(task)}, {target:.0%}": (task, f"{target:g}")
        for task in tasks
        for target in TASKS[task].targets
        if rounds_to(task, by, target)
    }


def _towards(
    results: Results, tasks: tuple[str, ...], reading: str, judge: Ratio, by: str, count: str | None = None
) -> Verdict:
    """Judge the ratios to all targets that a method of the paper reaches."""
    return every(
        {
            name: _on_the_way(results, task, target, reading, judge, count)
            for name, (task, target) in _goals(tasks, by).items()
        }
    )


def _in_range(low: float, high: float) -> Ratio:
    return lambda ratios, mark: ratio_between(ratios, low, high, mark)


def _own_ratios(low: float, high: float, scale: float = 1.0) -> str:
    """Return the paper's own ratios outside a range, read off its curves."""
    outside = []
    for name, (task, target) in _goals(SIX, "hierfavg").items():
        base, ours = (rounds_to(task, method, float(target)) for method in ("hierfavg", "fed-bac"))
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
        verdict = _towards(results, SIX, reading, faster, by="fed-bac")
        out.append(Claim(f"{reading} reaches every target in fewer rounds than HierFAVG", verdict))
        ranged = _towards(results, SIX, reading, _in_range(low, high), by="hierfavg")
        text = f"{reading} converges “{low:g}–{high:g}× faster depending on dataset and accuracy target” than HierFAVG"
        out.append(Claim(text, noted(ranged, _own_ratios(low, high))))
        for task, printed in look_up("round_ratios").items():
            for target, ratio in printed.items():
                text = f"{reading} reaches {float(target):.0%} on {task_name(task)} {ratio:g}× faster than HierFAVG"
                out.append(Claim(text, _on_the_way(results, task, target, reading, _in_range(ratio, ratio))))
        text = f"{reading} “reaches each SVHN target {narrow[0]:g}–{narrow[1]:g}× faster than HierFAVG”, α = 0.5"
        out.append(Claim(text, _towards(results, ("svhn",), reading, _in_range(*narrow), by="hierfavg")))
        only = {}
        for task, target in look_up("only_to_reach").items():
            goal = f"{float(target):.0%} on {task_name(task, alpha=False)}"
            for variant in (reading, *OTHERS):
                rounds = reached(results, task, target, variant).values()
                wanted = variant == reading
                name = f"{variant} reaches {goal}" if wanted else f"{variant} does not reach {goal}"
                only[name] = always([(at is not None) == wanted for at in rounds], "so")
        text = f"{reading} is “the only method to exceed 70 %” on CIFAR-10, and to reach 85 % on Fashion-MNIST, α = 0.5"
        out.append(Claim(text, every(only)))
        out += [*_against_ifca(results, reading), *_severe(results, reading)]
    return out


def _against_ifca(results: Results, reading: str) -> list[Claim]:
    task = "fashion-mnist"
    first = {
        name: faster(
            [*round_ratios(results, task, target, reading, "ifca").values()],
            bound(results, task, target, reading, "ifca"),
        )
        for name, (_, target) in _goals((task,), "ifca").items()
    }
    paper = look_up("overtakes", task, "ifca")
    overtakes = [*_overtakes(results, task, reading, "ifca").values()]
    never = f", {TASKS[task].rounds + 1} means never" if max(overtakes, default=0) > TASKS[task].rounds else ""
    return [
        Claim(f"on Fashion-MNIST, α = 0.5, “IFCA converges faster at lower targets” than {reading}", every(first)),
        Claim(
            f"{reading} “overtakes IFCA after approximately {paper} rounds” there",
            noted(near(overtakes, paper), f"the first round kept after which it stays above{never}"),
        ),
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
            rounds = reached(results, task, target, reading).values()
            shown = ", ".join("never" if at is None else str(at) for at in rounds)
            name = f"{float(target):.0%} on {task_name(task, alpha=False)} by round {paper}"
            parts[name] = always([at is not None and at <= paper for at in rounds], f"{shown}: so")
    parts["HierFAVG stays below 50% on CIFAR-10"] = always(
        [at is None for at in reached(results, "cifar10-severe", "0.5", "hierfavg").values()], "so"
    )
    too_late = TASKS["svhn-severe"].rounds + 1
    ours, theirs = (
        {seed: at or too_late for seed, at in reached(results, "svhn-severe", target, variant).items()}
        for target, variant in (("0.9", reading), ("0.8", "hierfavg"))
    )
    parts["90% on SVHN before HierFAVG's 80%"] = below(ours, theirs, "rounds", 1)
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
        pays = _towards(results, SIX, reading, faster, by="hierfavg", count=first)
        text = f"{reading}: “convergence speedups more than compensate for the doubled model payload” ({first})"
        out.append(Claim(text, noted(pays, _own_ratios(1.0, math.inf, per_round))))
    return out


def _per_round(found: Finding) -> float:
    return found.bytes.client_train / found.rounds
