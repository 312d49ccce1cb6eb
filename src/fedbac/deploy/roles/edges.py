"""The edges of a federation as the cloud's round loop sees them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedbac.core import trees
from fedbac.core.parts import running_phases
from fedbac.core.queries import Moment
from fedbac.deploy import log
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.failures import BROKE_DOWN, Failure, SiteError
from fedbac.deploy.protocol.messages import read_measured, read_trained, received, sent, train_request
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.deploy.roles.calls import Caller, Silences, ask_with_retry
from fedbac.deploy.roles.clients import TooFewClientsError
from fedbac.deploy.roles.edge import REGIONS_AT_CLOUD, OrderHandler
from fedbac.deploy.roles.history import EDGE, History
from fedbac.deploy.roles.models import ELSEWHERE, models_of_edge
from fedbac.deploy.roles.standing import STANDING, Drift, Standing
from fedbac.deploy.roles.under_way import Heard, Kept, UnderWay
from fedbac.deploy.settings import DeploySettings, edge_name, quorum
from fedbac.deploy.transports.base import Answered, Children
from fedbac.errors import DeployError, TooFewSitesError, quoted
from fedbac.rounds.late import unheard
from fedbac.rounds.measure import unmeasured
from fedbac.rounds.messages import Arrival, MeasureOrder, MeasureReport, Site, TrainOrder, TrainReport
from fedbac.runs.models import Models

LOOK = 0.1
AGAIN, LONGEST = 0.5, 10.0
"""Seconds between two looks at who is there, and before a round is played again: longer each time that it fails."""
REQUESTS = 4
"""An edge asks its clients about so many things in an edge round, one after another, and each has its deadline."""

SomeOrder = TypeVar("SomeOrder", TrainOrder, MeasureOrder)
SomeReport = TypeVar("SomeReport", TrainReport, MeasureReport)


class Interruption(Exception):  # noqa: N818 (no error)
    """The operator wants to stop while the cloud waits for sites."""


class Newcomers(Exception):  # noqa: N818 (no error)
    """A round cannot be played, and sites are there that could join the run."""

    def __init__(self, what: str, names: list[str]) -> None:
        super().__init__(what)
        self.names = names


class BrokenRoundError(DeployError):
    """A round could not be played from the networks that there are, however often it was tried."""


class Remote:
    """What both kinds of federations have in common: who is there, and waiting for more."""

    device, keeps = torch.device("cpu"), ELSEWHERE
    path = "federation"

    def __init__(
        self,
        charter: Charter,
        children: Children,
        deploy: DeploySettings,
        waiting: Callable[[str], None],
        stopped: Callable[[], bool],
        history: History,
        declined: set[str],
    ) -> None:
        """``declined`` are clients that could not join; who goes away is taken out."""
        self.history, self.declined = history, declined
        self.charter, self.children, self.deploy = charter, children, deploy
        self.waiting, self.stopped = waiting, stopped
        self.caller, self.silences = Caller(children, charter), Silences()
        self.members = {edge_name(m): m for m in charter.members}
        self.min_edges = quorum(deploy.min_edges, len(self.members))
        self.left_out: dict[str, str] = {}
        """Why clients and edges take no part in this round."""
        self.round, self.edge_round, self.begins = 0, 0, True
        """Where edges were asked last, and whether it was for the first time in the round, be it played again."""
        self.pause, self.repeats = AGAIN, 0
        self.present: Mapping[str, list[str]] = {}
        """By edge, the clients that were there when it last spoke."""
        self.spoke: Mapping[str, float] = {}
        """By edge, when that was. Neither is ever changed, only replaced: several threads read both."""
        self._noting = threading.Lock()

    @property
    def at_work(self) -> frozenset[str]:
        """Edges that are asked nothing else."""
        return frozenset()

    @property
    def patience(self) -> float:
        """Seconds that an edge has for an order."""
        return self.deploy.deadline * (REQUESTS * self.charter.experiment.method.topology.edge_rounds + 1)

    def begin(self, round_: int, enough: Callable[[], str | None], edge_round: int = 0) -> None:
        """Begin a round once nothing is missing, or go on with it after so many averages of edges."""
        self.wait(enough)
        self.begins = round_ != self.round or edge_round <= self.edge_round
        self.edge_round = edge_round
        if self.begins:
            self.history.begin(round_)
        if round_ != self.round:
            self.round, self.pause, self.repeats = round_, AGAIN, 0

    def wait(self, enough: Callable[[], str | None]) -> None:
        """Wait until nothing is missing, and say what is."""
        waited = False
        while (missing := enough()) is not None:
            if self.stopped():
                raise Interruption(missing)
            self.waiting(missing)
            time.sleep(AGAIN)
            waited = True
        if waited:
            self.waiting("enough are there; going on")

    def again(self, reason: str) -> TooFewSitesError:
        """Say why the round does not count, and wait a little; return what has it played again."""
        self.repeats += BROKE_DOWN in reason
        if self.repeats > self.deploy.max_repeats:
            raise BrokenRoundError(
                f"round {self.round} was repeated {self.deploy.max_repeats} times (deploy.max_repeats) and still "
                f"cannot be played: {reason}"
            )
        what = f"round {self.round} is played again: {reason}"
        self.waiting(what)
        if self.stopped():
            raise Interruption(what)
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, LONGEST)
        if BROKE_DOWN not in reason and (new := self.newcomers()):  # whom networks that broke down would not help
            raise Newcomers(what, new)
        return TooFewSitesError(reason)

    def newcomers(self) -> list[str]:
        """Return the clients that are there, or at an edge that is, and have no part in the run yet.

        Who was declined counts only after it was away, since it may then have other data.
        """
        names, edges = self.charter.names, self.children.present() - self.members.keys()
        there = {name for each in self.present.values() for name in each}
        there |= {names[c] for m, own in enumerate(self.charter.clients) if edge_name(m) in edges for c in own}
        self.declined &= (there := there - self.charter.commitments.keys())
        return [name for name in names if name in there - self.declined]

    def answered(self, name: str, message: Message) -> None:
        """Note which clients an edge has."""
        found = message.head.get("present")
        if isinstance(found, list) and all(isinstance(one, str) for one in found):
            here = [one for one in self.charter.names if one in found and one.startswith(f"{name}-")]
            with self._noting:
                self.present = {**self.present, name: here}
                self.spoke = {**self.spoke, name: time.time()}

    def noted(self, reports: Mapping[int, TrainReport], ages: Mapping[int, int] = {}) -> list[TrainReport]:
        """Note who has trained, where the cloud does not wait so many rounds ago; note and log who is left out, as the
        sites report it; return the reports."""
        came = {m: one for m, one in reports.items() if not one.absent}
        selected: list[tuple[int, ...]] = [()] * len(self.charter.sites)
        for m, one in came.items():
            selected[m] = one.selected
        missing = {client for one in came.values() for client in (*one.failed, *one.dropped, *one.late)}
        self.history.note(self.round, selected, missing, {m: ages.get(m, 0) for m in came})
        news = {name: why for one in reports.values() for name, why in one.reasons.items()}
        for name, why in news.items():
            if self.left_out.get(name) != why:
                log.warning("round %d: %s: %s", self.round, name, why)
        self.left_out = news if self.begins else {**self.left_out, **news}
        return list(reports.values())

    def hand_out(self, models: Models, patience: float = 0.0) -> None:
        """Give every edge its models, for itself and its clients to keep; who is not there in time gets none."""
        over = time.monotonic() + patience
        while not self.members.keys() <= self.children.present() and time.monotonic() < over:
            if self.stopped():
                break
            time.sleep(LOOK)
        charter = self.charter
        free = {name: m for name, m in self.members.items() if name not in self.at_work}
        messages = {name: models_of_edge(models, charter, m).message(charter.id) for name, m in free.items()}
        _, reasons = self.caller.ask(messages, self.patience)
        self.silences.note(messages, reasons, f"the models of round {models.round}: ")

    def take_over(self, before: "Remote | None") -> None:
        """Nothing to go on with: nobody is at work when a charter ends."""

    def close(self) -> None:
        """Nothing to release: links belong to whoever made them."""


class RemoteEdges(Remote):
    """Every site is an edge elsewhere."""

    def __init__(self, state: Path, charter: Charter, *rest: Any) -> None:
        super().__init__(charter, *rest)
        self.standing = Standing.kept(self.deploy.outlier_factor, state / charter.run / STANDING)
        """Of edges; that of clients is their edges' affair."""
        kept = Kept(state / self.charter.run / "arrived", self.charter)
        self.under_way = UnderWay(self._ask_one, kept, len(self.members))
        self.averaged: set[int] = set()
        """Sites that have answered the last order which they were given in this round."""
        self.unmeasured: set[int] = set()
        """Sites that have answered an order and then measured nothing in this round, which is played again."""
        if charter.experiment.heights:
            log.warning("%s", REGIONS_AT_CLOUD)

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have edges run their orders; too few answers make no round."""
        round_, edge_round = orders[0].round, orders[0].edge_round
        self.begin(round_, self._too_few, edge_round)
        self.standing.begin(round_, edge_round)
        resting = dict(self.standing.news)
        named = {edge_name(order.site): order for order in orders}
        expected = {name: self.history.expected(order.site) for name, order in named.items()}
        asked = {name: order for name, order in named.items() if name in self.members and name not in resting}
        messages = {name: train_request(order, self.charter, expected[name]) for name, order in asked.items()}

        def whole(name: str) -> bytes:
            return train_request(replace(named[name], broadcast=None), self.charter, expected[name])

        heard = {name: said for name, (_, said) in self._ask(messages, "trained", whole).items()}
        reports, reasons = self._judged(orders, resting | heard)
        for name in self.standing.news.keys() & named.keys():
            reports[name] = replace(self._lost(named[name]), reasons={name: self.standing.news[name]})
        self._count(reports, reasons)
        earlier = set() if self.begins else self.averaged - {order.site for order in orders}
        by_site = {named[name].site: report for name, report in reports.items()}
        self.averaged = earlier | {m for m, report in by_site.items() if not report.absent}
        return self.noted(by_site)

    def _judged(
        self, orders: Sequence[TrainOrder], found: Mapping[str, Message | str]
    ) -> tuple[dict[str, TrainReport], dict[str, str]]:
        """Return what edges answer to orders of one round, and why there is nothing of some, who may sit rounds out."""
        method, moment = self.charter.experiment.method, Moment(orders[0].round, self.charter.experiment.task.rounds)
        phases, named = running_phases(method.personalization, moment), {edge_name(o.site): o for o in orders}
        reports, reasons = self._read(orders, found, read_trained, lambda order, site: self._lost(order))
        good = {name: report for name, report in reports.items() if name in self.members and name not in reasons}
        for name, times in self.standing.outliers(phases, self._changes(named, good)).items():
            reasons[name] = self.standing.strike(name, Failure.OUTLIER, times)
            reports[name] = self._lost(named[name])
        for name in good:
            if name not in reasons:
                self.standing.trust(name)
        self.standing.keep()
        return reports, reasons

    # ------------------------------------------------------------------------------ a cloud that does not wait

    @property
    def at_work(self) -> frozenset[str]:
        """The edges that have yet to answer."""
        return frozenset(map(edge_name, self.under_way.working))

    def take_over(self, before: Remote | None) -> None:
        """Go on waiting for edges that are at work under the charter before this one, whose members it leaves alone."""
        if isinstance(before, RemoteEdges) and before.charter.epoch < self.charter.epoch:
            same = [m for m in before.charter.members if before.charter.at(m) == self.charter.at(m)]
            self.under_way.take_over(before.under_way, same)

    def busy(self, round_: int) -> frozenset[int]:
        """Return the sites that, as a round begins, have yet to answer an order of an earlier one."""
        if self.under_way.round == 0:
            self.under_way.resume(round_, self.history.records(), self._read_again)
        return self.under_way.busy(round_)

    @property
    def enough(self) -> int:
        """How many answers end a round: of those who are members, as nobody waits for places that are empty."""
        return self.charter.experiment.method.cloud_clock.enough(len(self.members))

    def arrivals(self, round_: int, orders: Sequence[TrainOrder]) -> list[Arrival]:
        """Give edges their orders, and wait until enough of all that are at work have answered: return those. Who
        cannot answer any more is among them, as absent."""
        self.begin(round_, self._too_few)
        if round_ != self.under_way.round:
            self.unmeasured = set()
        self.under_way.begin(round_)
        self.standing.begin(round_)
        lost = {}
        for order in orders:
            name, expected = edge_name(order.site), self.history.expected(order.site)
            if name not in self.members or name in self.standing.news:
                why = {name: self.standing.news[name]} if name in self.members else {}
                lost[order.site] = Arrival(order, replace(self._lost(order), reasons=why))
                continue
            whole = train_request(replace(order, broadcast=None), self.charter, expected)
            self.under_way.send(order, train_request(order, self.charter, expected), whole)
        last = round_ == self.charter.experiment.task.rounds  # nobody would count what comes after it
        enough = len(self.charter.sites) if last else self.enough
        while len(self.under_way.came.keys() - self.unmeasured) < enough and self.under_way.working:
            if self.stopped():
                raise Interruption(f"round {round_} had {len(self.under_way.came)} of {enough} answers, which are kept")
            for order, whole, (answer, said) in self.under_way.done(LOOK):
                name = edge_name(order.site)
                reports, reasons = self._judged([order], {name: said})
                self.silences.note([name], reasons, f"round {order.round}: ")
                for reason in reasons.values():
                    self.history.refuse(reason)
                if name in reasons:
                    lost[order.site] = Arrival(order, replace(reports[name], reasons=reasons))
                else:
                    self.under_way.arrived(Arrival(order, reports[name]), whole, answer)
        if not self.under_way.came:
            raise self.again("no edge answered")
        found = [*self.under_way.came.values(), *lost.values()]
        ages = {order.site: self.round - order.round for order, _ in found}
        self.noted({order.site: report for order, report in found}, ages)
        return found

    def _ask_one(self, name: str, message: bytes, whole: bytes) -> Heard:
        """Ask one edge, in a thread of its own; return its answer as it came, and what it says."""
        return self._ask({name: message}, "trained", lambda name: whole)[name]

    def _read_again(self, order: TrainOrder, message: Message) -> Arrival | None:
        name = edge_name(order.site)
        reports, reasons = self._judged([order], {name: message})
        return None if name in reasons else Arrival(order, reports[name])

    def close(self) -> None:
        """Wait for nobody who is at work."""
        self.under_way.close()

    def _lost(self, order: TrainOrder) -> TrainReport:
        experiment = self.charter.experiment
        phases = running_phases(experiment.method.personalization, Moment(order.round, experiment.task.rounds))
        return unheard(order, self.charter.sites[order.site], self.charter.epochs(phases))

    def _changes(self, orders: Mapping[str, TrainOrder], reports: Mapping[str, TrainReport]) -> dict[str, Drift]:
        """Return how far the edges at which somebody trained have moved what they were sent."""
        found = {
            name: Drift.of(
                self.charter.without(report.bank, "edge", "client"),
                orders[name].bank,
                self.charter.experiment.rate(orders[name].round),
            )
            for name, report in reports.items()
            if any(weight_R.any() for weight_R in report.weight.values())
        }
        return {name: change for name, change in found.items() if change is not None}

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure; who does not answer has no accuracy, nor has who is at work."""
        charter, messages = self.charter, {}
        free = [self._measurable(order) for order in orders if edge_name(order.site) not in self.at_work]
        for order in free:
            bank, kept = charter.without(order.bank, "edge", "client"), tuple(sorted(order.kept))
            said = {"order": replace(order, bank=bank), "kept": kept, "expected": self.history.expected(order.site)}
            messages[edge_name(order.site)] = sent("measure", charter=charter.id, round=self.round, **said)
        resting = self.standing.news
        asked = {name: text for name, text in messages.items() if name in self.members and name not in resting}
        heard = {name: said for name, (_, said) in self._ask(asked, "measured", messages.__getitem__).items()}
        reports, reasons = self._read(free, resting | heard, read_measured, unmeasured)
        blank = {order.site for order in free if _blank(order, reports[edge_name(order.site)])}
        self.unmeasured |= blank | {order.site for order in free if edge_name(order.site) in reasons}
        self._count(reports, reasons)
        if len(blank) == len(free):
            raise self.again("no edge measured anything on test data")
        return [reports.get(edge_name(order.site)) or unmeasured(order, charter.sites[order.site]) for order in orders]

    def _measurable(self, order: MeasureOrder) -> MeasureOrder:
        """Return an order with the networks that its edge need not have any more: it trained them for an earlier round,
        its round is played again without it, or its region had not chosen it."""
        came = self.under_way.came.get(order.site)
        own = came is None or (came.order.round == self.round and order.site not in self.unmeasured)
        if own and (not self.charter.experiment.heights or order.site in self.averaged):
            return order
        bank = {part: trees.join([order.bank[part], rows]) for part, rows in order.kept.items()}
        return replace(order, bank={**order.bank, **bank}, kept={})

    def _read(
        self,
        orders: Sequence[SomeOrder],
        found: Mapping[str, Message | str],
        read: Callable[[Message, SomeReport, SomeOrder, Site, Charter], SomeReport],
        lost: Callable[[SomeOrder, Site], SomeReport],
    ) -> tuple[dict[str, SomeReport], dict[str, str]]:
        """Return every edge's report, or what stands for it; and of the latter why there is none."""
        reports, reasons = {}, {}
        for order in orders:
            name, site = edge_name(order.site), self.charter.sites[order.site]
            answer, reports[name] = found.get(name, "it was not there"), lost(order, site)
            if name not in self.members:
                continue
            if isinstance(answer, str):
                reasons[name] = answer
                continue
            try:
                reports[name] = read(answer, reports[name], order, site, self.charter)
            except WireError as error:
                reasons[name] = self.standing.strike(name, Failure.UNUSABLE, detail=str(error))
        # Where nobody waits, who is busy may be so by right: since before the cloud was started again, for example.
        waits = not self.charter.experiment.method.cloud_clock.holds
        late = {name: why for name, why in reasons.items() if waits or Failure.BUSY.value not in why}
        self.standing.strike_late(late, str)
        return reports, reasons | late

    def _ask(self, messages: Mapping[str, bytes], kind: str, whole: Callable[[str], bytes]) -> dict[str, Heard]:
        """Return every edge's answer, or the reason why there is none; ``whole`` builds on nothing that it has."""

        def ask(some: Mapping[str, bytes]) -> Answered[str]:
            return self.caller.ask(some, self.patience)

        answers, reasons = ask_with_retry(ask, messages, whole)
        found: dict[str, Heard] = {name: (b"", why) for name, why in reasons.items()}
        for name, answer in answers.items():
            try:
                message = decode(answer, (kind, "absent"))
                self.answered(name, message)
                found[name] = answer, message if message.kind == kind else quoted(message.head.get("reason"))
            except WireError as error:
                found[name] = b"", str(error)
        return found

    def _too_few(self) -> str | None:
        here = self.children.present() & self.members.keys()
        if len(here) >= self.min_edges:
            return None
        missing = [name for name in self.members if name not in here]
        count = f"{len(here)} are there and deploy.min_edges is {self.min_edges}"
        return f"waiting for edges: {count}; missing: {', '.join(missing)}"

    def _count(self, asked: Mapping[str, object], reasons: Mapping[str, str]) -> None:
        self.silences.note(asked, reasons, f"round {self.round}: ")
        for reason in reasons.values():
            self.history.refuse(reason)
        answered = len(self.members) - len(self.at_work) - len(reasons)
        if self.members.keys() & asked.keys() <= reasons.keys():
            answered = 0  # of those whom regions have selected; what the others would have said does not count
        waits = not self.charter.experiment.method.cloud_clock.holds
        if answered < (self.min_edges if waits else 1):
            broken = [name for name, why in reasons.items() if name in self.standing.back or BROKE_DOWN in why]
            more = f"; {BROKE_DOWN} at {', '.join(broken)}" if broken else ""
            least = f" and deploy.min_edges is {self.min_edges}" * waits
            raise self.again(f"{answered} edges answered{least}{more}")


def _blank(order: MeasureOrder, report: MeasureReport) -> bool:
    """Whether an edge was to measure models on test data, and has measured on none."""
    each = zip(order.wanted, report.readings, strict=True)
    counts = [reading.count_G for wanted, reading in each if wanted.by in ("edge", "client")]
    return bool(counts) and not any(count_G.any() for count_G in counts)


class RelayReach:
    """A way to all clients through their edges, which pass on what is said."""

    def __init__(self, remote: Remote) -> None:
        self.remote, self.charter = remote, remote.charter
        self.edge_of = {client: m for m, clients in enumerate(self.charter.clients) for client in clients}

    def clients(self) -> frozenset[int]:
        """Ask the edges which clients are there."""
        return self._relayed({m: {} for m in self.charter.members})[2]

    def ask(self, messages: Mapping[int, bytes]) -> Answered[int]:
        """Send clients their messages, those of an edge together."""
        to: dict[int, dict[int, bytes]] = {}
        for client, message in messages.items():
            to.setdefault(self.edge_of[client], {})[client] = message
        answers, reasons, _ = self._relayed(to)
        reasons |= {client: "its edge is not there" for client in messages if client not in {*answers, *reasons}}
        return answers, reasons

    def ask_edges(self, messages: Mapping[int, bytes]) -> Answered[int]:
        """Send edges what they are to measure on their own test data."""
        answers, lost, _ = self._relayed({edge: {-1 - edge: message} for edge, message in messages.items()})
        found = {edge: answers[-1 - edge] for edge in messages if -1 - edge in answers}
        return found, {edge: lost.get(-1 - edge, "it is not there") for edge in messages if edge not in found}

    def _relayed(
        self, to: Mapping[int, Mapping[int, bytes]]
    ) -> tuple[dict[int, bytes], dict[int, str], frozenset[int]]:
        """Return answers and reasons by client, and who is there; edge m itself is number -1 - m."""
        messages = {edge_name(m): self._packed(each) for m, each in to.items()}
        replies, lost = self.remote.caller.ask(messages, self.remote.patience)
        answers, reasons, here = dict[int, bytes](), dict[int, str](), set[int]()
        for m, each in to.items():
            mine = {str(client): client for client in self.charter.clients[m]} | {EDGE: -1 - m}
            try:
                if edge_name(m) in lost:
                    raise WireError(lost[edge_name(m)])
                message = decode(replies[edge_name(m)], ("relayed",))
                self.remote.answered(edge_name(m), message)
                found = received(message, answer=mine, numbers=self.charter.clients[m])
                here |= set(found["numbers"])
                answers |= {mine[c]: answer for c, answer in found["answer"].items()}
                reasons |= {mine[c]: quoted(why) for c, why in found["reasons"].items() if c in mine}
            except WireError as error:
                reasons |= dict.fromkeys(each, f"{edge_name(m)}: {error}")
        return answers, reasons, frozenset(here)

    def _packed(self, each: Mapping[int, bytes]) -> bytes:
        """Return a relay; a message that several clients get travels once."""
        places: dict[bytes, str] = {}
        named = {EDGE if client < 0 else str(client): message for client, message in each.items()}
        to = {name: places.setdefault(message, str(len(places))) for name, message in named.items()}
        payload = {place: message for message, place in places.items()}
        return sent("relay", charter=self.charter.id, to=to, payload=payload)


class RemoteClients(Remote):
    """The cloud itself is the only site, and edges pass on what it says to clients."""

    def __init__(self, state: Path, charter: Charter, *rest: Any) -> None:
        super().__init__(charter, *rest)
        self.handler = OrderHandler(charter, charter.sites[0], RelayReach(self), state, self.deploy)

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Run the order here, with clients elsewhere."""
        (order,) = orders
        self.begin(order.round, self._too_few)
        self.handler.clients.expected = self.history.expected(0)
        with self._heard():
            own = self.handler.own((order.round, 0), order.bank)
            here = replace(order, bank=dict(order.bank) | own, momentum=None)
            report = self.handler.train(here, threading.Event())
        kept = self.charter.only(order.bank, "edge", "client")
        whole = dict(report.bank) | kept
        return self.noted({0: replace(report, bank=whole, momentum=order.momentum, links=order.links)})

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Measure with clients and edges elsewhere."""
        (order,) = orders
        with self._heard():
            own = self.handler.own((self.round + 1, 0), order.bank)
            bank = {part: own.get(part, params) for part, params in order.bank.items()}
            return [self.handler.measure(replace(order, bank=bank), self.round, threading.Event())]

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Have the round played again if too few clients answer, and end the run if one lacks what it had."""
        try:
            yield
        except TooFewClientsError as error:
            raise self.again(str(error)) from error
        except SiteError as error:
            self.history.refuse(error.public)
            raise

    def _too_few(self) -> str | None:
        if self.children.present():
            return None
        return "waiting for edges, which pass on what is said to clients: none is there"
