"""Edges that the cloud does not wait for: who is at work, and which answers have come that no round has counted yet.

An answer is on the disk from when it comes until the round is over that counts it, so a cloud that dies loses none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbac.deploy import log
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.messages import read_train_request
from fedbac.deploy.protocol.packing import Shelf
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.deploy.settings import edge_name
from fedbac.deploy.spool import Payload
from fedbac.errors import OutputError
from fedbac.files import make_folder, opened, remove, write_whole
from fedbac.rounds.messages import Arrival, TrainOrder

Heard = tuple[Payload, Message | str]
"""An answer as it came, and what it says, or why there is none."""


class Kept:
    """Answers on the disk, each with what it answers."""

    def __init__(self, folder: Path, charter: Charter) -> None:
        self.folder, self.charter = folder, charter

    def add(self, m: int, request: bytes, answer: Payload) -> None:
        """Keep the answer of a site."""
        try:
            make_folder(self.folder)
            for content, file in zip((request, answer), self._files(m), strict=True):
                write_whole(file, bytes(content), mode=0o600)
        except OutputError as error:  # no reason to lose the round
            log.warning("%s; if the cloud dies in this round, what %s sent is lost", error, edge_name(m))

    def drop(self, m: int) -> None:
        """Forget the answer of a site. Where that fails, records tell that it has counted."""
        with suppress(OSError):
            for file in reversed(self._files(m)):
                remove(file)

    def found(self) -> Iterator[tuple[TrainOrder, Message]]:
        """Go through what is there; what cannot be read is removed."""
        for m, site in enumerate(self.charter.sites):
            request, answer = self._files(m)
            if not answer.exists():
                continue
            try:
                with opened(request) as asked, opened(answer) as said:
                    message, trained = decode(asked.read(), ("train",)), decode(said.read(), ("trained",))
                shelf = Shelf(lambda: self.charter.first)
                order, _ = read_train_request(message, self.charter, site, shelf)
                own = self.charter.own("edge", m, {}, order.bank) | self.charter.unknown(len(site.clients))
                yield replace(order, bank=order.bank | own), trained
            except (WireError, OSError) as error:
                log.warning("what %s had sent cannot be read (%s); it is asked again", edge_name(m), error)
                self.drop(m)

    def _files(self, m: int) -> tuple[Path, Path]:
        """Return where a site's order is kept, and its answer, which is written last."""
        name = edge_name(m)
        return self.folder / f"{name}.order", self.folder / f"{name}.answer"


class UnderWay:
    """Who is at work, and what has come for the round that is being played."""

    def __init__(self, ask: Callable[[str, bytes, bytes], Heard], kept: Kept, workers: int) -> None:
        """``ask`` asks an edge, by a message or by the whole of it where it lacks what that builds on, and waits."""
        self.ask, self.kept = ask, kept
        self.round = 0
        self.came: dict[int, Arrival] = {}
        """By site, what has come; until the next round begins, as this one may be played again."""
        self.working: dict[int, tuple[TrainOrder, bytes, Future[Heard]]] = {}
        self._pool = ThreadPoolExecutor(max(workers, 1), "edge")

    def take_over(self, other: "UnderWay", sites: Collection[int]) -> None:
        """Wait for those of some sites whom another one waited for."""
        self.working = {m: work for m, work in other.working.items() if m in sites}

    def begin(self, round_: int) -> None:
        """Begin a round, be it again: what counted before counts no more."""
        if round_ != self.round:
            for m in self.came:
                self.kept.drop(m)
            self.round, self.came = round_, {}

    def busy(self, round_: int) -> frozenset[int]:
        """Return the sites with an order of an earlier round that no round has counted."""
        mine = [order for order, _, _ in self.working.values()]
        if round_ == self.round:  # it is played again
            mine += [arrival.order for arrival in self.came.values()]
        return frozenset(order.site for order in mine if order.round < round_)

    def send(self, order: TrainOrder, message: bytes, whole: bytes) -> None:
        """Give a site its order, unless it has it already."""
        if order.site not in self.working and order.site not in self.came:
            future = self._pool.submit(self.ask, edge_name(order.site), message, whole)
            self.working[order.site] = order, whole, future

    def done(self, seconds: float) -> list[tuple[TrainOrder, bytes, Heard]]:
        """Return the answers that have come, after at most so many seconds if there is none yet."""
        wait([future for _, _, future in self.working.values()], seconds, FIRST_COMPLETED)
        ready = [m for m, (_, _, future) in self.working.items() if future.done()]
        taken = [self.working.pop(m) for m in ready]
        return [(order, whole, future.result()) for order, whole, future in taken]

    def arrived(self, arrival: Arrival, request: bytes, answer: Payload) -> None:
        """Take an answer that can be used."""
        self.kept.add(arrival.order.site, request, answer)
        self.came[arrival.order.site] = arrival

    def resume(
        self, round_: int, records: Sequence[Mapping[str, Any]], read: Callable[[TrainOrder, Message], Arrival | None]
    ) -> None:
        """Take what had come before the cloud was started again, but for what some round has counted."""
        self.round = round_
        counted = {m: record["round"] for record in records for m in record.get("edges_back", ())}
        for order, message in list(self.kept.found()):
            arrival = read(order, message) if counted.get(order.site, 0) < order.round <= round_ else None
            if arrival is None:
                self.kept.drop(order.site)
            else:
                log.info("%s had answered round %d; it counts", edge_name(order.site), order.round)
                self.came[order.site] = arrival

    def close(self) -> None:
        """Wait for nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)
