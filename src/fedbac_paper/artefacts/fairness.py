"""Table IV: fairness over edges."""

import math
from collections.abc import Mapping

from fedbac_paper.artefact import Artefact, Body
from fedbac_paper.artefacts.table_2 import CELLS, NAMED
from fedbac_paper.claims import Claim, claim_about, fairer, noted, own_numbers, severe_against_moderate
from fedbac_paper.measures import Number, minus, spread, values
from fedbac_paper.paper import BASELINES, READINGS, look_up, printed_as
from fedbac_paper.results import Finding, Results
from fedbac_paper.tables import OURS, difference, mean, paper_number, side_by_side, std
from fedbac_paper.tasks import SIX, task_name
from fedbac_paper.verdicts import Verdict, above, below, every, ratio_between


def _worst(found: Finding) -> float:
    return found.edge_min


def _best(found: Finding) -> float:
    return found.edge_max


def body(artefact: Artefact, results: Results) -> Body:
    """Return σ over edges, and the worst and the best edge."""
    numbers: Mapping[str, tuple[str, Number]] = {
        "worst edge": ("min", _worst),
        "best edge": ("max", _best),
        "σ over edges": ("sigma", spread),
    }
    rows = [["setting", "method", *(f"{place}, {who}" for place in numbers for who in ("paper", *OURS)), "seeds"]]
    for cell in artefact.cells:
        runs = list(results.of(cell.task, cell.variant).values())
        row = [task_name(cell.task), cell.variant]
        for key, number in numbers.values():
            shares = [number(found) for found in runs]
            paper = look_up("fairness", cell.task, printed_as(cell.variant), key)
            row += [paper_number(paper), mean(shares), std(shares), difference(shares, paper)]
        rows.append([*row, str(len(runs))])
    shown = [
        "σ is the standard deviation of the edges' accuracies, in points. Worst and best edges are in the file.",
        side_by_side(rows, "σ over edges, ours", "σ over edges, paper", "σ over edges"),
    ]
    return Body(shown, rows)


def claims(results: Results) -> list[Claim]:
    """Table IV and "Cross-server fairness"; what the paper there calls variance is σ."""
    printed = look_up("fairness")
    svhn = [
        f"σ falls from {printed['svhn']['hierfavg']['sigma']} to {printed['svhn-severe']['hierfavg']['sigma']} on SVHN"
    ]
    sharper = every(severe_against_moderate(results, "hierfavg", NAMED, above, spread))
    text = "“HierFAVG's σ increases sharply” from α = 0.5 to α = 0.1 on CIFAR-10 and Fashion-MNIST"
    out = [Claim("table-fairness-hierfavg-spread-grows", text, noted(sharper, own_numbers("Table IV", svhn)))]
    against = [
        f"{own['fed-bac']['sigma']:.2f} against {name}'s {own[other]['sigma']:.2f} on {task_name(task)}"
        for other, name in BASELINES.items()
        for task in SIX
        if (own := printed[task])["fed-bac"]["sigma"] >= own[other]["sigma"]
    ]
    for reading in READINGS:
        text = "“improving cross-server fairness”: {} has a smaller σ than HierFAVG and IFCA in all six settings"
        verdict = noted(_smaller_spread(results, reading, SIX), own_numbers("Table IV", against))
        out.append(claim_about(reading, "table-fairness-smaller-spread", text, verdict))
        text = "{} has “the lowest cross-server variance on SVHN and Fashion-MNIST” at α = 0.5"
        verdict = _smaller_spread(results, reading, ("svhn", "fashion-mnist"))
        out.append(claim_about(reading, "table-fairness-lowest-spread", text, verdict))
        theirs, ours = (values(results, "cifar10", variant, spread) for variant in ("ifca-paper", reading))
        verdict = ratio_between([theirs[seed] / ours[seed] for seed in sorted(set(theirs) & set(ours))], 2, math.inf)
        text = "{} “halves IFCA's variance on CIFAR-10”, α = 0.5"
        out.append(claim_about(reading, "table-fairness-half-of-ifca", text, verdict))
        text = "the worst server of {} on CIFAR-10 exceeds “every other method's mean” (α = 0.1: IFCA's)"
        out.append(claim_about(reading, "table-fairness-worst-above-means", text, _worst_above_means(results, reading)))
        text = "{} “limits degradation”: its σ increases less than HierFAVG's"
        out.append(claim_about(reading, "table-fairness-limits-degradation", text, _rises_less(results, reading)))
    return out


def _smaller_spread(results: Results, reading: str, tasks: tuple[str, ...]) -> Verdict:
    return every(
        {
            f"{task_name(task)}, {name}": fairer(results, task, reading, other)
            for task in tasks
            for other, name in BASELINES.items()
        }
    )


def _worst_above_means(results: Results, reading: str) -> Verdict:
    pairs = (("cifar10", "hierfavg"), ("cifar10", "ifca-paper"), ("cifar10-severe", "ifca-paper"))
    return every(
        {
            f"{task_name(task)}, {BASELINES[other]}": above(
                values(results, task, reading, _worst), values(results, task, other)
            )
            for task, other in pairs
        }
    )


def _rises_less(results: Results, reading: str) -> Verdict:
    """Judge "from α = 0.5 to α = 0.1 the σ of a reading increases less than HierFAVG's"."""
    parts = {}
    for moderate, severe in NAMED.items():
        rise = {
            variant: minus(values(results, severe, variant, spread), values(results, moderate, variant, spread))
            for variant in (reading, "hierfavg")
        }
        parts[task_name(moderate, alpha=False)] = below(rise[reading], rise["hierfavg"])
    return every(parts)


ARTEFACT = Artefact("table-fairness", "Fairness over edges", "Table IV of the paper", CELLS, body, claims)
