"""A GPU is given its next work before the host knows the results of the last (decision 22).

The host guesses that every client trains well, and goes on with the averages that the device has been told to make. So
the cloud averages and scores while clients still train, and the next round begins before the record of this one is
told. A wrong guess costs time and changes no number.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage
from fedbac.core.parts import Parts
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Request, Result, Train, Trained, Trainer
from fedbac.core.rng import Rng
from fedbac.core.runtime import out_of_memory
from fedbac.core.settings import FloatArray
from fedbac.core.state import State
from fedbac.engines.secret import SecretAverage
from fedbac.engines.simulator import Simulator, average_of, averaged, without_networks
from fedbac.local import one_thread
from fedbac.rounds.cloud import Ordered, Recording, Round
from fedbac.rounds.edge import Common
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Site, TrainOrder, TrainReport

T = TypeVar("T")


@runtime_checkable
class QueueingTrainer(Protocol):
    """A trainer that gives a device its work and lets the host go on."""

    def queue(self, requests: Sequence[Train]) -> tuple[list[Parts], Callable[[], list[Trained]]]:
        """Queue the training; return what clients will come back with, and what waits for them."""

    def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
        """Queue the evaluation; what is returned waits for it."""


class Queued(NamedTuple):
    """Training that a device is busy with."""

    guesses: list["Guess"]
    averaged: Callable[[], list[Averaged]]
    """Waits for it."""
    expected: dict[int, Evaluate]
    """What edges will ask about the averages, and below what waits for the answers."""
    measured: Callable[[], list[Measured]]


class Prefetching(Simulator):
    """A simulator whose reports are there before the work is done: whoever reads more than was guessed waits. It does
    not work ahead where edges compress, average more than once, or have clients in chunks."""

    def __init__(
        self, experiment: Experiment, sites: Sequence[Site], trainer: Trainer, memory_gib: float | None = None
    ) -> None:
        super().__init__(experiment, sites, trainer, memory_gib)
        assert isinstance(self.hooked, QueueingTrainer)
        self.queue = self.hooked
        method = self.experiment.method
        self.final = (
            self.experiment.edge_rounds == 1
            and not self.experiment.heights
            and not method.links.cloud_up
            and not (method.clock.holds or method.cloud_clock.holds)
        )
        """Whether what edges average once is what they report."""
        self.following: Prepared | None = None
        """The round after the one that the device is busy with."""
        self.unread = False
        """Whether nobody has read yet what is not guessed of the reports."""
        self.doubtful = False
        """Whether the last guess was wrong: then there is none in the next round."""
        self.asked: dict[int, Evaluate] = {}
        """By edge, what it asked about its last averages, without the networks that it was about."""
        self.steady = False
        """Whether the same was asked the time before."""

    def rounds(self, state: State) -> Iterator[tuple[dict[str, Any], State]]:
        """Play like ``fedbac.rounds.cloud.rounds``, but begin with the next round before the record of one is told. The
        device trains while the host makes the record, and while the caller keeps it. So the time of a round is that
        from record to record."""
        last, began = self.experiment.task.rounds, time.perf_counter()
        ordered = self._ordered(state) if state.round < last else None
        while ordered is not None:
            state, record = self._concluded(*ordered)
            made = self._made()
            ordered, failed = None, None  # networks that came back must not take up memory of the next round
            try:
                ordered = self._ordered(state) if state.round < last else None
            except BaseException as error:  # a round that is done is told, even if the next cannot begin
                failed = error
            made()
            told = record() | {"seconds": time.perf_counter() - began}
            began = time.perf_counter()
            yield told, state
            if failed is not None:
                raise failed

    def _made(self) -> Callable[[], object]:
        """Return what waits until the device has made a state: its record may be there sooner, and both are saved."""
        return trees.to_host(torch.zeros(1, device=self.device))

    def _ordered(self, state: State) -> tuple[Round, Ordered, list[TrainReport]]:
        round_ = Round(self.experiment, self.sites, self, state.round + 1)
        ordered = round_.order(state)
        return round_, ordered, round_.reports(ordered)

    def _concluded(self, round_: Round, ordered: Ordered, reports: list[TrainReport]) -> tuple[State, Recording]:
        """Conclude a round; again if the guess was wrong, or if memory runs out before all reports have been read."""
        try:
            return round_.conclude(ordered, reports)
        except WrongGuessError:
            pass
        except (MemoryError, RuntimeError) as error:
            if not (self.unread and out_of_memory(error)):
                raise
        return round_.conclude(ordered, [report.read() for report in cast(list[Later], reports)])

    def copying(self) -> AbstractContextManager[object]:
        """Return where copies of a state that was told need not wait for the training that has begun."""
        if self.device.type != "cuda":
            return nullcontext()
        # Copies of views take small kernels, which must not queue up behind those of the training.
        return torch.cuda.stream(torch.cuda.Stream(self.device, priority=-1))  # type: ignore[no-untyped-call]

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order; of the reports, networks and weights are guessed before clients have trained.
        Reading anything else waits, and raises ``WrongGuessError`` where a guess was wrong."""
        self.unread = False
        if not self.final:
            return super().train(orders)
        ready, self.following, round_ = self.following, None, orders[0].round
        common = ready if ready is not None and ready.round == round_ else Prepared(self.experiment, round_)
        with one_thread():
            work = self._work(orders, common)
            while any(isinstance(request, Evaluate) for request in work.requests.values()):
                work.answer(self._answer(work.requests))  # some are measured before they train
            queued = self._queued(work.requests) if len(work.requests) == len(orders) else None
            if queued is None:
                return self._through(work)

        def finish() -> list[TrainReport]:
            self.unread = False
            if common.round < self.experiment.task.rounds:
                self.following = Prepared(self.experiment, common.round + 1, common)  # before the host waits
            with one_thread():
                results = queued.averaged()
                right = all(a.bank is guess.bank for a, guess in zip(results, queued.guesses, strict=True))
                self.doubtful = not right
                work.answer(dict(zip(work.requests, results, strict=True)))
                work.answer(self._measured(work.requests, queued))
                return self._through(work)

        known: list[dict[str, Any]] = [{} for _ in orders]
        if not self.doubtful:
            known = [
                {
                    "bank": {p: guess.bank[p] if p in common.moving else stack for p, stack in order.bank.items()},
                    "weight": guess.weight,
                }
                for order, guess in zip(orders, queued.guesses, strict=True)
            ]
        self.unread = True
        return later(finish, known)

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure; whoever reads the reports waits."""
        with one_thread():
            work = self._work(orders)
            measured = self.queue.queue_evaluation(cast(list[Evaluate], list(work.requests.values())))

        def finish() -> list[MeasureReport]:
            with one_thread():
                work.answer(dict(zip(work.requests, measured(), strict=True)))
                return self._through(work)

        return later(finish, [{} for _ in orders])

    def _queued(self, requests: Mapping[int, Request]) -> Queued | None:
        """Give the device all clients to train, their averages to make, and what edges are expected to ask of these.
        Return None where it has no room for all of them, where what clients send is not what they come back with, or
        where a rule or a liar must see all of them."""
        asked = cast(dict[int, Average], requests)
        count = sum(request.size_C.size for request in asked.values())
        held = any(one.link or one.rules or one.lies for one in asked.values())
        if held or count > self.chunks.fitting(list(asked.values())):
            return None
        return self.chunks.attempt(count, lambda: self._begun(asked, count))

    def _begun(self, asked: Mapping[int, Average], count: int) -> Queued:
        requests = list(asked.values())
        parts, finish = self.queue.queue([request.train for request in requests])
        guesses = [Guess(request, parts_C) for request, parts_C in zip(requests, parts, strict=True)]
        # All looks come in one copy: to ask a GPU for each of them would take longer.
        looks = trees.to_host(torch.cat([look for guess in guesses for look in guess.looks]))

        def read() -> list[Averaged]:
            trained = self.chunks.attempt(count, finish)
            if trained is None:
                return self.chunks.average(requests)
            ends = np.cumsum([sum(map(len, guess.looks)) for guess in guesses])
            found = []
            for request, guess, mine, one in zip(requests, guesses, np.split(looks(), ends[:-1]), trained, strict=True):
                average: EdgeAverage | SecretAverage = guess
                if np.isfinite(mine).all() and np.isfinite(one.loss_C).all():
                    guess.loss_C = one.loss_C
                else:
                    average = average_of(request)
                    average.add(one.parts_C, one.loss_C)
                found.append(averaged(average, [(without_networks(request, one), {})]))
            return found

        expected: dict[int, Evaluate] = {}
        if self.steady and not self.doubtful and self.asked.keys() == asked.keys():
            expected = {
                i: replace(question, bank={part: guess.bank[part] for part in question.row_V})
                for (i, question), guess in zip(self.asked.items(), guesses, strict=True)
            }
        measured = self.queue.queue_evaluation(list(expected.values())) if expected else list
        return Queued(guesses, once(read), expected, measured)

    def _measured(self, requests: Mapping[int, Request], queued: Queued) -> dict[int, Result]:
        """Answer what edges ask about their averages; what was expected need only be waited for."""
        asked = {i: request for i, request in requests.items() if isinstance(request, Evaluate)}
        known, self.asked = self.asked, {i: replace(request, bank={}) for i, request in asked.items()}
        self.steady = same_questions(self.asked, known)
        if asked and same_questions(asked, queued.expected):
            return dict(zip(asked, queued.measured(), strict=True))
        return self._answer(requests)


class WrongGuessError(Exception):
    """Some client did not train well, and what was computed on the guess that all do is void."""


class Later:
    """Stands for a report of which some fields are guessed: whoever reads another waits for it."""

    def __init__(self, read: Callable[[], Any], known: Mapping[str, Any]) -> None:
        self.__dict__.update(known, read=read, known=known)

    def __getattr__(self, field: str) -> Any:
        report = self.read()
        for part, stack in self.known.get("bank", {}).items():
            if report.bank[part] is not stack or not np.array_equal(report.weight[part], self.known["weight"][part]):
                raise WrongGuessError
        self.__dict__.update(vars(report))
        return getattr(report, field)


def later(finish: Callable[[], list[T]], known: Sequence[Mapping[str, Any]]) -> list[T]:
    """Return what stands for reports of which some fields are known."""
    read = once(finish)
    return [cast(T, Later(lambda i=i: read()[i], fields)) for i, fields in enumerate(known)]  # type: ignore[misc]


def once(read: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls another once, keeps its result, and lets go of all that it holds."""
    left, found = [read], list[T]()

    def kept() -> T:
        if not found:
            found.append(left[0]())
            left.clear()
        return found[0]

    return kept


class Guess(EdgeAverage):
    """Eq. 1 as if all clients were healthy. What shows whether they are is not looked at, so that nobody waits."""

    def __init__(self, request: Average, parts_C: Parts) -> None:
        super().__init__(request.size_C, request.train.bank, request.train.row_C)
        self.looks: list[Tensor] = []
        """Finite only if all weights of all clients are."""
        self.add(parts_C, np.zeros(request.size_C.size))

    def _finite(self, looks: Tensor) -> bool:
        self.looks.append(looks)
        return True


class Prepared(Common):
    """A round for which everything is worked out that sites asked of the one before: they will ask again."""

    def __init__(self, experiment: Experiment, round_: int, before: "Prepared | None" = None) -> None:
        super().__init__(experiment, round_)
        self._streams: dict[tuple[str, int, int], Rng | None] = {}
        """Those that are drawn already and those that were given away, by purpose, edge round and site."""
        self._seconds: dict[tuple[int, int, int], tuple[Site, FloatArray]] = {}
        if before is not None:
            self._streams = {key: super(Prepared, self).stream(*key) for key in before._streams}
            for (_, down, up), (site, _) in before._seconds.items():
                self.seconds(site, down, up)

    def stream(self, purpose: str, edge_round: int, site: int) -> Rng:
        """Return the generator for a purpose at a site."""
        key = purpose, edge_round, site
        drawn, self._streams[key] = self._streams.get(key), None
        return super().stream(*key) if drawn is None else drawn

    def seconds(self, site: Site, down: int, up: int) -> FloatArray:
        """Return how long every client of a site would take for so many bytes and its training."""
        if (key := (site.index, down, up)) not in self._seconds:
            self._seconds[key] = site, super().seconds(site, down, up)
        return self._seconds[key][1]


def same_questions(some: Mapping[int, Evaluate], others: Mapping[int, Evaluate]) -> bool:
    """Whether requests are about the same examples and the very same networks, where they have any."""
    return some.keys() == others.keys() and all(
        _key(request) == _key(others[i])
        and all(stack is others[i].bank.get(part) for part, stack in request.bank.items())
        for i, request in some.items()
    )


def _key(request: Evaluate) -> Hashable:
    rows = tuple((part, row_V.tobytes()) for part, row_V in request.row_V.items())
    return rows, request.split, request.owners, request.level, request.paired, request.max_samples
