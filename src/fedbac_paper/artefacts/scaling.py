"""Table III: twenty edges and 500 clients."""

from fedbac_paper.artefact import Artefact, Body, presets
from fedbac_paper.claims import Claim, claim_about
from fedbac_paper.measures import gap, values
from fedbac_paper.paper import BASELINES, READINGS, look_up, printed_as
from fedbac_paper.results import Results
from fedbac_paper.tables import NONE, accuracies, difference, mean, paper_number, side_by_side, std
from fedbac_paper.tasks import task_name
from fedbac_paper.verdicts import above, below, every, near

LARGE, SMALL = "cifar10-500", "cifar10"


def body(artefact: Artefact, results: Results) -> Body:
    """Return the final accuracies, and those at round 20."""
    (about, _), rows = accuracies(artefact, results)
    for variant in artefact.variants:
        shares = list(_at_round_20(results, variant).values())
        paper = look_up("round_20", LARGE, printed_as(variant))
        ours = [mean(shares), std(shares), NONE, difference(shares, paper), NONE, str(len(shares))]
        rows.append([f"{task_name(LARGE)}, round 20", variant, paper_number(paper), NONE, *ours])
    return Body([about, side_by_side(rows, "ours")], rows)


def _at_round_20(results: Results, variant: str) -> dict[int, float]:
    curves = {seed: found.curve for seed, found in results.of(LARGE, variant).items()}
    shares = {seed: curve.at(20) if curve else None for seed, curve in curves.items()}
    return {seed: share for seed, share in shares.items() if share is not None}


def claims(results: Results) -> list[Claim]:
    """Table III, "Gains hold at larger deployment scale" and "Convergence speed scales gracefully"."""
    printed = look_up("accuracy", LARGE)
    final = {variant: values(results, LARGE, variant) for variant in (*BASELINES, *READINGS)}
    smaller = {variant: below(large, values(results, SMALL, variant)) for variant, large in final.items()}
    out = [
        Claim(
            "table-scaling-ifca-above-hierfavg", "IFCA is above HierFAVG", above(final["ifca-paper"], final["hierfavg"])
        ),
        Claim(
            "table-scaling-all-lower",
            "“the distributed accuracy of all three methods is lower than at the primary scale”",
            every(smaller),
        ),
    ]
    for reading in READINGS:
        leads = {name: above(final[reading], final[other]) for other, name in BASELINES.items()}
        text = "{} “retains its lead on distributed accuracy”"
        out.append(claim_about(reading, "table-scaling-leads", text, every(leads)))
        sizes = {
            name: near(
                [100 * one for one in gap(results, LARGE, reading, other).values()],
                round(printed["fed-bac"] - printed[other], 1),
            )
            for other, name in BASELINES.items()
        }
        text = "{} exceeds “HierFAVG by +12.6pp and IFCA by +3.3pp”"
        out.append(claim_about(reading, "table-scaling-size-of-lead", text, every(sizes)))
        large, small = (gap(results, task, reading, "ifca-paper") for task in (LARGE, SMALL))
        text = "the margin of {} over IFCA “compresses” against that at N = 100"
        out.append(claim_about(reading, "table-scaling-margin-shrinks", text, below(large, small)))
        early = {variant: _at_round_20(results, variant) for variant in (reading, *BASELINES)}
        parts = {name: above(early[reading], early[other]) for other, name in BASELINES.items()}
        text = "{} is above HierFAVG and IFCA at round 20"
        out.append(claim_about(reading, "table-scaling-leads-at-round-20", text, every(parts)))
    return out


ARTEFACT = Artefact(
    "table-scaling",
    "Twenty edges, 500 clients",
    "Table III of the paper",
    presets((LARGE, SMALL), *BASELINES, *READINGS),
    body,
    claims,
    curves=True,
)
