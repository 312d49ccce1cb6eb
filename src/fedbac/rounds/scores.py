"""How a round is judged: each edge's model on that edge's test data.

The bytes of it are not counted: the reported accuracy is the experimenter's instrument, not part of a method.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.parts import Parts, judged_parts
from fedbac.core.settings import IntArray
from fedbac.core.state import State
from fedbac.rounds import metrics
from fedbac.rounds.holdings import compact, holdings
from fedbac.rounds.orders import Edges, MeasureOrder, Site, TrainReport, Wanted


def score(
    experiment: Experiment, sites: Sequence[Site], edges: Edges, trained: State, after: State,
    reports: Sequence[TrainReport],
) -> dict[str, Any]:  # fmt: skip
    """Return the distributed accuracy, at the point that the evaluation names (C.14)."""
    scheme = experiment.method.personalization
    judged = judged_parts(scheme)
    state = after if experiment.evaluation.point == "post_reassign" else trained
    if any(scheme.parts[part].scope == "client" for part in judged):
        if experiment.evaluation.point == "edge_model":
            banks = [({part: report.bank[part] for part in judged}) for report in reports]
        else:
            banks = [_held(experiment, site, state, m) for m, site in enumerate(sites)]
        return _score_clients(experiment, sites, edges, banks)
    if experiment.evaluation.point == "edge_model":
        models = {part: trees.join([report.bank[part] for report in reports]) for part in judged}
        rows_M = np.tile(np.arange(len(sites)), (len(judged), 1)).T
    else:
        models = {part: state.parts[part] for part in judged}
        held = [holdings(scheme.parts, site, int(state.label_M[m])) for m, site in enumerate(sites)]
        rows_M = np.array([[int(own[part].owner_R[0]) for part in judged] for own in held])
    return _score_sites(sites, edges, models, rows_M)


def _score_sites(sites: Sequence[Site], edges: Edges, models: Parts, rows_M: IntArray) -> dict[str, Any]:
    """Judge every edge by the model of its site; and the mean of these models on all test data."""
    rows_V, column_M = np.unique(rows_M, axis=0, return_inverse=True)
    bank, row_V = compact(models, dict(zip(models, rows_V.T, strict=True)))
    orders = [MeasureOrder(m, bank, (Wanted(row_V, "test", by="edge"),)) for m in range(len(sites))]
    found = [report.readings[0] for report in edges.measure(orders)]
    accuracy_VE = np.concatenate([reading.accuracy_VG for reading in found], axis=1)
    count_E = np.concatenate([reading.count_G for reading in found])
    column_E = np.concatenate([[column] * len(site.edges) for column, site in zip(column_M, sites, strict=True)])
    everywhere_V = np.average(accuracy_VE, axis=1, weights=count_E)
    accuracy_E = accuracy_VE[column_E, np.arange(count_E.size)]
    return _scores(sites, accuracy_E, count_E, float(everywhere_V[column_E].mean()))


def _held(experiment: Experiment, site: Site, state: State, m: int) -> Parts:
    """Return what a site's clients predict with."""
    scheme = experiment.method.personalization
    own = holdings(scheme.parts, site, int(state.label_M[m]))
    return {part: trees.select(state.parts[part], own[part].owner_R) for part in judged_parts(scheme)}


def _score_clients(
    experiment: Experiment, sites: Sequence[Site], edges: Edges, banks: Sequence[Parts]
) -> dict[str, Any]:
    """Judge every client by its own model on its share of its edge's test data; an edge by the mean over its examples.

    There are as many models as clients, so none is measured on all test data.
    """
    scheme = experiment.method.personalization
    orders = []
    for m, (site, bank) in enumerate(zip(sites, banks, strict=True)):
        own = holdings(scheme.parts, site, 0)
        orders.append(MeasureOrder(m, bank, (Wanted({part: own[part].row_N for part in bank}, "test", by="client"),)))
    found = [report.readings[0] for report in edges.measure(orders)]
    accuracy, count = [], []
    for site, reading in zip(sites, found, strict=True):
        for edge in site.edges:
            mine = np.flatnonzero((site.edge_N == edge) & (reading.count_G > 0))
            count.append(int(reading.count_G[mine].sum()))
            accuracy.append(float(np.average(reading.accuracy_VG[0, mine], weights=reading.count_G[mine])))
    return _scores(sites, np.array(accuracy), np.array(count), None)


def _scores(sites: Sequence[Site], accuracy_E: Any, count_E: IntArray, everywhere: float | None) -> dict[str, Any]:
    """Return the numbers in the order of the task's edges, whichever site they meet at."""
    order = np.argsort(np.concatenate([site.edges for site in sites]), kind="stable")
    return {
        **metrics.distributed(accuracy_E[order], count_E[order]),
        "accuracy_per_edge": accuracy_E[order].tolist(),
        "accuracy_global": everywhere,
    }
