"""The main claims in short, gathered from the pages: one line each."""

from collections.abc import Mapping
from pathlib import Path

from fedbac_paper import results as store
from fedbac_paper.cells import NONE, table
from fedbac_paper.claims import claims
from fedbac_paper.own_claims import matches_the_best
from fedbac_paper.paper import READINGS
from fedbac_paper.verdicts import Verdict

OF_EACH_READING = (
    ("table-2", "{} is above HierFAVG in all six settings"),
    ("table-2", "{} is above IFCA in all six settings"),
    ("table-2", "the advantage of {} over HierFAVG increases with heterogeneity"),
    ("capacity", "the wider HierFAVG is “still below” {}"),
    ("figure-convergence", "{} reaches every target in fewer rounds than HierFAVG"),
    (
        "figure-convergence",
        "{} converges “1.5–4.8× faster depending on dataset and accuracy target” than HierFAVG",
    ),
    (
        "communication",
        "{}: “convergence speedups more than compensate for the doubled model payload” "
        "(training between clients and edges)",
    ),
    (
        "table-fairness",
        "“improving cross-server fairness”: {} has a smaller σ than HierFAVG and IFCA in all six settings",
    ),
    ("table-selection", "{}: Thompson sampling is more accurate than random clients, “modest” as the gain is"),
    ("table-scaling", "{} “retains its lead on distributed accuracy”"),
    ("figure-dynamics", "{}: the number of reassignments is that of the figures"),
    ("ablation", "the cluster bandit of {} is better than frozen singletons"),
    ("ablation", "without a cluster bandit nothing is lost: singletons are not worse than {}"),
    ("beyond", "fedbac-plus is above {} in all six settings"),
)
"""Claims about Fed-BAC, which is one of its readings where {} stands."""
OF_OTHERS = (
    ("table-2", "IFCA is above HierFAVG in all six settings"),
    ("ablation", "the additive part helps the bandits"),
    ("ablation", "frozen singletons are above IFCA"),
    ("beyond", matches_the_best()),
    ("beyond", matches_the_best(held_out=True)),
    ("planted", "fedbac-plus is above singletons, where edges share distributions"),
    ("planted", "fedbac-plus settles to few moves"),
    ("noisy", "with noisy clients, p = 0.3, credit is above random clients"),
    ("participation", "“larger gains are expected at lower participation rates”: at p = 0.2 than at p = 0.8"),
)


def headlines(results_folder: Path, pages: str) -> str:
    """Return the main claims, those of Fed-BAC with a column for each reading of it."""
    judged = {
        name: {claim.text: claim.verdict for claim in claims(found)}
        for name in dict.fromkeys(name for name, _ in (*OF_EACH_READING, *OF_OTHERS))
        if (found := store.read(name, results_folder)) is not None
    }
    ours = [
        [text.format("Fed-BAC"), *(_short(judged, name, text.format(r)) for r in READINGS), _link(name, pages)]
        for name, text in OF_EACH_READING
    ]
    others = [[text, _short(judged, name, text), _link(name, pages)] for name, text in OF_OTHERS]
    return "\n\n".join(
        [
            table(["Fed-BAC, read as", *(f"`{reading}`" for reading in READINGS), "page"], ours),
            table(["other claims", "verdict", "page"], others),
        ]
    )


def _short(judged: Mapping[str, Mapping[str, Verdict]], name: str, text: str) -> str:
    return in_short(judged[name][text]) if name in judged else NONE


def in_short(verdict: Verdict) -> str:
    """Return a verdict's word, and in how many parts or by how much, unless there is nothing to judge by."""
    if verdict.word in {"not run", "too few seeds"}:
        return f"**{verdict.word}**"
    much = verdict.detail.partition(";")[0]
    if verdict.word == "holds":
        much = much.removeprefix("holds ")
    return f"**{verdict.word}**, {much}".removesuffix(", ")


def _link(name: str, pages: str) -> str:
    return f"[{name}]({pages}/{name}.md)"
