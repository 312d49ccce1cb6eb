"""Communication: the bytes of whole runs, and those to each target."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedbac_paper.artefact import Artefact, Body
from fedbac_paper.artefacts.table_2 import CELLS
from fedbac_paper.claims import Claim, claim_about, noted
from fedbac_paper.measures import values
from fedbac_paper.paper import READINGS, look_up
from fedbac_paper.results import Bytes, Finding, Results
from fedbac_paper.tables import NONE, at_least, paper_number, ratio, size, table
from fedbac_paper.targets import (
    BASE,
    COUNTS,
    RATIOS,
    bound,
    byte_ratios,
    in_range,
    judge_target,
    judge_targets,
    own_ratios,
    targets_of,
)
from fedbac_paper.tasks import MODERATE, SEVERE, SIX, task_name
from fedbac_paper.verdicts import Verdict, every, faster, ratio_between

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTED_BY_PAPER = next(iter(COUNTS))
WHOLE_RUN = "whole run"


def body(artefact: Artefact, results: Results) -> Body:
    """Return the bytes of whole runs and to each target, and their ratios to HierFAVG's."""
    rows = [["setting", "method", "target", *COUNTS, *(f"ratio: {words}" for words in COUNTS), "ratio, paper", "seeds"]]
    for task in SIX:
        rows += [_whole_run(results, task, variant) for variant in artefact.variants]
        for target in targets_of(results, task):
            rows += [_to_target(results, task, target, variant) for variant in artefact.variants]
    whole = [[row[1], *row[6:9]] for row in rows if row[:3:2] == [task_name(SIX[0]), WHOLE_RUN] and row[1] != BASE]
    shown = [
        "The paper counts only training between clients and edges (C.39), but clustering sends clients networks "
        "whenever it measures, and `fed-bac` the edge's new model in every round, to reward Thompson sampling on "
        "validation data.",
        f"Bytes of a whole run as a multiple of HierFAVG's, on {task_name(SIX[0])}:",
        table(["method", *COUNTS], whole),
        "**To a target**, the ratio divides HierFAVG's bytes by the method's: above 1, HierFAVG sends more. "
        f"[Marks of bounds]({RATIOS}).",
    ]
    return Body(shown, rows)


def _whole_run(results: Results, task: str, variant: str) -> list[str]:
    base, runs = results.of(task, BASE), results.of(task, variant)
    amounts = [size([count(found.bytes) for found in runs.values()]) for count in COUNTS.values()]
    common = sorted(set(base) & set(runs)) if variant != BASE else []
    ratios = [
        ratio([count(runs[seed].bytes) / count(base[seed].bytes) for seed in common]) for count in COUNTS.values()
    ]
    paper = paper_number(look_up("bytes_per_round") if variant in READINGS else None)
    return [task_name(task), variant, WHOLE_RUN, *amounts, *ratios, paper, str(len(runs))]


def _to_target(results: Results, task: str, target: str, variant: str) -> list[str]:
    runs = results.of(task, variant)
    amounts = [_mean_bytes(runs, target, count) for count in COUNTS.values()]
    mark = bound(results, task, target, BASE, variant)
    ratios = [
        NONE if variant == BASE else ratio(byte_ratios(results, task, target, BASE, variant, count).values(), mark)
        for count in COUNTS.values()
    ]
    paper = paper_number(look_up("byte_ratios", task, target) if variant in READINGS else None)
    return [task_name(task), variant, f"{float(target):.0%}", *amounts, *ratios, paper, str(len(runs))]


def _mean_bytes(runs: Mapping[int, Finding], target: str, count: Callable[[Bytes], int]) -> str:
    sent = [found.targets[target].bytes for found in runs.values()]
    amounts = [count(one or found.bytes) for one, found in zip(sent, runs.values(), strict=True)]
    return at_least(size(amounts), [one is not None for one in sent])


def figure(results: Results) -> "Figure":
    """Draw the gigabytes to each target, as the paper counts them and in all."""
    from fedbac.report import canvas
    from fedbac_paper import drawing

    drawn, rows = drawing.panels(2, 3, 2.3)
    counts: tuple[tuple[Callable[[Bytes], int], str, float], ...] = (
        (lambda sent: sent.client_train, "o", 1.0),
        (lambda sent: sent.everything, "x", 0.6),
    )
    for panels, tasks in zip(rows, (MODERATE, SEVERE), strict=True):
        for axes, task in zip(panels, tasks, strict=True):
            for variant, look in drawing.LOOKS.items():
                for count, marker, alpha in counts:
                    x, y = _gigabytes(results, task, variant, count)
                    axes.plot(x, y, marker, ls=look.dash, color=look.colour, alpha=alpha, lw=1.4, ms=4.5)
            drawing.log_axis(axes)
            canvas.title(axes, task_name(task))
            drawing.label_x(axes, "target accuracy (%)")
        drawing.label_y(panels[0], "GB to the target")
    for axes in rows[0]:
        axes.set_xlabel("")
    kinds = [drawing.marker("o", "as the paper counts"), drawing.marker("x", "everything")]
    drawing.key(drawn, [*drawing.variant_lines(drawing.LOOKS), *kinds])
    return drawn


def _gigabytes(
    results: Results, task: str, variant: str, count: Callable[[Bytes], int]
) -> tuple[list[float], list[float]]:
    """Return targets that every seed reached, and the mean bytes until then."""
    x, y = [], []
    for target in targets_of(results, task):
        sent = [found.targets[target].bytes for found in results.of(task, variant).values()]
        known = [count(one) for one in sent if one is not None]
        if known and len(known) == len(sent):
            x.append(100 * float(target))
            y.append(float(np.mean(known)) / 1e9)
    return x, y


def claims(results: Results) -> list[Claim]:
    """ "Communication Cost Model"; the paper counts training between clients and edges only."""
    out, per_round = [], look_up("bytes_per_round")
    for reading in READINGS:
        text = f"{{}} costs {per_round:g} times HierFAVG's bytes per round ({COUNTED_BY_PAPER})"
        verdict = _bytes_per_round(results, reading, per_round)
        out.append(claim_about(reading, "communication-bytes-per-round", text, verdict))
        fewer: dict[str, Verdict] = {}
        for task, printed in look_up("byte_ratios").items():
            for target, times in printed.items():
                goal = f"{float(target):.0%} on {task_name(task)}"
                inferred = "" if task == "cifar10" else "; the paper names no target, this one is inferred (C.38)"
                counted = f"{COUNTED_BY_PAPER}{inferred}"
                text = f"{{}} reaches {goal} with {times:g} times fewer bytes than HierFAVG ({counted})"
                verdict = judge_target(results, task, target, reading, in_range(times, times), COUNTED_BY_PAPER)
                id_ = f"communication-ratio-to-{100 * float(target):.0f}-on-{task}"
                out.append(claim_about(reading, id_, text, verdict))
                fewer |= {
                    f"{goal}, {words}": judge_target(results, task, target, reading, faster, words) for words in COUNTS
                }
        text = "{} needs fewer bytes than HierFAVG there, however they are counted"
        out.append(claim_about(reading, "communication-fewer-however-counted", text, every(fewer)))
        text = f"{{}}: “convergence speedups more than compensate for the doubled model payload” ({COUNTED_BY_PAPER})"
        pays = judge_targets(results, SIX, reading, faster, by=BASE, count=COUNTED_BY_PAPER)
        verdict = noted(pays, own_ratios(1.0, math.inf, per_round))
        out.append(claim_about(reading, "communication-speed-pays", text, verdict))
    return out


def _bytes_per_round(results: Results, reading: str, paper: float) -> Verdict:
    parts = {}
    for task in SIX:
        ours, theirs = (values(results, task, variant, _per_round) for variant in (reading, BASE))
        ratios = [ours[seed] / theirs[seed] for seed in set(ours) & set(theirs)]
        parts[task_name(task)] = ratio_between(ratios, paper, paper)
    return every(parts)


def _per_round(found: Finding) -> float:
    return found.bytes.client_train / found.rounds


ARTEFACT = Artefact(
    "communication",
    "Bytes to a target",
    "“Communication Cost Model” in the paper",
    CELLS,
    body,
    claims,
    figure,
)
