"""Tables and figures as data: which configurations each of them runs, once per seed."""

from dataclasses import dataclass, replace

from fedbac.presets.tasks import TASKS
from fedbac_paper.paper import READINGS
from fedbac_paper.settings import CANDIDATES

MODERATE = ("cifar10", "svhn", "fashion-mnist")
SEVERE = tuple(f"{task}-severe" for task in MODERATE)
SIX = tuple(task for pair in zip(MODERATE, SEVERE, strict=True) for task in pair)
SELECTION_TASKS = ("cifar10", "fashion-mnist")
FRACTIONS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
BASELINES = ("hierfavg", "ifca")
SINGLETONS = "additive, frozen singletons"
IFCA_EACH = "ifca, K = M"
PLUS_VARIANTS = {
    "fedbac-plus": (),
    "fedbac-plus, a constant share": ("method.sharing=0.1", "method.sharing_by=constant"),
    "fedbac-plus, nothing shared, all clients measured": (
        "method.sharing=0",
        "method.sharing_by=constant",
        "method.measurement.clients=all",
    ),
}
RANDOM_CLIENTS = ", random clients"
"""Ends the name of a variant that differs from the one before it in its client selection only."""


@dataclass(frozen=True)
class Cell:
    """One configuration: a method on a task, with settings of its own."""

    task: str
    variant: str
    method: str
    settings: tuple[str, ...] = ()
    calibrated: bool = True
    """Whether the data set's settings apply; not to candidates of the calibration and tasks of our own."""

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return TASKS[self.task].dataset


@dataclass(frozen=True)
class Artefact:
    """A table or figure: its name on the command line, its title, where it is in the paper, and its cells."""

    name: str
    title: str
    place: str
    cells: tuple[Cell, ...]
    curves: bool = False
    """Whether the results keep curves over the rounds."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks, in their order."""
        return tuple(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants, in their order."""
        return tuple(dict.fromkeys(cell.variant for cell in self.cells))


def _presets(tasks: tuple[str, ...], *methods: str) -> tuple[Cell, ...]:
    return tuple(Cell(task, method, method) for task in tasks for method in methods)


def _with_random_clients(tasks: tuple[str, ...]) -> tuple[Cell, ...]:
    changed = ("method.selection={kind: random, fraction: 0.8}",)
    return tuple(
        cell
        for task in tasks
        for reading in READINGS
        for cell in (Cell(task, reading, reading), Cell(task, reading + RANDOM_CLIENTS, reading, changed))
    )


def _ablation(task: str) -> tuple[Cell, ...]:
    bandit, width = "fed-bac", "method.network={kind: lenet5, width: 1.41}"
    as_one = "task.training.clip_scope=joint"
    return (
        *_presets((task,), *READINGS),
        Cell(task, SINGLETONS, "singletons"),
        Cell(task, "additive, lowest loss, K = 5", bandit, ("method.clustering={kind: lowest_loss}",)),
        Cell(
            task,
            "additive, lowest loss, K = M",
            bandit,
            ("method.clustering={kind: lowest_loss, num_clusters: null}",),
        ),
        Cell(task, "additive, random assignment", bandit, ("method.clustering={kind: fixed, start_labels: random}",)),
        Cell(task, "LinUCB, not additive", "linucb-isolated"),
        Cell(task, "LinUCB, not additive, twice the weights", "linucb-isolated", (width,)),
        Cell(task, "ifca", "ifca"),
        Cell(task, IFCA_EACH, "ifca", ("method.clustering.num_clusters=null",)),
        Cell(task, "ifca, twice the weights", "ifca", (width,)),
        Cell(task, "ifca, networks start apart", "ifca", ("method.personalization.cluster_init=distinct",)),
        Cell(task, "hierfavg", "hierfavg"),
        Cell(task, "fed-bac, clipped as one", bandit, (as_one,)),
        Cell(task, "singletons, clipped as one", "singletons", (as_one,)),
    )


def _participation(task: str) -> tuple[Cell, ...]:
    cells = []
    for fraction in FRACTIONS:
        bandit = (f"method.selection.fraction={fraction:g}",)
        random = (f"method.selection={{kind: random, fraction: {fraction:g}}}",)
        cells.append(Cell(task, f"p = {fraction:g}", "fed-bac", bandit))
        if fraction < 1:  # else there is nothing to choose
            cells.append(Cell(task, f"p = {fraction:g}{RANDOM_CLIENTS}", "fed-bac", random))
    return tuple(cells)


def _beyond(task: str) -> tuple[Cell, ...]:
    """The preset, what sharing gives without the rest of it, and its rivals."""
    ours = Cell(task, "fedbac-plus", "fedbac-plus")
    share_only = Cell(task, "additive, frozen singletons, a constant share", "singletons", ("method.sharing=0.1",))
    rivals = tuple(c for c in _ablation(task) if c.variant.startswith("additive") or c.variant == IFCA_EACH)
    return (ours, share_only, *_presets((task,), "ifca", *READINGS), *rivals)


def _planted(task: str) -> tuple[Cell, ...]:
    """Edges that share distributions; no method can know the groups, so knowing them shows what there is to win."""
    known = Cell(task, "known groups", "singletons", ("method.clustering.num_clusters=4",))
    ours = (Cell(task, name, "fedbac-plus", settings) for name, settings in PLUS_VARIANTS.items())
    others = _presets((task,), "singletons", "fed-cam", "ifca", "paper-text", "paper-figures")
    return tuple(replace(cell, calibrated=False) for cell in (known, *ours, *others))


def _noisy(task: str) -> tuple[Cell, ...]:
    """Clients with noisy labels; clusters are frozen, so that rows differ in selection only, except in the preset's."""
    kinds = tuple(
        Cell(task, kind, "singletons", (f"method.selection={{kind: {kind}, fraction: 0.3}}",), calibrated=False)
        for kind in ("credit_thompson", "thompson", "random")
    )
    return (Cell(task, "fedbac-plus", "fedbac-plus", ("method.selection.fraction=0.3",), calibrated=False), *kinds)


MAIN = _presets(SIX, *BASELINES, *READINGS)
PER_CLASS = tuple(replace(cell, settings=("task.partition.mode=per_class",)) for cell in MAIN)

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        Artefact("table-2", "Distributed accuracy", "Table II of the paper", MAIN),
        Artefact(
            "table-2-per-class",
            "Distributed accuracy, the other Dirichlet draw",
            "Table II of the paper with the classes drawn over the edges (`task.partition.mode=per_class`, C.10)",
            PER_CLASS,
        ),
        Artefact("table-fairness", "Fairness over edges", "Table IV of the paper", MAIN),
        Artefact(
            "table-scaling",
            "Twenty edges, 500 clients",
            "Table III of the paper",
            _presets(("cifar10-500", "cifar10"), *BASELINES, *READINGS),
            curves=True,
        ),
        Artefact(
            "table-selection",
            "Thompson sampling against random clients",
            "Table V of the paper",
            _with_random_clients(SELECTION_TASKS),
        ),
        Artefact(
            "capacity",
            "A wider single network",
            "“Role of model capacity” in the paper",
            _presets(("cifar10",), "hierfavg", "hierfavg-wide", "ifca", *READINGS),
        ),
        Artefact(
            "figure-convergence",
            "Accuracy over the rounds",
            "Figure and section “Convergence Speed” of the paper",
            MAIN,
            curves=True,
        ),
        Artefact(
            "figure-dynamics",
            "Reassignments and active clusters",
            "Figures of cluster dynamics in the paper",
            _presets(MODERATE, "ifca", *READINGS),
            curves=True,
        ),
        Artefact("communication", "Bytes to a target", "“Communication Cost Model” in the paper", MAIN),
        Artefact(
            "ablation",
            "What each part contributes",
            "Not in the paper",
            tuple(cell for task in SIX for cell in _ablation(task)),
        ),
        Artefact(
            "beyond",
            "fedbac-plus against everything else",
            "Not in the paper",
            tuple(cell for task in SIX for cell in _beyond(task)),
        ),
        Artefact("planted", "Edges that share distributions", "Not in the paper", _planted("planted"), curves=True),
        Artefact("noisy", "Clients with noisy labels", "Not in the paper", _noisy("noisy"), curves=True),
        Artefact(
            "participation",
            "How many clients train",
            "Named as future work in the paper",
            tuple(cell for task in SELECTION_TASKS for cell in _participation(task)),
        ),
        Artefact(
            "calibration",
            "Calibration on HierFAVG",
            "Not in the paper",
            tuple(
                Cell(task, name, "hierfavg", settings, calibrated=False)
                for task in (*SIX, "cifar10-500")
                for name, settings in CANDIDATES.items()
            ),
            curves=True,
        ),
    )
}

EVERYTHING = tuple(name for name in ARTEFACTS if name != "calibration")
"""What ``all`` means: the calibration comes before it."""
