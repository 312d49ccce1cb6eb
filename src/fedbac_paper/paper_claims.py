"""What the paper says about its tables and figures, sentence by sentence, for each reading of Fed-BAC.

Where the paper's own numbers contradict its sentence, the evidence says so.
"""

import math
from collections.abc import Callable

from fedbac_paper.artefacts import MODERATE, RANDOM_CLIENTS, SELECTION_TASKS, SEVERE, SIX
from fedbac_paper.measures import (
    OTHERS,
    Claim,
    accuracy,
    fairer,
    gap,
    in_all,
    minus,
    moves_by,
    noted,
    own_numbers,
    spread,
    values,
)
from fedbac_paper.names import task_name
from fedbac_paper.paper import READINGS, look_up, period_of, printed_as
from fedbac_paper.results import Finding, Results
from fedbac_paper.verdicts import (
    Verdict,
    above,
    below,
    between,
    every,
    near,
    not_worse,
    positive,
    ratio_between,
)

PAIRS = dict(zip(MODERATE, SEVERE, strict=True))
"""α = 0.5 and α = 0.1 of each data set."""
NAMED = {"cifar10": PAIRS["cifar10"], "fashion-mnist": PAIRS["fashion-mnist"]}
"""Those that the paper names where it speaks of HierFAVG's fall; SVHN is not among them."""


def table_2(results: Results) -> list[Claim]:
    """Table II, the abstract and "Fed-BAC's advantage increases with heterogeneity"."""
    falls = {f"HierFAVG, {name}": verdict for name, verdict in _change(results, "hierfavg", NAMED, below).items()}
    rises = {f"IFCA, {name}": verdict for name, verdict in _change(results, "ifca", PAIRS, above).items()}
    out = [
        Claim("IFCA is above HierFAVG in all six settings", in_all(results, SIX, "ifca", "hierfavg")),
        Claim("from α = 0.5 to α = 0.1 “HierFAVG degrades substantially”, while IFCA improves", every(falls | rises)),
    ]
    printed = look_up("accuracy")
    for reading in READINGS:
        parts = _change(results, reading, PAIRS, above)
        out.append(Claim(f"from α = 0.5 to α = 0.1 {reading} improves", every(parts)))
        for other, name in OTHERS.items():
            out.append(Claim(f"{reading} is above {name} in all six settings", in_all(results, SIX, reading, other)))
            grows, own = {}, []
            for mild, harsh in PAIRS.items():
                data = task_name(mild, alpha=False)
                grows[data] = above(gap(results, harsh, reading, other), gap(results, mild, reading, other))
                before, after = (printed[task]["fed-bac"] - printed[task][other] for task in (mild, harsh))
                own += [f"+{before:.1f} → +{after:.1f} on {data}"] if after <= before else []
            verdict = noted(every(grows), own_numbers("Table II", own))
            out.append(Claim(f"the advantage of {reading} over {name} increases with heterogeneity", verdict))
        most = {}
        for other, name in OTHERS.items():
            task = max(SIX, key=lambda task: printed[task]["fed-bac"] - printed[task][other])
            ours = [100 * one for one in gap(results, task, reading, other).values()]
            most[f"{name}, {task_name(task)}"] = near(ours, round(printed[task]["fed-bac"] - printed[task][other], 1))
        text = (
            f"“gains of up to +35.5pp over HierFAVG and +8.4pp over IFCA”: those of {reading} where the paper has these"
        )
        out.append(Claim(text, every(most)))
    return out


def _change(
    results: Results,
    variant: str,
    pairs: dict[str, str],
    judge: Callable[..., Verdict],
    number: Callable[[Finding], float] = accuracy,
) -> dict[str, Verdict]:
    """Judge α = 0.1 against α = 0.5 in each data set."""
    return {
        task_name(mild, alpha=False): judge(
            values(results, harsh, variant, number), values(results, mild, variant, number)
        )
        for mild, harsh in pairs.items()
    }


def fairness(results: Results) -> list[Claim]:
    """Table IV and "Cross-server fairness"; what the paper there calls variance is σ."""
    printed = look_up("fairness")
    svhn = [
        f"σ falls from {printed['svhn']['hierfavg']['sigma']} to {printed['svhn-severe']['hierfavg']['sigma']} on SVHN"
    ]
    sharper = every(_change(results, "hierfavg", NAMED, above, spread))
    text = "“HierFAVG's σ increases sharply” from α = 0.5 to α = 0.1 on CIFAR-10 and Fashion-MNIST"
    out = [Claim(text, noted(sharper, own_numbers("Table IV", svhn)))]
    against = [
        f"{own['fed-bac']['sigma']:.2f} against {name}'s {own[other]['sigma']:.2f} on {task_name(task)}"
        for other, name in OTHERS.items()
        for task in SIX
        if (own := printed[task])["fed-bac"]["sigma"] >= own[other]["sigma"]
    ]
    worst: Callable[[Finding], float] = lambda found: found.edge_min  # noqa: E731
    for reading in READINGS:
        smaller = {
            (task, name): fairer(results, task, reading, other) for task in SIX for other, name in OTHERS.items()
        }
        parts = {f"{task_name(task)}, {name}": verdict for (task, name), verdict in smaller.items()}
        text = (
            f"“improving cross-server fairness”: {reading} has a smaller σ than HierFAVG and IFCA in all six settings"
        )
        out.append(Claim(text, noted(every(parts), own_numbers("Table IV", against))))
        lowest = {
            f"{task_name(task)}, {name}": smaller[task, name]
            for task in ("svhn", "fashion-mnist")
            for name in OTHERS.values()
        }
        text = f"{reading} has “the lowest cross-server variance on SVHN and Fashion-MNIST” at α = 0.5"
        out.append(Claim(text, every(lowest)))
        theirs, ours = (values(results, "cifar10", variant, spread) for variant in ("ifca", reading))
        halves = ratio_between([theirs[seed] / ours[seed] for seed in sorted(set(theirs) & set(ours))], 2, math.inf)
        out.append(Claim(f"{reading} “halves IFCA's variance on CIFAR-10”, α = 0.5", halves))
        above_means = {
            f"{task_name(task)}, {OTHERS[other]}": above(
                values(results, task, reading, worst), values(results, task, other)
            )
            for task, other in (("cifar10", "hierfavg"), ("cifar10", "ifca"), ("cifar10-severe", "ifca"))
        }
        text = f"the worst server of {reading} on CIFAR-10 exceeds “every other method's mean” (α = 0.1: IFCA's)"
        out.append(Claim(text, every(above_means)))
        limits = {}
        for mild, harsh in NAMED.items():
            rise = {
                variant: minus(values(results, harsh, variant, spread), values(results, mild, variant, spread))
                for variant in (reading, "hierfavg")
            }
            limits[task_name(mild, alpha=False)] = below(rise[reading], rise["hierfavg"])
        out.append(Claim(f"{reading} “limits degradation”: its σ increases less than HierFAVG's", every(limits)))
    return out


def scaling(results: Results) -> list[Claim]:
    """Table III, "Gains hold at larger deployment scale" and "Convergence speed scales gracefully"."""
    task, printed = "cifar10-500", look_up("accuracy")

    def early(variant: str) -> dict[int, float]:
        curves = {seed: found.curve for seed, found in results.of(task, variant).items()}
        at = {seed: curve.at(20) if curve else None for seed, curve in curves.items()}
        return {seed: number for seed, number in at.items() if number is not None}

    smaller = {
        variant: below(values(results, task, variant), values(results, "cifar10", variant))
        for variant in (*OTHERS, *READINGS)
    }
    out = [
        Claim("IFCA is above HierFAVG", above(values(results, task, "ifca"), values(results, task, "hierfavg"))),
        Claim("“the distributed accuracy of all three methods is lower than at the primary scale”", every(smaller)),
    ]
    for reading in READINGS:
        own = {other: printed[task]["fed-bac"] - printed[task][other] for other in OTHERS}
        leads = {name: above(values(results, task, reading), values(results, task, o)) for o, name in OTHERS.items()}
        out.append(Claim(f"{reading} “retains its lead on distributed accuracy”", every(leads)))
        sizes = {
            name: near([100 * one for one in gap(results, task, reading, other).values()], round(own[other], 1))
            for other, name in OTHERS.items()
        }
        out.append(Claim(f"{reading} exceeds “HierFAVG by +12.6pp and IFCA by +3.3pp”", every(sizes)))
        large, small = (gap(results, scale, reading, "ifca") for scale in (task, "cifar10"))
        out.append(
            Claim(f"the margin of {reading} over IFCA “compresses” against that at N = 100", below(large, small))
        )
        parts = {name: above(early(reading), early(other)) for other, name in OTHERS.items()}
        out.append(Claim(f"{reading} is above HierFAVG and IFCA at round 20", every(parts)))
    return out


def selection(results: Results) -> list[Claim]:
    """Table V and "Impact of Client Selection Strategy"."""
    own = []
    for task in SELECTION_TASKS:
        random, thompson = (look_up("selection", task, kind) for kind in ("random", "thompson"))
        gain = f"+{thompson['mean'] - random['mean']:.2f} with spreads of {random['pm']} and {thompson['pm']}"
        own.append(f"{gain} on {task_name(task, alpha=False)}")
    out = []
    for reading in READINGS:
        random = reading + RANDOM_CLIENTS
        better = in_all(results, SELECTION_TASKS, reading, random)
        text = f"{reading}: Thompson sampling is more accurate than random clients, “modest” as the gain is"
        out.append(Claim(text, noted(better, own_numbers("Table V", own))))
        parts = {task_name(task): fairer(results, task, reading, random) for task in SELECTION_TASKS}
        out.append(Claim(f"{reading}: Thompson sampling “consistently reduces cross-server variance”", every(parts)))
    return out


def capacity(results: Results) -> list[Claim]:
    """ "Role of model capacity"."""
    task, wide = "cifar10", "hierfavg-wide"
    verdict = above(values(results, task, wide), values(results, task, "hierfavg"))
    matches = not_worse([*gap(results, task, "ifca", wide).values()])
    out = [
        Claim("the wider HierFAVG is above HierFAVG", verdict),
        Claim("the wider HierFAVG “merely matches IFCA”: IFCA is not worse", matches),
    ]
    for reading in READINGS:
        verdict = above(values(results, task, reading), values(results, task, wide))
        out.append(Claim(f"the wider HierFAVG is “still below” {reading}", verdict))
        gain, whole = gap(results, task, wide, "hierfavg"), gap(results, task, reading, "hierfavg")
        rest = [whole[seed] / 2 - gain[seed] for seed in sorted(set(gain) & set(whole))]
        text = f"“capacity accounts for less than half the total gap” to {reading}"
        out.append(Claim(text, positive(rest, "points of half the gap left")))
    return out


def dynamics(results: Results) -> list[Claim]:
    """Figures of reassignments and active clusters, and "Cluster dynamics"."""
    out = []
    for variant in ("ifca", *READINGS):
        parts = {}
        for task in MODERATE:
            printed = look_up("dynamics", task, printed_as(variant), "moves")[-1][1]
            parts[task_name(task, alpha=False)] = near([*values(results, task, variant, _moves).values()], printed)
        out.append(Claim(f"{variant}: the number of reassignments is that of the figures", every(parts)))
        found, own = {}, []
        for task, ranges in look_up("clusters_found").items():
            limits = ranges.get(printed_as(variant))
            if limits is None:
                continue
            name = task_name(task, alpha=False)
            found[name] = between([*values(results, task, variant, _active).values()], *limits)
            curves = look_up("dynamics", task, printed_as(variant))
            first, last = curves["active_clusters"][0][1], curves["active_clusters"][-1][1]
            if not limits[0] - 0.5 <= last <= limits[1] + 0.5:
                own.append(f"{first:g} → {last:g} clusters; {curves['moves'][-1][1]:g} is its number of moves (C.32)")
        text = (
            "IFCA has “static 3” clusters on Fashion-MNIST"
            if variant == "ifca"
            else f"{variant} “discovers 7–8 active clusters” on Fashion-MNIST and “stabilizes at ≈ 8” on the others"
        )
        out.append(Claim(text, noted(every(found), own_numbers("figure", own))))
        if variant in READINGS:
            calm = {
                task_name(task, alpha=False): positive(_calming(results, task, variant), "moves per decision", 1)
                for task in MODERATE
            }
            text = f"{variant} “reassigns actively in early rounds and stabilizes”: more moves in the first half"
            out.append(Claim(text, every(calm)))
    return out


def _moves(found: Finding) -> float:
    return found.moves


def _active(found: Finding) -> float:
    return found.active_clusters


def _calming(results: Results, task: str, variant: str) -> list[float]:
    """Return how many more moves a decision brought in the first half, one number per seed."""
    out = []
    for found in results.of(task, variant).values():
        half = found.rounds // 2
        early, period = moves_by(found, half), period_of(variant)
        first, second = half // period, found.rounds // period - half // period
        if early is not None and first and second:
            out.append(early / first - (found.moves - early) / second)
    return out
