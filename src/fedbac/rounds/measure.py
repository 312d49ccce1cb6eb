"""How models are measured: what the cloud asks to answer its policies' queries, and how a site answers."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbac.config.experiment import Experiment, Method
from fedbac.core import trees
from fedbac.core.answers import checked_trust
from fedbac.core.liars import Attack, mirrored
from fedbac.core.links import Ledger
from fedbac.core.parts import Params, Part, Parts, Personalization, measured_parts
from fedbac.core.policies import Trusting
from fedbac.core.queries import SINCE_START, Accuracy, Gram, Loss, Query, Slope, Split, Statistic, of_updates
from fedbac.core.requests import Evaluate, Measured, Request, Result
from fedbac.core.rng import stream
from fedbac.core.runtime import one_thread
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.state import State
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Site, TrainReport, Wanted
from fedbac.rounds.rows import Members, SiteRows


@dataclass(frozen=True)
class GroupMeasurement:
    """What each group of examples said, and how much it counts; a group is a client, or the test data of an edge."""

    clients: tuple[int, ...]
    """Whose groups they are; none where groups are edges."""
    weight_G: FloatArray
    measured: Measured
    by_median: bool = False
    """Whether clients speak for their site by the median, whatever data they claim, and not by the mean."""

    def mean(self, value_VG: FloatArray, among: tuple[int, ...] | None = None) -> FloatArray:
        """Return the mean over groups, weighted by their data; over the clients among these, if any of them count."""
        weight_G = self.weight_G
        if among is not None and weight_G[counts_G := np.isin(self.clients, among)].any():
            value_VG, weight_G = value_VG[:, counts_G], weight_G[counts_G]
        if self.by_median and self.clients and weight_G.any():
            return np.median(value_VG[:, weight_G > 0], axis=1)
        return weighted(value_VG, weight_G)

    def together(self) -> Measured:
        """Return one number of each model for the site."""
        loss_V, accuracy_V = self.mean(self.measured.loss_VG), self.mean(self.measured.accuracy_VG)
        return Measured(loss_V[:, None], accuracy_V[:, None], np.array([self.measured.count_G.sum()]))

    def one_by_one(self, site: Site) -> Measured:
        """Return a number of each model for each client of the site; of those that say nothing, none."""
        loss_VN = np.stack([self.by_client(loss_G, site) for loss_G in self.measured.loss_VG])
        accuracy_VN = np.stack([self.by_client(accuracy_G, site) for accuracy_G in self.measured.accuracy_VG])
        count_N = np.zeros(len(site.clients), dtype=np.int64)
        asked = [site.clients.index(client) for client in self.clients]
        count_N[asked] = np.where(self.weight_G > 0, self.measured.count_G, 0)
        return Measured(loss_VN, accuracy_VN, count_N)

    def by_client(self, value_G: FloatArray, site: Site) -> FloatArray:
        """Return the number of each client of a site; NaN of those that hold no such data or are broken."""
        value_N = np.full(len(site.clients), np.nan)
        value_N[[site.clients.index(client) for client in self.clients]] = np.where(self.weight_G > 0, value_G, np.nan)
        return value_N


def told(found: GroupMeasurement, experiment: Experiment, site: Site, round_: int) -> GroupMeasurement:
    """Return what a site hears of a measurement: what its liars say of it, to be combined as the method wants."""
    measured, (lying_N, size) = found.measured, liars_of(experiment, site, round_, "losses")
    if lying_N.any():
        lying_G = np.isin(found.clients, np.array(site.clients)[lying_N])
        loss_VG, accuracy_VG = mirrored(measured.loss_VG, measured.accuracy_VG, size)
        measured = replace(
            measured,
            loss_VG=np.where(lying_G, loss_VG, measured.loss_VG),
            accuracy_VG=np.where(lying_G, accuracy_VG, measured.accuracy_VG),
        )
    return replace(found, measured=measured, by_median=experiment.method.measurement.average == "median")


def liars_of(experiment: Experiment, site: Site, round_: int, attack: Attack) -> tuple[BoolArray, float]:
    """Return the clients of a site that lie in a round in such a way, and how strongly."""
    liars = experiment.task.liars
    if liars is None or liars.attack != attack or max(round_, 1) < liars.from_round:
        return np.zeros(len(site.clients), dtype=bool), 1.0
    return liars.among(experiment.seed, site.clients, site.edge_N, experiment.task.num_edges)[0], liars.size


def weighted(value_VG: FloatArray, weight_G: FloatArray | IntArray) -> FloatArray:
    """Return the weighted means over the last axis, groups added in their order, however many models there are."""
    total = weight_G.sum(dtype=np.float64)
    if total == 0:
        raise ZeroDivisionError("there is nothing to weigh")
    mean_V: FloatArray = np.multiply(value_VG, weight_G, order="F").sum(-1) / total
    return mean_V


def clients_to_ask(method: Method, site: Site, selection: Any, selected: tuple[int, ...]) -> tuple[int, ...]:
    """Return the clients of a site whose measurements count (``method.measurement.clients``)."""
    if method.measurement.clients == "selected":
        return selected or site.clients
    if method.measurement.clients == "trusted" and isinstance(method.selection, Trusting):
        policy, count = method.selection, len(site.clients)
        trusted_N = checked_trust(policy, "trusted()", policy.trusted(selection), count)
        return tuple(client for client, sound in zip(site.clients, trusted_N, strict=True) if sound) or site.clients
    return site.clients


def measure_clients(
    bank: Parts,
    row_V: Mapping[str, IntArray],
    split: Split,
    clients: tuple[int, ...],
    site: Site,
    max_samples: int | None = None,
) -> Generator[Request, Result, GroupMeasurement]:
    """Measure models, each on the data of each of these clients that hold any; test data belong to edges."""
    if split == "test":
        measured = yield Evaluate(bank, row_V, "test", site.edges, level="edge")
        assert isinstance(measured, Measured)
        return _counted((), measured.count_G, measured)
    holders = _holders(site, split, clients)
    asked = tuple(site.clients[i] for i in holders)
    measured = yield Evaluate(bank, row_V, split, asked, max_samples=max_samples)
    assert isinstance(measured, Measured)
    size_G = np.where(measured.count_G > 0, _sizes(site, split)[holders], 0)
    return _counted(asked, size_G, measured)


def measure_test_data(
    bank: Parts, row_N: Mapping[str, IntArray], split: Split, clients: tuple[int, ...], site: Site
) -> Generator[Request, Result, GroupMeasurement]:
    """Measure the site's model with these clients; where they have models of their own, each measures its own."""
    if all((rows == rows[0]).all() for rows in row_N.values()):
        row_V = {part: rows[:1] for part, rows in row_N.items()}
        return (yield from measure_clients(bank, row_V, split, clients, site))
    holders = np.arange(len(site.clients)) if split == "test" else _holders(site, split, clients)
    row_V = {part: rows[holders] for part, rows in row_N.items()}
    asked = tuple(site.clients[i] for i in holders)
    measured = yield Evaluate(bank, row_V, split, asked, paired=True)
    assert isinstance(measured, Measured)
    return _counted(asked, measured.count_G, measured)


def _sizes(site: Site, split: Split) -> IntArray:
    return site.validation_N if split == "validation" else site.size_N


def _holders(site: Site, split: Split, clients: tuple[int, ...]) -> IntArray:
    """Return which of the clients hold data; all that do, where none of those asked does."""
    size_N = _sizes(site, split)
    asked_N = size_N > 0 if clients is site.clients else np.isin(site.clients, clients) & (size_N > 0)
    return np.flatnonzero(asked_N if asked_N.any() else size_N > 0)


def _counted(clients: tuple[int, ...], weight_G: IntArray, measured: Measured) -> GroupMeasurement:
    """Return what was measured, with zeros where there was nothing to measure or nobody answered: these weigh nothing.
    So does a client whose loss is not finite under any model: it is broken and says nothing about the models."""
    held_G = measured.count_G > 0
    sound_G = np.isfinite(measured.loss_VG).any(0) | ~held_G
    if not clients or not (sound_G & held_G).any():
        sound_G = np.ones_like(sound_G)
    if not (counted_G := held_G & sound_G).all():
        loss_VG, accuracy_VG = (np.where(counted_G, v, 0.0) for v in (measured.loss_VG, measured.accuracy_VG))
        measured = replace(measured, loss_VG=loss_VG, accuracy_VG=accuracy_VG)
    return GroupMeasurement(clients, np.where(sound_G, weight_G, 0.0), measured)


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
    models_M: list[dict[Split, dict[Model, None]]] = field(default_factory=list)
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

    def rows(self, m: int, part: str, own: SiteRows, scheme: Personalization) -> set[Model | int]:
        """Return which networks of a part are sent to a site: those of models, or of their owners."""
        if scheme.parts[part].scope != "cluster":
            return set(own.owner_R.tolist())
        return {model for some in self.models_M[m].values() for model in some if not model.trained}


def plan_look(
    experiment: Experiment, members: Members, state: State, reports: Sequence[TrainReport], queries: Sequence[Query]
) -> tuple[list[MeasureOrder], Places]:
    """Return an order for every site that answers all queries about models, and where their answers will be. There are
    no reports before the first round."""
    measured = [query for query in dict.fromkeys(queries) if isinstance(query, Loss | Accuracy)]
    places = Places(members, on={query: query.on or experiment.method.measurement.split for query in measured})
    places.of_split = {split: i for i, split in enumerate(dict.fromkeys(places.on.values()))}
    if not measured:
        return [], places
    orders = []
    scheme, known = experiment.method.personalization, dict[tuple[object, ...], Params]()
    held = members.site_rows(scheme.parts, state.label_N)
    weight_K = np.bincount(state.label_N, members.size_N, state.num_clusters).astype(np.float64)
    for m in range(len(members.sites)):
        for n in members.at(m):
            places.asked_N[n] = {query: _models(query, state, n, experiment.seed, weight_K) for query in measured}
        models = {split: dict[Model, None]() for split in places.of_split}
        for query, split in places.on.items():
            for n in members.at(m):
                models[split] |= dict.fromkeys(places.asked_N[n][query])
        places.models_M.append(models)
        every = list(dict.fromkeys(model for some in models.values() for model in some))
        bank, row_of = _bank(scheme, held[m], state.parts, every, known)
        trained = any(model.trained for model in every)
        kept = {part: reports[m].bank[part] for part in bank if trained and scheme.parts[part].scope == "cluster"}
        wanted = tuple(
            Wanted(
                {part: np.array([rows[model] for model in models[split]]) for part, rows in row_of.items()},
                split,
                by="site" if members.unit == "edge" else "each",
                max_samples=experiment.method.measurement.max_samples_per_client,
            )
            for split in places.of_split
        )
        selected = reports[m].selected if reports else ()
        orders.append(MeasureOrder(m, bank, wanted, kept, state.selection_M[m], selected, state.round))
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


def _bank(
    scheme: Personalization,
    own: Mapping[str, SiteRows],
    parts: Parts,
    models: Sequence[Model],
    known: dict[tuple[object, ...], Params],
) -> tuple[Parts, dict[str, dict[Model, int]]]:
    """Return every network of the cloud's that these models need, once, and by part the row for each model. Rows that
    sites have trained themselves follow. Sites with the same needs share one object (``known``), which trainers then
    put in place once."""
    made = sorted((model for model in models if not model.trained), key=lambda model: (model.mix_K, model.cluster))
    rows = {model: row for row, model in enumerate([*made, *(model for model in models if model.trained)])}
    bank: Parts = {}
    row_of: dict[str, dict[Model, int]] = {}
    for part in measured_parts(scheme):
        shared, stack = scheme.parts[part].scope == "cluster", parts[part]
        row_of[part] = rows if shared else dict.fromkeys(models, 0)
        if (key := (part, tuple(made) if shared else own[part].owner_R.tobytes())) not in known:
            owner_R = np.array([model.cluster for model in made], dtype=np.int64) if shared else own[part].owner_R
            known[key] = trees.select(stack, owner_R)
            if shared and any(model.mix_K for model in made):
                pairs = [(trees.take(known[key], row), model.mix_K) for row, model in enumerate(made)]
                known[key] = trees.stack([trees.weighted_mean(stack, np.array(k)) if k else own for own, k in pairs])
        bank[part] = known[key]
    return bank, row_of


def unmeasured(order: MeasureOrder, site: Site) -> MeasureReport:
    """Return what is known of a site that does not answer: nothing, from no examples."""
    readings = []
    for wanted in order.wanted:
        groups = {"site": 1, "edge": len(site.edges)}.get(wanted.by, len(site.clients))
        nothing = np.full((1 if wanted.by == "client" else wanted.num_models, groups), np.nan)
        readings.append(Measured(nothing, nothing, np.zeros(groups, dtype=np.int64)))
    return MeasureReport(tuple(readings), Ledger())


def answers_from(
    queries: Sequence[Query], scheme: Personalization, members: Members, before: State, sent: Parts,
    reports: Sequence[TrainReport],
) -> dict[Query, FloatArray]:  # fmt: skip
    """Answer the queries that reports answer by themselves."""
    readings: dict[Query, FloatArray] = {
        query: _by_member(query, members, reports) for query in queries if isinstance(query, Statistic)
    }
    if not of_updates(queries):
        return readings
    with one_thread():
        update_N, present_N = updates(scheme.parts, members, sent, before.label_N, reports)
        if Gram() in queries:
            readings[Gram()] = gram(update_N, present_N, members.count)
        if SINCE_START in queries:
            label_N = before.label_N[present_N]
            sent_N = _matrix({part: trees.select(sent[part], label_N) for part in before.first})
            first_N = _matrix({part: trees.select(stack, label_N) for part, stack in before.first.items()})
            since_N = update_N + (sent_N.to(update_N.device) - first_N.to(update_N.device))
            readings[SINCE_START] = gram(since_N, present_N, members.count)
        if Slope() in queries:
            owned = {part: before.parts[part] for part, spec in scheme.parts.items() if spec.scope == "cluster"}
            readings[Slope()] = slope(update_N, present_N, members.count, owned)
    return readings


def _by_member(query: Statistic, members: Members, reports: Sequence[TrainReport]) -> FloatArray:
    """Return what clients tell of their training: their own, or the mean at their site, by data."""
    if members.unit == "client":
        value_N = np.full((members.count, *reports[0].statistic_N[query].shape[1:]), np.nan)
        for m, report in enumerate(reports):
            value_N[members.at(m)] = report.statistic_N[query]
        return value_N
    if query == Statistic("loss"):
        return np.array([report.loss for report in reports])
    return np.stack(
        [_mean(report.statistic_N[query], site) for report, site in zip(reports, members.sites, strict=True)]
    )


def _mean(value_N: FloatArray, site: Site) -> FloatArray:
    """Return the mean over the clients of a site that trained, by data; NaN if nobody did."""
    trained_N = np.isfinite(value_N).reshape(len(value_N), -1).all(1)
    if not trained_N.any():
        return np.full(value_N.shape[1:], np.nan)
    return np.average(value_N[trained_N], axis=0, weights=site.size_N[trained_N])


def gram(update_N: Tensor, present_N: IntArray, count: int) -> FloatArray:
    """Return ⟨Δ_a, Δ_b⟩ for all pairs of members; the rows and columns of those without an update are NaN."""
    total_NN = np.full((count, count), np.nan)
    total_NN[np.ix_(present_N, present_N)] = (update_N @ update_N.T).cpu().numpy()
    return total_NN


def slope(update_N: Tensor, present_N: IntArray, count: int, networks: Parts) -> FloatArray:
    """Return ⟨Δ_n, Θ_j⟩ for all members and clusters; rows without an update are NaN."""
    rows_K = _matrix(networks).to(update_N.device)
    total_NK = np.full((count, len(rows_K)), np.nan)
    total_NK[present_N] = (update_N @ rows_K.T).cpu().numpy()
    return total_NK


def updates(
    parts: Mapping[str, Part], members: Members, sent: Parts, label_N: IntArray, reports: Sequence[TrainReport]
) -> tuple[Tensor, IntArray]:
    """Return what training changed in the parts that clusters own, a row for each member that trained; and who did."""
    owned = [part for part, spec in parts.items() if spec.scope == "cluster"]
    if members.unit == "client":
        trained = [np.isfinite(report.statistic_N[Statistic("loss")]) for report in reports]
        present = [n for m, trained_N in enumerate(trained) for n in np.array(members.at(m))[trained_N]]
        found = [report.updates for report in reports if report.updates]
    else:
        present = [m for m, report in enumerate(reports) if report.weight[owned[0]][0] > 0]
        found = [{part: _change(sent[part], int(label_N[m]), reports[m].bank[part]) for part in owned} for m in present]
    if not present:
        found = [{part: trees.select(sent[part], np.zeros(0, dtype=np.int64)) for part in owned}]
    update = {part: trees.join([one[part] for one in found]) for part in owned}
    return _matrix(update), np.array(present, dtype=int)


def _change(sent_K: Params, label: int, trained: Params) -> Params:
    return {name: value - sent_K[name][label : label + 1] for name, value in trained.items()}


def _matrix(parts: Parts) -> Tensor:
    return torch.cat([trees.rows(stack) for stack in parts.values()], 1).double()
