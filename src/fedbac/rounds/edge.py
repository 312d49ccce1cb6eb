"""What a site does with an order (``serve``): Algorithm 2 of the paper."""

from collections.abc import Generator, Mapping
from dataclasses import replace

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.answers import checked_ask, checked_mask, checked_state, checked_trust
from fedbac.core.links import Link
from fedbac.core.parts import Params, Parts, judged_parts
from fedbac.core.queries import Accuracy, Evidence, Loss, Query, Split, Statistic
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Request, Result, Train
from fedbac.core.rng import stream
from fedbac.core.schemes import moving_parts
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.rounds.orders import (
    MeasureOrder,
    MeasureReport,
    Order,
    Reading,
    Report,
    Site,
    TrainOrder,
    TrainReport,
    Wanted,
)
from fedbac.rounds.survey import Survey, clients_to_ask, survey, survey_own

NUMBERS_PER_MODEL = 2
"""Whoever measures a model answers with its loss and its accuracy."""
NUMBERS_PER_UPDATE = 2
"""A client and an edge send with their update how many examples are behind it, and the loss."""
NONE: frozenset[str] = frozenset()


def serve(order: Order, site: Site, experiment: Experiment) -> Generator[Request, Result, Report]:
    """Do an order's work, yielding each request to the clients and receiving its result."""
    if isinstance(order, TrainOrder):
        return (yield from Shift(order, site, experiment).run())
    return (yield from _measure(order, site, experiment))


class Shift:
    """A site's work in one round of the cloud."""

    def __init__(self, order: TrainOrder, site: Site, experiment: Experiment) -> None:
        self.order, self.site, self.experiment = order, site, experiment
        self.link = Link("client", experiment.method.personalization)
        self.bank = order.bank
        self.weight = {part: np.zeros(trees.count(params), dtype=np.int64) for part, params in order.bank.items()}
        self.selection = order.selection
        self.momentum = order.momentum
        self.selected: set[int] = set()
        self.failed: set[int] = set()
        self.losses: list[float] = []
        self.surveys: dict[tuple[Split, tuple[int, ...]], Survey] = {}
        """Of the model as it is now, by the clients that were asked."""
        self.informed: set[int] = set()
        """The clients to whom the model as it is now was sent to be measured: once is enough."""
        self.readings = tuple(np.nan for _ in order.readings)
        self.loss_N = np.full(len(site.clients), np.nan)
        self.updates: Parts = {}

    def run(self) -> Generator[Request, Result, TrainReport]:
        """Algorithm 2, as often as the topology wants before the cloud hears of it."""
        edge_rounds = self.experiment.method.topology.edge_rounds
        for edge_round in range(edge_rounds):
            yield from self._edge_round(edge_round, last=edge_round + 1 == edge_rounds)
        return TrainReport(
            bank=self.bank,
            weight=self.weight,
            selection=self.selection,
            selected=tuple(sorted(self.selected)),
            failed=tuple(sorted(self.failed)),
            loss=float(np.mean(self.losses)) if self.losses else float("nan"),
            loss_N=self.loss_N,
            traffic=self.link.traffic,
            momentum=self.momentum,
            readings=self.readings,
            updates=self.updates,
        )

    def _edge_round(self, edge_round: int, last: bool) -> Generator[Request, Result, None]:
        """Algorithm 2: select (lines 1 to 5), train and average (6 to 9), measure (10), learn (11)."""
        order, site, policy = self.order, self.site, self.experiment.method.selection
        evidence = Evidence(
            round=order.round,
            num_rounds=self.experiment.task.rounds,
            num_classes=site.num_classes,
            size_N=site.size_N,
            moved=order.moved and edge_round == 0,
        )
        address = (order.round, edge_round, site.index)
        ask = policy.ask(self.selection, evidence, stream(self.experiment.seed, "candidates", *address))
        ask = checked_ask("selection", policy, ask, before={"received"}, after={"trained"})
        asked = site.clients
        if ask.among_N is not None:
            among_N = checked_trust(policy, "ask().among_N", ask.among_N, len(site.clients))
            asked = tuple(site.clients[i] for i in np.flatnonzero(among_N))
        known = yield from self._measured(ask.before, {}, asked)
        evidence = replace(evidence, readings=known)
        rng = stream(self.experiment.seed, "selection", *address)
        mask_N = checked_mask(policy, policy.act(self.selection, evidence, rng), site.size_N)
        loss_N = yield from self._train_and_average(np.flatnonzero(mask_N), edge_round)
        known = known | (yield from self._measured(ask.after, {Statistic("loss"): loss_N}, site.clients))
        if last and self.losses:
            # Asked before selection learns from this round: whom to trust is what was known when it began.
            trained = tuple(site.clients[i] for i in np.flatnonzero(np.isfinite(loss_N)))
            asked = clients_to_ask(self.experiment.method, site, self.selection, trained)
            self.readings = yield from self._readings(asked)
        # A client that failed had no part in the outcome: neither praise nor blame.
        learned = policy.learn(self.selection, replace(evidence, readings=known), np.isfinite(loss_N))
        self.selection = checked_state("selection", policy, learned, self.selection)

    def _measured(
        self, queries: tuple[Query, ...], known: Mapping[Query, FloatArray], asked: tuple[int, ...]
    ) -> Generator[Request, Result, dict[Query, FloatArray]]:
        """Answer the queries of the selection policy, about the model as it is now and these clients."""
        answers: dict[Query, FloatArray] = {}
        for query in queries:
            if isinstance(query, Loss | Accuracy):
                found = yield from self._survey(self._split(query), asked)
                value_VG = found.measured.loss_VG if isinstance(query, Loss) else found.measured.accuracy_VG
                answers[query] = found.by_client(value_VG[0], self.site) if query.each else found.mean(value_VG)[0]
            else:
                answers[query] = known[query]
        return answers

    def _readings(self, asked: tuple[int, ...]) -> Generator[Request, Result, tuple[float, ...]]:
        """Answer the queries of the cloud, from the clients that measure."""
        values = []
        for query in self.order.readings:
            assert isinstance(query, Loss | Accuracy)
            found = yield from self._survey(self._split(query), self.site.clients)
            value_VG = found.measured.loss_VG if isinstance(query, Loss) else found.measured.accuracy_VG
            values.append(float(found.mean(value_VG, asked)[0]))
        return tuple(values)

    def _split(self, query: Loss | Accuracy) -> Split:
        return query.on or self.experiment.method.measurement.split

    def _survey(self, split: Split, asked: tuple[int, ...]) -> Generator[Request, Result, Survey]:
        key = (split, () if split == "test" else asked)
        if key not in self.surveys:
            judged = judged_parts(self.experiment.method.personalization)
            bank = {part: self.bank[part] for part in judged}
            row_N = {part: self.order.row_N[part] for part in judged}
            found = yield from survey_own(bank, row_N, split, asked, self.site)
            self.surveys[key] = found
            if split != "test" and self.experiment.method.measurement.location == "clients":
                news = len(set(found.clients) - self.informed)
                self.link.send("down", "evaluate", bank, receivers=news, one_row=True)
                self.link.tell("up", NUMBERS_PER_MODEL, receivers=len(found.clients))
                self.informed |= set(found.clients)
        return self.surveys[key]

    def _train_and_average(self, chosen: IntArray, edge_round: int) -> Generator[Request, Result, FloatArray]:
        """Train the chosen clients, average those that trained well (Eq. 1), and return losses, NaN for all others."""
        site, order = self.site, self.order
        clients = tuple(site.clients[i] for i in chosen)
        momentum = None
        if self.momentum is not None:
            momentum = {part: trees.select(buffers, chosen) for part, buffers in self.momentum.items()}
        request = Train(
            clients=clients,
            bank=self.link.send("down", "train", self.bank, receivers=len(clients), one_row=True),
            row_C={part: row_N[chosen] for part, row_N in order.row_N.items()},
            round=order.round,
            edge_round=edge_round,
            learning_rate=self.experiment.task.training.rate(order.round),
            momentum=momentum,
        )
        trained = yield Average(
            request, site.size_N[chosen], self._owned_by_clusters() if order.wants_updates else NONE
        )
        assert isinstance(trained, Averaged)
        self.updates = {part: _changes(request, part, trained) for part in trained.kept}
        arrived = self.link.send("up", "train", trained.bank, receivers=len(clients), one_row=True)
        self.link.tell("up", NUMBERS_PER_UPDATE, receivers=len(clients))

        healthy_C = trained.healthy_C
        size_C = np.where(healthy_C, site.size_N[chosen], 0)
        self.surveys, self.informed = {}, set()
        moving = moving_parts(self.experiment.method.personalization)
        self.bank = {part: arrived[part] if part in moving else stack for part, stack in self.bank.items()}
        # Who fails later keeps what it had, and its weight.
        self.weight = {part: np.where(new_R > 0, new_R, self.weight[part]) for part, new_R in trained.weight.items()}
        if size_C.any():
            self.losses.append(float(np.average(trained.loss_C[healthy_C], weights=size_C[healthy_C])))
        if self.momentum is not None and trained.momentum is not None:
            self.momentum = _keep_momentum(self.momentum, trained.momentum, chosen, healthy_C)
        self.selected |= set(clients)
        self.failed |= {client for client, healthy in zip(clients, healthy_C, strict=True) if not healthy}
        loss_N = np.full(len(site.clients), np.nan)
        loss_N[chosen[healthy_C]] = trained.loss_C[healthy_C]
        self.loss_N = loss_N
        return loss_N

    def _owned_by_clusters(self) -> frozenset[str]:
        parts = self.experiment.method.personalization.parts
        return frozenset(part for part, spec in parts.items() if spec.scope == "cluster")


def _changes(request: Train, part: str, trained: Averaged) -> Params:
    """Return what the clients that trained well changed in a part."""
    healthy = np.flatnonzero(trained.healthy_C)
    before = trees.select(request.bank[part], request.row_C[part][healthy])
    after = trees.select(trained.kept[part], healthy)
    return {name: value - before[name].to(value.device) for name, value in after.items()}


def _keep_momentum(before_N: Parts, trained_C: Parts, chosen: IntArray, healthy_C: BoolArray) -> Parts:
    """Return the site's momentum buffers with those of the clients that trained well replaced."""
    rows, sources = chosen[healthy_C], np.flatnonzero(healthy_C)
    after: Parts = {}
    for part, buffers in before_N.items():
        after[part] = {name: value.clone() for name, value in buffers.items()}
        for name, value in after[part].items():
            value[rows] = trained_C[part][name][sources].to(value.device)
    return after


def _measure(order: MeasureOrder, site: Site, experiment: Experiment) -> Generator[Request, Result, MeasureReport]:
    """F_m = Σ_i (n_i / n_m) F_i for each model that is wanted, on the clients' data or on test data."""
    link = Link("client", experiment.method.personalization)
    bank = order.bank | {part: trees.join([order.bank[part], rows]) for part, rows in order.kept.items()}
    readings: list[Reading] = []
    reached: set[int] = set()
    for wanted in order.wanted:
        if wanted.by in ("site", "each"):
            asked = clients_to_ask(experiment.method, site, order.selection, order.selected)
            found = yield from survey(bank, wanted.row_V, wanted.split, asked, site, wanted.max_samples)
            readings.append(found.together() if wanted.by == "site" else found.one_by_one(site))
            if experiment.method.measurement.location == "clients":
                reached |= set(found.clients)
                link.tell("up", NUMBERS_PER_MODEL * wanted.num_models, receivers=len(found.clients))
        else:
            readings.append((yield from _judge(bank, wanted, site)))
    link.send("down", "evaluate", bank, receivers=len(reached))
    return MeasureReport(tuple(readings), link.traffic)


def _judge(bank: Parts, wanted: Wanted, site: Site) -> Generator[Request, Result, Reading]:
    """Measure the reported accuracy: models on the test data of every edge, or each client's on its share of them."""
    if wanted.by == "edge":
        measured = yield Evaluate(bank, wanted.row_V, "test", site.edges, level="edge")
    else:
        measured = yield Evaluate(bank, wanted.row_V, "test", site.clients, paired=True)
    assert isinstance(measured, Measured)
    return Reading(measured.loss_VG, measured.accuracy_VG, measured.count_G)
