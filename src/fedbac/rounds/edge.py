"""What a round is for all sites alike, and what a site does with an order (``serve``): Algorithm 2 of the paper."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fedbac.config.experiment import Experiment, Method
from fedbac.core import trees
from fedbac.core.answers import checked_ask, checked_mask, checked_state, checked_trust, consult
from fedbac.core.codecs import Changes
from fedbac.core.liars import OF_UPDATES, Lies
from fedbac.core.links import DIRECTIONS, Link
from fedbac.core.parts import Parts, measured_parts, moving_parts, running_phases
from fedbac.core.queries import Accuracy, Evidence, Loss, Moment, Query, Seconds, Split, Statistic
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Request, Result, Teachers, Train
from fedbac.core.rng import Rng, stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.world import EQUAL, Participants, everybody, extended, on_time
from fedbac.rounds.late import NOBODY, Late, changes
from fedbac.rounds.measure import (
    GroupMeasurement,
    clients_to_ask,
    liars_of,
    measure_clients,
    measure_test_data,
    told,
    weighted,
)
from fedbac.rounds.messages import (
    NUMBERS_PER_MODEL,
    NUMBERS_PER_UPDATE,
    MeasureOrder,
    MeasureReport,
    Order,
    Report,
    Site,
    TrainOrder,
    TrainReport,
)
from fedbac.rounds.privacy import Once, Release, at_once, nobody, silent
from fedbac.rounds.secret import sums_only


def combined_parts(method: Method) -> frozenset[str]:
    """Return the parts of which a site must hold all clients before it can combine them: of those it shares."""
    shared = {part for part, spec in method.personalization.parts.items() if spec.scope != "client"}
    return frozenset(shared if method.aggregation.needs == "all" else ())


def moment_of(experiment: Experiment, sites: Sequence[Site], round_: int) -> Moment:
    """Return a round as policies of the cloud know it, with the batches that a client trains on."""
    moment = Moment(round_, experiment.task.rounds)
    in_all = experiment.passes(moment) * experiment.edge_rounds
    in_one = experiment.task.training.steps(np.concatenate([site.size_N for site in sites]))
    return moment._replace(steps=in_all * float(in_one.mean()))


class Common:
    """A round as the experiment has it, whatever happens at a site."""

    def __init__(self, experiment: Experiment, round_: int, secret: int | None = None, once: Once = at_once) -> None:
        """A site of a deployment has a ``secret`` of its own instead of the seed, which all know, and remembers what it
        has released (``once``)."""
        scheme, chains = experiment.method.personalization, experiment.chains
        self.round, self.promise = round_, experiment.promise
        clients = self.promise is not None and self.promise.privacy.bounds_clients
        self.release = Release(experiment, self.promise, once) if self.promise is not None and clients else None
        """What is made of averages where clients are protected."""
        self.moment = Moment(round_, experiment.task.rounds)
        self.clients = Link("client", scheme, self.moment, chains, experiment.seed)
        """The link of a site to its clients; each counts on one of its own, made by ``again``."""
        self.above = Link(experiment.link_names[1], scheme, self.moment, chains, experiment.seed)
        """Its link to the cloud, or to the tier below that."""
        self.moving = moving_parts(scheme, self.moment)
        self.rules = dict.fromkeys(combined_parts(experiment.method) & self.moving, experiment.method.aggregation)
        """By part, how a site combines its clients where it must hold them all."""
        self.phases = running_phases(scheme, self.moment)
        self.passes = experiment.passes(self.moment)
        self.rate = experiment.rate(round_)
        self.measured = measured_parts(scheme)
        """The parts that whoever measures a model must have."""
        self._experiment, self._seed = experiment, experiment.seed if secret is None else secret

    def stream(self, purpose: str, edge_round: int, site: int) -> Rng:
        """Return the generator for a purpose at a site."""
        return stream(self._seed, purpose, self.round, edge_round, site)

    def seconds(self, site: Site, down: int, up: int) -> FloatArray:
        """Return how long every client of a site would take for so many bytes and its training."""
        profile = (self._experiment.world or EQUAL).profile(self._experiment.seed, site.clients)
        return profile.seconds(self.passes * site.size_N.astype(np.float64), down, up)


def serve(
    order: Order, site: Site, experiment: Experiment, present_N: BoolArray | None = None, common: Common | None = None
) -> Generator[Request, Result, Report]:
    """Do an order's work, yielding each request to the clients and receiving its result. Only clients that are present
    can be selected. Who serves many sites may give what they have in ``common``."""
    if not isinstance(order, TrainOrder):
        work: Generator[Request, Result, Report] = _measure(order, site, experiment)
        return (yield from sums_only(work, site, experiment) if experiment.method.secret else work)
    common = common or Common(experiment, order.round)
    work = EdgeRound(order, site, experiment, present_N, common).run()
    return (yield from sums_only(work, site, experiment, common) if experiment.method.secret else work)


class EdgeRound:
    """A site's work in one round of the cloud."""

    def __init__(
        self,
        order: TrainOrder,
        site: Site,
        experiment: Experiment,
        present_N: BoolArray | None = None,
        common: Common | None = None,
    ) -> None:
        self.order, self.site, self.experiment = order, site, experiment
        self.present_N = np.ones(len(site.clients), dtype=bool) if present_N is None else present_N
        self.common = common or Common(experiment, order.round)
        self.link = self.common.clients.again()
        self.links = dict(order.links)
        self.bank = order.bank
        self.weight = {part: np.zeros(trees.count(params), dtype=np.int64) for part, params in order.bank.items()}
        self.selection = order.selection
        self.momentum = order.momentum
        self.late = None if order.waiting is None else Late(order, site, experiment, self.common.rules)
        """Who is under way, where the site does not wait for all."""
        self.selected: set[int] = set()
        self.failed: set[int] = set()
        self.losses: list[float] = []
        self.measurements: dict[tuple[Split, tuple[int, ...]], GroupMeasurement] = {}
        """Of the model as it is now, by the clients that were asked."""
        self.informed: set[int] = set()
        """The clients to whom the model as it is now was sent to be measured: once is enough."""
        self.readings = tuple(np.nan for _ in order.readings)
        self.statistic_N: dict[Statistic, FloatArray] = {}
        self.updates: Parts = {}
        self.seconds = 0.0
        self.dropped: set[int] = set()
        self.too_late: set[int] = set()

    def run(self) -> Generator[Request, Result, TrainReport]:
        """Algorithm 2, as often as the topology wants before anybody above hears of it."""
        first, edge_rounds = self.order.edge_round, self.experiment.method.topology.edge_rounds
        for edge_round in range(first, first + edge_rounds):
            yield from self._edge_round(edge_round, last=edge_round + 1 == first + edge_rounds)
        sent = self._upload()
        return TrainReport(
            bank=self.bank,
            weight=self.weight,
            selection=self.selection,
            selected=tuple(sorted(self.selected)),
            failed=tuple(sorted(self.failed)),
            loss=float(np.mean(self.losses)) if self.losses else float("nan"),
            statistic_N=self.statistic_N,
            traffic=self.link.traffic,
            momentum=self.momentum,
            readings=self.readings,
            updates=self.updates,
            links=self.links,
            changes=sent,
            seconds=None if self.experiment.world is None else self.seconds,
            waiting=None if self.late is None else self.late.waiting,
            ages=() if self.late is None else tuple(self.late.ages),
            dropped=tuple(sorted(self.dropped)),
            late=tuple(sorted(self.too_late)),
        )

    def _upload(self) -> Changes:
        """Make of the averages what arrives above, unless it has every update; return how they are sent."""
        averages = {part: stack for part, stack in self.bank.items() if part not in self.updates}
        above, who = self.common.above, (self.site.index,)
        left = self.links.get(f"{above.tier}_up", {})
        arrived, left, changes = above.upload(averages, self.order.bank, left, who, self.order.edge_round)
        self.bank = self.bank | arrived
        self.links[f"{above.tier}_up"] = left
        return changes

    def _edge_round(self, edge_round: int, last: bool) -> Generator[Request, Result, None]:
        """Algorithm 2: select (lines 1 to 5), train and average (6 to 9), measure (10), learn (11)."""
        order, site, policy, seed = self.order, self.site, self.experiment.method.selection, self.experiment.seed
        world, address = self.experiment.world or EQUAL, (order.round, edge_round, site.index)
        able_N = world.available(seed, site.clients, site.size_N, *address) & self.present_N
        if self.late is not None:
            able_N[self.late.waiting.child_W] = False
        down, up = (self.link.num_bytes(direction, self.bank, one_row=True) for direction in DIRECTIONS)
        seconds_N = self.common.seconds(site, down, up)
        evidence = Evidence(
            round=order.round,
            num_rounds=self.experiment.task.rounds,
            num_classes=site.num_classes,
            size_N=np.where(able_N, site.size_N, 0),
            profile=world.profile(seed, site.clients),
            expected_N=seconds_N,
            moved=order.moved and edge_round == 0,
        )
        when = f"round {order.round}, edge {site.index}"
        chance = self.common.stream("candidates", edge_round, site.index)
        ask = consult("selection", when, policy.ask, self.selection, evidence, chance)
        ask = checked_ask("selection", policy, ask, before={"received"}, after={"trained"})
        asked = site.clients
        if ask.among_N is not None:
            among_N = checked_trust(policy, "ask().among_N", ask.among_N, len(site.clients))
            asked = tuple(site.clients[i] for i in np.flatnonzero(among_N))
        known = yield from self._measured(ask.before, {}, asked)
        evidence = replace(evidence, readings=known)
        mask_N = able_N
        if self.late is None or able_N.any():  # else all are under way
            chance = self.common.stream("selection", edge_round, site.index)
            mask_N = consult("selection", when, policy.act, self.selection, evidence, chance)
            mask_N = checked_mask(policy, mask_N, evidence.size_N)
        participants = self._participants(mask_N, able_N, seconds_N, edge_round)
        statistics = order.statistics | {query for query in ask.after if isinstance(query, Statistic)}
        loss_N = yield from self._train_and_average(participants, edge_round, statistics)
        started_N = np.zeros_like(able_N)
        started_N[participants.started] = True
        if self.late is not None:  # an update counts for the policy when it counts for the average
            started_N[self.late.under_way], started_N[self.late.came.child_W] = False, True
        answering_N = started_N.copy()
        answering_N[participants.dropped] = False
        known_after: dict[Query, FloatArray] = {Seconds(): np.where(answering_N, seconds_N, np.nan)}
        known_after |= {query: self.statistic_N[query] for query in statistics}
        known = known | (yield from self._measured(ask.after, known_after, site.clients))
        if last and self.losses and order.readings:
            # Asked before selection learns from this round: whom to trust is what was known when it began.
            trained = tuple(site.clients[i] for i in np.flatnonzero(np.isfinite(loss_N)))
            asked = clients_to_ask(self.experiment.method, site, self.selection, trained)
            self.readings = yield from self._readings(asked)
        # A client that failed had no part in the outcome: neither praise nor blame.
        share_N = None if self.late is None else self.late.share_N
        evidence = replace(evidence, readings=known, selected_N=started_N, share_N=share_N)
        learned = consult("selection", when, policy.learn, self.selection, evidence, np.isfinite(loss_N))
        self.selection = checked_state("selection", policy, learned, self.selection)

    def _measured(
        self, queries: tuple[Query, ...], known: Mapping[Query, FloatArray], asked: tuple[int, ...]
    ) -> Generator[Request, Result, dict[Query, FloatArray]]:
        """Answer the queries of the selection policy, about the model as it is now and these clients."""
        answers: dict[Query, FloatArray] = {}
        for query in queries:
            if isinstance(query, Loss | Accuracy):
                found, value_VG = yield from self._measure_clients(query, asked)
                answers[query] = found.by_client(value_VG[0], self.site) if query.each else found.mean(value_VG)[0]
            else:
                answers[query] = known[query]
        return answers

    def _readings(self, asked: tuple[int, ...]) -> Generator[Request, Result, tuple[float, ...]]:
        """Answer the queries of the cloud, from the clients that measure."""
        values = []
        for query in self.order.readings:
            assert isinstance(query, Loss | Accuracy)
            found, value_VG = yield from self._measure_clients(query, self.site.clients)
            values.append(float(found.mean(value_VG, asked)[0]))
        return tuple(values)

    def _measure_clients(
        self, query: Loss | Accuracy, asked: tuple[int, ...]
    ) -> Generator[Request, Result, tuple[GroupMeasurement, FloatArray]]:
        split = query.on or self.experiment.method.measurement.split
        key = (split, () if split == "test" else asked)
        if key not in self.measurements:
            bank = {part: self.bank[part] for part in self.common.measured}
            row_N = {part: self.order.row_N[part] for part in self.common.measured}
            found = yield from measure_test_data(bank, row_N, split, asked, self.site)
            self.measurements[key] = told(found, self.experiment, self.site, self.order.round)
            if split != "test" and self.experiment.method.measurement.location == "clients":
                news = len(set(found.clients) - self.informed)
                self.link.send("down", "evaluate", bank, receivers=news, one_row=True)
                self.link.tell("up", NUMBERS_PER_MODEL, receivers=len(found.clients))
                self.informed |= set(found.clients)
        measured = self.measurements[key].measured
        return self.measurements[key], measured.loss_VG if isinstance(query, Loss) else measured.accuracy_VG

    def _participants(
        self, mask_N: BoolArray, able_N: BoolArray, seconds_N: FloatArray, edge_round: int
    ) -> Participants:
        """Let clients drop out, be late or be too many, as the world of the task has it."""
        world = self.experiment.world
        if not mask_N.any() and self.late is None:
            return Participants(NOBODY, NOBODY, NOBODY, 0.0)
        if world is None:
            return everybody(mask_N, seconds_N)
        rng = self.common.stream("participants", edge_round, self.site.index)
        if self.late is not None:
            participants = self.late.first_back(world, mask_N, seconds_N, self.seconds, rng)
        else:
            more_N = extended(world, mask_N, able_N, rng)
            participants = on_time(world, np.flatnonzero(more_N), int(mask_N.sum()), seconds_N, rng)
        self.seconds += participants.seconds
        self.dropped |= {self.site.clients[i] for i in participants.dropped}
        self.too_late |= {self.site.clients[i] for i in participants.late}
        return participants

    def _train_and_average(
        self, participants: Participants, edge_round: int, statistics: frozenset[Statistic]
    ) -> Generator[Request, Result, FloatArray]:
        """Train the clients that come home, average those that trained well (Eq. 1); return losses, else NaN."""
        site, order, chosen = self.site, self.order, participants.present
        clients = tuple(site.clients[i] for i in chosen)
        counted_N = self.experiment.method.counted(site.size_N)
        momentum = None
        if self.momentum is not None:
            momentum = {part: trees.select(buffers, chosen) for part, buffers in self.momentum.items()}
        had = self.links.get("client_down", {})
        bank, had, broadcast = self.link.broadcast(
            self.bank, had, site.index, edge_round, receivers=participants.started.size, one_row=True
        )
        request = Train(
            clients=clients,
            bank=bank,
            row_C={part: row_N[chosen] for part, row_N in order.row_N.items()},
            round=order.round,
            edge_round=edge_round,
            learning_rate=self.common.rate,
            momentum=momentum,
            keep=frozenset(query.name for query in statistics if query.name != "loss"),
            phases=self.common.phases,
            teachers=self._teachers(chosen, participants.started.size),
            edge_rounds=self.experiment.edge_rounds,
            share=float(counted_N[chosen].sum() / max(counted_N.sum(), 1)),
        )
        left_N = self.links.get("client_up", {})
        wanted = self._owned_by_clusters() if order.wants_updates else frozenset()
        late_C = np.isin(chosen, NOBODY if self.late is None else self.late.under_way)
        size_C = np.where(late_C, 0, counted_N[chosen])
        average = Average(
            request,
            size_C if self.common.release is None else self.common.release.promise.privacy.counted(size_C),
            keep=wanted if self.late is None else wanted | self.late.keeps(self.bank),
            link=self.link if self.link.chain("up") else None,
            left={part: trees.select(stack, chosen) for part, stack in left_N.items()},
            broadcast=broadcast,
            rules=self.common.rules,
            lies=self._lies(chosen, edge_round),
        )
        trained = (yield average) if clients else nobody(average, self.common.passes)
        assert isinstance(trained, Averaged)
        trained = self._released(trained, request, edge_round)
        fresh = np.flatnonzero(trained.healthy_C & ~late_C)
        self.updates = {part: changes(request, part, trained, fresh) for part in sorted(wanted)}
        senders = len(clients)
        if self.late is not None:
            trained = self.late.averaged(trained, request, chosen, edge_round)
            self.updates = self.late.updates(self.updates, chosen[fresh])
            senders += len(self.late.came) - self.late.under_way.size
        self.links |= {
            "client_down": had,
            "client_up": {part: trees.put(stack, chosen, trained.left[part]) for part, stack in left_N.items()},
        }
        arrived = self.link.send("up", "train", trained.bank, receivers=senders, one_row=True)
        self.link.tell("up", NUMBERS_PER_UPDATE, receivers=senders)

        healthy_C = trained.healthy_C
        self.measurements, self.informed = {}, set()
        self.bank = {part: arrived[part] if part in self.common.moving else stack for part, stack in self.bank.items()}
        # Who fails later keeps what it had, and its weight.
        self.weight = {part: np.where(new_R > 0, new_R, self.weight[part]) for part, new_R in trained.weight.items()}
        lying_N, times = liars_of(self.experiment, site, order.round, "losses")
        times_C = np.where(lying_N[chosen], times, 1.0)
        told_C = {"loss": trained.loss_C * times_C if self.common.promise is None else silent(trained.loss_C)}
        if trained.square_C is not None:
            told_C["square"] = trained.square_C * times_C**2
        if trained.epoch_CE is not None:
            told_C["epochs"] = trained.epoch_CE * times_C[:, None]
        self.statistic_N = {
            query: self._spread(told_C[query.name][fresh], chosen[fresh]) for query in statistics | {Statistic("loss")}
        }
        if self.late is not None:
            self.late.heard(self.statistic_N)
        loss_N = self.statistic_N[Statistic("loss")]
        heard = np.flatnonzero(np.isfinite(loss_N))
        if site.size_N[heard].any() and self.common.promise is None:
            by_median = self.experiment.method.measurement.average == "median"
            loss_C = loss_N[heard]
            self.losses.append(float(np.median(loss_C) if by_median else weighted(loss_C, site.size_N[heard])))
        if self.momentum is not None and trained.momentum is not None:
            well = np.flatnonzero(healthy_C)
            self.momentum = {
                part: trees.put(buffers, chosen[well], trees.select(trained.momentum[part], well))
                for part, buffers in self.momentum.items()
            }
        self.selected |= {site.clients[i] for i in participants.started}
        self.failed |= {client for client, healthy in zip(clients, healthy_C, strict=True) if not healthy}
        return loss_N

    def _released(self, trained: Averaged, request: Train, edge_round: int) -> Averaged:
        """Return the average as it may be known, with noise where clients are protected."""
        release, rng = self.common.release, self.common.stream("noise", edge_round, self.site.index)
        if release is None:
            return trained
        start = {part: request.bank[part] for part in self.link.passing["up"] & request.bank.keys()}
        return release.of(trained, self.order, self.site, start, edge_round, rng)

    def _lies(self, chosen: IntArray, edge_round: int) -> Lies | None:
        """Return what those among the chosen clients send who lie about what they have learned; None if all do not."""
        site, experiment, round_ = self.site, self.experiment, self.order.round
        liars = experiment.task.liars
        if liars is None or liars.attack not in OF_UPDATES or round_ < liars.from_round:
            return None
        lying_N, by_N = liars.among(experiment.seed, site.clients, site.edge_N, experiment.task.num_edges)
        if not lying_N[chosen].any():
            return None
        parts, number_C = experiment.method.personalization.parts, [site.clients[i] for i in chosen]
        return Lies(
            liars,
            lying_N[chosen],
            by_N[chosen],
            frozenset(part for part in self.common.moving if parts[part].scope != "client"),
            lambda c: stream(experiment.seed, "lies", round_, edge_round, number_C[c]),
            site.num_classes,
        )

    def _spread(self, value_C: FloatArray, places: IntArray) -> FloatArray:
        """Return numbers of some clients as numbers of all, NaN of the others."""
        value_N = np.full((len(self.site.clients), *value_C.shape[1:]), np.nan)
        value_N[places] = value_C
        return value_N

    def _teachers(self, chosen: IntArray, receivers: int) -> Teachers | None:
        """Return the teachers of the chosen clients; each of those that start to train is sent its own."""
        teachers = self.order.teachers
        if teachers is None:
            return None
        used = np.flatnonzero((teachers.weight_CT > 0).any(0))
        part = next(iter(self._owned_by_clusters()))
        self.link.send("down", "evaluate", {part: trees.select(teachers.bank, used)}, receivers)
        return replace(teachers, weight_CT=teachers.weight_CT[chosen], share_C=teachers.share_C[chosen])

    def _owned_by_clusters(self) -> frozenset[str]:
        parts = self.experiment.method.personalization.parts
        return frozenset(part for part, spec in parts.items() if spec.scope == "cluster")


def _measure(order: MeasureOrder, site: Site, experiment: Experiment) -> Generator[Request, Result, MeasureReport]:
    """F_m = Σ_i (n_i / n_m) F_i for each model that is wanted, on the clients' data or on test data."""
    link = Link("client", experiment.method.personalization)
    bank = order.bank | {part: trees.join([order.bank[part], rows]) for part, rows in order.kept.items()}
    readings: list[Measured] = []
    reached: set[int] = set()
    for wanted in order.wanted:
        if wanted.by in ("site", "each"):
            asked = clients_to_ask(experiment.method, site, order.selection, order.selected)
            found = yield from measure_clients(bank, wanted.row_V, wanted.split, asked, site, wanted.max_samples)
            found = told(found, experiment, site, order.round)
            readings.append(found.together() if wanted.by == "site" else found.one_by_one(site))
            if experiment.method.measurement.location == "clients":
                reached |= set(found.clients)
                link.tell("up", NUMBERS_PER_MODEL * wanted.num_models, receivers=len(found.clients))
        else:  # the reported accuracy: models on the test data of every edge, or each client's on its share of them
            by_edge, owners = wanted.by == "edge", site.edges if wanted.by == "edge" else site.clients
            level: Literal["client", "edge"] = "edge" if by_edge else "client"
            measured = yield Evaluate(bank, wanted.row_V, "test", owners, level, paired=not by_edge)
            assert isinstance(measured, Measured)
            readings.append(measured)
    link.send("down", "evaluate", bank, receivers=len(reached))
    return MeasureReport(tuple(readings), link.traffic)
