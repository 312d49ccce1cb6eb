"""The trainer for the paper's networks on a GPU: all clients in step, through kernels made for the network."""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import Structure, c_float, c_int, c_int32, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Personalization, Phase
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.settings import FloatArray, IntArray
from fedbac.gpu.driver import Module, current_stream, pointers
from fedbac.gpu.network import MAX_PARTS, Launch, Plan
from fedbac.local.examples import Examples, rates
from fedbac.native import Layers

LEAST_ROOM = 64
"""Examples per client that buffers have room for at least, so that evaluation does not go in tiny steps."""
SCORING_BYTES = 2**30
"""Memory for the networks times batches whose logits are computed at once."""
SCORED_AT_ONCE = 2**24
"""Networks times examples whose logits are kept until they are judged."""


def plan_for(layers: Layers, examples: Examples) -> Plan:
    """Return the kernels for a network and the batches that its clients have."""
    largest = max((mine.size for mine in examples.shards.train), default=1)
    batch = min(examples.training.batch_size, largest)
    return Plan(layers, max(batch, LEAST_ROOM), float_pixels=examples.normalization is None)


class Sgd(Structure):
    """As in ``kernels.cu``."""

    _fields_ = (
        ("rate", c_float),
        ("momentum", c_float),
        ("max_norm", c_float),
        ("joint", c_int),
        ("decay", c_float * MAX_PARTS),
        ("penalty", c_float * MAX_PARTS),
        ("moves", c_int * MAX_PARTS),
    )


class FusedTrainer:
    """Trains the clients of all requests in step: those with most batches first, so that the active ones lead."""

    def __init__(
        self, network: nn.Module, scheme: Personalization, examples: Examples, plan: Plan, device: torch.device
    ) -> None:
        self.path = "cuda-fused"
        self.device = device
        self.examples, self.scheme, self.plan = examples, scheme, plan
        self.like: Params = {name: value.detach() for name, value in network.named_parameters()}
        self.stream = current_stream
        self.module = Module(plan.source)
        self.kernels = {
            launch.name: self.module.kernel(launch.name, launch.shared) for launch in [*plan.training, *plan.scoring]
        }
        self.judge = self.module.kernel("judge")
        self.source = {
            split: (self._seen(pixels).to(device), labels.to(device, torch.int32))
            for split in ("train", "test")
            for pixels, labels in [examples.source("test" if split == "test" else "train")]
        }
        mean, deviation = examples.normalization or (np.zeros(1), np.ones(1))
        self.seen = torch.from_numpy(np.stack([1 / (255 * deviation), -mean / deviation], 1)).float().to(device)
        positions = plan.positions()
        used = np.flatnonzero(positions >= 0)
        self.into = torch.from_numpy(np.where(positions < 0, used.size, positions)).to(device)
        self.out_of = torch.from_numpy(used[np.argsort(positions[used])]).to(device)
        self.room = Room(plan, 0, device)
        self.bytes_per_client = len(scheme.scopes) * (plan.row_bytes + 4 * plan.size)

    def _seen(self, pixels: Tensor) -> Tensor:
        """Return images as the kernels read them: uint8, or floats of four bytes."""
        return (pixels.float() if self.plan.float_pixels else pixels).contiguous()

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests; all belong to the same edge round."""
        phases, first = self.scheme.phases(), requests[0]
        request_of = np.repeat(np.arange(len(requests)), [len(request.clients) for request in requests])
        clients = np.concatenate([request.clients for request in requests])
        schedule = Schedule(self.examples, clients, first, len(phases))
        order, parts = schedule.order, len(self.scheme.scopes)
        rows = len(clients) * parts
        self._make_room(rows)
        self._load(requests, request_of[order], order)
        self.room.loss.zero_()
        work = self._work(
            schedule.visits, self.source["train"], self.room.weights, parts, self.examples.training.batch_size
        )
        for name in ("loss", "velocity", "gradient", "partial", "squares"):
            setattr(work.buffers, name, getattr(self.room, name).data_ptr())
        work.point("out", self.room.out)
        work.point("back", self.room.back)
        work.point("winner", self.room.winner)
        work.keep("crop", schedule.crop)
        work.keep("flip", schedule.flip)
        work.keep("slots", np.arange(rows, dtype=np.int32))
        for number, phase in enumerate(phases):
            work.keep("jobs", schedule.jobs(number))
            work.sgd = self._sgd(phase, first.learning_rate)
            arguments, stream = pointers([work.buffers, work.sgd, work.step]), self.stream()
            for step in range(schedule.num_steps):
                work.step.value = step
                self._launch(self.plan.training, parts * schedule.active[step], stream, arguments)
        seen_C = np.maximum(schedule.seen, 1)
        loss_C = self.room.loss[: len(clients)].sum(1).cpu().numpy() / seen_C
        place = np.argsort(order)
        out, begin = [], 0
        for request in requests:
            mine = place[begin : begin + len(request.clients)]
            begin += len(request.clients)
            kept = None if request.momentum is None else self._parts(self.room.velocity, mine)
            out.append(Trained(self._parts(self.room.weights, mine), loss_C[mine], kept))
        return out

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests, each distinct network once per example of a request."""
        measured: dict[int, Measured] = {}
        for test in (False, True):
            together: dict[int, tuple[Evaluate, list[IntArray]]] = {}
            scored = 0
            for r, request in enumerate(requests):
                if (request.split == "test") != test:
                    continue
                groups = self.examples.groups(request)
                scored += len(request.models) * len(self.scheme.scopes) * sum(group.size for group in groups)
                together[r] = request, groups
                if scored > SCORED_AT_ONCE:
                    measured |= zip(together, self._evaluate(list(together.values())), strict=True)
                    together, scored = {}, 0
            measured |= zip(together, self._evaluate(list(together.values())), strict=True)
        return [measured[r] for r in range(len(requests))]

    def close(self) -> None:
        """Let go of the buffers."""
        self.room = Room(self.plan, 0, self.device)

    def _evaluate(self, requests: Sequence[tuple[Evaluate, list[IntArray]]]) -> Iterator[Measured]:
        """Evaluate requests about one split, given with their groups of examples."""
        if not requests:
            return
        batch, parts = self.plan.room, list(self.scheme.scopes)
        table: dict[int, tuple[int, Params]] = {}
        examples, jobs, slots = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)], [np.zeros(0, np.int64)]
        pairs, counts = [], []
        seen = scored = 0
        for request, groups in requests:
            count_G = np.array([group.size for group in groups], dtype=np.int64)
            begin_G, total = np.cumsum(count_G) - count_G, int(count_G.sum())
            examples += groups
            logits_at: dict[int, int] = {}
            for model in request.models:
                for part in parts:
                    slot = table.setdefault(id(model[part]), (len(table), model[part]))[0]
                    if slot not in logits_at:
                        logits_at[slot] = scored
                        start_J = np.arange(0, total, batch)
                        size_J = np.minimum(batch, total - start_J)
                        jobs.append(np.stack([seen + start_J, scored + start_J, size_J, np.ones_like(size_J)], 1))
                        slots.append(np.full(start_J.size, slot))
                        scored += total
            at_VP = np.array([[logits_at[table[id(model[part])][0]] for part in parts] for model in request.models])
            shape = (len(request.models), count_G.size)
            columns = [np.broadcast_to(seen + begin_G, shape), np.broadcast_to(count_G, shape)]
            columns += [at_VP[:, p, None] + begin_G for p in range(len(parts))]
            pairs.append(np.stack(columns, -1).reshape(-1, 2 + len(parts)))
            counts.append((shape, count_G))
            seen += total
        split = self.source["test" if requests[0][0].split == "test" else "train"]
        networks = self._inside(torch.stack([trees.ravel(params).to(self.device) for _, params in table.values()]))
        arrays = [np.concatenate(list(pieces)) for pieces in (examples, jobs, slots, pairs)]
        loss, correct = self._score(split, networks, *arrays)
        begin = 0
        for shape, count_G in counts:
            rows = slice(begin, begin + shape[0] * shape[1])
            begin = rows.stop
            loss_VG, accuracy_VG = rates(correct[rows].reshape(shape), loss[rows].reshape(shape), count_G)
            yield Measured(loss_VG, accuracy_VG, count_G)

    def _score(
        self, split: tuple[Tensor, Tensor], networks: Tensor, examples: NDArray[Any], jobs: NDArray[Any],
        slots: NDArray[Any], pairs: NDArray[Any],
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """Return the summed loss and the correct answers of every pair of a model and a group of examples."""
        at_once = max(1, SCORING_BYTES // max(self.plan.scoring_bytes, 1))
        room = ScoringRoom(self.plan, min(len(jobs), at_once), self.device)
        num_scored = int((jobs[:, 1] + jobs[:, 2]).max(initial=0))
        logits = torch.empty((num_scored, self.plan.linears[-1].outputs), device=self.device)
        work = self._work(examples, split, networks, 1, self.plan.room)
        work.point("out", room.out)
        work.point("winner", room.winner)
        work.buffers.logits = logits.data_ptr()
        arguments, stream = pointers([work.buffers, work.sgd, work.step]), self.stream()
        for start in range(0, len(jobs), at_once):
            some = slice(start, start + at_once)
            work.keep("jobs", jobs[some].astype(np.int32))
            work.keep("slots", slots[some].astype(np.int32))
            self._launch(self.plan.scoring, len(jobs[some]), stream, arguments)
        loss = torch.zeros(len(pairs), dtype=torch.float64, device=self.device)
        correct = torch.zeros(len(pairs), dtype=torch.int32, device=self.device)
        table = torch.from_numpy(np.ascontiguousarray(pairs, dtype=np.int64)).to(self.device)
        tensors = [logits, work.kept["visits"], split[1], table, loss, correct]
        values: list[Any] = [c_void_p(tensor.data_ptr()) for tensor in tensors]
        values.insert(4, c_int(pairs.shape[1] - 2))
        if len(pairs):
            self.module.launch(self.judge, (len(pairs), 1, 1), 128, 0, self.stream(), pointers(values))
        return loss.cpu().numpy(), correct.cpu().numpy().astype(np.float64)

    def _work(
        self, visits: NDArray[Any], split: tuple[Tensor, Tensor], weights: Tensor, parts: int, batch: int
    ) -> "Work":
        work = Work(_buffers_type(len(self.plan.levels))(), self.device)
        work.keep("visits", visits.astype(np.int32))
        for name, tensor in {"pixels": split[0], "labels": split[1], "seen": self.seen, "weights": weights}.items():
            setattr(work.buffers, name, tensor.data_ptr())
        work.buffers.parts, work.buffers.batch = parts, batch
        return work

    def _launch(self, launches: Sequence[Launch], rows: int, stream: c_void_p, arguments: Any) -> None:
        for launch in launches:
            grid = (rows, launch.y, launch.z)
            self.module.launch(self.kernels[launch.name], grid, launch.threads, launch.shared, stream, arguments)

    def _sgd(self, phase: Phase, rate: float) -> Sgd:
        training = self.examples.training
        sgd = Sgd(rate=rate, momentum=training.momentum, max_norm=training.clip_norm or 0.0)
        sgd.joint = training.clip_scope == "joint"
        for p, part in enumerate(self.scheme.scopes):
            sgd.decay[p] = training.weight_decay + phase.decay.get(part, 0.0)
            sgd.penalty[p] = phase.penalty.get(part, 0.0)
            sgd.moves[p] = part in phase.moves
        return sgd

    def _make_room(self, rows: int) -> None:
        if rows > self.room.rows:
            self.room = Room(self.plan, 0, self.device)  # the old one goes before the new one comes
            self.room = Room(self.plan, rows, self.device)

    def _load(self, requests: Sequence[Train], request_of: NDArray[Any], order: NDArray[Any]) -> None:
        """Put every client's start, and its momentum, in its place."""
        parts = list(self.scheme.scopes)
        flat = [torch.stack([trees.ravel(request.start[part]) for part in parts]) for request in requests]
        start_RPD = self._inside(torch.stack(flat).to(self.device))
        place = torch.from_numpy(request_of).to(self.device)
        self.room.view(self.room.weights, len(order), len(parts)).copy_(start_RPD[place])
        velocity = self.room.view(self.room.velocity, len(order), len(parts))
        if requests[0].momentum is None:
            velocity.zero_()
            return
        kept = [
            torch.stack([torch.cat([v.flatten(1) for v in momentum[part].values()], 1) for part in parts], 1)
            for momentum in (request.momentum for request in requests)
            if momentum is not None
        ]
        velocity.copy_(self._inside(torch.cat(kept).to(self.device)[torch.from_numpy(order).to(self.device)]))

    def _inside(self, flat: Tensor) -> Tensor:
        """Return rows of weights in the kernels' layout."""
        zero = flat.new_zeros((*flat.shape[:-1], 1))
        return torch.cat([flat, zero], -1)[..., self.into]

    def _parts(self, stack: Tensor, jobs: NDArray[Any]) -> Parts:
        """Return the networks of some jobs, copied out of the kernels' layout."""
        names = list(self.scheme.scopes)
        rows = torch.from_numpy(jobs).to(self.device)
        view = stack[: stack.shape[0] // len(names) * len(names)].view(-1, len(names), self.plan.size)
        return {
            part: trees.unravel(view[rows, p].index_select(1, self.out_of), self.like) for p, part in enumerate(names)
        }


class Schedule:
    """Which examples the clients visit: those with most batches first."""

    def __init__(self, examples: Examples, clients: NDArray[Any], request: Train, num_phases: int) -> None:
        self.epochs = examples.training.epochs
        size_C = np.array([examples.shards.train[client].size for client in clients], dtype=np.int64)
        batches = {size: examples.batches(size) for size in set(size_C.tolist())}
        used_C = np.array([batches[size][-1].stop if batches[size] else 0 for size in size_C.tolist()], dtype=np.int64)
        per_epoch_C = np.array([len(batches[size]) for size in size_C.tolist()], dtype=np.int64)
        self.order = np.argsort(-per_epoch_C, kind="stable")
        visits = [
            examples.visits(client, request.round, request.edge_round, num_phases) for client in clients[self.order]
        ]
        self.visits = np.concatenate([visit.reshape(-1) for visit in visits])
        self.size_C, self.used_C, self.per_epoch_C = size_C[self.order], used_C[self.order], per_epoch_C[self.order]
        self.seen = num_phases * self.epochs * self.used_C
        total_C = num_phases * self.epochs * self.size_C
        self.first_C = np.cumsum(total_C) - total_C
        self.num_steps = int(self.epochs * self.per_epoch_C.max(initial=0))
        steps = np.arange(self.num_steps)
        self.active = (self.epochs * self.per_epoch_C[:, None] > steps).sum(0).tolist()
        self.crop: NDArray[Any] | None = None
        self.flip: NDArray[Any] | None = None
        if examples.augment is not None:
            drawn = [
                examples.distortions(client, request.round, request.edge_round, visit)
                for client, visit in zip(clients[self.order], visits, strict=True)
            ]
            offsets = np.concatenate([pair[0].reshape(-1, 2).numpy() for pair in drawn if pair is not None])
            self.crop = (offsets - examples.augment.crop_padding).astype(np.int8)
            self.flip = np.concatenate([pair[1].reshape(-1).numpy() for pair in drawn if pair is not None])

    def jobs(self, phase: int) -> NDArray[np.int32]:
        """Return what the kernels need to find a client's batch at any step of a phase."""
        first_C = self.first_C + phase * self.epochs * self.size_C
        return np.stack([first_C, self.size_C, self.used_C, self.per_epoch_C], 1).astype(np.int32)


class ScoringRoom:
    """The outputs of convolutions on the way to logits."""

    def __init__(self, plan: Plan, rows: int, device: torch.device) -> None:
        sizes = plan.levels[: len(plan.convolutions)]
        self.out = [torch.empty((rows, plan.room, size), device=device) for size in sizes]
        self.winner = [torch.empty((rows, plan.room, size), dtype=torch.uint8, device=device) for size in sizes]


class Room:
    """The clients' weights and everything computed on the way, in buffers that stay where they are."""

    def __init__(self, plan: Plan, rows: int, device: torch.device) -> None:
        self.rows, self.plan = rows, plan

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        self.weights, self.velocity, self.gradient = (room(plan.size) for _ in range(3))
        self.partial = room(plan.chunks, plan.conv_size)
        self.squares = room(plan.slices)
        self.loss = room(plan.groups, dtype=torch.float64)
        self.out = [room(plan.room, size) for size in plan.levels]
        self.back = [room(plan.room, size) for size in plan.levels]
        self.winner = [room(plan.room, size, dtype=torch.uint8) for size in plan.levels[: len(plan.convolutions)]]

    def view(self, stack: Tensor, jobs: int, parts: int) -> Tensor:
        """Return the first rows as [job, part, weight]."""
        return stack[: jobs * parts].view(jobs, parts, self.plan.size)


@dataclass
class Work:
    """The arguments of a row of launches, and the tensors they point to."""

    buffers: Any
    device: torch.device

    def __post_init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self.sgd = Sgd()
        self.step = c_int32(0)

    def keep(self, name: str, values: NDArray[Any] | None) -> None:
        """Bring an array to the device and point a field to it; without values the kernels do without."""
        if values is not None:
            self.kept[name] = torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
            setattr(self.buffers, name, self.kept[name].data_ptr())

    def point(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Point the entries of an array of fields to tensors, one per layer."""
        for level, tensor in enumerate(tensors):
            getattr(self.buffers, name)[level] = tensor.data_ptr()


def _buffers_type(levels: int) -> type[Structure]:
    """``Buffers`` of ``kernels.cu`` for a network of so many layers."""
    names = ["pixels", "labels", "seen", "visits", "crop", "flip", "jobs", "slots", "weights", "velocity", "gradient"]
    names += ["partial", "squares", "loss", "logits"]
    fields: list[tuple[str, Any]] = [(name, c_void_p) for name in names]
    fields += [(name, c_void_p * levels) for name in ("out", "back", "winner")]
    return type("Buffers", (ctypes.Structure,), {"_fields_": [*fields, ("parts", c_int), ("batch", c_int)]})
