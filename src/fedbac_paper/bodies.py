"""What the page of each table or figure shows: the paper's numbers beside ours."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedbac_paper.artefacts import ARTEFACTS, FRACTIONS, MODERATE, RANDOM_CLIENTS, SELECTION_TASKS, SIX
from fedbac_paper.cells import (
    NONE,
    at_least,
    difference,
    each,
    fixed,
    mean,
    printed,
    ratio,
    size,
    std,
    table,
)
from fedbac_paper.claims import COUNTS, bound, byte_ratios, round_ratios, targets_of
from fedbac_paper.names import task_name
from fedbac_paper.paper import READINGS, look_up, period_of, printed_as, rounds_to
from fedbac_paper.results import Bytes, Finding, Results
from fedbac_paper.settings import CANDIDATES, SETTINGS

ACCURACY = "Distributed accuracy in percent: the mean over seeds of the mean over the last ten rounds."
SPREADS = ["std over seeds", "std over the last ten rounds"]
ACCURACY_HEADER = ["method", "paper", "ours", *SPREADS, "difference", "seeds"]
OURS = ["ours", "std over seeds", "difference"]
BASE = "hierfavg"
"""What rounds and bytes are compared with."""


def body(results: Results) -> list[str]:
    """Return the paragraphs and tables of an artefact's page."""
    return _BODIES[results.artefact](results)


def _accuracy_rows(results: Results, task: str, variants: Sequence[str]) -> list[list[str]]:
    rows = []
    for variant in variants:
        cell = list(results.of(task, variant).values())
        shares = [found.accuracy for found in cell]
        paper = look_up("accuracy", task, printed_as(variant))
        spread = look_up("accuracy_pm", task, printed_as(variant))
        last = mean([found.accuracy_std_last for found in cell])
        numbers = [printed(paper, spread), mean(shares), std(shares), last, difference(shares, paper)]
        rows.append([variant, *numbers, str(len(cell))])
    return rows


def _accuracy(results: Results) -> list[str]:
    parts = [f"{ACCURACY}{_uneven(results)}"]
    for task in ARTEFACTS[results.artefact].tasks:
        rows = _accuracy_rows(results, task, _variants(results, task))
        parts += [f"## {task_name(task, full=True)}", table(ACCURACY_HEADER, rows)]
    return parts


def _accuracy_and_moves(results: Results) -> list[str]:
    """Return accuracies, and how often edges were assigned to another cluster."""
    moved = "Moves: how often an edge was assigned to another cluster, the mean over seeds."
    parts = [f"{ACCURACY} {moved}{_uneven(results)}"]
    for task in ARTEFACTS[results.artefact].tasks:
        variants = _variants(results, task)
        moves = [mean([found.moves for found in results.of(task, v).values()], 1, 1) for v in variants]
        rows = [[*row, count] for row, count in zip(_accuracy_rows(results, task, variants), moves, strict=True)]
        parts += [f"## {task_name(task, full=True)}", table([*ACCURACY_HEADER, "moves"], rows)]
    return parts


def _uneven(results: Results) -> str:
    """Return a warning if rows of one table are over different seeds, which have different data."""
    tasks = ARTEFACTS[results.artefact].tasks
    seeds = [{frozenset(results.of(task, v)) for v in _variants(results, task)} - {frozenset()} for task in tasks]
    uneven = any(len(of_rows) > 1 for of_rows in seeds)
    return " Rows with other seeds have other data: compare them by the verdicts, seed by seed." if uneven else ""


def _variants(results: Results, task: str) -> list[str]:
    return [cell.variant for cell in ARTEFACTS[results.artefact].cells if cell.task == task]


def _small(results: Results) -> list[str]:
    """Return the table of a task on the embedded data."""
    (task,) = ARTEFACTS[results.artefact].tasks
    header = [
        "method",
        "accuracy",
        *SPREADS,
        "worst edge",
        "moves",
        "last move in round",
        "clusters at the end",
        "GB",
        "seeds",
    ]
    rows = []
    for variant in _variants(results, task):
        cell = list(results.of(task, variant).values())
        shares = [found.accuracy for found in cell]
        settled = [found.curve.last_move() if found.curve else None for found in cell]
        moves, clusters = each([found.moves for found in cell]), each([found.active_clusters for found in cell])
        amount = mean([found.bytes.everything for found in cell], 1e-9)
        worst = mean([found.edge_min for found in cell])
        spreads = [std(shares), mean([found.accuracy_std_last for found in cell])]
        numbers = [mean(shares), *spreads, worst, moves, each(settled), clusters, amount]
        rows.append([variant, *numbers, str(len(cell))])
    about = (
        f"{task_name(task, full=True)}. Accuracies in percent, over the last ten rounds, and gigabytes of all traffic: "
        "means over seeds. Moves, the round of the last one and clusters: of each seed. How the methods work, and what "
        "else was tried: docs/plus.md."
    )
    return [about, table(header, rows)]


def _fairness(results: Results) -> list[str]:
    numbers: Mapping[str, Callable[[Finding], float]] = {
        "min": lambda found: found.edge_min,
        "max": lambda found: found.edge_max,
        "sigma": lambda found: found.edge_std,
    }
    places = ("worst edge", "best edge", "σ over edges")
    header = ["method", *(f"{place}, {who}" for place in places for who in ("paper", "ours", "difference")), "seeds"]
    parts = [
        "Accuracy of the edges in percent, each its mean over the last ten rounds; ours is the mean over seeds ± their "
        "standard deviation, the difference is ours less the paper's."
    ]
    for task in SIX:
        rows = []
        for variant in ARTEFACTS[results.artefact].variants:
            cell = list(results.of(task, variant).values())
            cells = []
            for key, number in numbers.items():
                shares = [number(found) for found in cell]
                ours = mean(shares) + (f" ± {std(shares)}" if len(shares) > 1 else "")
                paper = look_up("fairness", task, printed_as(variant), key)
                cells += [printed(paper), ours, difference(shares, paper)]
            rows.append([variant, *cells, str(len(cell))])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _scaling(results: Results) -> list[str]:
    task = "cifar10-500"
    rows = []
    for variant in ARTEFACTS[results.artefact].variants:
        curves = [found.curve for found in results.of(task, variant).values()]
        shares = [share for curve in curves if curve and (share := curve.at(20)) is not None]
        paper = look_up("round_20", task, printed_as(variant))
        numbers = [printed(paper), mean(shares), std(shares), difference(shares, paper)]
        rows.append([variant, *numbers, str(len(shares))])
    header = ["method", "paper", "ours", "std over seeds", "difference", "seeds"]
    return [*_accuracy(results), "## Round 20", "Distributed accuracy in percent.", table(header, rows)]


def _selection(results: Results) -> list[str]:
    parts = [
        "Distributed accuracy in percent and σ over edges in points, p = 0.8. The paper's ± is here most likely the "
        "spread over its seeds (C.33)."
    ]
    header = ["clients", *ACCURACY_HEADER[1:-1], "σ, paper", "σ, ours", "seeds"]
    for task in SELECTION_TASKS:
        rows = []
        for variant in ARTEFACTS[results.artefact].variants:
            paper = look_up("selection", task, "random" if variant.endswith(RANDOM_CLIENTS) else "thompson")
            cell = list(results.of(task, variant).values())
            shares, sigma = [found.accuracy for found in cell], [found.edge_std for found in cell]
            last = mean([found.accuracy_std_last for found in cell])
            name = variant if variant.endswith(RANDOM_CLIENTS) else f"{variant}, Thompson sampling"
            numbers = [printed(paper["mean"], paper["pm"]), mean(shares), std(shares), last]
            rest = [difference(shares, paper["mean"]), printed(paper["sigma"]), mean(sigma), str(len(cell))]
            rows.append([name, *numbers, *rest])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


RATIOS = (
    "A ratio is the geometric mean over seeds, ×/÷ its spread: the geometric standard deviation. A side that never "
    "reaches the target counts with its whole run, so the ratio is a bound: > means that it is larger, as HierFAVG "
    "does not reach the target in some seed, < that it is smaller, as the method does not, ~ that both happen; – that "
    "nobody ever reaches it."
)


def _convergence(results: Results) -> list[str]:
    parts = [
        "Rounds to a target: ours is the mean over seeds of the first of three consecutive rounds at or above it on "
        "the raw curve; the paper's is read off its smoothed curves (C.37). > means that some seed never reaches it "
        "and counts with all its rounds; – that none does. The ratio is HierFAVG's rounds by the method's.",
        RATIOS,
    ]
    header = ["target", "method", "paper", *OURS, "ratio, paper", "ratio, ours", "seeds"]
    for task in SIX:
        rows = []
        for target in targets_of(results, task):
            for variant in ARTEFACTS[results.artefact].variants:
                cell = results.of(task, variant)
                crossed, slow = (rounds_to(task, name, float(target)) for name in (printed_as(variant), BASE))
                paper = [NONE if crossed is None else fixed(crossed, 1), NONE]
                ours = NONE
                if variant != BASE:
                    paper[1] = printed(slow / crossed if slow and crossed else None)
                    ratios = round_ratios(results, task, target, BASE, variant)
                    ours = ratio(ratios.values(), bound(results, task, target, BASE, variant))
                name = [f"{float(target):.0%}", variant]
                rounds = [at for found in cell.values() if (at := found.targets[target].round) is not None]
                rounds = rounds if len(rounds) == len(cell) else []  # a bound has neither spread nor difference
                off = [std(rounds, 1, 1), difference(rounds, crossed, 1, 1)]
                rows.append([*name, paper[0], _rounds(cell, target), *off, paper[1], ours, str(len(cell))])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _rounds(cell: Mapping[int, Finding], target: str) -> str:
    reached = [found.targets[target].round for found in cell.values()]
    rounds = [at or found.rounds for at, found in zip(reached, cell.values(), strict=True)]
    return at_least(mean(rounds, 1, 1), [at is not None for at in reached])


def _dynamics(results: Results) -> list[str]:
    moved, left = ["reassignments, paper", *OURS], ["clusters at the end, paper", *OURS]
    header = ["data set", "method", *moved, "at most", *left, "seeds"]
    rows = []
    for task in MODERATE:
        for variant in ARTEFACTS[results.artefact].variants:
            cell = list(results.of(task, variant).values())
            key = "ifca" if variant == "ifca" else "fed-bac"
            paper = [look_up("dynamics", task, key, kind)[-1][1] for kind in ("moves", "active_clusters")]
            counts = [found.moves for found in cell], [found.active_clusters for found in cell]
            moves, active = (
                [f"{theirs:g}", mean(ours, 1, 1), std(ours, 1, 1), difference(ours, theirs, 1, 1)]
                for ours, theirs in zip(counts, paper, strict=True)
            )
            most = str(10 * (cell[0].rounds // period_of(variant))) if cell else NONE
            name = [task_name(task, full=True), variant]
            rows.append([*name, *moves, most, *active, str(len(cell))])
    return [table(header, rows)]


def _communication(results: Results) -> list[str]:
    parts = [
        "The paper counts only training between clients and edges (C.39). What is measured on clients' data costs "
        "bytes too: clustering sends them networks whenever it looks, and `fed-bac` sends them the edge's new models "
        "in every round, as it rewards Thompson sampling on their validation data "
        "(docs/decisions/0005-validation-traffic.md). `paper-figures` and `paper-text` reward it on test "
        "data held by the edge, which sends nothing.",
        "**Whole runs**: the mean over seeds, and as a ratio by HierFAVG's of the same seeds and as many rounds (above "
        "1: the method sends more), the geometric mean over seeds.",
        "**To a target**: bytes that a method had sent when it reached a target, the mean over seeds, and how many "
        "times as many HierFAVG needed (above 1: HierFAVG sent more). > before bytes means that some seed never "
        "reaches it and counts with its whole run.",
        RATIOS,
    ]
    for task in SIX:
        parts += [f"## {task_name(task, full=True)}", _totals(results, task), _to_targets(results, task)]
    return parts


def _totals(results: Results, task: str) -> str:
    rows = []
    base = results.of(task, BASE)
    for variant in ARTEFACTS[results.artefact].variants:
        cell = results.of(task, variant)
        amounts = [size([count(found.bytes) for found in cell.values()]) for count in COUNTS.values()]
        common = sorted(set(base) & set(cell)) if variant != BASE else []
        ratios = [
            ratio([count(cell[seed].bytes) / count(base[seed].bytes) for seed in common]) for count in COUNTS.values()
        ]
        paper = f"{look_up('bytes_per_round'):.2f}" if variant in READINGS else NONE
        rows.append([variant, *amounts, *ratios, paper, str(len(cell))])
    paper_counts = f"ratio, paper ({next(iter(COUNTS))})"
    header = ["whole run", *COUNTS, *(f"ratio: {words}" for words in COUNTS), paper_counts, "seeds"]
    return table(header, rows)


def _to_targets(results: Results, task: str) -> str:
    rows = []
    for target in targets_of(results, task):
        for variant in ARTEFACTS[results.artefact].variants:
            cell = results.of(task, variant)
            amounts = [_bytes(cell, target, count) for count in COUNTS.values()]
            mark = bound(results, task, target, BASE, variant)
            ratios = [
                NONE
                if variant == BASE
                else ratio(byte_ratios(results, task, target, BASE, variant, count).values(), mark)
                for count in COUNTS.values()
            ]
            paper = look_up("byte_ratios", task, target) if variant in READINGS else None
            rows.append([f"{float(target):.0%}", variant, *amounts, *ratios, printed(paper), str(len(cell))])
    header = ["target", "method", *COUNTS, *(f"ratio: {words}" for words in COUNTS), "ratio, paper", "seeds"]
    return table(header, rows)


def _bytes(cell: Mapping[int, Finding], target: str, count: Callable[[Bytes], int]) -> str:
    sent = [found.targets[target].bytes for found in cell.values()]
    amounts = [count(one or found.bytes) for one, found in zip(sent, cell.values(), strict=True)]
    return at_least(size(amounts), [one is not None for one in sent])


def _participation(results: Results) -> list[str]:
    header = [
        "p",
        *("Thompson sampling", *SPREADS),
        *("random clients", *SPREADS),
        "σ, Thompson",
        "σ, random",
        "seeds (Thompson, random)",
    ]
    parts = ["Distributed accuracy of `fed-bac` in percent, the mean over seeds of the mean over the last ten rounds."]
    for task in SELECTION_TASKS:
        rows = []
        for fraction in FRACTIONS:
            pair = [list(results.of(task, f"p = {fraction:g}{end}").values()) for end in ("", RANDOM_CLIENTS)]
            shares = [[found.accuracy for found in cell] for cell in pair]
            sigma = [mean([found.edge_std for found in cell]) for cell in pair]
            last = [mean([found.accuracy_std_last for found in cell]) for cell in pair]
            numbers = [text for some, late in zip(shares, last, strict=True) for text in (mean(some), std(some), late)]
            rows.append([f"{fraction:g}", *numbers, *sigma, each([len(cell) for cell in pair])])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _calibration(results: Results) -> list[str]:
    parts = [
        "Distributed accuracy of HierFAVG in percent under each candidate, its difference from the paper's, and the "
        "mean distance of our curve from the paper's (smoothed) one at the paper's points, over the seeds that were "
        "run. One candidate is chosen per data set by the root of the mean square of the differences. It is given "
        "over the seeds that the candidate has on every anchor, and over those of them that all such candidates share; "
        "roots over different seeds are not comparable."
    ]
    for dataset in SETTINGS:
        tasks = [task for task in ARTEFACTS["calibration"].tasks if task.startswith(dataset)]
        header = ["candidate"]
        for task in tasks:
            header += [f"{task_name(task)} (paper {printed(_anchor(task))})", "difference", "curve", "seeds"]
        common = common_seeds(results, tasks)
        roots = ["root mean square", "over seeds", f"root mean square over {each(common)}, which all share"]
        rows = []
        for name in CANDIDATES:
            cells = {task: results.of(task, name) for task in tasks}
            if not any(cells.values()):
                continue
            row = [name]
            for task, cell in cells.items():
                shares = [found.accuracy for found in cell.values()]
                distances = [d for found in cell.values() if (d := _curve_distance(found)) is not None]
                row += [mean(shares), difference(shares, _anchor(task)), mean(distances, 1), str(len(cell))]
            own = sorted(set.intersection(*(set(cell) for cell in cells.values())))
            rows.append([*row, _distance(cells, own), each(own), _distance(cells, common)])
        parts += [f"## {task_name(dataset, alpha=False, full=True)}", table([*header, *roots], rows)]
    lines = [
        f"- {name}: {', '.join(f'`{setting}`' for setting in settings)}"
        for name, settings in CANDIDATES.items()
        if any(results.of(task, name) for task in ARTEFACTS["calibration"].tasks)
    ]
    return [*parts, "## Candidates", "\n".join(lines)]


def common_seeds(results: Results, tasks: Sequence[str]) -> list[int]:
    """Return the seeds that all candidates share on all anchors, leaving out candidates that lack an anchor."""
    seeds = [[set(results.of(task, name)) for task in tasks] for name in CANDIDATES]
    complete = [some for candidate in seeds if all(candidate) for some in candidate]
    return sorted(set.intersection(*complete)) if complete else []


def _distance(cells: Mapping[str, Mapping[int, Finding]], seeds: Sequence[int]) -> str:
    """Return the root of the mean square of the differences from the anchors over these seeds, if all were run."""
    if not seeds or not all(set(seeds) <= set(cell) for cell in cells.values()):
        return NONE
    off = [
        100 * float(np.mean([cell[seed].accuracy for seed in seeds])) - _anchor(task) for task, cell in cells.items()
    ]
    return printed(float(np.sqrt(np.mean(np.square(off)))))


def _anchor(task: str) -> float:
    return float(look_up("accuracy", task, "hierfavg"))


def _curve_distance(found: Finding) -> float | None:
    """Return the mean distance in points from the paper's curve, between our points where they fall apart."""
    paper = look_up("curves", found.task, "hierfavg")
    if paper is None or found.curve is None:
        return None
    common = [(round_, value) for round_, value in paper if round_ <= found.rounds]
    ours = np.interp([round_ for round_, _ in common], found.curve.round, found.curve.accuracy)
    return float(np.mean(np.abs(100 * ours - np.array([value for _, value in common]))))


_BODIES: dict[str, Callable[[Results], list[str]]] = {
    "table-2": _accuracy,
    "table-2-per-class": _accuracy,
    "table-fairness": _fairness,
    "table-scaling": _scaling,
    "table-selection": _selection,
    "capacity": _accuracy,
    "figure-convergence": _convergence,
    "figure-dynamics": _dynamics,
    "communication": _communication,
    "ablation": _accuracy_and_moves,
    "beyond": _accuracy_and_moves,
    "planted": _small,
    "noisy": _small,
    "participation": _participation,
    "calibration": _calibration,
}
