"""How the cloud answers the queries of its policies: one order for each site, each network in it once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.parts import Params, Part, Parts, Personalization, measured_parts
from fedbac.core.queries import Accuracy, Gram, Loss, Query, Slope, Split, Statistic
from fedbac.core.rng import stream
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import State
from fedbac.rounds.holdings import holdings
from fedbac.rounds.members import Members
from fedbac.rounds.orders import MeasureOrder, MeasureReport, Site, TrainReport, Wanted


class Model(NamedTuple):
    """A model that is measured: a row of a mix of all clusters' parts, as the cloud has averaged them."""

    cluster: int
    mix_K: tuple[float, ...] = ()
    """What each cluster counts; where it is not given, only this one does."""
    trained: bool = False
    """Whether it has the parts as the site trained them itself instead."""


@dataclass
class Places:
    """Where the answer to each query is found among the readings of every site."""

    members: Members
    of_split: dict[Split, int] = field(default_factory=dict)
    """Which reading is on which split."""
    models_M: list[dict[Split, list[Model]]] = field(default_factory=list)
    """Per site and split, the models that are measured."""
    asked_N: dict[int, dict[Loss | Accuracy, list[Model]]] = field(default_factory=dict)
    """Per member and query, the models that it is about."""
    on: dict[Loss | Accuracy, Split] = field(default_factory=dict)

    def read(self, answers: Sequence[MeasureReport], num_clusters: int) -> dict[Query, FloatArray]:
        """Return the answers, a row for each member; of queries about several models a column for each cluster."""
        readings: dict[Query, FloatArray] = {}
        for query, split in self.on.items():
            # A model that has diverged fits nothing: infinitely bad, not undefined.
            worst = np.inf if isinstance(query, Loss) else 0.0
            several = query.of in ("clusters", "occupied")
            unread = np.nan if isinstance(query, Loss) and query.candidates is not None else worst
            table_NK = np.full((self.members.count, num_clusters if several else 1), unread)
            for m, answer in enumerate(answers):
                reading = answer.readings[self.of_split[split]]
                value_VG = reading.loss_VG if isinstance(query, Loss) else reading.accuracy_VG
                place_of = {model: v for v, model in enumerate(self.models_M[m][split])}
                for g, n in enumerate(self.members.at(m)):
                    if reading.count_G[g] == 0:
                        table_NK[n] = np.nan
                        continue
                    for model in self.asked_N[n][query]:
                        value = value_VG[place_of[model], g]
                        table_NK[n, model.cluster if several else 0] = worst if np.isnan(value) else value
            readings[query] = table_NK if several else table_NK[:, 0]
        return readings


def plan_look(
    experiment: Experiment, members: Members, state: State, reports: Sequence[TrainReport], queries: Sequence[Query]
) -> tuple[list[MeasureOrder], Places]:
    """Return an order for every site that answers all queries about models, and where their answers will be."""
    measured = [query for query in dict.fromkeys(queries) if isinstance(query, Loss | Accuracy)]
    places = Places(members, on={query: query.on or experiment.method.measurement.split for query in measured})
    places.of_split = {split: i for i, split in enumerate(dict.fromkeys(places.on.values()))}
    if not measured:
        return [], places
    orders = []
    networks = Networks(experiment.method.personalization, members, state)
    weight_K = np.bincount(state.label_N, members.size_N, state.num_clusters).astype(np.float64)
    for m, site in enumerate(members.sites):
        for n in members.at(m):
            places.asked_N[n] = {query: _models(query, state, n, experiment.seed, weight_K) for query in measured}
        models: dict[Split, list[Model]] = {
            split: list(
                dict.fromkeys(
                    model
                    for query in measured
                    if places.on[query] == split
                    for n in members.at(m)
                    for model in places.asked_N[n][query]
                )
            )
            for split in places.of_split
        }
        places.models_M.append(models)
        bank, kept, row_of = networks.bank(
            site, reports[m], m, list(dict.fromkeys(model for some in models.values() for model in some))
        )
        wanted = tuple(
            Wanted(
                {part: np.array([rows[model] for model in models[split]]) for part, rows in row_of.items()},
                split,
                by="site" if members.unit == "edge" else "each",
                max_samples=experiment.method.measurement.max_samples_per_client,
            )
            for split in places.of_split
        )
        orders.append(MeasureOrder(m, bank, wanted, kept, reports[m].selection, reports[m].selected))
    return orders, places


def _models(query: Loss | Accuracy, state: State, n: int, seed: int, weight_K: FloatArray) -> list[Model]:
    """Return the models that a query of a member is about, given the examples behind each cluster."""
    label = int(state.label_N[n])
    alone = int((state.label_N == label).sum()) == 1
    if query.of == "clusters":
        if isinstance(query, Accuracy):
            return [Model(k) for k in range(state.num_clusters)]
        rng = stream(seed, "candidate-clusters", state.round, n)
        return [Model(int(k)) for k in query.columns(label, state.num_clusters, rng)]
    if query.of == "occupied":
        return [Model(int(k)) for k in np.unique(state.label_N)]
    if query.of == "unaveraged" and not alone:
        return [Model(label, trained=True)]
    lonely = np.unique(state.label_N).size == 1  # then there are no others, and what one has stands in for them
    if lonely or query.of not in ("others", "mean"):
        return [Model(label)]
    own_K, share = np.arange(weight_K.size) == label, query.share if isinstance(query, Loss) else 1.0
    mix_K = np.where(own_K & (query.of == "others"), 0.0, weight_K)
    if share < 1:
        mix_K = share * (weight_K / weight_K.sum()) + (1 - share) * own_K
    return [Model(0, tuple(mix_K.tolist()))]  # the same mix for several members is sent once


class Networks:
    """What the cloud sends to be measured. Sites with the same needs share one object, which trainers then put in
    place once."""

    def __init__(self, scheme: Personalization, members: Members, state: State) -> None:
        self.scheme, self.members, self.state = scheme, members, state
        self.chosen: dict[tuple[str, tuple[object, ...]], Params] = {}

    def bank(
        self, site: Site, report: TrainReport, m: int, models: Sequence[Model]
    ) -> tuple[Parts, Parts, dict[str, dict[Model, int]]]:
        """Return every network that these models need, once: those to send, and those that the site has kept.

        Also return, by part, the row for each model.
        """
        own = holdings(self.scheme.parts, site, self.members.labels(self.state.label_N, m))
        sent = sorted((model for model in models if not model.trained), key=lambda model: (model.mix_K, model.cluster))
        trained = [model for model in models if model.trained]
        bank: Parts = {}
        kept: Parts = {}
        row_of: dict[str, dict[Model, int]] = {}
        for part in measured_parts(self.scheme):
            if self.scheme.parts[part].scope != "cluster":
                bank[part] = self._take(part, own[part].owner_R)
                row_of[part] = dict.fromkeys(models, 0)
                continue
            bank[part] = self._made(part, sent)
            row_of[part] = {model: row for row, model in enumerate([*sent, *trained])}
            if trained:
                kept[part] = report.bank[part]
        return bank, kept, row_of

    def _take(self, part: str, rows: IntArray) -> Params:
        key = (part, tuple(rows.tolist()))
        if key not in self.chosen:
            self.chosen[key] = trees.select(self.state.parts[part], rows)
        return self.chosen[key]

    def _made(self, part: str, models: Sequence[Model]) -> Params:
        rows = np.array([model.cluster for model in models], dtype=np.int64)
        if not any(model.mix_K for model in models):
            return self._take(part, rows)
        key = (part, tuple(models))
        if key not in self.chosen:
            stack = self.state.parts[part]
            self.chosen[key] = trees.stack(
                [
                    trees.weighted_mean(stack, np.array(mix_K)) if mix_K else trees.take(stack, cluster)
                    for cluster, mix_K, _ in models
                ]
            )
        return self.chosen[key]


def told(
    queries: Sequence[Query], scheme: Personalization, members: Members, before: State, sent: Parts,
    reports: Sequence[TrainReport],
) -> dict[Query, FloatArray]:  # fmt: skip
    """Answer the queries that reports answer by themselves."""
    readings: dict[Query, FloatArray] = {
        query: _by_member(query, members, reports) for query in queries if isinstance(query, Statistic)
    }
    if {Gram(), Slope()}.isdisjoint(queries):
        return readings
    update_N, told_N = updates(scheme.parts, members, sent, before.label_N, reports)
    if Gram() in queries:
        readings[Gram()] = gram(update_N, told_N, members.count)
    if Slope() in queries:
        owned = {part: before.parts[part] for part, spec in scheme.parts.items() if spec.scope == "cluster"}
        readings[Slope()] = slope(update_N, told_N, members.count, owned)
    return readings


def _by_member(query: Statistic, members: Members, reports: Sequence[TrainReport]) -> FloatArray:
    """Return what clients tell of their training: their own, or the mean at their site, by data."""
    if members.unit == "client":
        value_N = np.full((members.count, *reports[0].told_N[query].shape[1:]), np.nan)
        for m, report in enumerate(reports):
            value_N[members.at(m)] = report.told_N[query]
        return value_N
    if query == Statistic("loss"):
        return np.array([report.loss for report in reports])
    return np.stack([_mean(report.told_N[query], site) for report, site in zip(reports, members.sites, strict=True)])


def _mean(value_N: FloatArray, site: Site) -> FloatArray:
    """Return the mean over the clients of a site that trained, by data; NaN if nobody did."""
    trained_N = np.isfinite(value_N).reshape(len(value_N), -1).all(1)
    if not trained_N.any():
        return np.full(value_N.shape[1:], np.nan)
    mean: FloatArray = np.average(value_N[trained_N], axis=0, weights=site.size_N[trained_N])
    return mean


def gram(update_N: Tensor, told_N: IntArray, count: int) -> FloatArray:
    """Return ⟨Δ_a, Δ_b⟩ for all pairs of members; the rows and columns of those without an update are NaN."""
    total_NN = np.full((count, count), np.nan)
    total_NN[np.ix_(told_N, told_N)] = (update_N @ update_N.T).cpu().numpy()
    return total_NN


def slope(update_N: Tensor, told_N: IntArray, count: int, networks: Parts) -> FloatArray:
    """Return ⟨Δ_n, Θ_j⟩ for all members and clusters; rows without an update are NaN."""
    rows_K = _matrix(networks).to(update_N.device)
    total_NK = np.full((count, len(rows_K)), np.nan)
    total_NK[told_N] = (update_N @ rows_K.T).cpu().numpy()
    return total_NK


def updates(
    parts: Mapping[str, Part], members: Members, sent: Parts, label_N: IntArray, reports: Sequence[TrainReport]
) -> tuple[Tensor, IntArray]:
    """Return what training changed in the parts that clusters own, a row for each member that trained; and who did."""
    owned = [part for part, spec in parts.items() if spec.scope == "cluster"]
    if members.unit == "client":
        told = [
            n
            for m, report in enumerate(reports)
            for n in np.array(members.at(m))[np.isfinite(report.told_N[Statistic("loss")])]
        ]
        found = [report.updates for report in reports if report.updates]
    else:
        told = [m for m, report in enumerate(reports) if report.weight[owned[0]][0] > 0]
        found = [{part: _change(sent[part], int(label_N[m]), reports[m].bank[part]) for part in owned} for m in told]
    if not told:
        found = [{part: trees.select(sent[part], np.zeros(0, dtype=np.int64)) for part in owned}]
    return _matrix({part: trees.join([update[part] for update in found]) for part in owned}), np.array(told, dtype=int)


def _change(sent_K: Params, label: int, trained: Params) -> Params:
    return {name: value - sent_K[name][label : label + 1] for name, value in trained.items()}


def _matrix(parts: Parts) -> Tensor:
    return torch.cat([trees.rows(stack) for stack in parts.values()], 1).double()
