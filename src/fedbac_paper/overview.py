"""All pages in short: the list for docs/reproduce.md, the main claims for docs/claims.md, the main table."""

from pathlib import Path

from fedbac.statistics import FEWEST_SEEDS
from fedbac_paper.artefacts import ARTEFACTS, beyond
from fedbac_paper.artefacts.ablation import IFCA_EACH, SINGLETONS
from fedbac_paper.pages import heading, in_short, tally
from fedbac_paper.paper import READINGS, look_up, printed_as
from fedbac_paper.results import Results, read_results
from fedbac_paper.tables import NONE, fixed, mean, std, table
from fedbac_paper.tasks import SIX, task_name

FEW_SEEDS = "†"
"""Marks a mean over fewer seeds than a verdict needs."""
MAIN_CLAIMS_OF_READINGS = (
    "table-2-above-hierfavg",
    "table-2-above-ifca",
    "table-2-advantage-grows-over-hierfavg",
    "capacity-wide-below",
    "figure-convergence-fewer-rounds",
    "figure-convergence-range-of-ratios",
    "communication-speed-pays",
    "table-fairness-smaller-spread",
    "table-selection-more-accurate",
    "table-scaling-leads",
    "figure-dynamics-moves",
    "ablation-bandit-above-singletons",
    "ablation-singletons-not-worse",
    "beyond-plus-above",
)
"""Ids without their end, which is the reading of Fed-BAC that the claim is about."""
MAIN_CLAIMS = (
    "table-2-ifca-above-hierfavg",
    "ablation-additive-helps",
    "ablation-singletons-above-ifca",
    beyond.MATCHES_THE_BEST,
    beyond.MATCHES_THE_BEST_HELD_OUT,
    "planted-plus-above-singletons",
    "planted-plus-settles",
    "noisy-credit-above-random",
    "participation-larger-gains-at-lower-rates",
)


def index(results_folder: Path, pages: str) -> str:
    """Return the list of all pages, and how the claims of each stand."""
    rows = []
    for artefact in ARTEFACTS.values():
        results = read_results(artefact.name, results_folder)
        if results is None:
            rows.append([f"`{artefact.name}`", artefact.title, artefact.place, "not run yet"])
            continue
        link = f"[`{artefact.name}`]({pages}/{artefact.name}.md)"
        rows.append([link, heading(results), artefact.place, tally(artefact.claims(results))])
    return table(["artefact", "about", "where", "claims"], rows)


def main_claims(results_folder: Path, pages: str) -> str:
    """Return the main claims, one line each; those of Fed-BAC have a column for each reading of it."""
    claims, shown, links = {}, {}, {}
    for artefact in ARTEFACTS.values():
        results = read_results(artefact.name, results_folder)
        for claim in artefact.claims(results or Results(artefact=artefact.name)):
            claims[claim.id] = claim
            shown[claim.id] = NONE if results is None else in_short(claim.verdict)
            links[claim.id] = f"[{artefact.name}]({pages}/{artefact.name}.md)"
    of_readings = []
    for stem in MAIN_CLAIMS_OF_READINGS:
        ids = [f"{stem}-{reading}" for reading in READINGS]
        text = claims[ids[0]].sentence.format("Fed-BAC")
        of_readings.append([text, *(shown[id_] for id_ in ids), links[ids[0]]])
    others = [[claims[id_].text, shown[id_], links[id_]] for id_ in MAIN_CLAIMS]
    return "\n\n".join(
        [
            table(["Fed-BAC, read as", *(f"`{reading}`" for reading in READINGS), "page"], of_readings),
            table(["other claims", "verdict", "page"], others),
        ]
    )


def main_result(results_folder: Path) -> str:
    """Return the main table for docs/reproduce.md; nothing before there are results."""
    results = read_results("table-2", results_folder)
    if results is None:
        return ""
    seeds = ", ".join(map(str, sorted({found.seed for found in results.findings})))
    return (
        f"\nAccuracy in percent ± its standard deviation over seeds {seeds}; in brackets the paper's number. At α = "
        "0.1 an edge has few classes, at 0.5 most of them. `hierfavg` has one cluster and `ifca-paper` five; in the "
        "other rows there may be as many as edges.\n\n"
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
