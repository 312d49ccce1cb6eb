"""All pages in short, for docs/reproduce.md: their list, and the main table."""

from pathlib import Path

from fedbac.statistics import FEWEST_SEEDS
from fedbac_paper.artefacts import ARTEFACTS, beyond
from fedbac_paper.artefacts.ablation import IFCA_EACH, SINGLETONS
from fedbac_paper.pages import heading, tally
from fedbac_paper.paper import look_up, printed_as
from fedbac_paper.results import Results, read_results
from fedbac_paper.tables import NONE, fixed, mean, std, table
from fedbac_paper.tasks import SIX, task_name

FEW_SEEDS = "†"
"""Marks a mean over fewer seeds than a verdict needs."""


def index(results_folder: Path, pages: str) -> str:
    """Return the list of all pages, and how the claims of each stand."""
    rows = []
    for artefact in ARTEFACTS.values():
        results = read_results(artefact.name, results_folder)
        if results is None:
            rows.append(f"- `{artefact.name}`: {artefact.title}; not run yet")
            continue
        link = f"[`{artefact.name}`]({pages}/{artefact.name}.md)"
        told = tally(artefact.claims(results))
        rows.append(f"- {link}: {heading(results)}" + f"; {told}" * (told != NONE))
    return "\n".join(rows)


def main_result(results_folder: Path) -> str:
    """Return the main table for docs/reproduce.md; nothing before there are results."""
    results = read_results("table-2", results_folder)
    if results is None:
        return ""
    seeds = ", ".join(map(str, sorted({found.seed for found in results.findings})))
    return (
        f"\nAccuracy in percent ± its standard deviation over seeds {seeds} (the paper's). At α = 0.1 an edge has few "
        "classes, at 0.5 most. `hierfavg` has one cluster, `ifca-paper` five, the others up to one per edge.\n\n"
        f"{main_table(results, read_results('beyond', results_folder))}\n\n"
    )


def main_table(results: Results, plus: Results | None = None) -> str:
    """Return the main result in short, a column per setting: ours ± std over seeds, the paper's in brackets.

    Rows of ``beyond``, which the paper does not have, come last, with the seeds that the others have.
    """
    shown = [(results, variant) for variant in ARTEFACTS["table-2"].variants]
    if plus is not None:
        shown += [(plus, variant) for variant in (IFCA_EACH, SINGLETONS, beyond.PLUS) if plus.of(SIX[0], variant)]
    rows = []
    for found_in, variant in shown:
        row = [variant]
        for task in SIX:
            seeds = {found.seed for found in results.findings if found.task == task}
            shares = [found.accuracy for seed, found in found_in.of(task, variant).items() if seed in seeds]
            mark = "" if len(shares) >= FEWEST_SEEDS else FEW_SEEDS
            paper = look_up("accuracy", task, printed_as(variant))
            theirs = "" if paper is None else f" ({fixed(paper, 1)})"
            spread = f" ± {std(shares, digits=1)}" if len(shares) > 1 else ""
            row.append(f"{mean(shares, digits=1)}{spread}{mark}{theirs}" if shares else NONE)
        rows.append(row)
    text = table(["ours (paper), %", *(task_name(task) for task in SIX)], rows)
    return f"{text}\n\n{FEW_SEEDS} fewer than {FEWEST_SEEDS} seeds so far" if FEW_SEEDS in text else text
