"""Steps that a scheme takes itself, of clients in one stack: those with most steps first, so that the active lead."""

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbac.core import trees
from fedbac.core.answers import checked_own_step
from fedbac.core.parts import Params, Parts, Personalization, Stepping
from fedbac.core.requests import Train, Trained, Trainer
from fedbac.core.rng import torch_seed
from fedbac.core.runtime import draws, kernels, seeded
from fedbac.core.settings import IntArray
from fedbac.errors import ConfigError
from fedbac.local.batch_norm import counting
from fedbac.local.batches import BatchTable, Seat, Visits
from fedbac.local.captured import CapturedGradients, Found, captured, refused
from fedbac.local.examples import Examples, Losses, shares
from fedbac.local.folding import for_many
from fedbac.local.stages import Stage, adamw_of, adamw_step, corrections
from fedbac.models import duplicate


class OwnSteps:
    """Trains clients by the steps of their scheme, and takes gradients for its hooks."""

    def __init__(
        self, network: nn.Module, scheme: Personalization, examples: Examples, device: torch.device, together: bool
    ) -> None:
        if any(True for _ in network.buffers()):
            raise ConfigError(
                f"network: personalization {scheme.kind!r} takes gradients itself, which one with buffers (such as "
                "batch normalization) does not allow; use group normalization"
            )
        self.scheme, self.examples, self.device, self.together = scheme, examples, device, together
        here = duplicate(network) if device.type == "cpu" else copy.deepcopy(network).to(device)
        self.network = (for_many(here) if together else here).train()
        """With ``together`` one call serves all clients; else each has its own, so that no bit depends on others."""
        self.visits = Visits(examples)
        self.drawing = draws(network, examples.some())
        self.position = torch.arange(examples.batch_room, device=device)
        self.replayed: CapturedGradients | None = None
        """Takes gradients on a GPU, as long as the network allows it."""
        if together and device.type == "cuda" and not self.drawing:
            pool = torch.cuda.graph_pool_handle()
            self.replayed = CapturedGradients(lambda work: captured(work, device, pool))

    @cached_property
    def source(self) -> tuple[Tensor, Tensor]:
        """The examples and labels, where the work is done."""
        return self.examples.source("train", self.device)

    def before(self, request: Train) -> "Steps":
        """Return gradients for the clients of a request before they train."""
        return Steps(self, [(request, c) for c in range(len(request.clients))], 1)

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests in one stack, each at the moment and the rate of its own request."""
        assert isinstance(self.scheme, Stepping)
        jobs = [(request, c) for request in requests for c in range(len(request.clients))]
        sizes = [self.examples.shards.train[request.clients[c]].size for request, c in jobs]
        order = np.argsort([-size for size in sizes], kind="stable")
        (phase,) = self.scheme.phases()
        steps = Steps(self, [jobs[j] for j in order], phase.epochs or self.examples.training.epochs)
        banks = [
            {part: trees.select(rows, request.row_C[part]) for part, rows in request.bank.items()}
            for request in requests
        ]
        now = self._joined(banks, order)
        given = [request.momentum for request in requests if request.momentum is not None]
        steps.velocity = self._joined(given, order) if given else {}
        steps.shift = self._joined(_shifts(requests, banks), order)
        received, ended = now, []
        while steps.turn():
            if steps.active < trees.count(next(iter(now.values()))):  # who has no batch left keeps still
                rest, going = slice(steps.active, None), slice(0, steps.active)
                ended.append((trees.part_rows(now, rest), trees.part_rows(steps.velocity, rest)))
                now, received = trees.part_rows(now, going), trees.part_rows(received, going)
                steps.velocity, steps.second, steps.shift = (
                    trees.part_rows(tree, going) for tree in (steps.velocity, steps.second, steps.shift)
                )
            now = checked_own_step(self.scheme, self.scheme.step(now, received, steps), now)
        ended.append((now, steps.velocity))
        rank, losses, out = np.argsort(order), steps.losses(), []
        parts = self._joined([one for one, _ in reversed(ended)])
        momenta = self._joined([one for _, one in reversed(ended)]) if given else {}
        for request, share in zip(requests, shares(requests), strict=True):
            rows = rank[share]
            mine, momentum = ({part: trees.select(tree[part], rows) for part in tree} for tree in (parts, momenta))
            out.append(losses.of(request, rows, mine, momentum if given else None))
        return out

    def close(self) -> None:
        """Let go of buffers and graphs."""
        if self.replayed is not None:
            self.replayed.close()

    def _joined(self, stacks: Sequence[Parts], order: IntArray | None = None) -> Parts:
        joined = {part: trees.join([trees.to(one[part], self.device) for one in stacks]) for part in stacks[0]}
        return joined if order is None else {part: trees.select(rows, order) for part, rows in joined.items()}


class Steps:
    """The ``LocalSteps`` of some clients: at each turn those who still have a batch."""

    def __init__(self, own: OwnSteps, jobs: Sequence[Seat], epochs: int) -> None:
        self.own, self.jobs, self.epochs, self.source = own, jobs, epochs, own.source
        self.table = BatchTable(own.examples, jobs, [Stage(None, (), epochs, {})], own.visits)
        rates = np.array([request.rates(0)[c] for request, c in jobs])
        self.rate_C = self.rate_J = trees.onto(rates, own.device, torch.float32)
        self.loss_C = torch.zeros(len(jobs), device=own.device)
        self.count_CK = self.count_JK = own.examples.class_counts(request.clients[c] for request, c in jobs)
        stated = own.scheme.phases()[0].momentum
        self.momentum = own.examples.training.momentum if stated is None else stated
        self.velocity: Parts = {}
        self.second: Parts = {}
        """The second moments of AdamW, whose first are in place of velocities."""
        self.shift: Parts = {}
        """What is added to gradients of parts, after clipping."""
        self.taken: dict[str, int] = {}
        """How many steps each part has taken."""
        self.step, self.active, self.unreported = -1, len(jobs), False
        self.count_C, self.looks_J = (np.zeros(len(jobs), dtype=np.int64) for _ in range(2))
        table = self.table
        self.visits = self._visits(index=table.index, count=table.count, offset=table.offset, flip=table.flip)
        """What clients see, where the work is done: a row for each client at each step."""
        self.batch: Params = {}
        """That of this step."""
        self.seen: list[tuple[Tensor, Tensor]] = []
        """The examples of this step and their labels, once they were needed: all clients' as one, or each client's."""
        self.sums = [
            torch.zeros(size, dtype=torch.float64, device=own.device)
            for size in (len(jobs), len(jobs), len(jobs) * epochs)
        ]
        """Losses, their squares, and losses by epoch."""
        epoch_SJ = np.minimum(np.arange(table.num_steps)[:, None] // np.maximum(table.per_epoch, 1), epochs - 1)
        self.epoch_SJ = trees.onto(np.arange(len(jobs)) * epochs + epoch_SJ, own.device)
        """Where the loss of a step is added among those."""

    def turn(self) -> bool:
        """Go on to the next batch; False if nobody has one."""
        if self.step + 1 >= self.table.num_steps:
            return False
        self.active = self.table.active(0, self.step + 1)
        self._look(self.step + 1, self.table.count[0, self.step + 1, : self.active], self.visits)
        self.unreported = True
        return True

    def batches(self, share: float = 1.0) -> Iterator[None]:
        """Go through the batches of a random share of everybody's examples: the first of those visited in training."""
        limit_C = np.maximum((share * self.table.used).astype(np.int64), 1)
        seen_SC = np.arange(self.table.num_steps)[:, None] * self.own.examples.batch_room
        count_FSC = np.minimum(self.table.count, np.maximum(limit_C - seen_SC, 0))
        visits = trees.join([self.visits | self._visits(count=count_FSC)])
        for step, count_C in enumerate(count_FSC[0]):
            if not count_C.any():
                return
            self._look(step, count_C, visits)
            yield

    def gradient(self, network_C: Params, names: Collection[str] | None = None, beside: Params | None = None) -> Params:
        """Return the gradient of the mean loss of everybody's batch."""
        wanted = network_C if names is None else names
        moving, still = ({n: v for n, v in network_C.items() if (n in wanted) == moves} for moves in (True, False))
        found, loss_C, square_C = self._take(moving, still, beside or {})
        self._note(loss_C, square_C)
        return found

    def clipped(self, gradient_C: Params) -> Params:
        """Return each client's gradient, shortened to the norm that the task allows."""
        if (most := self.own.examples.training.clip_norm) is None:
            return gradient_C
        slope_CD = trees.rows(gradient_C)
        scale_C = (most / (torch.linalg.vector_norm(slope_CD, dim=1) + 1e-6)).clamp(max=1.0)
        return trees.shaped(slope_CD * scale_C[:, None], gradient_C)

    def descend(self, part: str, value_C: Params, gradient_C: Params) -> Params:
        """Return weights after one step of the task's optimizer: SGD, v ← m·v + g + d·w, w ← w − η·v, or AdamW."""
        training, slope_C = self.own.examples.training, self.clipped(gradient_C)
        adam, self.taken[part] = adamw_of(training), self.taken.get(part, 0) + 1
        velocity, second = self.velocity.setdefault(part, {}), self.second.setdefault(part, {})
        like, shift = {name: value_C[name] for name in slope_C}, self.shift.get(part, {})
        velocity |= {name: torch.zeros_like(slope) for name, slope in slope_C.items() if name not in velocity}
        if adam is None:  # all weights as one matrix: for one after another, a GPU would wait for the host
            value_CD, push_CD = trees.rows(like), trees.rows(slope_C)
            push_CD = push_CD + trees.rows({name: shift[name] for name in slope_C}) if shift else push_CD
            before_CD = trees.rows({name: velocity[name] for name in slope_C})
            velocity_CD = self.momentum * before_CD + (push_CD + training.weight_decay * value_CD)
            velocity |= trees.shaped(velocity_CD, like)
            return value_C | trees.shaped(value_CD - self.rate_C[:, None] * velocity_CD, like)
        moved, corrected = {name: value.clone() for name, value in like.items()}, corrections(adam, self.taken[part])
        second |= {name: torch.zeros_like(slope) for name, slope in slope_C.items() if name not in second}
        for name, slope in slope_C.items():
            push = slope + shift[name] if shift else slope
            moments, rate = (velocity[name], second[name]), _column(self.rate_C, slope)
            adamw_step(adam, moved[name], moments, push, training.weight_decay, rate, corrected)
        return value_C | moved

    def losses(self) -> Losses:
        """Return the losses of the clients, in the order of the jobs."""
        used_J = np.maximum(self.table.used, 1)
        loss_J, square_J, epoch_JE = (total.cpu().numpy() for total in self.sums)
        mean_JE = epoch_JE.reshape(-1, self.epochs) / used_J[:, None]
        return Losses(loss_J / (self.epochs * used_J), square_J / (self.epochs * used_J), mean_JE)

    def _visits(self, **table: NDArray[Any] | None) -> Params:
        """Bring what is told of all steps to where the work is done, at once: a row for each client at each step."""
        given = {name: rows.reshape(-1, *rows.shape[3:]) for name, rows in table.items() if rows is not None}
        return trees.join([{name: trees.onto(rows, self.own.device) for name, rows in given.items()}])

    def _look(self, step: int, count_C: IntArray, visits: Params) -> None:
        """Turn to the batches of a step."""
        rows, first = len(count_C), step * len(self.jobs)
        self.step, self.count_C, self.rate_C, self.loss_C = step, count_C, self.rate_J[:rows], self.loss_C[:rows]
        self.count_CK, self.seen = self.count_JK[:rows], []
        self.batch = {name: value[first : first + rows] for name, value in visits.items()}

    def _looked(self) -> list[tuple[Tensor, Tensor]]:
        """Return the examples of a step and their labels: all as one, padded, or each as it is."""
        if not self.seen:
            batch = {name: value for name, value in self.batch.items() if name != "count"}
            each = ({n: v[c, :size] for n, v in batch.items()} for c, size in enumerate(self.count_C.tolist()))
            self.seen = [self._examples(one) for one in ([batch] if self.own.together else each)]
        return self.seen

    def _examples(self, batch: Params) -> tuple[Tensor, Tensor]:
        (source, labels), augment, index = self.source, self.own.examples.augment, batch["index"]
        x = source[index]
        x = x if augment is None else augment.apply(x, batch["offset"], batch["flip"])
        return self.own.examples.normalize(x), labels[index]

    def _take(self, moving: Params, still: Params, beside: Params) -> Found:
        """Take gradients of what moves, beside what keeps still and another network."""
        own = self.own
        if own.replayed is not None:
            try:
                return own.replayed(self._afresh, moving, still, beside, self.batch)
            except RuntimeError as error:
                own.close()
                refused(error)
                own.replayed = None
        with kernels(exact=True):
            if not own.together:
                return self._each(moving, still, beside)
            return self._together(moving, still, beside, self.batch["count"], *self._looked()[0])

    def _afresh(self, moving: Params, still: Params, beside: Params, batch: Params) -> Found:
        with kernels(exact=True):
            return self._together(moving, still, beside, batch["count"], *self._examples(batch))

    def _together(
        self, moving: Params, still: Params, beside: Params, count_C: Tensor, x_CB: Tensor, y_CB: Tensor
    ) -> Found:
        """Take the gradients of all clients by one call for each layer."""

        def loss(
            moving: Params, still: Params, beside: Params, x: Tensor, y: Tensor, counts: Tensor
        ) -> tuple[Tensor, Tensor]:
            with counting(counts):
                logits = self._logits({**still, **moving}, beside, x)
            lost = judge.loss(logits, y, "none")
            return (lost * counts).sum() / counts.sum().clamp(min=1), (lost.square() * counts).sum()

        leaves, judge, counts_CB = _leaves(moving), self.own.examples.loss, self.own.position < count_C[:, None]
        given = still, beside, x_CB, y_CB, counts_CB.float()
        loss_C, square_C = vmap(loss, randomness="different")(leaves, *given)
        found, has_C = _gradient(loss_C.sum(), leaves), count_C > 0  # of each client's loss by its own weights
        found = {name: torch.where(_column(has_C, value), value, 0.0) for name, value in found.items()}
        return found, loss_C.detach(), square_C.detach()

    def _each(self, moving: Params, still: Params, beside: Params) -> Found:
        """Take the gradient of one client after another."""
        found, losses, squares = [], [], []
        for c, (x, y) in enumerate(self._looked()):
            leaves, others = _leaves(trees.take(moving, c)), trees.take(beside, c)
            logits = self._logits({**trees.take(still, c), **leaves}, others, x, c) if len(y) else None
            lost_B = torch.zeros(1) if logits is None else self.own.examples.loss.loss(logits, y, "none")
            loss = lost_B.mean()
            found.append(_gradient(loss, leaves) if loss.requires_grad else trees.zeros(leaves))
            losses.append(loss.detach())
            squares.append(lost_B.detach().square().sum())
        return trees.stack(found), torch.stack(losses), torch.stack(squares)

    def _logits(self, network: Params, beside: Params, x: Tensor, client: int | None = None) -> Tensor:
        """Return the logits of a network, plus those of what stands beside it, whose layers draw alike."""
        with self._seeded(client):
            logits: Tensor = functional_call(self.own.network, network, (x,))
        return logits + self._logits(beside, {}, x, client) if beside else logits

    def _seeded(self, client: int | None = None) -> AbstractContextManager[object]:
        """Let layers such as dropout draw by the client's own stream; for many at once, by one for all."""
        request, c = self.jobs[client or 0]
        who = () if client is None else (request.clients[c],)
        address = (request.round, request.edge_round, *who, int(self.looks_J[client or 0]))
        return seeded(torch_seed(self.own.examples.seed, "dropout", *address), self.own.drawing, self.own.device)

    def _note(self, loss_C: Tensor, square_C: Tensor) -> None:
        """Remember the losses; those of a step's first gradient are reported."""
        count_C, rows = self.batch["count"], len(self.count_C)
        self.loss_C = torch.where(count_C > 0, loss_C, self.loss_C)
        self.looks_J[:rows] += self.count_C > 0 if not self.own.together else 1
        if self.unreported:
            self.unreported = False
            lost_C = torch.where(count_C > 0, loss_C.double() * count_C, 0.0)
            self.sums[0][:rows] += lost_C
            self.sums[1][:rows] += square_C
            self.sums[2][self.epoch_SJ[self.step, :rows]] += lost_C


class HandedOver:
    """Trains by one trainer, which takes the scheme's own steps, and evaluates by the one that is quickest at that."""

    def __init__(self, learner: Any, judge: Trainer) -> None:
        self.learner, self.judge = learner, judge
        self.train, self.evaluate = learner.train, judge.evaluate
        self.path, self.device = f"{learner.path}-own-steps", learner.device
        self.network, self.examples = learner.network, learner.examples
        self.bytes_per_client: int = getattr(learner, "bytes_per_client", 0)

    def close(self) -> None:
        """Release both."""
        for trainer in {self.learner, self.judge}:
            trainer.close()


def _leaves(params: Params) -> Params:
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def _gradient(loss: Tensor, leaves: Params) -> Params:
    values = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, values, strict=True))


def _shifts(requests: Sequence[Train], banks: Sequence[Parts]) -> list[Parts]:
    """Return what is added to gradients; nothing for the clients of requests without."""
    parts = sorted({part for request in requests for part in request.shift})
    return [
        {part: trees.zeros(bank[part]) | request.shift.get(part, {}) for part in parts}
        for request, bank in zip(requests, banks, strict=True)
    ]


def _column(value_C: Tensor, like: Tensor) -> Tensor:
    return value_C.reshape(-1, *[1] * (like.dim() - 1))
