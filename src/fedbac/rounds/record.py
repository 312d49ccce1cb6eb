"""The record of a round: how its models score, and what its policies note."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbac.config.experiment import Experiment, Method
from fedbac.core import trees
from fedbac.core.answers import checked_notes
from fedbac.core.parts import Parts, judged_parts, measured_parts, with_leaders
from fedbac.core.policies import Believing, Noting
from fedbac.core.settings import IntArray
from fedbac.core.state import State
from fedbac.rounds import metrics
from fedbac.rounds.messages import Edges, MeasureOrder, Site, TrainReport, Wanted
from fedbac.rounds.rows import SiteRows, compact, distinct

Scores = Callable[[], dict[str, Any]]
"""Returns the numbers of a round from what was measured."""


def score(
    experiment: Experiment,
    sites: Sequence[Site],
    held: Sequence[Mapping[str, SiteRows]],
    edges: Edges,
    state: State,
    reports: Sequence[TrainReport],
    by_site: bool,
    everywhere: bool = False,
) -> Scores:
    """Measure the distributed accuracy of the networks in a state, of which sites hold these rows, or of those that
    sites have averaged (C.14); also on all test data, if that is wanted and models can be."""
    scheme = experiment.method.personalization
    measured = measured_parts(scheme)
    apart = by_clients(experiment.method)
    if apart or not edges.keeps.isdisjoint(scheme.parts[part].scope for part in measured):
        if edges.keeps:
            measured = with_leaders(scheme, measured)
        banks = [
            {
                part: report.bank[part] if by_site else trees.select(state.parts[part], own[part].owner_R)
                for part in measured
            }
            for own, report in zip(held, reports, strict=True)
        ]
        rows = [{part: own[part].row_N for part in measured} for own in held]
        return _score_clients(sites, edges, banks, rows) if apart else _score_apart(sites, edges, banks, rows)
    if by_site:
        models = {part: trees.join([report.bank[part] for report in reports]) for part in measured}
        rows_M = np.tile(np.arange(len(sites)), (len(measured), 1)).T
    else:
        models = {part: state.parts[part] for part in measured}
        rows_M = np.array([[int(own[part].owner_R[0]) for part in measured] for own in held])
    if not everywhere:
        own = [compact(models, dict(zip(models, row_M[:, None], strict=True))) for row_M in rows_M]
        return _score_apart(sites, edges, [bank for bank, _ in own], [rows for _, rows in own])
    return _score_sites(sites, edges, models, rows_M)


def _score_sites(sites: Sequence[Site], edges: Edges, models: Parts, rows_M: IntArray) -> Scores:
    """Judge every edge by the model of its site; and the mean of these models on all test data."""
    rows_V, column_M = distinct(map(tuple, rows_M.tolist()))
    bank, row_V = compact(models, dict(zip(models, np.array(rows_V).T, strict=True)))
    orders = [MeasureOrder(m, bank, (Wanted(row_V, "test", by="edge"),)) for m in range(len(sites))]
    measured = edges.measure(orders)

    def read() -> dict[str, Any]:
        found = [report.readings[0] for report in measured]
        accuracy_VE = np.concatenate([reading.accuracy_VG for reading in found], axis=1)
        count_E = np.concatenate([reading.count_G for reading in found])
        column_E = np.concatenate([[column] * len(site.edges) for column, site in zip(column_M, sites, strict=True)])
        answered_E = count_E > 0
        everywhere_V = np.average(accuracy_VE[:, answered_E], axis=1, weights=count_E[answered_E])
        accuracy_E = accuracy_VE[column_E, np.arange(count_E.size)]
        return _scores(sites, accuracy_E, count_E, float(everywhere_V[column_E].mean()))

    return read


def _score_apart(
    sites: Sequence[Site], edges: Edges, banks: Sequence[Parts], rows: Sequence[Mapping[str, IntArray]]
) -> Scores:
    """Judge every edge by the model of its site, and by no other."""
    wanted = [Wanted({part: row_N[:1] for part, row_N in own.items()}, "test", by="edge") for own in rows]
    orders = [MeasureOrder(m, bank, (own,)) for m, (bank, own) in enumerate(zip(banks, wanted, strict=True))]
    measured = edges.measure(orders)

    def read() -> dict[str, Any]:
        found = [report.readings[0] for report in measured]
        accuracy_E = np.concatenate([reading.accuracy_VG[0] for reading in found])
        return _scores(sites, accuracy_E, np.concatenate([reading.count_G for reading in found]), None)

    return read


def other_moment(experiment: Experiment, scores: Scores, measure: Callable[[], Scores]) -> Scores:
    """Return the accuracy at the moment that a run is not judged at: before or after local training.

    Where edges or clients own all that predicts, the cloud changes nothing in between. Where all clients meet at the
    cloud, nobody keeps what it trained.
    """
    method = experiment.method
    name = metrics.JUDGED_AT[not experiment.judged_after_training]
    scopes = {method.personalization.parts[part].scope for part in measured_parts(method.personalization)}
    if not scopes <= {"edge", "client"}:
        if method.topology.tiers == 2:
            return lambda: {name: None}
        scores = measure()
    return lambda: {name: {key: one for key, one in scores().items() if key in ("accuracy", "accuracy_per_edge")}}


def by_clients(method: Method) -> bool:
    """Whether clients of one site may predict with different models."""
    scopes = {method.personalization.parts[part].scope for part in judged_parts(method.personalization)}
    return "client" in scopes or (method.unit == "client" and "cluster" in scopes)


def _score_clients(
    sites: Sequence[Site], edges: Edges, banks: Sequence[Parts], rows: Sequence[Mapping[str, IntArray]]
) -> Scores:
    """Judge every client by its own model on its share of its edge's test data; an edge by the mean over its examples.
    There may be as many models as clients, so none is measured on all test data."""
    wanted = [Wanted(row_N, "test", by="client") for row_N in rows]
    orders = [MeasureOrder(m, bank, (own,)) for m, (bank, own) in enumerate(zip(banks, wanted, strict=True))]
    measured = edges.measure(orders)

    def read() -> dict[str, Any]:
        accuracy, count = [], []
        for site, report in zip(sites, measured, strict=True):
            accuracy_N, count_N = report.readings[0].accuracy_VG[0], report.readings[0].count_G
            for edge in site.edges:
                mine = np.flatnonzero((site.edge_N == edge) & (count_N > 0))
                count.append(int(count_N[mine].sum()))
                accuracy.append(float(np.average(accuracy_N[mine], weights=count_N[mine])) if mine.size else np.nan)
        return _scores(sites, np.array(accuracy), np.array(count), None)

    return read


def _scores(sites: Sequence[Site], accuracy_E: Any, count_E: IntArray, everywhere: float | None) -> dict[str, Any]:
    """Return the numbers in the order of the task's edges; one that did not answer does not count."""
    order = np.argsort(np.concatenate([site.edges for site in sites]), kind="stable")
    accuracy_E, count_E = accuracy_E[order], count_E[order]
    answered_E = count_E > 0
    return {
        **metrics.distributed(accuracy_E[answered_E], count_E[answered_E]),
        "accuracy_per_edge": [
            float(one) if columns else None for one, columns in zip(accuracy_E, answered_E, strict=True)
        ],
        "accuracy_global": everywhere,
    }


DIGITS = 4


class Reported(NamedTuple):
    """What a record tells of the sites' reports: clients and numbers, not the networks, which take up memory."""

    loss_M: list[float]
    selected_M: list[tuple[int, ...]]
    failed_M: list[tuple[int, ...]]
    dropped_M: list[tuple[int, ...]]
    late_M: list[tuple[int, ...]]
    absent_M: list[bool]
    reasons_M: list[Mapping[str, str]]
    ages_M: list[tuple[int, ...]]
    seconds_M: list[float]
    waiting_M: list[int | None]

    @classmethod
    def of(cls, reports: Sequence[TrainReport]) -> "Reported":
        """Return what these reports say."""
        alike = [[getattr(report, name.removesuffix("_M")) for report in reports] for name in cls._fields[:-2]]
        waiting = [None if report.waiting is None else len(report.waiting) for report in reports]
        return cls(*[*alike, [report.seconds or 0.0 for report in reports], waiting])

    def loss(self, size_M: Sequence[int]) -> float | None:
        """Return the mean training loss over the sites that trained, weighted by their data; None when all failed."""
        pairs = [pair for pair in zip(self.loss_M, size_M, strict=True) if np.isfinite(pair[0])]
        if not pairs:
            return None
        loss_M, size_M = zip(*pairs, strict=True)
        return float(np.average(loss_M, weights=size_M))

    def clients(self) -> dict[str, Any]:
        """Return who was selected at each site, and who did not come back; and the sites that did not answer."""
        reasons = {name: why for each in self.reasons_M for name, why in each.items()}
        apart = {"failed": self.failed_M, "dropped": self.dropped_M, "late": self.late_M}
        return {
            "selected": [list(selected) for selected in self.selected_M],
            **{name: [client for clients in by_site for client in clients] for name, by_site in apart.items()},
            "absent": [m for m, absent in enumerate(self.absent_M) if absent],
            **({"reasons": reasons} if reasons else {}),
            **({} if None in self.waiting_M else self._late()),
        }

    def _late(self) -> dict[str, Any]:
        """Return how old the updates are that count, in averages of their site, and how many are on their way."""
        ages = [age for ages in self.ages_M for age in ages]
        return {"ages": ages, "under_way": sum(number or 0 for number in self.waiting_M)}


def written(numbers: Iterable[float]) -> list[float | None]:
    """Return numbers rounded for a reader; None where one is not finite."""
    return [round(float(number), DIGITS) if np.isfinite(number) else None for number in numbers]


def notes(method: Method, state: State) -> dict[str, float | None]:
    """Return the numbers of the method's own policies, those not finite as missing; of selection, means over sites."""
    found: dict[str, Any] = {}
    at_cloud = (("clustering", method.clustering, state.clustering), ("sharing", method.sharing, state.sharing))
    for column, policy, memory in at_cloud:
        if isinstance(policy, Noting):
            found |= checked_notes(column, policy, policy.notes(memory))
    if isinstance(method.selection, Noting):
        noting = method.selection
        by_site = [checked_notes("selection", noting, noting.notes(memory)) for memory in state.selection_M]
        found |= {name: np.mean([noted[name] for noted in by_site]) for name in by_site[0]}
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def beliefs(method: Method, state: State) -> list[list[float | None]] | None:
    """Return what selection expects of each client, by site, if it is a policy that can say so."""
    policy = method.selection
    if not isinstance(policy, Believing):
        return None
    return [written(policy.beliefs(memory)) for memory in state.selection_M]
