"""The tables and figures of the study, one file each: its runs, its page, its figure and its claims."""

from fedbac_paper.artefact import Artefact
from fedbac_paper.artefacts import (
    ablation,
    beyond,
    calibration,
    capacity,
    communication,
    convergence,
    dynamics,
    fairness,
    noisy,
    participation,
    planted,
    scaling,
    selection,
    table_2,
)

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        table_2.TABLE_2,
        table_2.PER_CLASS,
        fairness.ARTEFACT,
        scaling.ARTEFACT,
        selection.ARTEFACT,
        capacity.ARTEFACT,
        convergence.ARTEFACT,
        dynamics.ARTEFACT,
        communication.ARTEFACT,
        ablation.ARTEFACT,
        beyond.ARTEFACT,
        planted.ARTEFACT,
        noisy.ARTEFACT,
        participation.ARTEFACT,
        calibration.ARTEFACT,
    )
}
"""By name, in the order in which the command and the pages list them."""

EVERYTHING = tuple(name for name in ARTEFACTS if name != "calibration")
"""What ``all`` means: the calibration comes before it."""
