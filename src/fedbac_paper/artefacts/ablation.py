"""Our own question: what each part of Fed-BAC contributes."""

from fedbac_paper.artefact import Artefact, Cell, presets
from fedbac_paper.claims import Claim, claim_about, in_all
from fedbac_paper.measures import gap
from fedbac_paper.paper import READINGS
from fedbac_paper.results import Results
from fedbac_paper.tables import accuracies
from fedbac_paper.tasks import SIX, task_name
from fedbac_paper.verdicts import every, not_worse

SINGLETONS = "additive, frozen singletons"
LOWEST_LOSS_5, LOWEST_LOSS_EACH = "additive, lowest loss, K = 5", "additive, lowest loss, K = M"
RANDOM_ASSIGNMENT = "additive, random assignment"
NOT_ADDITIVE, NOT_ADDITIVE_WIDE = "LinUCB, not additive", "LinUCB, not additive, twice the weights"
IFCA_EACH, IFCA_WIDE = "ifca-paper, K = M", "ifca-paper, twice the weights"
IFCA_APART = "ifca-paper, networks start apart"
FED_BAC_CLIPPED, SINGLETONS_CLIPPED = "fed-bac, clipped as one", "singletons, clipped as one"


def additive(task: str) -> tuple[Cell, ...]:
    """Return Fed-BAC's networks with other ways to assign edges to clusters."""
    each = ("method.clustering={kind: lowest_loss, num_clusters: null}",)
    return (
        Cell(task, SINGLETONS, "singletons"),
        Cell(task, LOWEST_LOSS_5, "fed-bac", ("method.clustering={kind: lowest_loss}",)),
        Cell(task, LOWEST_LOSS_EACH, "fed-bac", each),
        Cell(task, RANDOM_ASSIGNMENT, "fed-bac", ("method.clustering={kind: fixed, start_labels: random}",)),
    )


def ifca_each(task: str) -> Cell:
    """Return IFCA with as many clusters as edges."""
    return Cell(task, IFCA_EACH, "ifca-paper", ("method.clustering.num_clusters=null",))


def _cells(task: str) -> tuple[Cell, ...]:
    wide, clipped = ("method.network={kind: lenet5, width: 1.41}",), ("task.training.clip_scope=joint",)
    return (
        *presets((task,), *READINGS),
        *additive(task),
        Cell(task, NOT_ADDITIVE, "linucb-isolated"),
        Cell(task, NOT_ADDITIVE_WIDE, "linucb-isolated", wide),
        Cell(task, "ifca-paper", "ifca-paper"),
        ifca_each(task),
        Cell(task, IFCA_WIDE, "ifca-paper", wide),
        Cell(task, IFCA_APART, "ifca-paper", ("method.personalization.cluster_init=distinct",)),
        Cell(task, "hierfavg", "hierfavg"),
        Cell(task, FED_BAC_CLIPPED, "fed-bac", clipped),
        Cell(task, SINGLETONS_CLIPPED, "singletons", clipped),
    )


_COMPARED = (
    ("lowest-loss-5", "the bandit's assignment is better than lowest loss with K = 5", "fed-bac", LOWEST_LOSS_5),
    ("lowest-loss-each", "the bandit's assignment is better than lowest loss with K = M", "fed-bac", LOWEST_LOSS_EACH),
    ("random-assignment", "the bandit's assignment is better than a random one", "fed-bac", RANDOM_ASSIGNMENT),
    ("additive-helps", "the additive part helps the bandits", "fed-bac", NOT_ADDITIVE),
    (
        "additive-helps-at-equal-capacity",
        "the additive part helps the bandits at equal capacity",
        "fed-bac",
        NOT_ADDITIVE_WIDE,
    ),
    ("clipping-helps-fed-bac", "clipping each network by itself helps Fed-BAC", "fed-bac", FED_BAC_CLIPPED),
    (
        "clipping-helps-singletons",
        "clipping each network by itself helps frozen singletons",
        SINGLETONS,
        SINGLETONS_CLIPPED,
    ),
    ("fed-bac-above-ifca-each", "Fed-BAC is above IFCA with K = M", "fed-bac", IFCA_EACH),
    ("fed-bac-above-ifca-wide", "Fed-BAC is above IFCA with twice the weights", "fed-bac", IFCA_WIDE),
    ("ifca-apart", "IFCA is better when its networks start apart", IFCA_APART, "ifca-paper"),
    ("singletons-above-ifca", "frozen singletons are above IFCA", SINGLETONS, "ifca-paper"),
    ("singletons-above-ifca-each", "frozen singletons are above IFCA with K = M", SINGLETONS, IFCA_EACH),
)
"""Claims that one row is above another in all six settings: the end of the id, the sentence, and both rows."""


def claims(results: Results) -> list[Claim]:
    """Which part does the work."""
    out = []
    for reading in READINGS:
        text = "the cluster bandit of {} is better than frozen singletons"
        verdict = in_all(results, SIX, reading, SINGLETONS)
        out.append(claim_about(reading, "ablation-bandit-above-singletons", text, verdict))
    for end, text, higher, lower in _COMPARED:
        out.append(Claim(f"ablation-{end}", text, in_all(results, SIX, higher, lower)))
    for reading in READINGS:
        lost = {task_name(task): not_worse([*gap(results, task, SINGLETONS, reading).values()]) for task in SIX}
        text = "without a cluster bandit nothing is lost: singletons are not worse than {}"
        out.append(claim_about(reading, "ablation-singletons-not-worse", text, every(lost)))
    return out


ARTEFACT = Artefact(
    "ablation",
    "What each part contributes",
    "Not in the paper",
    tuple(cell for task in SIX for cell in _cells(task)),
    accuracies,
    claims,
)
