"""All clients' weights in one stack: what the ``torch.func`` trainer works on."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbac import gpu
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params, Parts, predict
from fedbac.core.requests import Kept, Train
from fedbac.core.settings import IntArray
from fedbac.gpu import update
from fedbac.local.batches import BatchTable
from fedbac.local.examples import Examples, Losses, kept, shares
from fedbac.local.stages import Stage, adamw_of, adamw_step, corrections
from fedbac.local.teaching import TeacherRows, distilled, joined_bank

GRAPH_SHRINK = 0.9
"""Captured prefixes shrink by this factor: at most a tenth of the clients in a step are idle, and graphs stay few."""

ROOM_SHRINK = 4
"""So much smaller are batches before they have a graph of their own: the last of an epoch are."""

Precision = Literal["float32", "tf32", "bf16"]


class Stack:
    """The clients' weights and momenta, and the batches of a round, in buffers that stay where they are."""

    def __init__(
        self,
        network: nn.Module,
        many: nn.Module,
        anatomy: Anatomy,
        examples: Examples,
        source: tuple[Tensor, Tensor],
        table: BatchTable,
        like: Train,
        precision: Precision,
    ) -> None:
        self.network, self.anatomy, self.examples, self.source = network, anatomy, examples, source
        self.many, self.precision = many, precision
        self.device = source[0].device
        num_phases, num_steps, self.capacity = table.count.shape
        self.num_steps = int(num_steps * 1.25)  # other rounds select clients with more data
        shape = (num_phases, self.num_steps, self.capacity)
        self.index = torch.zeros((*shape, examples.batch_room), dtype=torch.int64, device=self.device)
        self.count = torch.zeros(shape, dtype=torch.int64, device=self.device)
        distorted = self.index.shape if examples.augment else (*shape, 0)
        self.offset = torch.zeros((*distorted, 2), dtype=torch.int64, device=self.device)
        self.flip = torch.zeros(distorted, dtype=torch.bool, device=self.device)
        self.step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.rate_FA = torch.zeros((num_phases, self.capacity), device=self.device)
        self.loss_sum = torch.zeros(self.capacity, dtype=torch.float64, device=self.device)
        self.square_sum, self.first_F = torch.zeros_like(self.loss_sum), table.first_F
        self.epoch_sum = torch.zeros((self.capacity, table.first_F[-1]), dtype=torch.float64, device=self.device)
        self.per_epoch_A = torch.ones(self.capacity, dtype=torch.int64, device=self.device)
        self.keep: frozenset[Kept] = frozenset()
        self.parts = {
            part: {n: torch.zeros((self.capacity, *v.shape[1:]), device=self.device) for n, v in params.items()}
            for part, params in like.bank.items()
        }
        self.velocity = {
            part: {name: torch.zeros_like(value) for name, value in params.items() if name not in anatomy.buffers}
            for part, params in self.parts.items()
        }
        self.adam = adamw_of(examples.training)
        self.second = {part: trees.zeros(params) for part, params in self.velocity.items()} if self.adam else {}
        """The second moments of AdamW, whose first are in place of velocities."""
        self.shift = {part: trees.zeros(self.velocity[part]) for part in like.shift}
        """What is added to gradients, of the parts of which it ever was."""
        self.received: dict[str, Params] = {}
        """The networks that pull, as the clients received them."""
        self.teacher_rows: TeacherRows | None = None
        """The teachers of this round; kept for another with as many of them."""
        self.taught = False
        """Whether anybody learns from them in this round."""
        self.graphs: dict[tuple[int, int, int, frozenset[Kept], bool], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        """Memory that all graphs share: none needs what another left, and only one runs at a time."""
        self.position = torch.arange(examples.batch_room, device=self.device)

    def holds(self, table: BatchTable, requests: Sequence[Train]) -> bool:
        """Whether a round of this shape fits the buffers, and has the epochs and shifts that captured graphs know."""
        fits = table.count.shape[2] <= self.capacity and table.num_steps <= self.num_steps
        known = all(request.shift.keys() <= self.shift.keys() for request in requests)
        return fits and known and table.first_F == self.first_F

    def load(self, table: BatchTable, requests: Sequence[Train], order: IntArray, stages: Sequence[Stage]) -> None:
        """Put the start of a round in place; ``order`` says which client of all requests each row is."""
        steps, clients = table.num_steps, order.size
        self.count.zero_()  # rows beyond the clients of this round have nothing to do
        pairs = [(self.index, table.index), (self.count, table.count)]
        pairs += [(self.offset, table.offset)] if table.offset is not None else []
        pairs += [(self.flip, table.flip)] if table.flip is not None else []
        for buffer, values in pairs:
            buffer[:, :steps, :clients] = torch.from_numpy(values).to(self.device)
        rate_FJ = np.array([np.concatenate([r.rates(number) for r in requests]) for number in range(len(stages))])
        self.rate_FA[:, :clients] = torch.from_numpy(rate_FJ[:, order]).to(self.device)
        self.keep = kept(requests)
        self.per_epoch_A[:clients] = torch.from_numpy(np.maximum(table.per_epoch, 1)).to(self.device)
        for sums in (self.loss_sum, self.square_sum, self.epoch_sum):
            sums.zero_()
        self._bring_teachers(requests, order)
        for part, params in self.parts.items():
            distinct, row_J = self._starts(requests, part)
            rows = torch.from_numpy(row_J[order]).to(self.device)
            for name, value in params.items():
                value[:clients] = distinct[name][rows]
        for part, buffers in self.velocity.items():
            given = [request.momentum[part] for request in requests if request.momentum is not None]
            for name, value in buffers.items():
                if not given:
                    value.zero_()
                else:
                    rows = torch.from_numpy(order).to(self.device)
                    value[:clients] = torch.cat([momentum[name] for momentum in given]).to(self.device)[rows]
        place = torch.from_numpy(np.argsort(order)).to(self.device)
        for part, buffers in self.shift.items():
            for name, value in buffers.items():
                value.zero_()
                for request, share in zip(requests, shares(requests), strict=True):
                    if name in request.shift.get(part, {}):
                        value[place[share]] = request.shift[part][name].to(self.device)
        for network in {anchor for stage in stages for anchor in stage.anchors}:
            now = self.anatomy.assemble(self.parts, network)
            received = self.received.setdefault(network, trees.zeros(now))
            for name, value in received.items():
                value.copy_(now[name])

    def _bring_teachers(self, requests: Sequence[Train], order: IntArray) -> None:
        bank = joined_bank(requests)
        self.taught = bank is not None
        if bank is None:
            return
        if self.teacher_rows is None or self.teacher_rows.size != trees.count(bank):
            self.teacher_rows = TeacherRows(self.network, bank, self.capacity, self.device)
            self.graphs = {key: graph for key, graph in self.graphs.items() if not key[-1]}  # they knew the old one
        self.teacher_rows.load(requests, bank, order)

    def _starts(self, requests: Sequence[Train], part: str) -> tuple[Params, IntArray]:
        """Return the distinct starts of a part, and which of them each client of all requests has."""
        stacks: dict[tuple[int, bytes], tuple[int, Params]] = {}
        rows, total = [], 0
        for request in requests:
            used, place_C = np.unique(request.row_C[part], return_inverse=True)
            key = (id(request.bank[part]), used.tobytes())
            if key not in stacks:
                stacks[key] = total, trees.to(trees.select(request.bank[part], used), self.device)
                total += used.size
            rows.append(place_C + stacks[key][0])
        return trees.join([stack for _, stack in stacks.values()]), np.concatenate(rows)

    def begin_phase(self) -> None:
        """Begin a phase."""
        self.step.zero_()
        for tree in (self.velocity, self.second) if self.adam else ():
            for params in tree.values():
                for value in params.values():
                    value.zero_()

    def advance(self, number: int, stage: Stage, active: int, largest: int) -> None:
        """One SGD step of the first ``active`` clients, whose batches have at most ``largest`` examples."""
        rows, room = self.capacity, self.examples.batch_room
        if self.device.type != "cuda":
            self._step(number, stage, active, room)
            return
        while rows > 1 and (smaller := max(1, int(rows * GRAPH_SHRINK))) >= active:
            rows = smaller
        while room > 1 and (smaller := -(-room // ROOM_SHRINK)) >= largest:
            room = smaller
        key = number, rows, room, self.keep, self.taught and stage.taught
        if key not in self.graphs:
            self.graphs[key] = self._capture(lambda: self._step(number, stage, rows, room))
        self.graphs[key].replay()

    def losses(self, table: BatchTable) -> Losses:
        """Return the losses of the clients, as they lie in the stack."""
        clients, used = table.used.size, np.maximum(table.used, 1)
        visited = np.maximum(table.first_F[-1] * table.used, 1)
        square = self.square_sum[:clients].cpu().numpy() / visited if "square" in self.keep else None
        epochs = self.epoch_sum[:clients].cpu().numpy() / used[:, None] if "epochs" in self.keep else None
        return Losses(self.loss_sum[:clients].cpu().numpy() / visited, square, epochs)

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record the kernels of a step; trial runs before it, which libraries need, are undone."""
        tensors = [self.step, self.loss_sum, self.square_sum, self.epoch_sum]
        tensors += [
            v for tree in (self.parts, self.velocity, self.second) for params in tree.values() for v in params.values()
        ]
        saved, drawn = [tensor.clone() for tensor in tensors], torch.cuda.get_rng_state()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step.copy_(saved[0])  # no trial may run past the last step: the schedule ends there
                work()
        torch.cuda.current_stream().wait_stream(side)
        for tensor, value in zip(tensors, saved, strict=True):
            tensor.copy_(value)
        torch.cuda.set_rng_state(drawn)
        graph = torch.cuda.CUDAGraph()
        with _uncollected(), torch.cuda.graph(graph, pool=self.pool):
            work()
        return graph

    def _step(self, number: int, stage: Stage, rows: int, room: int) -> None:
        index_AB, count_A = self._now(self.index, number, rows)[:, :room], self._now(self.count, number, rows)
        weight_AB = (self.position[:room] < count_A[:, None]).float()
        pixels, labels = self.source
        x_AB = pixels[index_AB]
        if self.examples.augment is not None:
            offset, flip = self._now(self.offset, number, rows), self._now(self.flip, number, rows)
            x_AB = self.examples.augment.apply(x_AB, offset[:, :room], flip[:, :room])
        x_AB = self.examples.normalize(x_AB)
        networks = {n: self.anatomy.assemble(self.parts, n) for n in stage.networks}
        moving = {
            network: {name: networks[network][name][:rows] for part in parts for name in part.names}
            for network, parts in stage.moving.items()
        }
        still = {
            network: {name: value[:rows] for name, value in params.items() if name not in moving.get(network, {})}
            for network, params in networks.items()
        }

        def loss(
            moving: Parts, still: Parts, x: Tensor, y: Tensor, weight: Tensor, *target: Tensor
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            """Return what a client learns by, its mean cross-entropy over examples that count, and that of each."""

            def apply(network: str, x: Tensor) -> Tensor:
                params = {**still[network], **moving.get(network, {})}
                if self.precision == "bf16":
                    params = {name: value.bfloat16() for name, value in params.items()}
                    x = x.bfloat16() if x.is_floating_point() else x
                logits: Tensor = functional_call(self.many, params, (x,))
                return logits.float()

            logits = predict(self.anatomy.scheme, stage.terms, apply, x)
            loss_B = self.examples.loss.loss(logits, y, "none")

            def mean(values_B: Tensor) -> Tensor:
                return (values_B * weight).sum() / weight.sum().clamp(min=1)

            lost = mean(loss_B)
            return distilled(lost, logits, mean, *target) if target else lost, (lost, loss_B)

        taught = self.teacher_rows is not None and self.taught and stage.taught
        targets = self.teacher_rows.targets(x_AB) if self.teacher_rows is not None and taught else ()
        leaves = {network: {n: v.detach().requires_grad_() for n, v in p.items()} for network, p in moving.items()}
        together = vmap(loss, randomness="different")
        learned_A, (loss_A, loss_AB) = together(leaves, still, x_AB, labels[index_AB], weight_AB, *targets)
        gradient, loss_A, loss_AB = _gradient(learned_A, leaves), loss_A.detach(), loss_AB.detach()
        alive_A = count_A > 0  # rows of a captured prefix that have finished must not coast on
        self._move(number, stage, moving, gradient, count_A)
        lost_A = torch.where(alive_A, loss_A.double() * count_A, 0.0)
        self.loss_sum[:rows] += lost_A
        if "square" in self.keep:
            self.square_sum[:rows] += torch.where(weight_AB > 0, loss_AB.double().square(), 0.0).sum(1)
        if "epochs" in self.keep:
            epoch_A = (self.step // self.per_epoch_A[:rows]).clamp(max=stage.epochs - 1)  # of those that wait, the last
            self.epoch_sum[:rows].scatter_add_(1, self.first_F[number] + epoch_A[:, None], lost_A[:, None])
        self.step += 1

    def _move(self, number: int, stage: Stage, moving: Parts, gradient: Parts, count_A: Tensor) -> None:
        """Clip, and move the weights of the clients that have examples."""
        training, rows = self.examples.training, len(count_A)
        alive_A, rate_A = count_A > 0, self.rate_FA[number, :rows]
        velocity = {n: self.anatomy.assemble(self.velocity, n) for n in stage.moving}
        shift = {
            network: {k: v[:rows] for part in self.anatomy.parts[network] for k, v in self.shift.get(part, {}).items()}
            for network in moving
        }
        if self.device.type == "cuda" and gpu.available() and self.adam is None:
            joint = training.clip_scope == "joint"
            weights = [
                update.Weights(
                    moving[network][name], velocity[network][name][:rows], gradient[network][name],
                    None if part.anchor is None or not part.penalty else self.received[part.anchor][name][:rows],
                    shift[network].get(name), part.decay, part.penalty, 0 if joint else scope,
                )
                for scope, (network, parts) in enumerate(stage.moving.items())
                for part in parts
                for name in part.names
            ]  # fmt: skip
            update.step(weights, count_A, rate_A, stage.momentum, training.clip_norm)
            return
        for network, parts in stage.moving.items():
            for part in parts:
                for name in part.names if part.penalty else ():
                    weight = moving[network][name]
                    away = weight if part.anchor is None else weight - self.received[part.anchor][name][:rows]
                    gradient[network][name] = gradient[network][name] + part.penalty * away
        scale = dict.fromkeys(moving, alive_A.float())
        if training.clip_norm is not None:
            scopes = [list(moving)] if training.clip_scope == "joint" else [[network] for network in moving]
            for scope in scopes:
                pieces = [g.flatten(1) for network in scope for g in gradient[network].values()]
                norms = torch.stack([torch.linalg.vector_norm(piece, dim=1) for piece in pieces])
                factor_A = (training.clip_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
                scale |= dict.fromkeys(scope, torch.where(alive_A, factor_A, 0.0))
        if self.adam is not None:
            second = {n: self.anatomy.assemble(self.second, n) for n in stage.moving}
            corrected = [torch.as_tensor(one).float() for one in corrections(self.adam, (self.step + 1).double())]
        rate_A, coast_A = -rate_A * alive_A, torch.where(alive_A, stage.momentum, 1.0)
        for network, parts in stage.moving.items():
            for part in parts:
                for name in part.names:
                    weight, before = moving[network][name], velocity[network][name][:rows]
                    each = (-1, *[1] * (weight.dim() - 1))
                    push = torch.where(alive_A.reshape(each), gradient[network][name], 0.0)  # 0 · NaN is NaN
                    if self.adam is not None:
                        push = push * scale[network].reshape(each) + shift[network].get(name, 0.0)
                        moments = before, second[network][name][:rows]
                        adamw_step(self.adam, weight, moments, push, part.decay, -rate_A.reshape(each), corrected)
                        continue
                    before.mul_(coast_A.reshape(each)).addcmul_(push, scale[network].reshape(each))
                    if name in shift[network]:
                        before.addcmul_(shift[network][name], alive_A.float().reshape(each))
                    if part.decay:
                        before.addcmul_(weight, (part.decay * alive_A).reshape(each))
                    weight.addcmul_(before, rate_A.reshape(each))

    def _now(self, buffer: Tensor, number: int, rows: int) -> Tensor:
        return buffer[number, :, :rows].index_select(0, self.step)[0]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Hold the collector off: a graph of an earlier trainer that is freed in the middle would spoil a capture."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _gradient(loss_A: Tensor, leaves: Parts) -> Parts:
    """Return the gradient of each client's loss, with respect to weights of its own alone."""
    flat = [value for params in leaves.values() for value in params.values()]
    found = iter(torch.autograd.grad(loss_A.sum(), flat, materialize_grads=True) if flat else ())
    return {network: {name: next(found) for name in params} for network, params in leaves.items()}
