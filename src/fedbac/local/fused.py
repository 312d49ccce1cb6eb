"""The trainer for the paper's networks on a GPU: all clients in step, through kernels made for the network."""

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from ctypes import Structure, c_float, c_int, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params, Parts, Personalization
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Kept, Measured, Train, Trained
from fedbac.core.settings import FloatArray, IntArray
from fedbac.gpu.driver import Kernel, KernelQueue, Module, Streams, current_stream, pointers
from fedbac.gpu.network import MAX_PARTS, NetworkPlan
from fedbac.local.batches import LANES, Visits, VisitTable
from fedbac.local.examples import Examples, Losses, cells, kept, rates, shares
from fedbac.local.networks import Fleet, NetworkTable, momenta, parts_of, present, shifts
from fedbac.local.stages import Copy, Span, Stage, places, span, stages_now, stages_of
from fedbac.native import Layers


class Rule(Structure):
    """As in ``kernels.cu``."""

    _fields_ = (
        ("momentum", c_float),
        ("max_norm", c_float),
        ("joint", c_int),
        ("decay", c_float * MAX_PARTS),
        ("penalty", c_float * MAX_PARTS),
        ("begin", c_int * MAX_PARTS),
        ("end", c_int * MAX_PARTS),
    )


class Arguments:
    """The arguments of a row of launches. They point to tensors, which must be there until the kernels have run."""

    def __init__(self, levels: int) -> None:
        self.buffers: Any = buffers_type(levels)()
        self.rule, self.step = Rule(), c_int32(0)

    def point(self, name: str, tensor: Tensor | None) -> None:
        """Point a field to a tensor; without one the kernels do without."""
        setattr(self.buffers, name, None if tensor is None else tensor.data_ptr())

    def point_each(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Point the entries of an array of fields to tensors, one per layer."""
        for level, tensor in enumerate(tensors):
            getattr(self.buffers, name)[level] = tensor.data_ptr()


@cache
def buffers_type(levels: int) -> type[Structure]:
    """``Buffers`` of ``kernels.cu`` for a network of so many layers."""
    names = "pixels labels seen visits crop flip jobs slots rates anchors anchor shift "
    names += "weights velocity gradient partial squares loss square epoch_loss logits"
    fields: list[tuple[str, Any]] = [(name, c_void_p) for name in names.split()]
    fields += [(name, c_void_p * levels) for name in ("out", "back", "winner")]
    fields += [(name, c_int) for name in ("parts", "batch", "num_epochs", "first_epoch")]
    return type("Buffers", (ctypes.Structure,), {"_fields_": fields})


class Room:
    """The clients' weights and everything computed on the way, in buffers that stay where they are."""

    def __init__(self, plan: NetworkPlan, rows: int, device: torch.device) -> None:
        self.rows, self.plan = rows, plan
        self.given: dict[tuple[int, int, int], Arguments] = {}
        """The arguments of kernels for some rows, by the networks of a client and the clients."""

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        self.weights, self.velocity, self.gradient = (room(plan.size) for _ in range(3))
        self.partial = room(plan.chunks, plan.conv_size)
        self.squares = room(plan.slices)
        self.slots = torch.arange(rows, dtype=torch.int32, device=device)
        self.loss = room(plan.groups, dtype=torch.float64)
        self.out = [room(plan.room, size) for size in plan.levels]
        self.back = [room(plan.room, size) for size in plan.levels]
        self.winner = [room(plan.room, size, dtype=torch.uint8) for size in plan.levels[: len(plan.convolutions)]]


class Sums:
    """Losses of the clients, summed while they are trained; blocks of a client's examples have sums of their own."""

    def __init__(self, room: Room, keep: frozenset[Kept], num_jobs: int, num_epochs: int) -> None:
        self.num_epochs, self.begun = num_epochs, 0
        """Epochs of all phases, and of those that are done."""
        self.loss = room.loss[:num_jobs].zero_()
        self.square = torch.zeros_like(self.loss) if "square" in keep else None
        shape = (num_jobs, num_epochs, room.loss.shape[1])
        self.epoch_loss = self.loss.new_zeros(shape) if "epochs" in keep else None

    def point(self, buffers: Any, jobs: slice) -> None:
        """Point a phase's kernels to the sums that are wanted of some jobs."""
        for name in ("loss", "square", "epoch_loss"):
            sums = getattr(self, name)
            setattr(buffers, name, None if sums is None else sums[jobs].data_ptr())
        buffers.num_epochs, buffers.first_epoch = self.num_epochs, self.begun

    def fetch(self, used_J: IntArray, place: IntArray) -> Callable[[], Losses]:
        """Have the sums copied to the host, given the examples of an epoch and the jobs' places; what returns waits."""
        used_J = np.maximum(used_J, 1)
        seen_J = self.num_epochs * used_J
        loss = trees.to_host(self.loss.sum(1))
        square = None if self.square is None else trees.to_host(self.square.sum(1))
        epochs = None if self.epoch_loss is None else trees.to_host(self.epoch_loss.sum(2))

        def losses() -> Losses:
            square_J = None if square is None else (square() / seen_J)[place]
            epoch_JE = None if epochs is None else (epochs() / used_J[:, None])[place]
            return Losses((loss() / seen_J)[place], square_J, epoch_JE)

        return losses


@dataclass(frozen=True, eq=False)
class Workload:
    """The work of some requests about one split. It says nothing of weights, so rounds that ask the same share it."""

    examples: NDArray[np.int32]
    """Of all groups, one after another."""
    jobs: NDArray[np.int32]
    """Batches, ``[job, 4]``: where its examples begin, where its logits go, how many there are, and 1 for one batch."""
    slots: NDArray[np.int32]
    """The network of each job."""
    pairs: IntArray
    """Models and groups, ``[pair, 2 + networks]``: where examples begin, how many, where each network's logits are."""
    counts: tuple[tuple[tuple[int, ...], IntArray], ...]
    """By request, how many models and groups it has, and the examples of each group."""
    num_scored: int
    """Rows of logits."""
    device: torch.device

    @cached_property
    def there(self) -> dict[str, Tensor]:
        """The tables on the device, by name."""
        tables: dict[str, NDArray[Any]] = {
            "visits": self.examples, "jobs": self.jobs, "slots": self.slots, "pairs": self.pairs
        }  # fmt: skip
        return {name: trees.onto(table, self.device) for name, table in tables.items()}


def lay_out(
    requests: Sequence[tuple[Evaluate, list[IntArray]]], rows: Sequence[IntArray], batch: int, device: torch.device
) -> Workload:
    """Return the work of requests, given with their groups of examples and the networks of their models, ``row_VP``."""
    examples, jobs, slots = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)], [np.zeros(0, np.int64)]
    pairs, counts = [], []
    seen = scored = 0
    for (request, groups), row_VP in zip(requests, rows, strict=True):
        count_G = np.array([group.size for group in groups], dtype=np.int64)
        begin_G = seen + np.cumsum(count_G) - count_G
        seen += int(count_G.sum())
        examples += groups
        counts.append((cells(request).shape[:2], count_G))
        # All models look at all groups together; of paired ones each at its own.
        looks = [slice(g, g + 1) for g in range(len(groups))] if request.paired and groups else [slice(None)]
        for look in looks:
            mine_VP, first_G, size_G = row_VP[look] if request.paired else row_VP, begin_G[look], count_G[look]
            first, total = int(first_G[0]) if first_G.size else 0, int(size_G.sum())
            start_J = np.arange(0, total, batch)
            size_J = np.minimum(batch, total - start_J)
            slot_S, place_VP = np.unique(mine_VP, return_inverse=True)
            at_S = scored + total * np.arange(slot_S.size)
            scored += total * slot_S.size
            work = np.broadcast_arrays(first + start_J, at_S[:, None] + start_J, size_J, np.int64(1))
            jobs.append(np.stack(work, -1).reshape(-1, 4))
            slots.append(np.repeat(slot_S, start_J.size))
            at_VP = at_S[place_VP.reshape(mine_VP.shape)]
            columns = np.broadcast_arrays(first_G, size_G, *(at_V[:, None] + (first_G - first) for at_V in at_VP.T))
            pairs.append(np.stack(columns, -1).reshape(-1, len(columns)))
    return Workload(
        examples=np.concatenate(examples).astype(np.int32),
        jobs=np.concatenate(jobs).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        pairs=np.ascontiguousarray(np.concatenate(pairs)),
        counts=tuple(counts),
        num_scored=scored,
        device=device,
    )


SPLITS: tuple[Split, ...] = ("train", "test")
LEAST_ROOM = 64
"""Examples per client that buffers have room for at least, so that evaluation does not go in tiny steps."""
SCORING_BYTES = 2**30
"""Memory for the networks times batches whose logits are computed at once."""
LAYOUTS = 4
"""Layouts of evaluations that are kept: those of a round and one to spare."""
SCORED_AT_ONCE = 2**24
"""Networks times examples whose logits are kept until they are judged."""


def plan_for(layers: Layers, examples: Examples) -> NetworkPlan:
    """Return the kernels for a network and the batches that its clients have."""
    largest = max((mine.size for mine in examples.shards.train), default=1)
    batch = min(examples.training.batch_size, largest)
    return NetworkPlan(layers, max(batch, LEAST_ROOM), float_pixels=examples.normalization is None)


class Moves(NamedTuple):
    """How weights move in a phase, as the kernels take it."""

    stage: Stage
    spans: list[Span]
    rule: Rule
    shared: dict[Copy, list[slice]]
    """Where weights lie that networks share."""


class FusedTrainer:
    """Trains the clients of all requests in step: those with most batches first, so that the active ones lead."""

    def __init__(
        self, network: nn.Module, scheme: Personalization, examples: Examples, plan: NetworkPlan, device: torch.device
    ) -> None:
        self.path = "cuda-fused"
        self.device = device
        self.examples, self.plan, self.network = examples, plan, network
        self.anatomy = Anatomy(scheme, network)
        self.stages = stages_of(self.anatomy, examples.training)
        self.like: Params = {name: value.detach() for name, value in network.named_parameters()}
        self.moves = [self._moves(stage) for stage in self.stages]
        self.streams = Streams(LANES, device)
        self.module = Module(plan.source)
        self.training, self.scoring = (
            [Kernel(self.module.kernel(one.name, one.shared), one.y, one.z, one.threads, one.shared) for one in some]
            for some in (plan.training, plan.scoring)
        )
        self.judge = self.module.kernel("judge")
        self.source = {
            split: ((pixels.float() if plan.float_pixels else pixels).contiguous(), labels.to(torch.int32))
            for split, (pixels, labels) in ((split, examples.source(split, device)) for split in SPLITS)
        }
        mean, deviation = examples.normalization or (np.zeros(1), np.ones(1))
        self.seen = torch.from_numpy(np.stack([1 / (255 * deviation), -mean / deviation], 1)).float().to(device)
        positions = plan.positions()
        used = np.flatnonzero(positions >= 0)
        self.into = torch.from_numpy(np.where(positions < 0, used.size, positions)).to(device)
        self.out_of = torch.from_numpy(used[np.argsort(positions[used])]).to(device)
        self.room = Room(plan, 0, device)
        self.layouts: dict[Hashable, Workload] = {}
        self.visits = Visits(examples)
        self.bytes_per_client = len(self.anatomy.networks) * (plan.row_bytes + 4 * plan.size)

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests, each at the moment and the rate of its own request."""
        return self.queue(requests)[1]()

    def queue(self, requests: Sequence[Train]) -> tuple[list[Parts], Callable[[], list[Trained]]]:
        """Give the device all its work to train the clients of all requests. Return what each request's clients will
        come back with, and what waits for the device and then knows the losses."""
        networks, table = present(self.anatomy, requests[0].bank), NetworkTable(self.anatomy)
        jobs = [(request, client) for request in requests for client in request.clients]
        running = {number: stage for number, stage in enumerate(stages_now(self.stages, requests)) if stage.epochs}
        batches = {
            stage.epochs: VisitTable(self.examples, jobs, stage.epochs, self.visits) for stage in running.values()
        }
        order = next(iter(batches.values())).order  # by batches in an epoch, however many epochs there are
        row_J = {n: np.concatenate([table.rows(r.bank, r.row_C, n) for r in requests])[order] for n in networks}
        before = momenta(self.anatomy, requests, networks)
        shift = shifts(self.anatomy, requests, networks, self.like, self.device)
        at = trees.onto(order, self.device)
        velocity, shift = (
            {n: self._inside(v.to(self.device)[at]) for n, v in given.items()} for given in (before or {}, shift)
        )
        fleet = Fleet(self._inside(table.stacked().to(self.device)), row_J, velocity, shift)
        if (needed := len(jobs) * max(len(stage.networks) for stage in running.values())) > self.room.rows:
            self.room = Room(self.plan, 0, self.device)  # the old one goes before the new one comes
            self.room = Room(self.plan, needed, self.device)
        sums = Sums(self.room, kept(requests), len(jobs), sum(stage.epochs for stage in running.values()))
        for number, stage in running.items():
            rate_J = np.concatenate([request.rates(number) for request in requests])[order].astype(np.float32)
            self._run(self.moves[number], fleet, batches[stage.epochs], rate_J, sums, last=number == max(running))
            sums.begun += stage.epochs
        place = np.argsort(order)
        summed = sums.fetch(next(iter(batches.values())).used_J, place)
        now = self._outside({n: fleet.now(n) for n in networks}, place)
        moving = None if before is None else self._outside({n: fleet.velocity_JD[n] for n in networks}, place)
        parts = [self._parts(now, jobs) for jobs in shares(requests)]

        def finish() -> list[Trained]:
            self.visits.prefetch(requests, batches)  # before the host waits for the device
            losses, out = summed(), []
            for request, jobs, parts_C in zip(requests, shares(requests), parts, strict=True):
                momentum = None if moving is None or request.momentum is None else self._parts(moving, jobs)
                out.append(losses.of(request, jobs, parts_C, momentum))
            return out

        return parts, finish

    def _moves(self, stage: Stage) -> Moves:
        spans = [span(stage, network, self.like) for network in stage.networks]
        shared = {copy: [self.plan.inside(at) for at in places(copy.names, self.like)] for copy in stage.copies}
        return Moves(stage, spans, self._rule(spans, stage.momentum), shared)

    def _run(
        self, moves: Moves, fleet: Fleet, batches: VisitTable, rate_J: NDArray[np.float32], sums: Sums, last: bool
    ) -> None:
        """Run a phase of all jobs."""
        stage, spans, rule, shared = moves
        parts, room, num_jobs = len(stage.networks), self.room, rate_J.size
        table, start_JP = fleet.start(stage.networks)
        weights, velocity = (
            stack[: num_jobs * parts].view(num_jobs, parts, -1) for stack in (room.weights, room.velocity)
        )
        weights.copy_(table[trees.onto(start_JP, self.device)])
        before = fleet.velocity(stage.networks)
        if before is None:
            velocity.zero_()
        else:
            velocity.copy_(before)
        there = self._tables(batches, rate_J, spans if stage.anchors else (), fleet)
        shift = fleet.shift(stage.networks)
        if shift is not None:
            there["shift"] = shift
        given = [self._lane(lane.jobs, parts, there, fleet, sums, rule) for lane in batches.lanes]
        arguments = [pointers([one.buffers, one.rule, one.step]) for one in given]
        active = enumerate(lane.active for lane in batches.lanes)
        turns = [(lane, step, parts * rows) for lane, rows_S in active for step, rows in enumerate(rows_S)]
        turns.sort(key=itemgetter(1))  # so that all lanes begin at once
        with self.streams.fork() as streams:
            queues = [KernelQueue(*one) for one in zip(streams, arguments, (one.step for one in given), strict=False)]
            self.module.launch_all(self.training, queues, turns)
        if not last:  # the next phase needs the room
            weights, velocity = weights.clone(), velocity.clone()
        fleet.move(stage, weights, velocity, shared)

    def _tables(
        self, batches: VisitTable, rate_J: NDArray[np.float32], anchored: Sequence[Span], fleet: Fleet
    ) -> dict[str, Tensor]:
        """Return what a phase's kernels read of all jobs, on the device."""
        tables: dict[str, NDArray[Any] | None] = {
            "visits": batches.visits, "crop": batches.crop, "flip": batches.flip, "jobs": batches.jobs, "rates": rate_J
        }  # fmt: skip
        if anchored:
            nothing = np.full(rate_J.size, -1)
            anchor_JP = np.stack([nothing if s.anchor is None else fleet.row_J[s.anchor] for s in anchored], 1)
            tables["anchor"] = anchor_JP.astype(np.int32)
        return {name: trees.onto(values, self.device) for name, values in tables.items() if values is not None}

    def _lane(
        self, jobs: slice, parts: int, there: Mapping[str, Tensor], fleet: Fleet, sums: Sums, rule: Rule
    ) -> Arguments:
        """Return the arguments with which some jobs are trained: their kernels count rows from the first of them."""
        room = self.room
        if (key := (parts, jobs.start, jobs.stop)) not in room.given:
            room.given[key] = self._lasting(slice(parts * jobs.start, parts * jobs.stop), parts)
        given = room.given[key]
        sums.point(given.buffers, jobs)
        for name in ("visits", "crop", "flip"):
            given.point(name, there.get(name))
        for name in ("jobs", "rates", "anchor", "shift"):
            given.point(name, there[name][jobs] if name in there else None)
        given.buffers.anchors = fleet.table_TD.data_ptr() if "anchor" in there else None
        given.rule = rule
        return given

    def _lasting(self, rows: slice, parts: int) -> Arguments:
        """Return arguments that point to some rows of the room, which stay where they are from round to round."""
        room, split, batch = self.room, self.source["train"], self.examples.training.batch_size
        given = self._arguments(split, room.weights[rows], parts, batch)
        for name in ("velocity", "gradient", "partial", "squares"):
            given.point(name, getattr(room, name)[rows])
        for name in ("out", "back", "winner"):
            given.point_each(name, [level[rows] for level in getattr(room, name)])
        given.point("slots", room.slots)
        return given

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests, each distinct network once per example of a request."""
        return self.queue_evaluation(requests)()

    def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
        """Give the device all its work to evaluate the models of all requests; what is returned waits for it."""
        queued: list[tuple[list[int], Callable[[], list[Measured]]]] = []
        for test in (False, True):
            together: dict[int, tuple[Evaluate, list[IntArray]]] = {}
            scored = 0
            for r, request in enumerate(requests):
                if (request.split == "test") != test:
                    continue
                groups = self.examples.groups(request)
                examples = sum(group.size for group in groups)
                scored += (1 if request.paired else request.num_models) * len(self.anatomy.judged) * examples
                together[r] = request, groups
                if scored > SCORED_AT_ONCE:
                    queued.append((list(together), self._evaluate(list(together.values()))))
                    together, scored = {}, 0
            queued.append((list(together), self._evaluate(list(together.values()))))

        def finish() -> list[Measured]:
            measured: dict[int, Measured] = {}
            for asked, found in queued:
                measured |= zip(asked, found(), strict=True)
            return [measured[r] for r in range(len(requests))]

        return finish

    def close(self) -> None:
        """Let go of the buffers."""
        self.room, self.layouts = Room(self.plan, 0, self.device), {}

    def _evaluate(self, requests: Sequence[tuple[Evaluate, list[IntArray]]]) -> Callable[[], list[Measured]]:
        """Queue the evaluation of requests about one split, given with their groups of examples."""
        if not requests:
            return list
        table = NetworkTable(self.anatomy)
        rows = [np.stack([table.rows(r.bank, r.row_V, n) for n in self.anatomy.judged], 1) for r, _ in requests]
        asked = [(r.split, r.owners, r.level, r.paired, r.max_samples) for r, _ in requests]
        key = (*asked, *(row_VP.tobytes() for row_VP in rows))
        layout = self.layouts.pop(key, None) or lay_out(requests, rows, self.plan.room, self.device)
        self.layouts = dict([*self.layouts.items(), (key, layout)][-LAYOUTS:])  # those used last
        split = self.source["test" if requests[0][0].split == "test" else "train"]
        found = self._score(split, self._inside(table.stacked().to(self.device)), layout)

        def finish() -> list[Measured]:
            (loss, correct), begin, measured = found(), 0, []
            for shape, count_G in layout.counts:
                cells = slice(begin, begin + shape[0] * shape[1])
                begin = cells.stop
                loss_VG, accuracy_VG = rates(correct[cells].reshape(shape), loss[cells].reshape(shape), count_G)
                measured.append(Measured(loss_VG, accuracy_VG, count_G))
            return measured

        return finish

    def _score(
        self, split: tuple[Tensor, Tensor], networks: Tensor, layout: Workload
    ) -> Callable[[], tuple[FloatArray, FloatArray]]:
        """Have the device sum loss and correct answers of every pair of a model and a group; what returns waits."""
        there, num_jobs, num_pairs = layout.there, len(layout.jobs), len(layout.pairs)
        at_once = max(1, SCORING_BYTES // max(self.plan.scoring_bytes, 1))
        sizes = [(min(num_jobs, at_once), self.plan.room, c.outputs * c.positions) for c in self.plan.convolutions]
        out = [torch.empty(size, device=self.device) for size in sizes]
        winner = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]
        logits = torch.empty((layout.num_scored, self.plan.linears[-1].outputs), device=self.device)
        given = self._arguments(split, networks, 1, self.plan.room)
        given.point("visits", there["visits"])
        given.point_each("out", out)
        given.point_each("winner", winner)
        given.buffers.logits = logits.data_ptr()
        arguments = pointers([given.buffers, given.rule, given.step])
        stream = current_stream(self.device)
        for start in range(0, num_jobs, at_once):
            some = slice(start, start + at_once)
            given.point("jobs", there["jobs"][some])
            given.point("slots", there["slots"][some])
            rows = min(at_once, num_jobs - start)
            self.module.launch_all(self.scoring, [KernelQueue(stream, arguments, given.step)], [(0, 0, rows)])
        both = torch.zeros(12 * num_pairs, dtype=torch.uint8, device=self.device)  # they come back in one copy
        loss, correct = both[: 8 * num_pairs], both[8 * num_pairs :]  # of float64 and int32
        tensors = [logits, there["visits"], split[1], there["pairs"], loss, correct]
        values: list[Any] = [c_void_p(tensor.data_ptr()) for tensor in tensors]
        values.insert(4, c_int(layout.pairs.shape[1] - 2))
        if num_pairs:
            self.module.launch(self.judge, (num_pairs, 1, 1), 128, 0, stream, pointers(values))

        arrived = trees.to_host(both)

        def read() -> tuple[FloatArray, FloatArray]:
            found = arrived()
            return found[: 8 * num_pairs].view(np.float64), found[8 * num_pairs :].view(np.int32).astype(np.float64)

        return read

    def _arguments(self, split: tuple[Tensor, Tensor], weights: Tensor, parts: int, batch: int) -> Arguments:
        given = Arguments(len(self.plan.levels))
        for name, tensor in {"pixels": split[0], "labels": split[1], "seen": self.seen, "weights": weights}.items():
            given.point(name, tensor)
        given.buffers.parts, given.buffers.batch = parts, batch
        return given

    def _rule(self, spans: Sequence[Span], momentum: float = 0.0) -> Rule:
        training = self.examples.training
        rule = Rule(momentum=momentum, max_norm=training.clip_norm or 0.0)
        rule.joint = training.clip_scope == "joint"
        for p, moving in enumerate(spans):
            inside = self.plan.inside(moving.weights)
            rule.decay[p], rule.penalty[p] = moving.decay, moving.penalty
            rule.begin[p], rule.end[p] = inside.start, inside.stop
        return rule

    def _inside(self, flat: Tensor) -> Tensor:
        """Return rows of weights in the kernels' layout."""
        zero = flat.new_zeros((*flat.shape[:-1], 1))
        return torch.cat([flat, zero], -1)[..., self.into]

    def _outside(self, stacks: Mapping[str, Tensor], place: IntArray) -> dict[str, Tensor]:
        """Return the networks of all jobs in these places, copied out of the kernels' layout."""
        rows = trees.onto(place, self.device)[:, None]
        return {network: stack[rows, self.out_of] for network, stack in stacks.items()}

    def _parts(self, stacks: Mapping[str, Tensor], jobs: slice) -> Parts:
        """Return the networks of some jobs as parts."""
        return parts_of(self.anatomy, {network: stack[jobs] for network, stack in stacks.items()}, self.like)
