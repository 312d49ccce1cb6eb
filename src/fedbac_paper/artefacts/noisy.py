"""Our own question: whether credit of each client's own finds the clients with noisy labels."""

from fedbac_paper.artefact import Artefact, Cell
from fedbac_paper.claims import Claim
from fedbac_paper.measures import values
from fedbac_paper.results import Results
from fedbac_paper.tables import small_task
from fedbac_paper.verdicts import above

TASK = "noisy"
KINDS = ("credit_thompson", "thompson", "random")
"""Ways to choose clients. Clusters are frozen, so that their rows differ in nothing else."""
CELLS = (
    Cell(TASK, "fedbac-plus", "fedbac-plus", ("method.selection.fraction=0.3",), calibrated=False),
    *(
        Cell(TASK, kind, "singletons", (f"method.selection={{kind: {kind}, fraction: 0.3}}",), calibrated=False)
        for kind in KINDS
    ),
)


def claims(results: Results) -> list[Claim]:
    """Whether credit of each client's own finds the noisy ones."""
    accuracy = {cell.variant: values(results, TASK, cell.variant) for cell in CELLS}
    return [
        Claim(
            f"noisy-{id_}-above-{other}",
            f"with noisy clients, p = 0.3, {name} is above {words}",
            above(accuracy[ours], accuracy[other]),
        )
        for id_, name, ours in (("credit", "credit", "credit_thompson"), ("plus", "fedbac-plus", "fedbac-plus"))
        for words, other in (("random clients", "random"), ("the paper's Thompson sampling", "thompson"))
    ]


ARTEFACT = Artefact("noisy", "Clients with noisy labels", "Not in the paper", CELLS, small_task, claims, curves=True)
