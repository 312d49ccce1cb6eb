"""All edges and clients in this process: the edges' work is driven in step, their requests are merged, and clients come
in chunks that fit into memory, however many there are.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage
from fedbac.core.bandits import budget
from fedbac.core.codecs import remembering
from fedbac.core.links import Tier
from fedbac.core.parts import Parts, Scope
from fedbac.core.policies import Step
from fedbac.core.requests import Average, Averaged, Evaluate, Request, Result, Trained, Trainer, gathered
from fedbac.core.runtime import out_of_memory
from fedbac.engines.adjusting import adjusted
from fedbac.engines.secret import SecretAverage, summed_measurement
from fedbac.errors import NotEnoughMemoryError
from fedbac.federation import Assembled
from fedbac.local import num_cores, one_thread
from fedbac.rounds.edge import Common, combined_parts, serve
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Order, Report, Site, TrainOrder, TrainReport
from fedbac.rounds.rows import remembered
from fedbac.rounds.start import first_steps, owners_of

COPIES = 4
"""What a client in training takes of the memory of its networks: weights, momentum, gradients, and a copy."""
GIB = 2**30
FREE_SHARE, PER_CORE = 0.25, GIB // 2
"""When no budget is given: this share of the memory that is free, and on a CPU at most so many bytes per core, which
keep it busy; more would only grow with the number of clients."""

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

log = logging.getLogger("fedbac")

T = TypeVar("T")
Returned = tuple[Trained, Parts]
"""What some clients came back with, and what they left out of their updates."""


class Piece(NamedTuple):
    """Some consecutive clients of one request."""

    request: int
    clients: slice


class Chunks:
    """Puts clients through a trainer chunk by chunk and averages them as they come back."""

    def __init__(self, trainer: Trainer, memory: float | None, sharers: int) -> None:
        self.trainer, self.memory, self.sharers = trainer, memory, sharers
        """Bytes, ``default_memory`` when not given, and how many processes share them."""
        self.most: int | None = None
        """Clients in a chunk; None before the first."""
        self.unsent: dict[int, list[Trained]] = {}
        """By request, what clients learned that send nothing yet: liars among them wait for what all have learned."""

    def average(self, requests: Sequence[Average]) -> list[Averaged]:
        """Train the clients of all requests and average those of each by the rows that they started from."""
        averages = [average_of(request) for request in requests]
        returned: list[list[Returned]] = [[] for _ in requests]
        self.unsent = {}
        left = [Piece(r, slice(0, request.size_C.size)) for r, request in enumerate(requests)]
        while left:
            chunk, rest = cut(left, self.fitting(requests))
            if self._fold(chunk, requests, averages, returned):
                left = rest
        return [averaged(average, pieces) for average, pieces in zip(averages, returned, strict=True)]

    def fitting(self, requests: Sequence[Average]) -> int:
        """Return how many clients fit into a chunk."""
        if self.most is None:
            bank, rules = requests[0].train.bank, requests[0].rules
            size = {part: sum(value[0].nbytes for value in params.values()) for part, params in bank.items()}
            per_client = (COPIES + getattr(self.trainer, "more_copies", 0)) * sum(size.values())
            per_client = max(per_client, getattr(self.trainer, "bytes_per_client", 0))  # a trainer may know better
            memory = (default_memory(self.trainer.device) if self.memory is None else self.memory) / self.sharers
            # Clients that are held until all have come take from it too; half is left, or training would crawl.
            kept = size if any(request.lies for request in requests) else rules
            held = sum(request.size_C.size for request in requests) * sum(size[part] for part in kept)
            self.most = max(1, int(max(memory - held, memory / 2) / per_client))
        return self.most

    def _fold(
        self,
        chunk: Sequence[Piece],
        requests: Sequence[Average],
        averages: Sequence[EdgeAverage | SecretAverage],
        returned: Sequence[list[Returned]],
    ) -> bool:
        """Train a chunk, add it to the averages and let go of it; return False when memory ran out."""
        orders = [requests[piece.request].train.part(piece.clients) for piece in chunk]
        trained = self.attempt(sum(len(order.clients) for order in orders), lambda: self.trainer.train(orders))
        if trained is None:
            return False
        for (number, clients), result in zip(chunk, trained, strict=True):
            request = requests[number]
            if request.lies is not None:
                waiting = self.unsent.setdefault(number, [])
                waiting.append(replace(result, parts_C=trees.join_parts([result.parts_C])))  # the chunk may go
                if clients.stop < request.size_C.size:
                    continue
                result, clients = gathered(waiting), slice(0, clients.stop)
                bank, row_C = request.train.bank, request.train.row_C
                start_C = {part: trees.select(bank[part], row_C[part]) for part in request.lies.parts}
                result = replace(result, parts_C=request.lies.told(result.parts_C, start_C))
                del self.unsent[number]
            result, left = _arrived(request, clients, result)
            averages[number].add(result.parts_C, result.loss_C)
            returned[number].append((without_networks(request, result), left))
        return True

    def attempt(self, count: int, work: Callable[[], T]) -> T | None:
        """Return what comes of work with so many clients; None when memory runs out: then chunks are halved."""
        try:
            return work()
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if count == 1:
                raise NotEnoughMemoryError(
                    f"not enough memory to train a single client ({error}); use a smaller network or batch "
                    "(task.network, task.training.batch_size), or a machine with more memory"
                ) from error
            self.most = count // 2
            log.warning("out of memory with %d clients at once; going on with %d", count, self.most)
        if self.trainer.device.type == "cuda":
            torch.cuda.empty_cache()
        return None


def average_of(request: Average) -> EdgeAverage | SecretAverage:
    """Return the average that a request asks for, of which no client has come yet."""
    if request.secret is not None:
        return SecretAverage(request)
    return EdgeAverage(request.size_C, request.train.bank, request.train.row_C, request.rules)


def without_networks(request: Average, trained: Trained) -> Trained:
    """Return what clients came back with, of their networks only copies of those that are to be kept."""
    return replace(trained, parts_C={part: trees.join([trained.parts_C[part]]) for part in request.keep})


def cut(left: Sequence[Piece], most: int) -> tuple[list[Piece], list[Piece]]:
    """Return the first chunk of at most ``most`` clients, and what remains; chunks come out of equal size."""
    total = sum(piece.clients.stop - piece.clients.start for piece in left)
    num_chunks = -(-total // most)
    room = -(-total // num_chunks)
    chunk: list[Piece] = []
    for i, (request, clients) in enumerate(left):
        stop = min(clients.stop, clients.start + room)
        room -= stop - clients.start
        chunk.append(Piece(request, slice(clients.start, stop)))
        rest = [Piece(request, slice(stop, clients.stop))] if stop < clients.stop else []
        if room == 0:
            return chunk, [*rest, *left[i + 1 :]]
    return chunk, []


def default_memory(device: torch.device) -> float:
    """Return the bytes that clients in training may take when nobody says."""
    share = FREE_SHARE * free_memory(device)
    return share if device.type == "cuda" else min(share, PER_CORE * num_cores())


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU, or on this machine within the limits set to this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return 4 * GIB
    return min([free, *(max(room, 0) for room in _group_room())])


def _group_room() -> Iterator[int]:
    """Yield what each control group around this process, of version 1 or 2, has left of its limit."""
    with suppress(OSError, ValueError):
        for line in OWN_GROUPS.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            root = GROUPS / "memory" if kinds else GROUPS
            own = root.joinpath(*Path(path).parts[1:])
            names = ("limit_in_bytes", "usage_in_bytes") if kinds else ("max", "current")
            for group in (own, *own.parents[: len(own.parts) - len(root.parts)]):
                with suppress(OSError, ValueError):  # no limit
                    limit, used = ((group / f"memory.{name}").read_text() for name in names)
                    yield int(limit) - int(used)


def _arrived(request: Average, clients: slice, trained: Trained) -> Returned:
    """Return what arrives of the clients' updates, and what they leave out."""
    if request.link is None:
        return trained, {}
    train = request.train
    start_C = {part: trees.select(train.bank[part], train.row_C[part][clients]) for part in request.link.passing["up"]}
    left_C, numbers = trees.part_rows(request.left, clients), train.clients[clients]
    parts_C, left_C, _ = request.link.upload(trained.parts_C, start_C, left_C, numbers, train.edge_round)
    return replace(trained, parts_C=request.link.with_twins(parts_C)), left_C


def averaged(average: EdgeAverage | SecretAverage, pieces: Sequence[Returned]) -> Averaged:
    """Return the average of clients with what else they returned, piece by piece."""
    returned, lefts = zip(*pieces, strict=True)
    one = gathered(returned)
    if isinstance(average, SecretAverage):
        return average.averaged(one)
    mine = (average.bank, average.weight, average.healthy_C, average.loss_C)
    return Averaged(*mine, one.momentum, one.square_C, one.epoch_CE, one.parts_C, trees.join_parts(lefts))


class Simulator:
    """Edges that share one trainer."""

    def __init__(
        self,
        experiment: Experiment,
        sites: Sequence[Site],
        trainer: Trainer,
        memory_gib: float | None = None,
        sharers: int = 1,
    ) -> None:
        self.experiment, self.sites, self.trainer = experiment, sites, trainer
        self.hooked = adjusted(trainer, experiment.method.personalization)
        self.chunks = Chunks(self.hooked, None if memory_gib is None else memory_gib * GIB, sharers)
        self.path, self.device = trainer.path, trainer.device
        self.keeps: frozenset[Scope] = frozenset()

    def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
        """Have every edge run its order."""
        with one_thread():
            return self._through(self._work(orders, Common(self.experiment, orders[0].round)))

    def measure(self, orders: Sequence[MeasureOrder]) -> list[MeasureReport]:
        """Have every edge measure."""
        with one_thread():
            return self._through(self._work(orders))

    def close(self) -> None:
        """Release the trainer."""
        self.trainer.close()

    def _work(self, orders: Sequence[Order], common: Common | None = None) -> "Work":
        return Work([serve(order, self.sites[order.site], self.experiment, common=common) for order in orders])

    def _through(self, work: "Work") -> list[Any]:
        """Answer all that edges ask for, and return their reports."""
        while work.requests:
            work.answer(self._answer(work.requests))
        return [work.reports[i] for i in range(len(work.edges))]

    def _answer(self, requests: Mapping[int, Request]) -> dict[int, Result]:
        training = {i: request for i, request in requests.items() if isinstance(request, Average)}
        measuring = {i: request for i, request in requests.items() if isinstance(request, Evaluate)}
        results: dict[int, Result] = {}
        if training:
            results |= zip(training, self.chunks.average(list(training.values())), strict=True)
        if measuring:
            found = zip(measuring.values(), self.hooked.evaluate(list(measuring.values())), strict=True)
            told = (
                one if request.secret is None or request.level == "edge" else summed_measurement(request, one)
                for request, one in found
            )
            results |= zip(measuring, told, strict=True)
        return results


class Work:
    """What edges do, driven in step: what each asks for is collected, and all are answered at once."""

    def __init__(self, edges: Sequence[Generator[Request, Result, Report]]) -> None:
        self.edges = edges
        self.requests: dict[int, Request] = {}
        """What edges ask for now, and below the reports of those that are done; by their place."""
        self.reports: dict[int, Report] = {}
        for i in range(len(edges)):
            self._advance(i, None)

    def answer(self, results: Mapping[int, Result]) -> None:
        """Let the edges go on to what they ask for next."""
        self.requests = {}
        for i, result in results.items():
            self._advance(i, result)

    def _advance(self, i: int, result: Result | None) -> None:
        try:
            self.requests[i] = next(self.edges[i]) if result is None else self.edges[i].send(result)
        except StopIteration as done:
            self.reports[i] = done.value


def check_room(experiment: Experiment, federation: Assembled) -> None:
    """Refuse an experiment whose networks are larger than the memory that is free: those that are kept between rounds,
    and those that an aggregation holds until it can combine them."""
    held, free = held_bytes(experiment, federation), free_memory(torch.device("cpu"))
    needed = kept_bytes(experiment, federation) + held
    if needed > free:
        method, owners = experiment.method, owners_of(experiment, federation.sites)
        links = remembering(method.links.chains)
        raise NotEnoughMemoryError(
            f"the networks of {owners['cluster']} clusters, {owners['edge']} edges and {owners['client']} clients take "
            f"{needed / GIB:.1f} GiB by method.personalization {method.personalization.kind!r}"
            + (f", method.step {method.step.kind!r}, which remembers networks," if method.step.active else "")
            + (f" and method.aggregation {method.aggregation.kind!r}, which holds all clients at once," if held else "")
            + (f", method.clock {method.clock.kind!r}, which keeps late updates," if method.clock.holds else "")
            + (f" and method.links ({', '.join(links)}), which remember networks" if links else "")
            + f", and {free / GIB:.1f} GiB are free; use fewer of them, or a smaller task.network"
            + (", or method.aggregation=mean" if held else "")
            + (", or no method.links" if links else "")
        )


def kept_bytes(experiment: Experiment, federation: Assembled) -> int:
    """Return the size of all networks kept between rounds: of owners, momentum, steps' memory, and links."""
    method, sites, scheme = experiment.method, federation.sites, experiment.method.personalization
    trainable, one = {name for name, _ in federation.network.named_parameters()}, _one_of_each(experiment, federation)
    owners, heights = owners_of(experiment, sites), experiment.heights
    above: list[tuple[int, Step, Tier]] = [(1, method.step, "cloud")]
    above += [(height.num_nodes, height.does.step, height.name) for height in heights]
    steps = [(number, first_steps(step, scheme, one, trainable, tier)) for number, step, tier in above]
    count = [len(sites), len(sites), *(height.num_nodes for height in heights)]
    in_links = remembered(method.links.chains, scheme, owners, dict(zip(experiment.link_names, count, strict=True)))
    keeping = sum(len(site.clients) for site in sites) if experiment.task.training.momentum_state == "persist" else 0
    under_way = sum(budget(method.selection.fraction, len(site.clients)) for site in sites)
    needed = 0
    for part, spec in scheme.parts.items():
        needed += (owners[spec.scope] + in_links[part]) * _bytes({part: one[part]})
        needed += sum(number * owners[spec.scope] * _bytes(mine.get(part, {})) for number, mine in steps)
        if method.clock.holds:
            needed += under_way * _bytes({part: one[part]})
        if spec.networks:
            needed += keeping * sum(value.nbytes for name, value in one[part].items() if name in trainable)
    return needed


def held_bytes(experiment: Experiment, federation: Assembled) -> int:
    """Return the size of the networks that edges hold at once to combine them: those of clients, and their changes."""
    combined, fraction = combined_parts(experiment.method), experiment.method.selection.fraction
    one = {part: row for part, row in _one_of_each(experiment, federation).items() if part in combined}
    return 2 * sum(budget(fraction, len(site.clients)) for site in federation.sites) * _bytes(one)


def _one_of_each(experiment: Experiment, federation: Assembled) -> Parts:
    """Return every part as a single owner has it."""
    one = dict.fromkeys(owners_of(experiment, federation.sites), 1)
    return experiment.method.personalization.init(federation.build, one)


def _bytes(parts: Parts) -> int:
    return sum(value.nbytes for params in parts.values() for value in params.values())
