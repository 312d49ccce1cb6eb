"""Role of model capacity: a wider single network."""

from fedbac_paper.artefact import Artefact, presets
from fedbac_paper.claims import Claim, claim_about
from fedbac_paper.measures import gap, values
from fedbac_paper.paper import READINGS
from fedbac_paper.results import Results
from fedbac_paper.tables import accuracies
from fedbac_paper.verdicts import above, not_worse, positive

TASK, WIDE = "cifar10", "hierfavg-wide"


def claims(results: Results) -> list[Claim]:
    """ "Role of model capacity"."""
    wide, base = values(results, TASK, WIDE), values(results, TASK, "hierfavg")
    out = [
        Claim("capacity-wide-above-hierfavg", "the wider HierFAVG is above HierFAVG", above(wide, base)),
        Claim(
            "capacity-wide-matches-ifca",
            "the wider HierFAVG “merely matches IFCA”: IFCA is not worse",
            not_worse([*gap(results, TASK, "ifca-paper", WIDE).values()]),
        ),
    ]
    for reading in READINGS:
        text = "the wider HierFAVG is “still below” {}"
        out.append(claim_about(reading, "capacity-wide-below", text, above(values(results, TASK, reading), wide)))
        gain, whole = gap(results, TASK, WIDE, "hierfavg"), gap(results, TASK, reading, "hierfavg")
        rest = [whole[seed] / 2 - gain[seed] for seed in sorted(set(gain) & set(whole))]
        text = "“capacity accounts for less than half the total gap” to {}"
        verdict = positive(rest, "points of half the gap left")
        out.append(claim_about(reading, "capacity-less-than-half-the-gap", text, verdict))
    return out


ARTEFACT = Artefact(
    "capacity",
    "A wider single network",
    "“Role of model capacity” in the paper",
    presets((TASK,), "hierfavg", WIDE, "ifca-paper", *READINGS),
    accuracies,
    claims,
)
