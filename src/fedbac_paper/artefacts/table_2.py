"""Table II: distributed accuracy in six settings, and the same with the other Dirichlet draw."""

from dataclasses import replace

from fedbac_paper.artefact import Artefact, presets
from fedbac_paper.claims import Claim, claim_about, in_all, noted, own_numbers, severe_against_moderate
from fedbac_paper.measures import gap
from fedbac_paper.paper import BASELINES, READINGS, look_up
from fedbac_paper.results import Results
from fedbac_paper.tables import accuracies
from fedbac_paper.tasks import PAIRS, SIX, task_name
from fedbac_paper.verdicts import Verdict, above, below, every, near

CELLS = presets(SIX, *BASELINES, *READINGS)
NAMED = {task: PAIRS[task] for task in ("cifar10", "fashion-mnist")}
"""The pairs that the paper names where it speaks of HierFAVG's fall; SVHN is not among them."""


def claims(results: Results) -> list[Claim]:
    """Table II, the abstract and "Fed-BAC's advantage increases with heterogeneity"."""
    name = results.artefact
    falls = severe_against_moderate(results, "hierfavg", NAMED, below)
    rises = severe_against_moderate(results, "ifca-paper", PAIRS, above)
    parts = {f"HierFAVG, {data}": one for data, one in falls.items()}
    parts |= {f"IFCA, {data}": one for data, one in rises.items()}
    out = [
        Claim(
            f"{name}-ifca-above-hierfavg",
            "IFCA is above HierFAVG in all six settings",
            in_all(results, SIX, "ifca-paper", "hierfavg"),
        ),
        Claim(
            f"{name}-hierfavg-falls-ifca-rises",
            "from α = 0.5 to α = 0.1 “HierFAVG degrades substantially”, while IFCA improves",
            every(parts),
        ),
    ]
    for reading in READINGS:
        improves = every(severe_against_moderate(results, reading, PAIRS, above))
        out.append(claim_about(reading, f"{name}-rises", "from α = 0.5 to α = 0.1 {} improves", improves))
        for other, other_name in BASELINES.items():
            text = f"{{}} is above {other_name} in all six settings"
            out.append(
                claim_about(reading, f"{name}-above-{other_name.lower()}", text, in_all(results, SIX, reading, other))
            )
            text = f"the advantage of {{}} over {other_name} increases with heterogeneity"
            verdict = _advantage_grows(results, reading, other)
            out.append(claim_about(reading, f"{name}-advantage-grows-over-{other_name.lower()}", text, verdict))
        text = "“gains of up to +35.5pp over HierFAVG and +8.4pp over IFCA”: {} gains as much in the same settings"
        out.append(claim_about(reading, f"{name}-largest-gains", text, _largest_gains(results, reading)))
    return out


def _advantage_grows(results: Results, reading: str, other: str) -> Verdict:
    grows, own = {}, []
    for moderate, severe in PAIRS.items():
        data = task_name(moderate, alpha=False)
        grows[data] = above(gap(results, severe, reading, other), gap(results, moderate, reading, other))
        before, after = (_printed_gain(task, other) for task in (moderate, severe))
        own += [f"+{before:.1f} → +{after:.1f} on {data}"] if after <= before else []
    return noted(every(grows), own_numbers("Table II", own))


def _largest_gains(results: Results, reading: str) -> Verdict:
    parts = {}
    for other, other_name in BASELINES.items():
        task = max(SIX, key=lambda task: _printed_gain(task, other))
        ours = [100 * one for one in gap(results, task, reading, other).values()]
        parts[f"{other_name}, {task_name(task)}"] = near(ours, round(_printed_gain(task, other), 1))
    return every(parts)


def _printed_gain(task: str, other: str) -> float:
    printed = look_up("accuracy", task)
    return float(printed["fed-bac"] - printed[other])


TABLE_2 = Artefact("table-2", "Distributed accuracy", "Table II of the paper", CELLS, accuracies, claims)
PER_CLASS = Artefact(
    "table-2-per-class",
    "Distributed accuracy, the other Dirichlet draw",
    "Table II of the paper with the classes drawn over the edges (`task.partition.mode=per_class`, C.10)",
    tuple(replace(cell, settings=("task.partition.mode=per_class",)) for cell in CELLS),
    accuracies,
    claims,
)
