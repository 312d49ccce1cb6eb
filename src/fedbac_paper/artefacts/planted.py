"""Our own question: edges that really share distributions."""

from dataclasses import replace

from fedbac.presets.tasks import TASKS
from fedbac_paper.artefact import Artefact, Body, Cell, presets
from fedbac_paper.claims import Claim
from fedbac_paper.measures import gap, moves_by, values
from fedbac_paper.plan import Pass, experiment_of
from fedbac_paper.results import Results
from fedbac_paper.settings import CONSTANT_SHARE, NOTHING_SHARED
from fedbac_paper.tables import code, small_task
from fedbac_paper.verdicts import Verdict, above, below, every, not_worse

TASK = "planted"
PLUS_VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "plus": ("fedbac-plus", ()),
    "constant-share": ("fedbac-plus, a constant share", CONSTANT_SHARE),
    "nothing-shared": (
        "fedbac-plus, nothing shared, all clients measured",
        (*NOTHING_SHARED, "method.measurement.clients=all"),
    ),
}
"""By a word for the ids of claims: the name of the variant, and what it changes."""
KNOWN = "known groups"
"""No method can know the groups; to know them shows what there is to win."""
SELDOM = Cell(
    TASK,
    "fed-cam-edges, every 20 rounds",
    "fed-cam-edges",
    ("method.clustering={kind: lowest_loss}", "method.personalization.cluster_init=shared"),
)
"""The preset now moves edges every round, as its authors do; these runs were there before."""
OF_PAPER = (
    Cell(TASK, "ifca-paper", "ifca-paper", ("method.clustering.period=20",)),
    *presets((TASK,), "paper-text", "paper-figures"),
)
RIVALS = ("singletons", SELDOM.variant, *(cell.variant for cell in OF_PAPER))


def _cells() -> tuple[Cell, ...]:
    known = Cell(TASK, KNOWN, "singletons", ("method.clustering.num_clusters=4",))
    ours = (Cell(TASK, name, "fedbac-plus", settings) for name, settings in PLUS_VARIANTS.values())
    rivals = (*presets((TASK,), "singletons"), SELDOM, *OF_PAPER)
    return tuple(replace(cell, calibrated=False) for cell in (known, *ours, *rivals))


def body(artefact: Artefact, results: Results) -> Body:
    """Return the numbers, and which methods hardly acted in so few rounds."""
    rounds = TASKS[TASK].rounds
    periods = {cell.variant: _period(cell) for cell in artefact.cells}
    once = [variant for variant, period in periods.items() if period is not None and (rounds - 1) // period == 1]
    shown, rows = small_task(artefact, results)
    said = f"{', '.join(map(code, once[:-1]))} and {code(once[-1])} chose clusters once in these {rounds} rounds."
    return Body([*shown, said], rows)


def _period(cell: Cell) -> int | None:
    found: int | None = getattr(experiment_of(cell, 0, Pass()).method.clustering, "period", None)
    return found


def claims(results: Results) -> list[Claim]:
    """Where edges really share distributions."""
    out = []
    for id_, (ours, _) in PLUS_VARIANTS.items():
        own = values(results, TASK, ours)
        parts = {rival: above(own, values(results, TASK, rival)) for rival in RIVALS}
        singletons = parts.pop("singletons")
        known = not_worse([*gap(results, TASK, ours, KNOWN).values()])
        shared = "where edges share distributions"
        out += [
            Claim(f"planted-{id_}-above-singletons", f"{{}} is above singletons, {shared}", singletons, ours),
            Claim(f"planted-{id_}-above-others", f"{{}} is above {', '.join(parts)}, {shared}", every(parts), ours),
            Claim(f"planted-{id_}-matches-known-groups", "{} is not worse than with the groups known", known, ours),
            Claim(f"planted-{id_}-settles", "{} settles to few moves", _settles(results, ours), ours),
        ]
    return out


def _settles(results: Results, variant: str) -> Verdict:
    edges = TASKS[TASK].num_edges
    runs = results.of(TASK, variant)
    moves = {seed: float(found.moves) for seed, found in runs.items()}
    first = {seed: by for seed, found in runs.items() if (by := moves_by(found, found.rounds // 2)) is not None}
    second = {seed: moves[seed] - by for seed, by in first.items()}
    return every(
        {
            f"on average fewer than {edges} moves, one an edge": below(moves, dict.fromkeys(moves, edges), "moves", 1),
            "on average fewer than one move in the second half": below(second, dict.fromkeys(first, 1.0), "moves", 1),
        }
    )


ARTEFACT = Artefact(
    "planted", "Edges that share distributions", "Not in the paper", _cells(), body, claims, curves=True
)
