"""One page a table or figure, written from the result files alone."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedbac.report import canvas
from fedbac.report.table import human_bytes
from fedbac.reproduce import results as store
from fedbac.reproduce.artefacts import (
    ARTEFACTS,
    FRACTIONS,
    MODERATE,
    RANDOM_CLIENTS,
    SELECTION_TASKS,
    SIX,
    Artefact,
)
from fedbac.reproduce.claims import COUNTS, Claim, byte_ratios, claims, round_ratios, targets_of
from fedbac.reproduce.figures import figure, has_figure
from fedbac.reproduce.names import FORMAT_1, task_name
from fedbac.reproduce.paper import READINGS, look_up, printed_as, rounds_to
from fedbac.reproduce.results import Finding, Results
from fedbac.reproduce.settings import CANDIDATES, SETTINGS
from fedbac.reproduce.verdicts import FEWEST_SEEDS, RULES

NONE = "–"
FEW = "†"
"""Marks a mean over fewer seeds than a verdict needs."""
FROM_RESULTS = "--results results --pages docs/reproduce"
LEAK = (
    "`paper-figures` and `paper-text` reward Thompson sampling by accuracy on the test data that are reported, as the "
    "paper does (C.29); `fed-bac` uses validation data. They also differ in how often edges are reassigned: every "
    "round in `paper-figures`, every 20 rounds in the others (C.21), and in the start on Fashion-MNIST, one cluster "
    "for all in `paper-*` and one per edge in `fed-bac` (C.28)."
)


def write(names: Sequence[str], results_folder: Path, folder: Path) -> list[Path]:
    """Write the page, and the figure if there is one, of every artefact that has results."""
    written = []
    for name in names:
        results = store.read(name, results_folder)
        if results is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        if has_figure(results):
            canvas.save(figure(results), folder / f"{name}.svg")
        path = folder / f"{name}.md"
        path.write_text(page(results), encoding="utf-8")
        written.append(path)
    return written


def page(results: Results) -> str:
    """Return the page of an artefact."""
    artefact = ARTEFACTS[results.artefact]
    parts = [f"# {heading(results)}", _origin(artefact, results)]
    if has_figure(results):
        parts.append(f"![{artefact.title}]({artefact.name}.svg)")
    parts += _BODIES[artefact.name](results)
    judged = claims(results)
    if judged:
        parts += ["## Verdicts" + (" of a quick pass" if results.changes else ""), verdict_table(judged), RULES]
    notes = [LEAK] if set(READINGS) & set(artefact.variants) else []
    notes += [FORMAT_1] if any(task.startswith("svhn") for task in artefact.tasks) else []
    if notes:
        parts += ["## Notes", *notes]
    return "\n\n".join(parts) + "\n"


def heading(results: Results) -> str:
    """Return a page's title; a pass that is no reproduction says so there."""
    title = ARTEFACTS[results.artefact].title
    return f"Quick pass, not a reproduction ({', '.join(results.changes)}): {title}" if results.changes else title


def index(results_folder: Path, pages: str) -> str:
    """Return the list of all pages: how much of each was run and how its claims stand."""
    rows = []
    for artefact in ARTEFACTS.values():
        results = store.read(artefact.name, results_folder)
        if results is None:
            rows.append([f"`{artefact.name}`", artefact.title, artefact.place, "not run yet", NONE])
            continue
        cells = {(found.task, found.variant) for found in results.findings}
        state = f"{_runs(len(results.findings))}, {len(cells)} of {len(artefact.cells)} rows"
        link = f"[`{artefact.name}`]({pages}/{artefact.name}.md)"
        rows.append([link, heading(results), artefact.place, state, tally(claims(results))])
    return table(["artefact", "about", "where", "run", "claims"], rows)


def tally(judged: Sequence[Claim]) -> str:
    """Return how many claims have which verdict."""
    counts = Counter(claim.verdict.word for claim in judged)
    return ", ".join(f"{word}: {count}" for word, count in sorted(counts.items())) or NONE


def main_table(results: Results) -> str:
    """Return the main result in short, a column per setting: ours, with the paper's in brackets."""
    rows = []
    for variant in ARTEFACTS["table-2"].variants:
        cells = []
        for task in SIX:
            shares = [found.accuracy for found in results.of(task, variant).values()]
            mark = "" if len(shares) >= FEWEST_SEEDS else FEW
            printed = look_up("accuracy", task, printed_as(variant))
            cells.append(f"{_mean(shares, digits=1)}{mark} ({printed:.1f})" if shares else NONE)
        rows.append([variant, *cells])
    text = table(["ours (paper), %", *(task_name(task, full=True) for task in SIX)], rows)
    return f"{text}\n\n{FEW} fewer than {FEWEST_SEEDS} seeds so far" if FEW in text else text


def verdict_table(judged: Sequence[Claim]) -> str:
    """Return claims with their verdicts."""
    rows = [[claim.text, f"**{claim.verdict.word}**", claim.verdict.detail or NONE] for claim in judged]
    return table(["claim", "verdict", "evidence"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ------------------------------------------------------------------------------------------------ what all pages say


def _origin(artefact: Artefact, results: Results) -> str:
    if results.changes:
        lines = ["This pass changes what the paper does, so nothing on this page tells whether a claim holds.", ""]
    else:
        lines = [f"{artefact.place}. This page is written from `results/{artefact.name}.json`; do not edit it.", ""]
        command = f"fedbac reproduce {artefact.name} {FROM_RESULTS}"
        lines += ["```", command, f"{command} --render-only", "```", ""]
    if not results.findings:
        return "\n".join([*lines, "No run is finished yet."])
    seeds = sorted({found.seed for found in results.findings})
    machines = Counter(f"{found.machine}, trainer `{found.trainer}`" for found in results.findings)
    hours = sum(found.seconds for found in results.findings) / 3600
    lines.append(f"{_runs(len(results.findings))}, seeds {', '.join(map(str, seeds))}, {hours:.1f} hours in all, on:")
    lines += ["", *(f"- {machine} ({_runs(count)})" for machine, count in sorted(machines.items()))]
    if results.settings:
        used = [dataset for dataset in SETTINGS if any(task.startswith(dataset) for task in artefact.tasks)]
        lines += ["", "Settings that the paper leaves open, the same for all methods (others at their defaults):", ""]
        for dataset in used:
            chosen = ", ".join(f"`{setting}`" for setting in results.settings.get(dataset, ())) or "the defaults"
            lines.append(f"- {task_name(dataset, alpha=False)}: {chosen}")
    return "\n".join(lines)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _mean(shares: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    return f"{scale * float(np.mean(shares)):.{digits}f}" if shares else NONE


def _std(shares: Sequence[float]) -> str:
    return f"{100 * float(np.std(shares, ddof=1)):.2f}" if len(shares) > 1 else NONE


def _difference(shares: Sequence[float], printed: float | None) -> str:
    if not shares or printed is None:
        return NONE
    return f"{100 * float(np.mean(shares)) - printed:+.2f}".replace("-", "−")


def _printed(number: float | None, spread: float | None = None) -> str:
    if number is None:
        return NONE
    return f"{number:.2f}" if spread is None else f"{number:.2f} ± {spread:.2f}"


# ------------------------------------------------------------------------------------------------ what each page shows

ACCURACY_HEADER = ["method", "paper", "ours", "std over seeds", "std over the last ten rounds", "difference", "seeds"]


def _accuracy_rows(results: Results, task: str, variants: Sequence[str]) -> list[list[str]]:
    rows = []
    for variant in variants:
        cell = list(results.of(task, variant).values())
        shares = [found.accuracy for found in cell]
        printed = look_up("accuracy", task, printed_as(variant))
        spread = look_up("accuracy_pm", task, printed_as(variant))
        last = _mean([found.accuracy_std_last for found in cell])
        numbers = [_printed(printed, spread), _mean(shares), _std(shares), last, _difference(shares, printed)]
        rows.append([variant, *numbers, str(len(cell))])
    return rows


def _accuracy(results: Results) -> list[str]:
    parts = ["Distributed accuracy in percent: the mean over seeds of the mean over the last ten rounds."]
    artefact = ARTEFACTS[results.artefact]
    for task in artefact.tasks:
        variants = [cell.variant for cell in artefact.cells if cell.task == task]
        parts += [f"## {task_name(task, full=True)}", table(ACCURACY_HEADER, _accuracy_rows(results, task, variants))]
    return parts


def _fairness(results: Results) -> list[str]:
    numbers: Mapping[str, Callable[[Finding], float]] = {
        "min": lambda found: found.edge_min,
        "max": lambda found: found.edge_max,
        "sigma": lambda found: found.edge_std,
    }
    places = ("worst edge", "best edge", "σ over edges")
    header = ["method", *(f"{place}, {who}" for place in places for who in ("paper", "ours"))]
    parts = [
        "Accuracy of the edges in percent, each its mean over the last ten rounds; ours is the mean over seeds ± their "
        "standard deviation."
    ]
    for task in SIX:
        rows = []
        for variant in ARTEFACTS[results.artefact].variants:
            cells = []
            for key, number in numbers.items():
                shares = [number(found) for found in results.of(task, variant).values()]
                ours = _mean(shares) + (f" ± {_std(shares)}" if len(shares) > 1 else "")
                cells += [_printed(look_up("fairness", task, printed_as(variant), key)), ours]
            rows.append([variant, *cells])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _scaling(results: Results) -> list[str]:
    task = "cifar10-500"
    rows = []
    for variant in ARTEFACTS[results.artefact].variants:
        curves = [found.curve for found in results.of(task, variant).values()]
        shares = [share for curve in curves if curve and (share := curve.at(20)) is not None]
        printed = look_up("round_20", task, printed_as(variant))
        rows.append([variant, _printed(printed), _mean(shares), _std(shares), _difference(shares, printed)])
    header = ["method", "paper", "ours", "std over seeds", "difference"]
    return [*_accuracy(results), "## Round 20", "Distributed accuracy in percent.", table(header, rows)]


def _selection(results: Results) -> list[str]:
    parts = [
        "Distributed accuracy in percent and σ over edges in points, p = 0.8. The paper's ± is here most likely the "
        "spread over its seeds (C.33)."
    ]
    header = ["clients", "paper", "ours", "std over seeds", "difference", "σ, paper", "σ, ours", "seeds"]
    for task in SELECTION_TASKS:
        rows = []
        for variant in ARTEFACTS[results.artefact].variants:
            printed = look_up("selection", task, "random" if variant.endswith(RANDOM_CLIENTS) else "thompson")
            cell = list(results.of(task, variant).values())
            shares, sigma = [found.accuracy for found in cell], [found.edge_std for found in cell]
            name = variant if variant.endswith(RANDOM_CLIENTS) else f"{variant}, Thompson sampling"
            paper = [_printed(printed["mean"], printed["pm"]), _mean(shares), _std(shares)]
            rest = [_difference(shares, printed["mean"]), _printed(printed["sigma"]), _mean(sigma), str(len(cell))]
            rows.append([name, *paper, *rest])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _convergence(results: Results) -> list[str]:
    parts = [
        "Rounds to a target: ours is the mean over seeds of the first of three consecutive rounds at or above it on "
        "the raw curve; the paper's is read off its smoothed curves (C.37). > means that some seed never reaches it; – "
        "that none does. The ratio is HierFAVG's rounds by the method's, a seed that never reaches the target "
        "counting as one round too late."
    ]
    header = ["target", "method", "paper", "ours", "ratio, paper", "ratio, ours"]
    for task in SIX:
        rows = []
        for target in targets_of(results, task):
            for variant in ARTEFACTS[results.artefact].variants:
                cell = list(results.of(task, variant).values())
                reached = [found.targets[target].round for found in cell]
                printed = rounds_to(task, printed_as(variant), float(target))
                base = rounds_to(task, "hierfavg", float(target))
                ratio = f"{base / printed:.2f}" if base and printed else NONE
                ours = list(round_ratios(results, task, target, "hierfavg", variant).values())
                known = [at for at in reached if at is not None]
                mean = ("> " if known and len(known) < len(reached) else "") + _mean(known, 1, 1)
                paper = NONE if printed is None else f"{printed:.0f}"
                rows.append([f"{float(target):.0%}", variant, paper, mean, ratio, _mean(ours, 1)])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _dynamics(results: Results) -> list[str]:
    header = [
        "data set",
        "method",
        "reassignments, paper",
        "ours",
        "at most",
        "clusters at the end, paper",
        "ours",
    ]
    rows = []
    for task in MODERATE:
        for variant in ARTEFACTS[results.artefact].variants:
            cell = list(results.of(task, variant).values())
            key = "ifca" if variant == "ifca" else "fed-bac"
            printed = [look_up("dynamics", task, key, kind)[-1][1] for kind in ("moves", "active_clusters")]
            moves = _mean([found.moves for found in cell], 1, 1)
            active = _mean([found.active_clusters for found in cell], 1, 1)
            period = 1 if variant == "paper-figures" else 20
            most = str(10 * (cell[0].rounds // period)) if cell else NONE
            name = task_name(task, full=True)
            rows.append([name, variant, f"{printed[0]:g}", moves, most, f"{printed[1]:g}", active])
    return [table(header, rows)]


def _communication(results: Results) -> list[str]:
    parts = [
        "Bytes that a method had sent when it reached a target, the mean over the seeds that reached it, and how many "
        "times as many HierFAVG needed (above 1: HierFAVG sent more). The paper counts only training between clients "
        "and edges; evaluation is what clustering needs to measure networks on clients' data (C.39)."
    ]
    header = ["target", "method", *COUNTS, *(f"ratio: {words}" for words in COUNTS), "ratio, paper"]
    for task in SIX:
        rows = []
        for target in targets_of(results, task):
            for variant in ARTEFACTS[results.artefact].variants:
                sent = [found.targets[target].bytes for found in results.of(task, variant).values()]
                known = [one for one in sent if one is not None]
                amounts = [_bytes([count(one) for one in known]) for count in COUNTS.values()]
                ratios = [
                    _mean(list(byte_ratios(results, task, target, "hierfavg", variant, count).values()), 1)
                    for count in COUNTS.values()
                ]
                printed = look_up("byte_ratios", task, target) if variant in READINGS else None
                rows.append([f"{float(target):.0%}", variant, *amounts, *ratios, _printed(printed)])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _bytes(amounts: Sequence[int]) -> str:
    return human_bytes(float(np.mean(amounts))) if amounts else NONE


def _participation(results: Results) -> list[str]:
    header = [
        "p",
        "Thompson sampling",
        "std over seeds",
        "random clients",
        "std over seeds",
        "σ, Thompson",
        "σ, random",
    ]
    parts = ["Distributed accuracy of `fed-bac` in percent, the mean over seeds of the mean over the last ten rounds."]
    for task in SELECTION_TASKS:
        rows = []
        for fraction in FRACTIONS:
            pair = [list(results.of(task, f"p = {fraction:g}{end}").values()) for end in ("", RANDOM_CLIENTS)]
            shares = [[found.accuracy for found in cell] for cell in pair]
            sigma = [_mean([found.edge_std for found in cell]) for cell in pair]
            rows.append([f"{fraction:g}", *(text for some in shares for text in (_mean(some), _std(some))), *sigma])
        parts += [f"## {task_name(task, full=True)}", table(header, rows)]
    return parts


def _calibration(results: Results) -> list[str]:
    parts = [
        "Distributed accuracy of HierFAVG in percent under each candidate, its difference from the paper's, and the "
        "mean distance of our curve from the paper's (smoothed) one at the paper's points. One candidate is chosen per "
        "data set: the one with the smallest root of the mean square of the differences."
    ]
    for dataset in SETTINGS:
        tasks = [task for task in ARTEFACTS["calibration"].tasks if task.startswith(dataset)]
        header = ["candidate"]
        for task in tasks:
            printed = look_up("accuracy", task, "hierfavg")
            header += [f"{task_name(task)} (paper {printed:.2f})", "difference", "curve"]
        rows = []
        for name in CANDIDATES:
            if not any(results.of(task, name) for task in tasks):
                continue
            cells, off = [], []
            for task in tasks:
                cell = list(results.of(task, name).values())
                shares, printed = [found.accuracy for found in cell], look_up("accuracy", task, "hierfavg")
                off += [100 * float(np.mean(shares)) - printed] if shares else []
                distances = [d for found in cell if (d := _curve_distance(found)) is not None]
                cells += [_mean(shares), _difference(shares, printed), _mean(distances, 1)]
            distance = f"{float(np.sqrt(np.mean(np.square(off)))):.2f}" if len(off) == len(tasks) else NONE
            rows.append([name, *cells, distance])
        parts += [f"## {task_name(dataset, alpha=False, full=True)}", table([*header, "root mean square"], rows)]
    lines = [
        f"- {name}: {', '.join(f'`{setting}`' for setting in settings)}"
        for name, settings in CANDIDATES.items()
        if any(results.of(task, name) for task in ARTEFACTS["calibration"].tasks)
    ]
    return [*parts, "## Candidates", "\n".join(lines)]


def _curve_distance(found: Finding) -> float | None:
    """Return the mean distance in points from the paper's curve, between our points where they fall apart."""
    printed = look_up("curves", found.task, "hierfavg")
    if printed is None or found.curve is None:
        return None
    common = [(round_, value) for round_, value in printed if round_ <= found.rounds]
    ours = np.interp([round_ for round_, _ in common], found.curve.round, found.curve.accuracy)
    return float(np.mean(np.abs(100 * ours - np.array([value for _, value in common]))))


_BODIES: dict[str, Callable[[Results], list[str]]] = {
    "table-2": _accuracy,
    "table-fairness": _fairness,
    "table-scaling": _scaling,
    "table-selection": _selection,
    "capacity": _accuracy,
    "figure-convergence": _convergence,
    "figure-dynamics": _dynamics,
    "communication": _communication,
    "ablation": _accuracy,
    "beyond": _accuracy,
    "participation": _participation,
    "calibration": _calibration,
}
