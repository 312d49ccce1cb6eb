"""Communication: the bytes of whole runs, and those to each target."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedbac_paper.artefact import Artefact
from fedbac_paper.artefacts.table_2 import CELLS
from fedbac_paper.claims import Claim, claim_about, noted
from fedbac_paper.measures import values
from fedbac_paper.paper import READINGS, look_up
from fedbac_paper.results import Bytes, Finding, Results
from fedbac_paper.tables import NONE, at_least, details, paper_number, ratio, size, table
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


def body(artefact: Artefact, results: Results) -> list[str]:
    """Return two tables per setting: of whole runs, and to each target."""
    parts = [
        "The paper counts only training between clients and edges (C.39). Measuring on clients' data costs bytes too. "
        "Clustering sends clients networks whenever it measures. `fed-bac` sends them the edge's new model in every "
        "round, because it rewards Thompson sampling on their validation data "
        "(docs/decisions/0001-0006-foundations.md). `paper-figures` and `paper-text` reward it on test data held by "
        "the edge, which sends nothing.",
        "**Whole run**: bytes of all rounds, the mean over seeds. The ratio divides them by HierFAVG's of the same "
        "seeds and as many rounds: above 1, the method sends more.",
        "**To a target**: bytes that a method had sent when it reached the target, the mean over seeds. “>” means that "
        "some seed never reaches it and counts with its whole run. The ratio divides HierFAVG's bytes by the method's: "
        "above 1, HierFAVG sends more.",
        RATIOS,
    ]
    for task in SIX:
        tables = _whole_runs(artefact, results, task), _to_targets(artefact, results, task)
        parts.append(details(task_name(task), "\n\n".join(tables)))
    return parts


def _whole_runs(artefact: Artefact, results: Results, task: str) -> str:
    rows = []
    base = results.of(task, BASE)
    for variant in artefact.variants:
        runs = results.of(task, variant)
        amounts = [size([count(found.bytes) for found in runs.values()]) for count in COUNTS.values()]
        common = sorted(set(base) & set(runs)) if variant != BASE else []
        ratios = [
            ratio([count(runs[seed].bytes) / count(base[seed].bytes) for seed in common]) for count in COUNTS.values()
        ]
        paper = f"{look_up('bytes_per_round'):.2f}" if variant in READINGS else NONE
        rows.append([variant, *amounts, *ratios, paper, str(len(runs))])
    of_paper = f"ratio, paper ({COUNTED_BY_PAPER})"
    return table(["whole run", *COUNTS, *(f"ratio: {words}" for words in COUNTS), of_paper, "seeds"], rows)


def _to_targets(artefact: Artefact, results: Results, task: str) -> str:
    rows = []
    for target in targets_of(results, task):
        for variant in artefact.variants:
            runs = results.of(task, variant)
            amounts = [_mean_bytes(runs, target, count) for count in COUNTS.values()]
            mark = bound(results, task, target, BASE, variant)
            ratios = [
                NONE
                if variant == BASE
                else ratio(byte_ratios(results, task, target, BASE, variant, count).values(), mark)
                for count in COUNTS.values()
            ]
            paper = look_up("byte_ratios", task, target) if variant in READINGS else None
            rows.append([f"{float(target):.0%}", variant, *amounts, *ratios, paper_number(paper), str(len(runs))])
    header = ["target", "method", *COUNTS, *(f"ratio: {words}" for words in COUNTS), "ratio, paper", "seeds"]
    return table(header, rows)


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
