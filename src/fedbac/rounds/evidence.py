"""How the cloud answers the queries of a clustering policy: one order for each site, each network in it once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.parts import Params, Part, Parts, Personalization, judged_parts
from fedbac.core.queries import Accuracy, Loss, Query, Split
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import State
from fedbac.rounds.holdings import holdings
from fedbac.rounds.orders import MeasureOrder, MeasureReport, Site, TrainReport, Wanted

UNAVERAGED = -1
"""Stands in a list of clusters for the model whose cluster parts the site trained itself."""


@dataclass
class Places:
    """Where the answer to each query is found among the readings of every site."""

    of_split: dict[Split, int] = field(default_factory=dict)
    """Which reading is on which split."""
    models_M: list[dict[Split, list[int]]] = field(default_factory=list)
    """Per site and split, the cluster of each model that is measured."""
    asked_M: list[dict[Loss | Accuracy, list[int]]] = field(default_factory=list)
    """Per site and query, the clusters whose models it is about."""
    on: dict[Loss | Accuracy, Split] = field(default_factory=dict)

    def read(self, answers: Sequence[MeasureReport], num_clusters: int) -> dict[Query, FloatArray]:
        """Return the answers, a row for each site; of queries about several models a column for each cluster."""
        readings: dict[Query, FloatArray] = {}
        for query, split in self.on.items():
            worst = np.inf if isinstance(query, Loss) else 0.0
            table_MK = np.full((len(answers), num_clusters), worst)
            for m, answer in enumerate(answers):
                reading = answer.readings[self.of_split[split]]
                value_V = (reading.loss_VG if isinstance(query, Loss) else reading.accuracy_VG)[:, 0]
                found = dict(zip(self.models_M[m][split], value_V, strict=True))
                for place, cluster in enumerate(self.asked_M[m][query]):
                    # A model that has diverged fits nothing: infinitely bad, not undefined.
                    value = found[cluster]
                    table_MK[m, cluster if query.of in ("clusters", "occupied") else place] = (
                        worst if np.isnan(value) else value
                    )
            readings[query] = table_MK if query.of in ("clusters", "occupied") else table_MK[:, 0]
        return readings


def plan_look(
    experiment: Experiment, sites: Sequence[Site], state: State, reports: Sequence[TrainReport],
    queries: Sequence[Query],
) -> tuple[list[MeasureOrder], Places]:  # fmt: skip
    """Return an order for every site that answers all queries about models, and where their answers will be."""
    measured = [query for query in dict.fromkeys(queries) if isinstance(query, Loss | Accuracy)]
    places = Places(on={query: query.on or experiment.method.measurement.split for query in measured})
    places.of_split = {split: i for i, split in enumerate(dict.fromkeys(places.on.values()))}
    if not measured:
        return [], places
    orders = []
    chosen: dict[tuple[str, tuple[int, ...]], Params] = {}
    for m, site in enumerate(sites):
        asked = {query: _clusters(query, state, m) for query in measured}
        models: dict[Split, list[int]] = {
            split: list(dict.fromkeys(k for query in measured if places.on[query] == split for k in asked[query]))
            for split in places.of_split
        }
        places.asked_M.append(asked)
        places.models_M.append(models)
        clusters = list(dict.fromkeys(k for some in models.values() for k in some))
        bank, kept, row_of = _bank(experiment.method.personalization, site, state, reports[m], m, clusters, chosen)
        wanted = tuple(
            Wanted(
                {part: np.array([rows[k] for k in models[split]]) for part, rows in row_of.items()},
                split,
                max_samples=experiment.method.measurement.max_samples_per_client,
            )
            for split in places.of_split
        )
        orders.append(MeasureOrder(m, bank, wanted, kept, reports[m].selection, reports[m].selected))
    return orders, places


def _clusters(query: Loss | Accuracy, state: State, m: int) -> list[int]:
    """Return the clusters whose models a query of a site is about."""
    label = int(state.label_M[m])
    alone = int((state.label_M == label).sum()) == 1
    if query.of == "clusters":
        return list(range(state.num_clusters))
    if query.of == "occupied":
        return [int(k) for k in np.unique(state.label_M)]
    return [UNAVERAGED] if query.of == "unaveraged" and not alone else [label]


def _bank(
    scheme: Personalization, site: Site, state: State, report: TrainReport, m: int, clusters: Sequence[int],
    chosen: dict[tuple[str, tuple[int, ...]], Params],
) -> tuple[Parts, Parts, dict[str, dict[int, int]]]:  # fmt: skip
    """Return every network that a look at these clusters needs, once: those to send, and those that the site has kept.

    Also return, by part, the row for each cluster.

    ``chosen`` keeps what was taken from the state, so that sites with the same needs share one object, which trainers
    then put in place once.
    """

    def take(part: str, rows: IntArray) -> Params:
        key = (part, tuple(rows.tolist()))
        if key not in chosen:
            chosen[key] = trees.select(state.parts[part], rows)
        return chosen[key]

    own = holdings(scheme.parts, site, int(state.label_M[m]))
    averaged = sorted(k for k in clusters if k != UNAVERAGED)
    bank: Parts = {}
    kept: Parts = {}
    row_of: dict[str, dict[int, int]] = {}
    for part in judged_parts(scheme):
        if scheme.parts[part].scope != "cluster":
            bank[part] = take(part, own[part].owner_R)
            row_of[part] = dict.fromkeys(clusters, 0)
            continue
        bank[part] = take(part, np.array(averaged, dtype=np.int64))
        row_of[part] = {k: row for row, k in enumerate(averaged)}
        if UNAVERAGED in clusters:
            kept[part] = report.bank[part]
            row_of[part][UNAVERAGED] = len(averaged)
    return bank, kept, row_of


def gram(parts: Mapping[str, Part], sent: Parts, label_M: IntArray, reports: Sequence[TrainReport]) -> FloatArray:
    """Return ⟨Δ_a, Δ_b⟩ for all pairs of sites, Δ being what training changed in the parts that clusters own.

    A site that did not train has no update: its row and column are NaN.
    """
    total_MM = np.zeros((len(reports), len(reports)))
    for part, spec in parts.items():
        if spec.scope == "cluster":
            before_M = trees.rows(trees.select(sent[part], label_M))
            update_M = (trees.rows(trees.join([report.bank[part] for report in reports])) - before_M).double()
            total_MM += (update_M @ update_M.T).cpu().numpy()
            idle_M = np.array([report.weight[part][0] == 0 for report in reports])
            total_MM[idle_M] = total_MM[:, idle_M] = np.nan
    return total_MM
