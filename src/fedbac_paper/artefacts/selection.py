"""Table V: Thompson sampling against random clients."""

from fedbac_paper.artefact import RANDOM_CLIENTS, Artefact, Body, Cell
from fedbac_paper.claims import Claim, claim_about, fairer, in_all, noted, own_numbers
from fedbac_paper.paper import READINGS, look_up
from fedbac_paper.results import Results
from fedbac_paper.tables import ACCURACY, ACCURACY_HEADER, difference, mean, paper_number, side_by_side, std
from fedbac_paper.tasks import task_name
from fedbac_paper.verdicts import every

SELECTION_TASKS = ("cifar10", "fashion-mnist")
AT_RANDOM = ("method.selection={kind: random, fraction: 0.8}",)
CELLS = tuple(
    cell
    for task in SELECTION_TASKS
    for reading in READINGS
    for cell in (Cell(task, reading, reading), Cell(task, reading + RANDOM_CLIENTS, reading, AT_RANDOM))
)


def body(artefact: Artefact, results: Results) -> Body:
    """Return accuracies and σ over edges of both ways to choose clients."""
    rows = [[*ACCURACY_HEADER[:-2], "σ, paper", "σ, ours", "seeds"]]
    for task in SELECTION_TASKS:
        for variant in artefact.variants:
            paper = look_up("selection", task, "random" if variant.endswith(RANDOM_CLIENTS) else "thompson")
            runs = list(results.of(task, variant).values())
            shares, sigma = [found.accuracy for found in runs], [found.edge_std for found in runs]
            name = variant if variant.endswith(RANDOM_CLIENTS) else f"{variant}, Thompson sampling"
            theirs = [paper_number(paper["mean"]), paper_number(paper["pm"])]
            ours = [mean(shares), std(shares), mean([found.accuracy_std_last for found in runs])]
            rest = [difference(shares, paper["mean"]), paper_number(paper["sigma"]), mean(sigma), str(len(runs))]
            rows.append([task_name(task), name, *theirs, *ours, *rest])
    return Body([f"{ACCURACY} p = 0.8; σ over edges is in the file.", side_by_side(rows, "ours")], rows)


def claims(results: Results) -> list[Claim]:
    """Table V and "Impact of Client Selection Strategy"."""
    own = []
    for task in SELECTION_TASKS:
        random, thompson = (look_up("selection", task, kind) for kind in ("random", "thompson"))
        gain = f"+{thompson['mean'] - random['mean']:.2f} with spreads of {random['pm']} and {thompson['pm']}"
        own.append(f"{gain} on {task_name(task, alpha=False)}")
    out = []
    for reading in READINGS:
        other = reading + RANDOM_CLIENTS
        text = "{}: Thompson sampling is more accurate than random clients (the paper calls the gain “modest”)"
        verdict = noted(in_all(results, SELECTION_TASKS, reading, other), own_numbers("Table V", own))
        out.append(claim_about(reading, "table-selection-more-accurate", text, verdict))
        text = "{}: Thompson sampling “consistently reduces cross-server variance”"
        parts = {task_name(task): fairer(results, task, reading, other) for task in SELECTION_TASKS}
        out.append(claim_about(reading, "table-selection-smaller-spread", text, every(parts)))
    return out


ARTEFACT = Artefact(
    "table-selection", "Thompson sampling against random clients", "Table V of the paper", CELLS, body, claims
)
