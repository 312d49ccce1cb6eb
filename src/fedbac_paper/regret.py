"""The regret of Fed-BAC's bandits, from the runs that ``benchmarks/regret.py`` keeps.

The reward of an edge at a look is the paper's (Eq. 9), for the label that it held until then. As every edge is measured
on every cluster's network, the reward of any other label at that moment, with the networks as they are, is known too.

The reward of selected clients is by how much the edge's accuracy rose (Eq. 11). So the rewards of all rounds add up to
the accuracy that it reached, and regret is how much more the best fixed choice reached.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.clustering.bandit import fit_reward
from fedbac.core.settings import FloatArray
from fedbac_paper import tables
from fedbac_paper.clocks import read

KEPT, CLIENTS = Path("results/regret/planted.jsonl"), Path("results/regret/clients.jsonl")
BANDIT, DRAWN = "linucb", "drawn"
THOMPSON, ALL = "thompson", "all"
SOUND, WRONG = "sound", "wrong"
"""Whether all labels are right."""
SHOWN = {
    BANDIT: "LinUCB",
    DRAWN: "labels drawn at every look",
    "0123": "each edge alone",
    "0101": "the planted groups",
    "0000": "all in one cluster",
}
"""Rows of the table, by what a run is called."""
BEST, WORST = "best", "worst"
PICKED = {
    THOMPSON: "Thompson sampling, 4 of 5",
    DRAWN: "4 of 5 at random",
    ALL: "all 5",
    BEST: "the best 4 in hindsight",
    WORST: "the worst 4 in hindsight",
}
"""Rows of the table of selection."""
Row = Mapping[str, Any]


def rewards(look: Row) -> FloatArray:
    """Return Eq. 9 for every edge as if it were in each cluster, with the networks of that moment."""
    loss_NK = np.array(look["losses"])
    return np.array([
        [fit_reward(loss_K[k], np.delete(loss_K, k).min()) for k in range(loss_K.size)] for loss_K in loss_NK
    ])  # fmt: skip


def reward(row: Row) -> float:
    """Return the mean reward of the labels that edges held, over edges and looks."""
    return float(np.mean([rewards(look)[range(len(look["held"])), look["held"]] for look in row["looks"]]))


def on_its_path(row: Row) -> float:
    """Return by how much the best fixed label of each edge would have had more, with the networks as they became."""
    best_N = np.mean([rewards(look) for look in row["looks"]], axis=0).max(axis=1)
    return float(best_N.mean()) - reward(row)


def table(file: Path) -> str:
    """Return what LinUCB and some assignments earn, and their regrets: means over seeds, the least and the most."""
    found: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in read(file):
        found[row["seed"]][row["labels"]] = row
    fixed = {seed: [row for name, row in by.items() if name not in (BANDIT, DRAWN)] for seed, by in found.items()}
    best = {seed: (max(map(reward, rows)), max(row["accuracy"] for row in rows)) for seed, rows in fixed.items()}
    lines = []
    for name, title in SHOWN.items():
        rows = {seed: by[name] for seed, by in found.items()}
        lines.append([
            title,
            _over([reward(row) for row in rows.values()], signed=True),
            _over([on_its_path(row) for row in rows.values()]),
            _over([best[seed][0] - reward(row) for seed, row in rows.items()]),
            _over([100 * row["accuracy"] for row in rows.values()], digits=1),
            _over([100 * (best[seed][1] - row["accuracy"]) for seed, row in rows.items()], digits=1),
        ])  # fmt: skip
    head = ["", "reward", "regret on its path", "regret, played", "accuracy, %", "regret, points"]
    return f"\n{tables.table(head, lines)}\n\n"


def clients(file: Path) -> str:
    """Return what selections reach, and their regrets, where all labels are right and where some are wrong."""
    found: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    for row in read(file):
        labels, _, way = row["labels"].partition(", ")
        found[labels, row["seed"]][way] = row
    for by in found.values():
        fixed = [row for way, row in by.items() if way.startswith("without")]
        for name, chosen in ((BEST, np.argmax), (WORST, np.argmin)):
            by[name] = in_hindsight(fixed, chosen([row["reached"] for row in fixed], axis=0))
    lines = []
    for way, title in PICKED.items():
        cells = []
        for labels in (SOUND, WRONG):
            pairs = [(by[way], by[BEST]) for (kind, _), by in found.items() if kind == labels]
            reached = [100 * float(np.mean(one["reached"])) for one, _ in pairs]
            more = [
                100 * float(np.mean(best["reached"])) - mine for mine, (_, best) in zip(reached, pairs, strict=True)
            ]
            judged = [100 * float(np.mean(one["accuracy"])) for one, _ in pairs]
            cells += [_over(values, digits=1) for values in (reached, more, judged)]
        lines.append([title, *cells])
    columns = ("reached, %", "regret", "test, %")
    head = [f"{kind}: {column}" for kind in ("right labels", "some wrong") for column in columns]
    return f"\n{tables.table(['', *head], lines)}\n\n"


def in_hindsight(rows: Sequence[Row], choice_M: Sequence[int]) -> Row:
    """Return what edges had with the runs that were chosen for them; edges alone do not depend on each other."""
    return {key: [rows[int(j)][key][m] for m, j in enumerate(choice_M)] for key in ("reached", "accuracy")}


def _over(values: Sequence[float], digits: int = 2, signed: bool = False) -> str:
    """Return a mean over seeds with the least and the most."""
    sign = "+" if signed else ""
    mean, least, most = (f"{one:{sign}.{digits}f}" for one in (np.mean(values), min(values), max(values)))
    return f"{mean} ({least} to {most})"
