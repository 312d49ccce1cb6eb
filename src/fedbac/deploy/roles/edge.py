"""An edge: takes its clients, serves the cloud."""

import threading
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbac.config.experiment import Runtime
from fedbac.core.codecs import remembering
from fedbac.core.parts import Parts
from fedbac.core.queries import Statistic
from fedbac.core.requests import Average, Request, Result
from fedbac.core.settings import BoolArray
from fedbac.deploy import log
from fedbac.deploy.metrics import METRICS
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.protocol.charter import (
    Charter,
    Facts,
    added_up,
    far_off,
    read_charter,
    read_experiment,
    read_facts,
    read_together,
)
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.handshake import check_hello, hello
from fedbac.deploy.protocol.messages import (
    Expected,
    check_rows,
    read_measure_request,
    read_train_request,
    received,
    sent,
)
from fedbac.deploy.protocol.packing import ForgottenError, Shelf
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.deploy.roles.calls import FORGOTTEN, STRANGER, Caller, Silences
from fedbac.deploy.roles.clients import Clients, Reach, TooFewClientsError
from fedbac.deploy.roles.data_holder import NOTHING, DataHolder, LocalState
from fedbac.deploy.roles.history import EDGE
from fedbac.deploy.roles.models import read_models
from fedbac.deploy.roles.releases import Releases
from fedbac.deploy.roles.status import Board
from fedbac.deploy.settings import DeploySettings, SiteConfig, quorum
from fedbac.deploy.transports.base import Answered, Children
from fedbac.deploy.transports.connect import children_of, serve_parent
from fedbac.errors import PolicyError, quoted
from fedbac.local import one_thread
from fedbac.rounds.edge import Common, serve
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Order, Report, Site, TrainOrder, TrainReport
from fedbac.rounds.rows import Remembered, SiteRows, first_memory


class OrderHandler:
    """A site at work. What it owns stays here; what clients own stays with them."""

    def __init__(self, charter: Charter, site: Site, reach: Reach, state: Path, deploy: DeploySettings) -> None:
        self.charter, self.site, self.reach, self.min_clients = charter, site, reach, deploy.min_clients
        privacy = charter.experiment.method.privacy
        # Changes are clipped then; and who is left out must not hang on what others sent.
        factor = 0.0 if privacy is not None and privacy.bounds_clients else deploy.outlier_factor
        self.clients = Clients(charter, reach, state, factor)
        self.local_state = LocalState(state / charter.run)
        self.releases = Releases(state / charter.run)
        self.shelf = Shelf(lambda: charter.first)
        """The networks that the site was sent last."""
        self.trained: dict[int, Parts] = {}
        """The averages of the last round that was trained here, by its number."""

    def own(self, before: tuple[int, int], received: Parts) -> Parts:
        """Return the parts that the site owns, and what stands for those of its clients."""
        kept = None
        if self.charter.keeps("edge"):
            expected = self.clients.expected.get(EDGE, Expected())
            kept = self.local_state.expected(before, expected, Failure.EDGE_STATE, self.site.index)
        own = self.charter.own("edge", self.site.index, (kept or NOTHING)["parts"], received)
        return own | self.charter.unknown(len(self.site.clients))

    def train(self, order: TrainOrder, gone: threading.Event) -> TrainReport:
        """Run a round with the clients that are there, and have not to sit it out."""
        at = (order.round, order.edge_round)
        self.clients.standing.begin(*at)
        present_N = self._present()
        self.clients.before = at
        parts = self.charter.experiment.method.personalization.parts
        memory, experiment, common = self._memory(order), self.charter.experiment, None
        if experiment.promise is not None:  # a secret of the site takes the place of the seed
            common = Common(experiment, order.round, self.releases.secret, self.releases.once)
        links = {name: memory.of(name) for name in memory.whole}
        order = replace(order, bank={part: order.bank[part] for part in parts}, links=links)
        try:
            report = cast(TrainReport, self._drive(order, gone, present_N, common))
        except SiteError as error:
            if error.failure is not Failure.SPENT:
                raise
            raise TooFewClientsError(error.failure, *error.numbers) from error
        chosen = len(report.selected)
        came, least = chosen - len(report.failed), quorum(self.min_clients, chosen)
        if came < least:
            if self.clients.broken:
                raise TooFewClientsError(Failure.NOT_SOUND, len(self.clients.broken), chosen)
            raise TooFewClientsError(Failure.FEW_TRAINED, came, chosen, least)
        own = self.charter.only(report.bank, "edge")
        self.local_state.keep(at, parts=own, links=memory.with_(report.links))
        self.trained = {order.round: report.bank}
        self.clients.standing.keep()
        return replace(report, reasons=dict(self.clients.standing.news))

    def measure(self, order: MeasureOrder, round_: int, gone: threading.Event) -> MeasureReport:
        """Measure models after a round."""
        self.clients.before = (round_ + 1, 0)
        return cast(MeasureReport, self._drive(order, gone, None))

    def _memory(self, order: TrainOrder) -> Remembered:
        """Return what the links of which the site is the sender remember from before an order."""
        experiment, method = self.charter.experiment, self.charter.experiment.method
        of_site = "client_down", f"{self.charter.above}_up"
        held = {part: SiteRows(owner_R, order.row_N[part]) for part, owner_R in order.owner_R.items()}
        _, kept = self.local_state.before((order.round, order.edge_round))
        if kept is not None:
            names = [name for name in of_site if name in remembering(method.links.chains)]
            return Remembered({name: kept["links"].get(name, {}) for name in names}, held)
        first = first_memory(
            method.links.chains,
            method.personalization,
            self.charter.first,
            experiment.link_names[:2],
            len(self.site.clients),
        )
        memory = Remembered({name: first[name] for name in of_site if name in first}, held)
        if order.round == 1 or (experiment.heights and not self.clients.expected.get(EDGE, Expected()).trained):
            return memory  # its region had not chosen it yet
        # It was away, or lost its memory: what clients have is unknown, so they are sent all of what it was sent.
        return Remembered(memory.with_({"client_down": order.bank}), held)

    def _present(self) -> BoolArray:
        here, resting, names = self.reach.clients(), self.clients.standing.back, self.charter.names
        present_N = np.array([client in here and names[client] not in resting for client in self.site.clients])
        holds_N = self.site.size_N > 0
        count, most = int((present_N & holds_N).sum()), int(holds_N.sum())
        if count < (least := quorum(self.min_clients, most)):
            if resting:
                raise TooFewClientsError(Failure.RESTING, len(resting), len(self.site.clients), least)
            raise TooFewClientsError(Failure.FEW_PRESENT, count, len(self.site.clients), least)
        return present_N

    def _drive(
        self, order: Order, gone: threading.Event, present_N: BoolArray | None, common: Common | None = None
    ) -> Report:
        work: Generator[Request, Result, Report] = serve(order, self.site, self.charter.experiment, present_N, common)
        with one_thread():
            try:
                request = next(work)
                while True:
                    if gone.is_set():
                        raise SiteError(Failure.NOT_WAITED_FOR)
                    if isinstance(request, Average):
                        request = work.send(self.clients.average(request))
                    else:
                        request = work.send(self.clients.evaluate(request))
            except StopIteration as done:
                return cast(Report, done.value)


REGIONS_AT_CLOUD = (
    "the cloud itself does the work of regions (task.tiers), so it sees the average of every edge, and only the bytes "
    "counted for client and region pass a network"
)
KINDS = ("enroll", "begin", "train", "measure", "model", "relay", "revoked")


class EdgeReach:
    """An edge's way to its clients, by their links, and to its own test data."""

    def __init__(self, charter: Charter, site: SiteConfig, children: Children, holder: DataHolder | None) -> None:
        assert site.edge is not None
        self.children, self.holder = children, holder
        self.caller = Caller(children, charter, site.deploy.min_deadline)
        self.deadline, self.edge = site.deploy.deadline, site.edge
        self.name_of = {client: charter.names[client] for client in charter.clients[site.edge]}
        self.number_of = {name: number for number, name in self.name_of.items()}
        self.members = charter.commitments.keys() & self.number_of.keys()

    def clients(self) -> frozenset[int]:
        """Return the clients whose link is alive, and whose data are those of the run."""
        here = self.children.present() & self.members
        refused = self.caller.inform(here, self.deadline)
        return frozenset(self.number_of[name] for name in here if name not in refused)

    def ask(self, messages: Mapping[int, bytes]) -> Answered[int]:
        """Send clients their messages and wait for the answers."""
        named = {self.name_of[client]: message for client, message in messages.items()}
        answers, reasons = self.caller.ask(named, self.deadline)
        return {self.number_of[n]: a for n, a in answers.items()}, {self.number_of[n]: r for n, r in reasons.items()}

    def ask_edges(self, messages: Mapping[int, bytes]) -> Answered[int]:
        """Measure on the edge's own test data."""
        if self.holder is None:
            return {}, dict.fromkeys(messages, "it was started without --data, but the run began with its test data")
        return {edge: self.holder.answer(message) for edge, message in messages.items()}, {}


class Edge:
    """One edge of a federation: what it says to the cloud, and to its clients."""

    def __init__(self, site: SiteConfig, state: Path, holder: DataHolder | None = None) -> None:
        self.site, self.state, self.holder = site, state, holder
        self.children: Children | None = None
        """Its clients; set once they can be taken."""
        self.handler: OrderHandler | None = None
        """Its place in a run; set by the cloud."""
        self.reach: EdgeReach | None = None
        self.silences = Silences()

    @property
    def clients(self) -> Children:
        """The links to its clients."""
        assert self.children is not None
        return self.children

    def handshake(self, name: str, said: bytes) -> bytes:
        """Take a client."""
        check_hello(name, said)
        if self.reach is not None:
            self.reach.caller.rejoined(name)
        return hello(self.site.name)

    def answer(self, payload: bytes, gone: threading.Event) -> bytes:
        """Answer one message of the cloud."""
        message = decode(payload, KINDS)
        if message.kind == "enroll":
            return self._enroll(message)
        if message.kind == "begin":
            return self._begin(message, payload)
        if message.kind == "revoked":
            return self._revoked(message)
        handler, reach = self.handler, self.reach
        if handler is None or reach is None or message.head.get("charter") != handler.charter.id:
            return STRANGER
        if message.kind == "relay":
            return self._relay(message, reach)
        if message.kind == "model":
            return self._model(message, handler, reach)
        try:
            said = (self._train if message.kind == "train" else self._measure)(message, handler, gone)
            self.silences.note([self.site.name], {})
            return said
        except ForgottenError:
            return FORGOTTEN
        except PolicyError as error:  # for what the order says that policies remember, or of a policy's own
            raise WireError(f"{message.kind}: this order of the cloud cannot be played: {error}") from error
        except TooFewClientsError as error:
            self.silences.note([self.site.name], {self.site.name: str(error)})
            return sent("absent", reason=error.public, present=self._present())

    def _present(self) -> tuple[str, ...]:
        return tuple(sorted(self.clients.present() - set(self.unfit)))

    @property
    def left_out(self) -> dict[str, str]:
        """Clients that sit rounds out, and why."""
        return {} if self.handler is None else dict(self.handler.clients.standing.news)

    @property
    def unfit(self) -> dict[str, str]:
        """Clients that are there with other data than those of the run, and what they said of it."""
        return {} if self.reach is None else self.reach.caller.unfit

    def _enroll(self, message: Message) -> bytes:
        """Gather what clients say of their data; classes and sums go on as those of all of them together."""
        asked = received(message)
        read_experiment(asked["experiment"])
        payload, only, without = sent("enroll", **asked | {"without": ()}), set(asked["only"]), set(asked["without"])
        names = self.clients.present() & only if only else self.clients.present() - without
        answers, reasons = self.clients.call(dict.fromkeys(names, payload), self.site.deploy.deadline)
        facts_of, unusable = dict[str, Facts](), dict[str, str]()
        for name, answer in answers.items():
            try:
                facts = read_facts(received(decode(answer, ("facts",)))["facts"])
                read_together(facts.model_dump(), [facts])
                facts_of[name] = facts
            except WireError as error:
                unusable[name] = str(error)
        for name, usual in far_off({name: len(facts.classes) for name, facts in facts_of.items()}).items():
            reasons[name] = SiteError(Failure.FAR_OFF, len(facts_of.pop(name).classes) - 1, usual - 1).public
        mine = self.holder if self.site.name not in without else None
        own = mine and received(decode(mine.answer(payload), ("facts",)))["facts"]
        for name, reason in (reasons | unusable).items():
            log.warning("%s said nothing of its data: %s", name, reason)
        # An error quotes one client; the cloud hears of all together.
        reasons |= dict.fromkeys(unusable, Failure.UNUSABLE.value)
        plain = {name: facts.model_dump() | {"classes": [], "sums": None} for name, facts in facts_of.items()}
        # Of fewer than the run can begin with, the cloud would learn by difference what those hold who come later.
        count, deploy = len(self.site.children), self.site.deploy
        least = quorum(deploy.min_clients, count)
        if deploy.start_after is None:
            least = max(least, len(set(self.site.children) - without))
        together = {} if only or len(facts_of) < least else _together(list(facts_of.values()))
        return sent("roster", clients=plain, edge=own, together=together, reasons=reasons)

    def _begin(self, message: Message, payload: bytes) -> bytes:
        begin = received(message)
        charter = read_charter(begin["charter"], begin["known"])
        if self.handler is not None and self.handler.charter.id == charter.id:  # after a link was lost for a moment
            return sent("ready")
        assert self.site.edge is not None
        members = {charter.names[client] for client in charter.clients[self.site.edge]} & charter.commitments.keys()
        if not members <= set(self.site.children):
            raise SiteError(Failure.OTHER_KIT, len(members), len(self.site.children))
        mine = {self.site.name, *self.site.children} & charter.commitments.keys()
        if untold := sorted(mine - charter.holdings.keys()):
            raise WireError(f"begin: it does not tell what {', '.join(untold)} hold")
        if self.holder is not None and self.site.name in mine:
            self.holder.answer(payload)
        charter.check_here()
        reach = EdgeReach(charter, self.site, self.clients, self.holder)
        site = next(site for site in charter.sites if self.site.edge in site.edges)
        self.reach = reach
        self.handler = OrderHandler(charter, site, reach, self.state, self.site.deploy)
        log.info("part of %s: %s", charter.title, charter.experiment.method.name)
        if charter.experiment.heights:
            log.info("%s", REGIONS_AT_CLOUD)
        return sent("ready")

    def _revoked(self, message: Message) -> bytes:
        revoked = received(message)["list"].encode()
        if self.clients.turn_away(revoked):
            log.warning("the cloud passed on a newer list of revoked certificates")
        return sent("ready")

    def _train(self, message: Message, handler: OrderHandler, gone: threading.Event) -> bytes:
        charter = handler.charter
        order, expected = read_train_request(message, charter, handler.site, handler.shelf)
        handler.clients.expected = expected
        own = handler.own((order.round, order.edge_round), order.bank)
        here = {part: np.array([handler.site.index]) for part in charter.only(own, "edge")}
        check_rows(order.row_N, order.bank | own)
        if charter.codec(f"{charter.above}_down") is not None:
            handler.shelf.put(order.bank)
        order = replace(order, bank=order.bank | own, owner_R={**order.owner_R, **here})
        report = handler.train(order, gone)
        statistic_N = {query: report.statistic_N[query] for query in {*order.statistics, Statistic("loss")}}
        report = replace(report, bank=charter.without(report.bank, "edge", "client"), statistic_N=statistic_N)
        return sent("trained", report.changes, "report/bank", report=report, present=self._present())

    def _measure(self, message: Message, handler: OrderHandler, gone: threading.Event) -> bytes:
        order, round_, kept, expected = read_measure_request(message, handler.charter, handler.site)
        handler.clients.expected = expected
        own, trained = handler.own((round_ + 1, 0), order.bank), handler.trained.get(round_, {})
        if not set(kept) <= set(trained):
            raise WireError(f"measure: the edge has no {quoted(kept)} of this round, as it was not there to train it")
        used = {part for wanted in order.wanted for part in wanted.row_V}
        bank = order.bank | {part: params for part, params in own.items() if part in used}
        order = replace(order, bank=bank, kept={part: trained[part] for part in kept})
        for wanted in order.wanted:
            check_rows(wanted.row_V, order.bank, order.kept)
        return sent("measured", report=handler.measure(order, round_, gone), present=self._present())

    def _model(self, message: Message, handler: OrderHandler, reach: EdgeReach) -> bytes:
        """Keep the models of a round, and pass on to every client its own."""
        charter = handler.charter
        models = read_models(message, charter, charter.clients[reach.edge], "edge", "client")
        _, kept = handler.local_state.before((models.round + 1, 0))
        models = models.with_own("edge", handler.site.index, (kept or NOTHING)["parts"])
        models.keep(self.state)
        here = [client for client in models.clients if reach.name_of[client] in reach.members]
        made: dict[bytes, bytes] = {}  # most clients are sent the same, which is held once
        each = ((client, models.of(client).message(charter.id)) for client in here)
        handler.clients.note(here, reach.ask({client: made.setdefault(text, text) for client, text in each})[1])
        return sent("ready")

    def _relay(self, message: Message, reach: EdgeReach) -> bytes:
        """Pass messages of a cloud without tiers on to clients, and to the edge's own test data; and answers back."""
        relay = received(message)
        to, payload = relay["to"], relay["payload"]
        known = {str(client): client for client in reach.name_of}
        if not set(to) <= {*known, EDGE} or not set(to.values()) <= set(payload):
            raise WireError("relay: it is for clients that are not here")
        found, lost = reach.ask({known[c]: payload[place] for c, place in to.items() if c != EDGE})
        answers = {str(client): answer for client, answer in found.items()}
        reasons = {str(client): reason for client, reason in lost.items()}
        if EDGE in to:
            found, lost = reach.ask_edges({reach.edge: payload[to[EDGE]]})
            answers |= dict.fromkeys([EDGE][: len(found)], next(iter(found.values()), b""))
            reasons |= dict.fromkeys([EDGE][: len(lost)], next(iter(lost.values()), ""))
        numbers = tuple(sorted(reach.clients()))
        return sent("relayed", answer=answers, reasons=reasons, present=self._present(), numbers=numbers)


def _together(facts_of: list[Facts]) -> dict[str, Any]:
    """Return the class counts and sums of all clients, so that the cloud does not see those of one."""
    classes = np.zeros(max((len(facts.classes) for facts in facts_of), default=0), dtype=np.int64)
    for facts in facts_of:
        classes[: len(facts.classes)] += facts.classes
    sums = [facts.sums for facts in facts_of if facts.sums is not None]
    return {"classes": classes.tolist(), "sums": added_up(sums) if len({len(rows) for rows in sums}) == 1 else None}


def run_edge(
    kit: Kit,
    source: str | None,
    stop: threading.Event,
    runtime: Runtime,
    *,
    listen: str | None = None,
    address: str | None = None,
    state: Path | None = None,
) -> None:
    """Take clients and serve the cloud until ``stop`` is set."""
    site, folder = kit.site, state or kit.folder / "state"
    assert site.edge is not None
    holder = None if source is None else DataHolder(site.name, site.number, site.edge, False, source, folder, runtime)
    edge = Edge(site, folder, holder)

    def look() -> dict[str, Any]:
        return {
            "site": site.name,
            "clients": sorted(children.present()),
            "unfit": edge.unfit,
            "left_out": edge.left_out,
            "traffic": children.traffic(),
        }

    with closing(children_of(kit, edge.handshake, listen, folder)) as children, closing(Board(folder, look)) as board:
        edge.children = children
        METRICS.watch_children(len(site.children), children.present, lambda: len(edge.unfit | edge.left_out))
        board.say(doing="serving")
        try:
            serve_parent(kit, edge.answer, stop, address)
        finally:
            board.say(doing="stopped")
