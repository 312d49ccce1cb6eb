"""The claims of each table and figure, judged on our results by the rules of ``verdicts``."""

from collections.abc import Callable

from fedbac_paper import own_claims, paper_claims, speed_claims
from fedbac_paper.measures import COUNTS, Claim, bound, byte_ratios, round_ratios, targets_of
from fedbac_paper.results import Results

__all__ = ["COUNTS", "Claim", "bound", "byte_ratios", "claims", "round_ratios", "targets_of"]


def claims(results: Results) -> list[Claim]:
    """Return the claims of an artefact with their verdicts; none for the calibration."""
    judge = _JUDGES.get(results.artefact)
    return judge(results) if judge else []


_JUDGES: dict[str, Callable[[Results], list[Claim]]] = {
    "table-2": paper_claims.table_2,
    "table-2-per-class": paper_claims.table_2,
    "table-fairness": paper_claims.fairness,
    "table-scaling": paper_claims.scaling,
    "table-selection": paper_claims.selection,
    "capacity": paper_claims.capacity,
    "figure-convergence": speed_claims.convergence,
    "figure-dynamics": paper_claims.dynamics,
    "communication": speed_claims.communication,
    "ablation": own_claims.ablation,
    "beyond": own_claims.beyond,
    "planted": own_claims.planted,
    "noisy": own_claims.noisy,
    "participation": own_claims.participation,
}
