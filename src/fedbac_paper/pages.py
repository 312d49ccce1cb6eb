"""One page a table or figure, written from the result files alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedbac.report import canvas
from fedbac_paper import results as store
from fedbac_paper.artefacts import ARTEFACTS, EVERYTHING, IFCA_EACH, SINGLETONS, SIX, Artefact
from fedbac_paper.bodies import body
from fedbac_paper.cells import NONE, fixed, mean, runs, std, table
from fedbac_paper.claims import Claim, claims
from fedbac_paper.figures import figure, has_figure
from fedbac_paper.names import FORMAT_1, task_name
from fedbac_paper.paper import READINGS, look_up, printed_as
from fedbac_paper.results import Results
from fedbac_paper.settings import SETTINGS
from fedbac_paper.verdicts import FEWEST_SEEDS, RULES

FEW = "†"
"""Marks a mean over fewer seeds than a verdict needs."""
FROM_RESULTS = "--results results --pages docs/reproduce"
LEAK = (
    "`paper-figures` and `paper-text` reward Thompson sampling by accuracy on the test data that are reported, as the "
    "paper does (C.29); `fed-bac` uses validation data. They also differ in how often edges are reassigned: every "
    "round in `paper-figures`, every 20 rounds in the others (C.21); in the start on Fashion-MNIST, one cluster for "
    "all in `paper-*` and one per edge in `fed-bac` (C.28); and in the round after a move, which counts for Thompson "
    "sampling in `paper-*` and not in `fed-bac` (`method.selection.skip_after_move`, C.30)."
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
    parts += body(results)
    judged = claims(results)
    if judged:
        parts += [
            "## Verdicts" + (f" ({results.kind.lower()})" if results.changes else ""),
            verdict_table(judged),
            RULES,
        ]
    notes = [LEAK] if set(READINGS) & set(artefact.variants) else []
    notes += [FORMAT_1] if any(task.startswith("svhn") for task in artefact.tasks) else []
    if notes:
        parts += ["## Notes", *notes]
    return "\n\n".join(parts) + "\n"


def heading(results: Results) -> str:
    """Return a page's title; a pass that is no reproduction says so there."""
    title = ARTEFACTS[results.artefact].title
    return f"{results.kind}, not a reproduction ({', '.join(results.changes)}): {title}" if results.changes else title


def index(results_folder: Path, pages: str) -> str:
    """Return the list of all pages: how much of each was run and how its claims stand."""
    rows = []
    for artefact in ARTEFACTS.values():
        results = store.read(artefact.name, results_folder)
        if results is None:
            rows.append([f"`{artefact.name}`", artefact.title, artefact.place, "not run yet", NONE])
            continue
        cells = {(found.task, found.variant) for found in results.findings}
        state = f"{progress(results)}, {len(cells)} of {len(artefact.cells)} rows"
        link = f"[`{artefact.name}`]({pages}/{artefact.name}.md)"
        rows.append([link, heading(results), artefact.place, state, tally(claims(results))])
    return table(["artefact", "about", "where", "run", "claims"], rows)


def progress(results: Results) -> str:
    """Return how many runs there are of those that verdicts need; the calibration needs no certain number."""
    count = len(results.findings)
    if results.artefact not in EVERYTHING:
        return runs(count)
    cells = ARTEFACTS[results.artefact].cells
    needed = sum(min(FEWEST_SEEDS, len(results.of(cell.task, cell.variant))) for cell in cells)
    more = f" and {count - needed} of further seeds" if count > needed else ""
    return f"{needed} of {runs(FEWEST_SEEDS * len(cells))}{more}"


def tally(judged: Sequence[Claim]) -> str:
    """Return how many claims have which verdict."""
    counts = Counter(claim.verdict.word for claim in judged)
    return ", ".join(f"{word}: {count}" for word, count in sorted(counts.items())) or NONE


def main_table(results: Results, beyond: Results | None = None) -> str:
    """Return the main result in short, a column per setting: ours ± std over seeds, the paper's in brackets.

    Rows that the paper does not have, and that were run, come last, with the seeds that the others have.
    """
    shown = [(results, variant) for variant in ARTEFACTS["table-2"].variants]
    if beyond is not None:
        shown += [(beyond, variant) for variant in (IFCA_EACH, SINGLETONS, "fedbac-plus") if beyond.of(SIX[0], variant)]
    rows = []
    for found_in, variant in shown:
        cells = []
        for task in SIX:
            seeds = {found.seed for found in results.findings if found.task == task}
            shares = [found.accuracy for seed, found in found_in.of(task, variant).items() if seed in seeds]
            mark = "" if len(shares) >= FEWEST_SEEDS else FEW
            printed = look_up("accuracy", task, printed_as(variant))
            theirs = "" if printed is None else f" ({fixed(printed, 1)})"
            spread = f" ± {std(shares, digits=1)}" if len(shares) > 1 else ""
            cells.append(f"{mean(shares, digits=1)}{spread}{mark}{theirs}" if shares else NONE)
        rows.append([variant, *cells])
    text = table(["ours (paper), %", *(task_name(task, full=True) for task in SIX)], rows)
    return f"{text}\n\n{FEW} fewer than {FEWEST_SEEDS} seeds so far" if FEW in text else text


def verdict_table(judged: Sequence[Claim]) -> str:
    """Return claims with their verdicts."""
    rows = [[claim.text, f"**{claim.verdict.word}**", claim.verdict.detail or NONE] for claim in judged]
    return table(["claim", "verdict", "evidence"], rows)


def _origin(artefact: Artefact, results: Results) -> str:
    if results.changes:
        lines = ["This pass changes what the paper does, so nothing on this page tells whether a claim holds.", ""]
    else:
        lines = [f"{artefact.place}. This page is written from `results/{artefact.name}.json`; do not edit it.", ""]
        most = max((found.seed + 1 for found in results.findings), default=0)
        seeds_wanted = f"--seeds {most} " if most > FEWEST_SEEDS else ""
        command = f"fedbac reproduce {artefact.name} {seeds_wanted}{FROM_RESULTS}"
        lines += ["```", command, f"{command} --render-only", "```", ""]
    if not results.findings:
        return "\n".join([*lines, "No run is finished yet."])
    seeds = sorted({found.seed for found in results.findings})
    machines = Counter(f"{found.machine}, trainer `{found.trainer}`" for found in results.findings)
    hours = sum(found.seconds for found in results.findings) / 3600
    lines.append(f"{progress(results)}, seeds {', '.join(map(str, seeds))}, {hours:.1f} hours in all, on:")
    lines += ["", *(f"- {machine} ({runs(count)})" for machine, count in sorted(machines.items()))]
    datasets = {cell.dataset for cell in artefact.cells if cell.calibrated}
    used = [dataset for dataset in SETTINGS if dataset in datasets and results.settings]
    if used:
        lines += ["", "Settings that the paper leaves open, the same for all methods (others at their defaults):", ""]
        for dataset in used:
            chosen = ", ".join(f"`{setting}`" for setting in results.settings.get(dataset, ())) or "the defaults"
            lines.append(f"- {task_name(dataset, alpha=False)}: {chosen}")
    return "\n".join(lines)
