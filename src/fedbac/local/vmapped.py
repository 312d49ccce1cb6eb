"""All clients at once through ``torch.func``: the trainer for a GPU, and for any network.

Clients lie in one stack, those with the most steps first, so that the clients that still have a batch are a prefix.
On a GPU a step of such a prefix is captured once in a CUDA graph that reads its batch from a table on the device:
a round is a row of replays, without a Python call per layer.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedbac import gpu
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params, Parts, Personalization, Stepping, predict
from fedbac.core.requests import Evaluate, Kept, Measured, Train, Trained
from fedbac.core.rng import torch_seed
from fedbac.core.runtime import draws, kernels, seeded
from fedbac.core.settings import FloatArray, IntArray
from fedbac.errors import ConfigError
from fedbac.gpu import update
from fedbac.local.batch_norm import counters, counting, gathered, judges_by_batches
from fedbac.local.batches import BatchTable, Seat, Visits
from fedbac.local.captured import captured, prefix
from fedbac.local.examples import Examples, Losses, cells, kept, rates, shares
from fedbac.local.folding import for_many, why_alone
from fedbac.local.loop import at_once, at_rest, distilled, distinct, recall, too_small
from fedbac.local.own_steps import OwnSteps
from fedbac.local.per_example import PerExample, drawn
from fedbac.local.stages import Stage, adamw_of, adamw_step, corrections, stages_now, stages_of
from fedbac.models import duplicate, weights

ROOM_SHRINK = 4
"""So much smaller are batches before they have a graph of their own: the last of an epoch are."""

Precision = Literal["float32", "tf32", "bf16"]


class TeacherBuffers:
    """The teachers of all clients of a stack, in buffers that stay where they are."""

    def __init__(self, network: nn.Module, bank: Params, capacity: int, device: torch.device) -> None:
        self.network = at_rest(network)
        self.many = for_many(self.network) if judges_by_batches(network) else None
        """For teachers whose predictions depend on the batch, which is then that of each client."""
        self.size = trees.count(bank)
        self.bank = {name: torch.zeros(value.shape, device=device) for name, value in bank.items()}
        self.weight_AT = torch.zeros((capacity, self.size), device=device)
        self.share_A, self.temperature_A = torch.zeros(capacity, device=device), torch.ones(capacity, device=device)

    def load(self, requests: Sequence[Train], bank: Params, order: IntArray) -> None:
        """Put the teachers of a round in place; ``order`` says which client of all requests each row is."""
        for name, value in self.bank.items():
            value.copy_(bank[name])
        weight_JT, share_J, temperature_J = np.zeros((order.size, self.size)), np.zeros(order.size), np.ones(order.size)
        first: dict[int, int] = {}  # where each bank begins among the teachers of all requests
        end = 0
        for request, mine in zip(requests, shares(requests), strict=True):
            if (teachers := request.teachers) is None:
                continue
            at = first.setdefault(id(teachers.bank), end)
            end = max(end, at + teachers.weight_CT.shape[1])
            weight_JT[mine, at : at + teachers.weight_CT.shape[1]] = teachers.weight_CT * (teachers.shares > 0)[:, None]
            share_J[mine], temperature_J[mine] = teachers.shares, teachers.temperature
        pairs = (self.weight_AT, weight_JT), (self.share_A, share_J), (self.temperature_A, temperature_J)
        for buffer, values in pairs:
            buffer[: order.size] = torch.from_numpy(values[order]).to(buffer.device)

    @torch.no_grad()
    def targets(self, x_AB: Tensor, counts_AB: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the teachers of the first clients predict for their batches, with λ and τ of each."""
        rows = len(x_AB)
        temperature_A, target_AB = self.temperature_A[:rows], torch.zeros((), device=x_AB.device)
        for t in range(self.size):
            logits = self._logits(trees.take(self.bank, t), x_AB, counts_AB)
            score_AB = torch.softmax(logits.reshape(*x_AB.shape[:2], -1) / temperature_A[:, None, None], -1)
            weight_A = self.weight_AT[:rows, t, None, None]
            # One who is broken may have no weight: 0 · NaN is NaN.
            target_AB = target_AB + torch.where(weight_A > 0, weight_A * score_AB, 0.0)
        return target_AB, self.share_A[:rows], temperature_A

    def _logits(self, teacher: Params, x_AB: Tensor, counts_AB: Tensor) -> Tensor:
        if self.many is None:
            found: Tensor = functional_call(self.network, teacher, (x_AB.flatten(0, 1),))
            return found
        many = self.many

        def of_client(x: Tensor, counts: Tensor) -> Tensor:
            with counting(counts):
                logits: Tensor = functional_call(many, teacher, (x,))
            return logits

        return vmap(of_client)(x_AB, counts_AB)


def joined_bank(requests: Sequence[Train]) -> Params | None:
    """Return the teachers of all requests, each bank once; None where nobody learns from them."""
    teachers = [request.teachers for request in requests if request.teachers is not None]
    if not any(one.shares.any() for one in teachers):
        return None
    return trees.join(list({id(one.bank): one.bank for one in teachers}.values()))


class Stack:
    """The clients' weights and momenta, and the batches of a round, in buffers that stay where they are."""

    def __init__(self, trainer: "VmapTrainer", table: BatchTable, like: Train) -> None:
        self.network, self.anatomy, self.source = trainer.network, trainer.anatomy, trainer.source["train"]
        self.many, self.precision, self.device = trainer.many, trainer.precision, trainer.device
        self.examples = examples = trainer.examples
        self.gradients = trainer.gradients
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
            part: {name: torch.zeros_like(value) for name, value in params.items() if name not in self.anatomy.buffers}
            for part, params in self.parts.items()
        }
        self.gathered = trainer.gathered
        """The names of statistics, which keep their precision."""
        self.counters = {
            network: {n: v.to(self.device).repeat(self.capacity) for n, v in counters(self.network).items()}
            for network in self.anatomy.networks
        }
        """How many batches layers have seen, as far as their statistics depend on it."""
        self.adam = adamw_of(examples.training)
        self.second = {part: trees.zeros(params) for part, params in self.velocity.items()} if self.adam else {}
        """The second moments of AdamW, whose first are in place of velocities."""
        self.shift = {part: trees.zeros(self.velocity[part]) for part in like.shift}
        """What is added to gradients, of the parts of which it ever was."""
        self.received: dict[str, Params] = {}
        """The networks that pull, as the clients received them."""
        self.teacher_rows: TeacherBuffers | None = None
        """The teachers of this round; kept for another with as many of them."""
        self.taught = False
        """Whether anybody learns from them in this round."""
        self.graphs: dict[tuple[int, int, int, frozenset[Kept], bool], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        """Memory that all graphs share: none needs what another left, and only one runs at a time."""
        self.position = torch.arange(examples.batch_room, device=self.device)
        wide = sum(value[0].numel() for params in self.velocity.values() for value in params.values())
        self.noise_AD = torch.zeros((self.capacity, 0 if self.gradients is None else wide), device=self.device)
        """The noise of the next step, where the gradients of examples are private."""

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
        for seen in self.counters.values():
            for name, value in counters(self.network).items():
                seen[name].copy_(value)
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
            self.teacher_rows = TeacherBuffers(self.network, bank, self.capacity, self.device)
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
        room = self.examples.batch_room
        if self.device.type != "cuda":
            self._step(number, stage, active, room)
            return
        rows = prefix(self.capacity, active)
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
        tensors = [self.step, self.loss_sum, self.square_sum, self.epoch_sum]
        tensors += [
            value
            for tree in (self.parts, self.velocity, self.second, self.counters)
            for params in tree.values()
            for value in params.values()
        ]
        return captured(work, self.device, self.pool, tensors)

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
        theirs = self._gathered_by_others(stage)
        moving = {
            network: {name: networks[network][name][:rows] for part in parts for name in part.names}
            for network, parts in stage.moving.items()
        }
        still = {
            network: {
                name: value[:rows] if (network, name) not in theirs else value[:rows].clone()
                for name, value in (params | self.counters[network]).items()
                if name not in moving.get(network, {})
            }
            for network, params in networks.items()
        }

        taught = self.teacher_rows is not None and self.taught and stage.taught
        targets = self.teacher_rows.targets(x_AB, weight_AB) if self.teacher_rows is not None and taught else ()
        batch = (x_AB, labels[index_AB], weight_AB)
        if self.gradients is None:
            leaves = {network: {n: v.detach().requires_grad_() for n, v in p.items()} for network, p in moving.items()}
            learned_A, loss_A, loss_AB = self._losses(stage, leaves, still, *batch, targets)
            gradient, loss_A, loss_AB = _gradient(learned_A, leaves), loss_A.detach(), loss_AB.detach()
        else:
            gradient_AB, loss_AB = _by_example(self._loss(stage), moving, still, *batch, *targets)
            loss_A = (loss_AB * weight_AB).sum(1) / count_A.clamp(min=1)
            gradient = self.gradients.noised(self.gradients.summed(gradient_AB), self.noise_AD, count_A)
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

    def _gathered_by_others(self, stage: Stage) -> set[tuple[str, str]]:
        """Return the networks and names of statistics that another one, which runs too, gathers for both."""
        networks = {part: self.anatomy.scheme.parts[part].networks for part in self.parts}
        first = {part: next((n for n in own if n in stage.networks), None) for part, own in networks.items()}
        return {
            (network, name)
            for part, own in networks.items()
            for network in own
            for name in self.anatomy.weights[part]
            if network != first[part] and name in self.gathered
        }

    def _losses(
        self, stage: Stage, moving: Parts, still: Parts, x_AB: Tensor, y_AB: Tensor, weight_AB: Tensor,
        targets: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return what each client learns by, its mean loss over examples that count, and that of each example."""
        together = vmap(self._loss(stage), randomness="different")
        learned_A, (loss_A, loss_AB) = together(moving, still, x_AB, y_AB, weight_AB, *targets)
        return learned_A, loss_A, loss_AB

    def _loss(self, stage: Stage) -> Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]:
        """Return what computes the same for one client."""

        def loss(
            moving: Parts, still: Parts, x: Tensor, y: Tensor, weight: Tensor, *target: Tensor
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            def apply(network: str, x: Tensor) -> Tensor:
                params = {**still[network], **moving.get(network, {})}
                if self.precision == "bf16":
                    exact = self.gathered | self.counters[network].keys()
                    params = {name: value if name in exact else value.bfloat16() for name, value in params.items()}
                    x = x.bfloat16() if x.is_floating_point() else x
                logits: Tensor = functional_call(self.many, params, (x,))
                return logits.float()

            with counting(weight):
                logits = predict(self.anatomy.scheme, stage.terms, apply, x)
            loss_B = self.examples.loss.loss(logits, y, "none")

            def mean(values_B: Tensor) -> Tensor:
                return (values_B * weight).sum() / weight.sum().clamp(min=1)

            lost = mean(loss_B)
            return distilled(lost, logits, mean, *target) if target else lost, (lost, loss_B)

        return loss

    def _move(self, number: int, stage: Stage, moving: Parts, gradient: Parts, count_A: Tensor) -> None:
        """Clip, and move the weights of the clients that have examples."""
        training, rows = self.examples.training, len(count_A)
        alive_A, rate_A = count_A > 0, self.rate_FA[number, :rows]
        velocity = {n: self._joined(self.velocity, n) for n in stage.moving}
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
            second = {n: self._joined(self.second, n) for n in stage.moving}
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

    def _joined(self, moments: Parts, network: str) -> Params:
        """Return what a network's parts have of moments; statistics have none."""
        return {name: value for part in self.anatomy.parts[network] for name, value in moments[part].items()}

    def _now(self, buffer: Tensor, number: int, rows: int) -> Tensor:
        return buffer[number, :, :rows].index_select(0, self.step)[0]


def _by_example(
    loss: Callable[..., Any],
    moving: Parts,
    still: Parts,
    x_AB: Tensor,
    y_AB: Tensor,
    weight_AB: Tensor,
    *target: Tensor,
) -> tuple[Parts, Tensor]:  # fmt: skip
    """Return the gradient of each example of each client, and its loss; those that do not count have none."""

    def alone(moving: Parts, still: Parts, x: Tensor, y: Tensor, weight: Tensor, *target: Tensor) -> Any:
        mine = (target[0][None], *target[1:]) if target else ()
        learned, (_, loss_B) = loss(moving, still, x[None], y[None], weight[None], *mine)
        return learned, loss_B[0]

    of_client = vmap(
        grad(alone, has_aux=True), (None, None, 0, 0, 0, *(0, None, None)[: len(target)]), randomness="different"
    )
    gradient_AB, loss_AB = vmap(of_client, randomness="different")(moving, still, x_AB, y_AB, weight_AB, *target)
    return gradient_AB, loss_AB.detach()


def _gradient(loss_A: Tensor, leaves: Parts) -> Parts:
    """Return the gradient of each client's loss, with respect to weights of its own alone."""
    flat = [value for params in leaves.values() for value in params.values()]
    found = iter(torch.autograd.grad(loss_A.sum(), flat, materialize_grads=True) if flat else ())
    return {network: {name: next(found) for name in params} for network, params in leaves.items()}


EVALUATION_BATCH = 2048
WEIGHT_COPIES, CAPTURED_COPIES, ON_THE_WAY = 6, 3, 1.5
"""What a client takes in training: so often its weights (with momentum, gradients, and the copy that comes back), more
often where a scheme's own gradients are captured, and so often what its networks keep of a batch until gradients are
taken."""


class VmapTrainer:
    """Trains the clients of all requests in step."""

    name = "torch-vmap"

    def __init__(
        self,
        network: nn.Module,
        scheme: Personalization,
        examples: Examples,
        device: torch.device,
        precision: Precision = "float32",
        gradients: PerExample | None = None,
    ) -> None:
        found = why_alone(network, examples)
        if gradients is not None and any(True for _ in network.buffers()):
            found = (
                "it has buffers (such as those of batch normalization), so its examples have no gradients of their own"
            )
        if found is not None:
            raise ConfigError(f"network: {found}; use --device cpu, or group normalization")
        self.path = f"{self.name}-{device.type}" + ("" if precision == "float32" else f"-{precision}")
        self.examples, self.gradients = examples, gradients
        self.scheme = scheme
        here = duplicate(network) if device.type == "cpu" else copy.deepcopy(network).to(device)
        self.network, self.precision = here, precision
        self.many = self._for_many(self.network)
        self.anatomy = Anatomy(scheme, network)
        self.stages = stages_of(self.anatomy, examples.training)
        self.device = device
        self.source = {"train": examples.source("train", device), "test": examples.source("test", device)}
        self.drawing = draws(self.network, examples.some().to(device))
        self.gathered, self.by_batches = gathered(network), judges_by_batches(network)
        self.stack: Stack | None = None
        own = isinstance(scheme, Stepping)
        self.own = OwnSteps(self.network, scheme, examples, device, together=True) if own else None
        self.visits = Visits(examples)
        size = sum(4 * value.numel() for value in weights(network).values())
        copies = WEIGHT_COPIES + (adamw_of(examples.training) is not None)  # and second moments
        copies += 0 if gradients is None else examples.batch_room
        copies += 0 if self.own is None else CAPTURED_COPIES
        each = copies * size + ON_THE_WAY * examples.batch_room * self._bytes_per_example()
        self.bytes_per_client = int(len(self.anatomy.networks) * each)

    def _bytes_per_example(self) -> float:
        """Return what a network keeps of an example until its gradient is taken, found by a look at two."""
        x = self.examples.normalize(self.source["train"][0][:2])
        self.many.train(True)
        own = {n: v.clone()[None] for n, v in (weights(self.network) | counters(self.network)).items()}
        for name in own.keys() & dict(self.network.named_parameters()):
            own[name].requires_grad_()
        held = x, *own.values(), *self.network.parameters()
        known = {value.untyped_storage().data_ptr() for value in held}
        kept: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            storage = value.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return value

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
        with hooks, kernels(exact=True), seeded(0, device=self.device):
            # The result is held until all is counted: a place that was freed would be counted once for two.
            result = self._outputs(own, x) if len(x) else None
        del result
        return sum(size for place, size in kept.items() if place not in known) / max(len(x), 1)

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests in one stack, each at the moment and the rate of its own request."""
        if self.own is not None:
            return self.own.train(requests)
        jobs = [(request, c) for request in requests for c in range(len(request.clients))]
        sizes = [self.examples.shards.train[request.clients[c]].size for request, c in jobs]
        order = np.argsort([-size for size in sizes], kind="stable")
        stages = stages_now(self.stages, requests)
        table = BatchTable(self.examples, [jobs[j] for j in order], stages, self.visits)
        self._refuse_single(table, jobs, order)
        if self.stack is None or not self.stack.holds(table, requests):
            self.stack = None  # the old one goes before the new one comes
            self.stack = self._stacked(table, requests[0])
        stack = self.stack
        stack.load(table, requests, order, stages)
        noise = (
            [] if self.gradients is None else [one for request in requests for one in self.gradients.streams(request)]
        )
        self.many.train(True)
        # Layers such as dropout draw once for all clients of a step, so that they can have but one seed.
        seed = torch_seed(self.examples.seed, "dropout", requests[0].round, requests[0].edge_round)
        with kernels(self.precision == "float32"), seeded(seed, self.drawing, self.device):
            for number, stage in enumerate(stages):
                stack.begin_phase()
                for step in range(table.steps_FC[number].max(initial=0)):
                    active = table.active(number, step)
                    if noise:
                        stack.noise_AD[:active] = drawn([noise[j] for j in order[:active]], stack.noise_AD.shape[1])
                    stack.advance(number, stage, active, table.largest(number, step))
        self.visits.prefetch(requests, {stage.epochs for stage in stages})  # before the host waits for the device
        losses = stack.losses(table)
        rank, out = np.argsort(order), []
        for request, share in zip(requests, shares(requests), strict=True):
            rows = rank[share]
            at = torch.as_tensor(rows, device=self.device)
            kept = None if request.momentum is None else trees.part_rows(stack.velocity, at)
            out.append(losses.of(request, rows, trees.part_rows(stack.parts, at), kept))
        return out

    def _refuse_single(self, table: BatchTable, jobs: Sequence[Seat], order: IntArray) -> None:
        """Refuse batches of one example where the network cannot learn from them."""
        single = order[(table.count == 1).any((0, 1))]
        if single.size and self.too_few is not None:
            request, c = jobs[single.min()]
            raise too_small(1, request.clients[c], self.too_few)

    @cached_property
    def too_few(self) -> ValueError | None:
        """What the network says of a single example in training, if it cannot learn from it."""
        try:
            with torch.no_grad(), seeded(0):
                copy.deepcopy(self.network).cpu().train()(self.examples.some()[:1])
        except ValueError as error:
            return error
        return None

    @torch.no_grad()
    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests; requests about the same models are measured together."""
        self.many.train(False)
        together: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for r, request in enumerate(requests):
            cells(request)  # says so if models cannot be paired
            same = [(id(request.bank[part]), rows.tobytes()) for part, rows in request.row_V.items()]
            together[(request.split == "test", r if request.paired else -1, *same)].append(r)
        measured: dict[int, Measured] = {}
        for numbers in together.values():
            groups = [self.examples.groups(requests[r]) for r in numbers]
            flat = [group for mine in groups for group in mine]
            with kernels(exact=True):
                loss_VG, accuracy_VG = self._measure(requests[numbers[0]], flat)
            begin = 0
            for r, mine in zip(numbers, groups, strict=True):
                columns = slice(begin, begin + len(mine))
                begin = columns.stop
                count_G = np.array([group.size for group in mine], dtype=np.int64)
                measured[r] = Measured(loss_VG[:, columns], accuracy_VG[:, columns], count_G)
        return [measured[r] for r in range(len(requests))]

    def _measure(self, request: Evaluate, groups: list[IntArray]) -> tuple[FloatArray, FloatArray]:
        networks, table = distinct(self.anatomy, request)
        source = self.source["test" if request.split == "test" else "train"]
        if not groups:
            nothing = np.zeros((1 if request.paired else len(table), 0))
            return nothing, nothing
        if not request.paired:
            return self._judge(networks, table, source, groups)
        each = []
        for places, group in zip(table, groups, strict=True):
            own = [networks[place] for place in places.values()]
            each.append(self._judge(own, [{n: i for i, n in enumerate(places)}], source, [group]))
        loss, accuracy = zip(*each, strict=True)
        return np.concatenate(loss, 1), np.concatenate(accuracy, 1)

    def _judge(
        self,
        networks: Sequence[tuple[str, Params]],
        table: Sequence[Mapping[str, int]],
        source: tuple[Tensor, Tensor],
        groups: Sequence[IntArray],
    ) -> tuple[FloatArray, FloatArray]:
        """Return loss and accuracy of every model of a table on every group."""
        group_of = torch.as_tensor(np.repeat(np.arange(len(groups)), [g.size for g in groups]), device=self.device)
        index = torch.as_tensor(np.concatenate(groups), device=self.device)
        pixels, labels = source
        loss = torch.zeros(len(table), len(groups), device=self.device, dtype=torch.float64)
        correct = torch.zeros_like(loss)
        stacks = []
        for network in dict.fromkeys(name for name, _ in networks):
            places = [i for i, (name, _) in enumerate(networks) if name == network]
            stacks.append((places, trees.stack([trees.to(networks[i][1], self.device) for i in places])))
        ends = np.cumsum([group.size for group in groups]).tolist() if self.by_batches else [index.numel()]
        for chunk in self._chunks(ends, at_once(self.examples) if self.by_batches else self._at_once(len(table))):
            x, y = self.examples.normalize(pixels[index[chunk]]), labels[index[chunk]]
            logits: dict[int, Tensor] = {}
            for places, stack in stacks:
                logits |= dict(zip(places, self._outputs(stack, x), strict=True))
            applies = [recall(x, logits, row, networks, self._logits) for row in table]
            score_VB = torch.stack([predict(self.scheme, self.scheme.terms, apply, x) for apply in applies])
            judged, labels_VB = score_VB.flatten(0, 1), y.repeat(len(table), *[1] * (y.dim() - 1))
            loss_VB = self.examples.loss.loss(judged, labels_VB, "none")
            right_VB = self.examples.loss.right(judged, labels_VB)
            # A product with the groups' membership sums in a fixed order; adding by index would not on a GPU.
            member_BG = F.one_hot(group_of[chunk], len(groups)).double()
            loss += loss_VB.reshape(len(table), -1).double() @ member_BG
            correct += right_VB.reshape(len(table), -1).double() @ member_BG
        return rates(correct.cpu().numpy(), loss.cpu().numpy(), [group.size for group in groups])

    def _chunks(self, ends: Sequence[int], most: int) -> Iterator[Tensor]:
        """Yield which examples are judged at once: only ones before the same end."""
        for begin, end in zip([0, *ends], ends, strict=False):
            yield from torch.split(torch.arange(begin, end, device=self.device), most)

    def _for_many(self, network: nn.Module) -> nn.Module:
        """Return the network as it runs for many clients."""
        return for_many(network) if self.gradients is None else network  # which knows single gradients

    def _stacked(self, table: BatchTable, like: Train) -> Stack:
        return Stack(self, table, like)

    def _at_once(self, num_models: int) -> int:
        """Return how many examples may be evaluated by so many models at once."""
        return EVALUATION_BATCH

    def _outputs(self, stack: Params, x: Tensor) -> Tensor:
        """Return what every network of a stack makes of the same examples."""
        found: Tensor = vmap(
            lambda params: functional_call(self.many, params, (x,)), randomness="different"
        )(stack)  # fmt: skip
        return found

    def _logits(self, network: str, params: Params, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.many, trees.to(params, self.device), (x,))
        return logits

    def close(self) -> None:
        """Let go of buffers and graphs."""
        self.stack = None
        if self.own is not None:
            self.own.close()
