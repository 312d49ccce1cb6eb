"""Our own question: fedbac-plus against everything else in the paper's six settings."""

import numpy as np

from fedbac_paper.artefact import Artefact, Body, Cell, presets
from fedbac_paper.artefacts.ablation import IFCA_EACH, LOWEST_LOSS_5, SINGLETONS, additive, ifca_each
from fedbac_paper.claims import Claim, claim_about, in_all
from fedbac_paper.measures import values
from fedbac_paper.paper import READINGS
from fedbac_paper.results import Results
from fedbac_paper.settings import CONSTANT_SHARE
from fedbac_paper.tables import accuracies
from fedbac_paper.tasks import SIX, task_name
from fedbac_paper.verdicts import Verdict, every, not_worse

PLUS = "fedbac-plus"
RIVALS = ("paper-text", "paper-figures", SINGLETONS, LOWEST_LOSS_5, "ifca-paper", IFCA_EACH)
"""What a better cluster policy has to match in every setting."""
HELD_OUT = 12
"""The first seed of the six settings by which no rule of ``fedbac-plus`` was chosen."""
MATCHES_THE_BEST = "beyond-plus-matches-the-best"
MATCHES_THE_BEST_HELD_OUT = "beyond-plus-matches-the-best-held-out"


def _cells(task: str) -> tuple[Cell, ...]:
    """The preset, what sharing gives without the rest of it, and its rivals."""
    share_only = Cell(task, "additive, frozen singletons, a constant share", "singletons", CONSTANT_SHARE)
    rivals = (*presets((task,), "ifca-paper", *READINGS), *additive(task), ifca_each(task))
    return (Cell(task, PLUS, PLUS), share_only, *rivals)


def claims(results: Results) -> list[Claim]:
    """Whether a better cluster policy matches whatever is best where it is."""
    held_out = results.model_copy(update={"findings": tuple(f for f in results.findings if f.seed >= HELD_OUT)})
    text = f"{PLUS} is not worse than the best of {len(RIVALS)} rivals in any of the six settings"
    seeds = f"counting only seeds from {HELD_OUT} on, on which none of its rules was chosen"
    out = [
        Claim(MATCHES_THE_BEST, text, _matches_the_best(results)),
        Claim(MATCHES_THE_BEST_HELD_OUT, f"{text}, {seeds}", _matches_the_best(held_out)),
    ]
    for reading in READINGS:
        verdict = in_all(results, SIX, PLUS, reading)
        out.append(claim_about(reading, "beyond-plus-above", f"{PLUS} is above {{}} in all six settings", verdict))
    return out


def _matches_the_best(results: Results) -> Verdict:
    return every(dict(_against_the_best(results, task) for task in SIX))


def _against_the_best(results: Results, task: str) -> tuple[str, Verdict]:
    """Return a setting's name with the best rival's, by the mean over the seeds that all have, and the verdict."""
    accuracy = {variant: values(results, task, variant) for variant in (PLUS, *RIVALS)}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in accuracy.values())))
    if not seeds:
        return task_name(task), Verdict("not run")
    best = max(RIVALS, key=lambda rival: float(np.mean([accuracy[rival][seed] for seed in seeds])))
    differences = [accuracy[PLUS][seed] - accuracy[best][seed] for seed in seeds]
    return f"{task_name(task)}, best rival {best}", not_worse(differences)


def body(artefact: Artefact, results: Results) -> Body:
    """Return the accuracies, and who the rivals are."""
    shown, rows = accuracies(artefact, results)
    return Body([f"The {len(RIVALS)} rivals of {PLUS} in the verdicts are: {'; '.join(RIVALS)}.", *shown], rows)


ARTEFACT = Artefact(
    "beyond",
    "fedbac-plus against everything else",
    "Not in the paper",
    tuple(cell for task in SIX for cell in _cells(task)),
    body,
    claims,
)
