"""The claims of each table and figure, judged on our results by the rules of ``verdicts``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedbac.reproduce.artefacts import ARTEFACTS, FRACTIONS, MODERATE, RANDOM_CLIENTS, SELECTION_TASKS, SEVERE, SIX
from fedbac.reproduce.names import task_name
from fedbac.reproduce.paper import READINGS, look_up, printed_as
from fedbac.reproduce.results import Bytes, Finding, Results
from fedbac.reproduce.verdicts import Verdict, above, between, every, faster, near, positive

Number = Callable[[Finding], float]


@dataclass(frozen=True)
class Claim:
    """A sentence that may hold or not."""

    text: str
    verdict: Verdict


def claims(results: Results) -> list[Claim]:
    """Return the claims of an artefact with their verdicts; none for the calibration."""
    judge = _JUDGES.get(results.artefact)
    return judge(results) if judge else []


def accuracy(finding: Finding) -> float:
    """The final distributed accuracy."""
    return finding.accuracy


def spread(finding: Finding) -> float:
    """The standard deviation over edges."""
    return finding.edge_std


def values(results: Results, task: str, variant: str, number: Number = accuracy) -> dict[int, float]:
    """Return a number of each seed of a cell."""
    return {seed: number(found) for seed, found in results.of(task, variant).items()}


def round_ratios(results: Results, task: str, target: str, other: str, variant: str) -> dict[int, float]:
    """Return by seed how many times the rounds of ``variant`` the other needs.

    Never reaching the target counts as one round too late; where nobody ever does, there is no ratio.
    """
    theirs, ours = results.of(task, other), results.of(task, variant)
    seeds = sorted(set(theirs) & set(ours))
    pairs = {seed: (theirs[seed].targets[target].round, ours[seed].targets[target].round) for seed in seeds}
    if all(pair == (None, None) for pair in pairs.values()):
        return {}
    return {
        seed: (late or theirs[seed].rounds + 1) / (early or ours[seed].rounds + 1)
        for seed, (late, early) in pairs.items()
    }


def byte_ratios(
    results: Results, task: str, target: str, other: str, variant: str, count: Callable[[Bytes], int]
) -> dict[int, float]:
    """Return by seed how many times the bytes of ``variant`` the other needs, where both reach the target."""
    theirs, ours = results.of(task, other), results.of(task, variant)
    ratios = {}
    for seed in sorted(set(theirs) & set(ours)):
        late, early = theirs[seed].targets[target].bytes, ours[seed].targets[target].bytes
        if late is not None and early is not None:
            ratios[seed] = count(late) / count(early)
    return ratios


def targets_of(results: Results, task: str) -> list[str]:
    """Return the targets that are known for a task."""
    return sorted({key for f in results.findings if f.task == task for key in f.targets}, key=float)


# ------------------------------------------------------------------------------------------- the paper's claims


def _in_all(results: Results, tasks: tuple[str, ...], higher: str, lower: str, number: Number = accuracy) -> Verdict:
    return every(
        {
            task_name(task): above(values(results, task, higher, number), values(results, task, lower, number))
            for task in tasks
        }
    )


def _table_2(results: Results) -> list[Claim]:
    out = [Claim("IFCA is above HierFAVG in all six settings", _in_all(results, SIX, "ifca", "hierfavg"))]
    for reading in READINGS:
        for other, name in (("ifca", "IFCA"), ("hierfavg", "HierFAVG")):
            verdict = _in_all(results, SIX, reading, other)
            out.append(Claim(f"{reading} is above {name} in all six settings", verdict))
        grows = {}
        for mild, harsh in zip(MODERATE, SEVERE, strict=True):
            large, small = (_gap(results, task, reading, "hierfavg") for task in (harsh, mild))
            grows[task_name(mild, alpha=False)] = above(large, small)
        out.append(Claim(f"the gap from {reading} to HierFAVG grows with heterogeneity", every(grows)))
    return out


def _gap(results: Results, task: str, higher: str, lower: str) -> dict[int, float]:
    top, bottom = values(results, task, higher), values(results, task, lower)
    return {seed: top[seed] - bottom[seed] for seed in set(top) & set(bottom)}


def _fairness(results: Results) -> list[Claim]:
    worst: Number = lambda found: found.edge_min  # noqa: E731
    out = []
    for reading in READINGS:
        for other in ("ifca", "hierfavg"):
            text = f"{reading} has a smaller σ over edges than {other} in all six settings"
            out.append(Claim(text, _in_all(results, SIX, other, reading, spread)))
            text = f"the worst edge of {reading} is above the worst of {other} in all six settings"
            out.append(Claim(text, _in_all(results, SIX, reading, other, worst)))
    return out


def _scaling(results: Results) -> list[Claim]:
    task = "cifar10-500"

    def early(variant: str) -> dict[int, float]:
        curves = {seed: found.curve for seed, found in results.of(task, variant).items()}
        at = {seed: curve.at(20) if curve else None for seed, curve in curves.items()}
        return {seed: number for seed, number in at.items() if number is not None}

    out = [Claim("IFCA is above HierFAVG", above(values(results, task, "ifca"), values(results, task, "hierfavg")))]
    for reading in READINGS:
        for other in ("ifca", "hierfavg"):
            verdict = above(values(results, task, reading), values(results, task, other))
            out.append(Claim(f"{reading} is above {other}", verdict))
            out.append(Claim(f"{reading} is above {other} at round 20", above(early(reading), early(other))))
    return out


def _selection(results: Results) -> list[Claim]:
    out = []
    for reading in READINGS:
        random = reading + RANDOM_CLIENTS
        better = _in_all(results, SELECTION_TASKS, reading, random)
        fairer = _in_all(results, SELECTION_TASKS, random, reading, spread)
        out.append(Claim(f"{reading}: Thompson sampling is more accurate than random clients", better))
        out.append(Claim(f"{reading}: Thompson sampling has a smaller σ over edges than random clients", fairer))
    return out


def _capacity(results: Results) -> list[Claim]:
    task, wide = "cifar10", "hierfavg-wide"
    verdict = above(values(results, task, wide), values(results, task, "hierfavg"))
    out = [Claim("the wider HierFAVG is above HierFAVG", verdict)]
    for reading in READINGS:
        verdict = above(values(results, task, reading), values(results, task, wide))
        out.append(Claim(f"{reading} is above the wider HierFAVG", verdict))
        gain, gap = _gap(results, task, wide, "hierfavg"), _gap(results, task, reading, "hierfavg")
        rest = [gap[seed] / 2 - gain[seed] for seed in sorted(set(gain) & set(gap))]
        out.append(Claim(f"width makes up for less than half of the gap to {reading}", positive(rest)))
    return out


def _convergence(results: Results) -> list[Claim]:
    out = []
    for reading in READINGS:
        for other in ("hierfavg", "ifca"):
            parts = {
                f"{task_name(task)}, {float(target):.0%}": faster(list(ratios.values()))
                for task in SIX
                for target in targets_of(results, task)
                if (ratios := round_ratios(results, task, target, other, reading))
            }
            parts |= {task_name(task): Verdict("not run") for task in SIX if not results.of(task, reading)}
            out.append(Claim(f"{reading} reaches every target in fewer rounds than {other}", every(parts)))
        for task, printed in look_up("round_ratios").items():
            for target, ratio in printed.items():
                text = (
                    f"{reading} reaches {float(target):.0%} on {task_name(task)} {ratio:g} times faster than HierFAVG"
                )
                ours = round_ratios(results, task, target, "hierfavg", reading)
                out.append(Claim(text, _reached(results, task, reading, ours) or near(list(ours.values()), ratio)))
        parts = {}
        for target in targets_of(results, "svhn"):
            ours = round_ratios(results, "svhn", target, "hierfavg", reading)
            inside = between(list(ours.values()), 1.5, 1.9)
            parts[f"{float(target):.0%}"] = _reached(results, "svhn", reading, ours) or inside
        text = f"{reading} reaches each target on {task_name('svhn')} 1.5 to 1.9 times faster than HierFAVG"
        out.append(Claim(text, every(parts)))
    return out


def _reached(results: Results, task: str, variant: str, ratios: Mapping[int, float]) -> Verdict | None:
    """Return the verdict on a ratio that does not exist although there are runs."""
    return Verdict("not clear", "target not reached") if not ratios and results.of(task, variant) else None


def _dynamics(results: Results) -> list[Claim]:
    numbers: dict[str, tuple[str, Number]] = {
        "moves": ("the number of reassignments", lambda found: found.moves),
        "active_clusters": ("the number of active clusters at the end", lambda found: found.active_clusters),
    }
    names = {task: task_name(task, alpha=False) for task in MODERATE}
    out = []
    for variant in ("ifca", *READINGS):
        for key, (words, number) in numbers.items():
            parts = {}
            for task, name in names.items():
                printed = look_up("dynamics", task, printed_as(variant), key)[-1][1]
                parts[name] = near(list(values(results, task, variant, number).values()), printed)
            out.append(Claim(f"{variant}: {words} is the paper's", every(parts)))
        if variant != "ifca":
            calm = {name: positive(_calming(results, task, variant), "moves", 1) for task, name in names.items()}
            text = f"{variant}: there are more reassignments in the first half than in the second"
            out.append(Claim(text, every(calm)))
    return out


def _calming(results: Results, task: str, variant: str) -> list[float]:
    """Return how many more reassignments there were in the first half, one number per seed."""
    out = []
    for found in results.of(task, variant).values():
        if found.curve is not None:
            half = float(np.interp(found.rounds / 2, found.curve.round, found.curve.moves))
            out.append(half - (found.moves - half))
    return out


COUNTS: dict[str, Callable[[Bytes], int]] = {
    "training between clients and edges": lambda sent: sent.client_train,
    "training in all": lambda sent: sent.train,
    "with evaluation and control": lambda sent: sent.everything,
}
"""What of the traffic is counted; the first is all that the paper counts (C.39)."""


def _communication(results: Results) -> list[Claim]:
    out = []
    for reading in READINGS:
        for task, printed in look_up("byte_ratios").items():
            for target, ratio in printed.items():
                goal = f"{float(target):.0%} on {task_name(task)}"
                for words, count in COUNTS.items():
                    ours = byte_ratios(results, task, target, "hierfavg", reading, count)
                    never = _reached(results, task, reading, ours)
                    if words == next(iter(COUNTS)):
                        text = f"{reading} reaches {goal} with {ratio:g} times fewer bytes than HierFAVG ({words})"
                        out.append(Claim(text, never or near(list(ours.values()), ratio)))
                    verdict = faster(list(ours.values()))
                    text = f"{reading} reaches {goal} with fewer bytes than HierFAVG ({words})"
                    out.append(Claim(text, never or verdict))
    return out


# -------------------------------------------------------------------------------------- what the paper leaves out


def _ablation(results: Results) -> list[Claim]:
    questions: Mapping[str, tuple[str, str]] = {
        "the bandit's assignment is better than frozen singletons": ("fed-bac", "additive, frozen singletons"),
        "the bandit's assignment is better than lowest loss with K = 5": ("fed-bac", "additive, lowest loss, K = 5"),
        "the bandit's assignment is better than lowest loss with K = M": ("fed-bac", "additive, lowest loss, K = M"),
        "the bandit's assignment is better than a random one": ("fed-bac", "additive, random assignment"),
        "the additive part helps the bandits": ("fed-bac", "LinUCB, not additive"),
        "clipping each network by itself helps Fed-BAC": ("fed-bac, clipped one by one", "fed-bac"),
        "clipping each network by itself helps frozen singletons": (
            "singletons, clipped one by one",
            "additive, frozen singletons",
        ),
        "Fed-BAC is above IFCA with K = M": ("fed-bac", "ifca, K = M"),
        "Fed-BAC is above IFCA with twice the weights": ("fed-bac", "ifca, twice the weights"),
        "IFCA is better when its networks start apart": ("ifca, networks start apart", "ifca"),
        "frozen singletons are above IFCA": ("additive, frozen singletons", "ifca"),
        "frozen singletons are above IFCA with K = M": ("additive, frozen singletons", "ifca, K = M"),
    }
    return [Claim(text, _in_all(results, SIX, higher, lower)) for text, (higher, lower) in questions.items()]


def _beyond(results: Results) -> list[Claim]:
    variants = ARTEFACTS["beyond"].variants
    new = [variant for variant in variants if variant in {"fedbac-plus", "fedbac-merging"}]
    return [
        Claim(f"{ours} is above {other} in all six settings", _in_all(results, SIX, ours, other))
        for ours in new
        for other in variants
        if other not in new
    ]


def _participation(results: Results) -> list[Claim]:
    out = []
    for fraction in FRACTIONS[:-1]:
        name = f"p = {fraction:g}"
        verdict = _in_all(results, SELECTION_TASKS, name, name + RANDOM_CLIENTS)
        out.append(Claim(f"at {name} Thompson sampling is above random clients", verdict))
    few, many = f"p = {FRACTIONS[0]:g}", "p = 0.8"
    parts = {
        task_name(task): above(
            _gap(results, task, few, few + RANDOM_CLIENTS), _gap(results, task, many, many + RANDOM_CLIENTS)
        )
        for task in SELECTION_TASKS
    }
    return [*out, Claim(f"the gain of Thompson sampling is larger at {few} than at {many}", every(parts))]


_JUDGES: dict[str, Callable[[Results], list[Claim]]] = {
    "table-2": _table_2,
    "table-fairness": _fairness,
    "table-scaling": _scaling,
    "table-selection": _selection,
    "capacity": _capacity,
    "figure-convergence": _convergence,
    "figure-dynamics": _dynamics,
    "communication": _communication,
    "ablation": _ablation,
    "beyond": _beyond,
    "participation": _participation,
}
