"""What the paper leaves out: questions of our own, judged by the same rules."""

from collections.abc import Mapping

import numpy as np

from fedbac.presets.tasks import TASKS
from fedbac_paper.artefacts import (
    ARTEFACTS,
    FRACTIONS,
    IFCA_EACH,
    PLUS_VARIANTS,
    RANDOM_CLIENTS,
    SELECTION_TASKS,
    SINGLETONS,
    SIX,
)
from fedbac_paper.measures import Claim, gap, in_all, moves_by, values
from fedbac_paper.names import task_name
from fedbac_paper.paper import READINGS
from fedbac_paper.results import Results
from fedbac_paper.verdicts import Verdict, above, below, every, not_worse

RIVALS = ("paper-text", "paper-figures", SINGLETONS, "additive, lowest loss, K = 5", "ifca", IFCA_EACH)
"""What a better cluster policy has to match in every setting."""
HELD_OUT = 12
"""The first seed of the six settings by which no rule of ``fedbac-plus`` was chosen."""


def ablation(results: Results) -> list[Claim]:
    """Which part does the work."""
    questions: Mapping[str, tuple[str, str]] = {
        **{f"the cluster bandit of {r} is better than frozen singletons": (r, SINGLETONS) for r in READINGS},
        "the bandit's assignment is better than lowest loss with K = 5": ("fed-bac", "additive, lowest loss, K = 5"),
        "the bandit's assignment is better than lowest loss with K = M": ("fed-bac", "additive, lowest loss, K = M"),
        "the bandit's assignment is better than a random one": ("fed-bac", "additive, random assignment"),
        "the additive part helps the bandits": ("fed-bac", "LinUCB, not additive"),
        "the additive part helps the bandits at equal capacity": ("fed-bac", "LinUCB, not additive, twice the weights"),
        "clipping each network by itself helps Fed-BAC": ("fed-bac", "fed-bac, clipped as one"),
        "clipping each network by itself helps frozen singletons": (SINGLETONS, "singletons, clipped as one"),
        "Fed-BAC is above IFCA with K = M": ("fed-bac", IFCA_EACH),
        "Fed-BAC is above IFCA with twice the weights": ("fed-bac", "ifca, twice the weights"),
        "IFCA is better when its networks start apart": ("ifca, networks start apart", "ifca"),
        "frozen singletons are above IFCA": (SINGLETONS, "ifca"),
        "frozen singletons are above IFCA with K = M": (SINGLETONS, IFCA_EACH),
    }
    out = [Claim(text, in_all(results, SIX, higher, lower)) for text, (higher, lower) in questions.items()]
    for reading in READINGS:
        lost = {task_name(task): not_worse([*gap(results, task, SINGLETONS, reading).values()]) for task in SIX}
        out.append(
            Claim(f"without a cluster bandit nothing is lost: singletons are not worse than {reading}", every(lost))
        )
    return out


def beyond(results: Results) -> list[Claim]:
    """Whether a better cluster policy matches whatever is best where it is."""
    held_out = results.model_copy(update={"findings": tuple(f for f in results.findings if f.seed >= HELD_OUT)})
    out = [
        Claim(matches_the_best(held_out=seeds is held_out), every(dict(_against_the_best(seeds, task) for task in SIX)))
        for seeds in (results, held_out)
    ]
    better = {reading: in_all(results, SIX, "fedbac-plus", reading) for reading in READINGS}
    return [*out, *(Claim(f"fedbac-plus is above {name} in all six settings", one) for name, one in better.items())]


def matches_the_best(*, held_out: bool = False) -> str:
    """Return the claim's words."""
    seeds = f", by seeds from {HELD_OUT} on, by which none of its rules was chosen" if held_out else ""
    return f"fedbac-plus is not worse than the best of {{{'; '.join(RIVALS)}}} in any of the six settings{seeds}"


def _against_the_best(results: Results, task: str) -> tuple[str, Verdict]:
    """Return a setting's name with the best rival's, by the mean over the seeds that all have, and the verdict."""
    cells = {variant: values(results, task, variant) for variant in ("fedbac-plus", *RIVALS)}
    seeds = sorted(set.intersection(*(set(cell) for cell in cells.values())))
    if not seeds:
        return task_name(task), Verdict("not run")
    best = max(RIVALS, key=lambda rival: float(np.mean([cells[rival][seed] for seed in seeds])))
    differences = [cells["fedbac-plus"][seed] - cells[best][seed] for seed in seeds]
    return f"{task_name(task)}, best rival {best}", not_worse(differences)


def planted(results: Results) -> list[Claim]:
    """Where edges really share distributions."""
    task, rivals = "planted", ("singletons", "fed-cam", "ifca", "paper-text", "paper-figures")
    edges = TASKS[task].num_edges
    out = []
    for ours in PLUS_VARIANTS:
        own = values(results, task, ours)
        parts = {rival: above(own, values(results, task, rival)) for rival in rivals}
        out.append(Claim(f"{ours} is above singletons, where edges share distributions", parts.pop("singletons")))
        out.append(Claim(f"{ours} is above {', '.join(parts)}, where edges share distributions", every(parts)))
        known = [*gap(results, task, ours, "known groups").values()]
        out.append(Claim(f"{ours} is not worse than with the groups known", not_worse(known)))
        found = results.of(task, ours)
        moves = {seed: float(run.moves) for seed, run in found.items()}
        first = {seed: by for seed, run in found.items() if (by := moves_by(run, run.rounds // 2)) is not None}
        settled = {
            f"on average fewer than {edges} moves, one an edge": below(moves, dict.fromkeys(moves, edges), "moves", 1),
            "on average fewer than one move in the second half": below(
                {seed: moves[seed] - by for seed, by in first.items()}, dict.fromkeys(first, 1.0), "moves", 1
            ),
        }
        out.append(Claim(f"{ours} settles to few moves", every(settled)))
    return out


def noisy(results: Results) -> list[Claim]:
    """Whether credit of each client's own finds the noisy ones."""
    accuracy = {cell.variant: values(results, "noisy", cell.variant) for cell in ARTEFACTS["noisy"].cells}
    return [
        Claim(f"with noisy clients, p = 0.3, {name} is above {words}", above(accuracy[ours], accuracy[other]))
        for name, ours in (("credit", "credit_thompson"), ("fedbac-plus", "fedbac-plus"))
        for words, other in (("random clients", "random"), ("the paper's Thompson sampling", "thompson"))
    ]


def participation(results: Results) -> list[Claim]:
    """How much Thompson sampling gives at each p; "larger gains are expected at lower participation rates"."""
    out = []
    for fraction in FRACTIONS[:-1]:
        name = f"p = {fraction:g}"
        verdict = in_all(results, SELECTION_TASKS, name, name + RANDOM_CLIENTS)
        out.append(Claim(f"at {name} Thompson sampling is above random clients", verdict))
    few, many = f"p = {FRACTIONS[0]:g}", "p = 0.8"
    parts = {
        task_name(task): above(
            gap(results, task, few, few + RANDOM_CLIENTS), gap(results, task, many, many + RANDOM_CLIENTS)
        )
        for task in SELECTION_TASKS
    }
    text = f"“larger gains are expected at lower participation rates”: at {few} than at {many}"
    return [*out, Claim(text, every(parts))]
