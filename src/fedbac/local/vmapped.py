"""All clients at once through ``torch.func``: the trainer for a GPU, and for any network.

Clients lie in one stack, those with the most steps first, so that the clients that still have a batch are a prefix.
On a GPU a step of such a prefix is captured once in a CUDA graph that reads its batch from a schedule on the device:
a round is a row of replays, without a Python call per layer.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Personalization, Phase
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.rng import torch_seed
from fedbac.core.settings import IntArray
from fedbac.errors import ConfigError
from fedbac.local.examples import Examples, rates
from fedbac.local.loop import distinct, recall
from fedbac.local.threads import seeded

EVALUATION_BATCH = 2048
GRAPH_SHRINK = 0.9
"""Captured prefixes shrink by this factor: at most a tenth of the clients in a step are idle, and graphs stay few."""


class VmapTrainer:
    """Trains the clients of all requests in step."""

    def __init__(self, network: nn.Module, scheme: Personalization, examples: Examples, device: torch.device) -> None:
        if any(True for _ in network.buffers()):
            raise ConfigError(
                "network: one with buffers (such as batch normalization) cannot be trained for many clients at once; "
                "use runtime.device=cpu, or group normalization"
            )
        self.path = f"torch-vmap-{device.type}"
        self.examples = examples
        self.scheme = scheme
        self.network = network.to(device)
        self.trainable = [name for name, value in network.named_parameters() if value.requires_grad]
        self.device = device
        self.source = {split: tuple(t.to(device) for t in examples.source(split)) for split in ("train", "test")}
        self.stack: Stack | None = None

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests in one stack; all belong to the same edge round."""
        first, phases = requests[0], self.scheme.phases()
        jobs = [(r, c) for r, request in enumerate(requests) for c in range(len(request.clients))]
        clients = np.array([requests[r].clients[c] for r, c in jobs])
        order = np.argsort([-self.examples.shards.train[client].size for client in clients], kind="stable")
        schedule = Schedule(self.examples, clients[order], first, len(phases))
        if self.stack is None or not self.stack.holds(schedule):
            self.stack = None  # the old one goes before the new one comes
            self.stack = Stack(self, schedule, first.start)
        stack = self.stack
        stack.load(schedule, requests, [jobs[j] for j in order], first.learning_rate)
        self.network.train(True)
        seed = torch_seed(self.examples.seed, "dropout", first.round, first.edge_round)
        with self._repeatable(), seeded(seed, self.device):
            for number, phase in enumerate(phases):
                stack.step.zero_()
                for step in range(schedule.num_steps):
                    stack.advance(number, phase, schedule.active(step))
        mean_C = stack.loss_sum[: len(jobs)].cpu().numpy() / np.maximum(schedule.seen, 1)
        rank = np.argsort(order)
        out, begin = [], 0
        for request in requests:
            rows = rank[begin : begin + len(request.clients)]
            begin += len(request.clients)
            kept = None if request.momentum is None else _rows(stack.velocity, rows)
            out.append(Trained(_rows(stack.parts, rows), mean_C[rows], kept))
        return out

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield

    def loss(self, moving: Parts, frozen: Parts, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return one client's mean cross-entropy over the examples of a batch that count."""

        def apply(part: str, x: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.network, {**frozen[part], **moving.get(part, {})}, (x,))
            return logits

        loss_B = F.cross_entropy(self.scheme.predict(apply, x), y, reduction="none")
        return (loss_B * weight).sum() / weight.sum().clamp(min=1)

    @torch.no_grad()
    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests; requests about the same models are measured together."""
        self.network.train(False)
        together: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for r, request in enumerate(requests):
            same = tuple(id(params) for model in request.models for params in model.values())
            together[(request.split == "test", len(request.models), *same)].append(r)
        measured: dict[int, Measured] = {}
        for numbers in together.values():
            groups = [self.examples.groups(requests[r]) for r in numbers]
            flat = [group for mine in groups for group in mine]
            with self._repeatable():
                loss_VG, accuracy_VG = self._evaluate(requests[numbers[0]], flat)
            begin = 0
            for r, mine in zip(numbers, groups, strict=True):
                columns = slice(begin, begin + len(mine))
                begin = columns.stop
                count_G = np.array([group.size for group in mine])
                measured[r] = Measured(loss_VG[:, columns], accuracy_VG[:, columns], count_G)
        return [measured[r] for r in range(len(requests))]

    def _evaluate(self, request: Evaluate, groups: list[IntArray]) -> tuple[np.ndarray, np.ndarray]:
        networks, table = distinct(request.models)
        if not groups:
            return np.zeros((len(table), 0)), np.zeros((len(table), 0))
        group_of = torch.as_tensor(np.repeat(np.arange(len(groups)), [g.size for g in groups]), device=self.device)
        index = torch.as_tensor(np.concatenate(groups), device=self.device)
        pixels, labels = self.source["test" if request.split == "test" else "train"]
        loss = torch.zeros(len(table), len(groups), device=self.device, dtype=torch.float64)
        correct = torch.zeros_like(loss)
        stacks = {
            part: (
                [i for i, (name, _) in enumerate(networks) if name == part],
                trees.stack([trees.to(params, self.device) for name, params in networks if name == part]),
            )
            for part in self.scheme.scopes
        }
        for chunk in torch.split(torch.arange(index.numel(), device=self.device), EVALUATION_BATCH):
            x, y = self.examples.normalize(pixels[index[chunk]]), labels[index[chunk]]
            logits: dict[int, Tensor] = {}
            for positions, stack in stacks.values():
                many = vmap(lambda params, x=x: functional_call(self.network, params, (x,)))(stack)
                logits |= dict(zip(positions, many, strict=True))
            applies = [recall(x, logits, row, networks, self._logits) for row in table]
            score_VB = torch.stack([self.scheme.predict(apply, x) for apply in applies])
            loss_VB = F.cross_entropy(score_VB.flatten(0, 1), y.repeat(len(table)), reduction="none")
            # A product with the groups' membership sums in a fixed order; adding by index would not on a GPU.
            member_BG = F.one_hot(group_of[chunk], len(groups)).double()
            loss += loss_VB.reshape(len(table), -1).double() @ member_BG
            correct += (score_VB.argmax(2) == y).double() @ member_BG
        return rates(correct.cpu().numpy(), loss.cpu().numpy(), [group.size for group in groups])

    def _logits(self, part: str, params: Params, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.network, trees.to(params, self.device), (x,))
        return logits

    def close(self) -> None:
        """Let go of buffers and graphs."""
        self.stack = None


class Schedule:
    """Which examples every client visits at every step: the batches of its epochs, one after another."""

    def __init__(self, examples: Examples, clients: np.ndarray, request: Train, num_phases: int) -> None:
        batch, epochs = examples.training.batch_size, examples.training.epochs
        sizes = [examples.shards.train[client].size for client in clients]
        used = [(examples.batches(size) or [slice(0, 0)])[-1].stop for size in sizes]
        per_epoch = np.array([len(examples.batches(size)) for size in sizes])
        self.steps_C = epochs * per_epoch
        self.num_steps = int(self.steps_C.max(initial=0))
        self.seen = num_phases * epochs * np.array(used, dtype=np.float64)
        shape = (num_phases, self.num_steps, len(clients))
        self.count = np.zeros(shape, dtype=np.int64)
        self.index = np.zeros((*shape, batch), dtype=np.int64)
        self.offset = np.zeros((*shape, batch, 2), dtype=np.int64) if examples.augment else None
        self.flip = np.zeros((*shape, batch), dtype=bool) if examples.augment else None
        for c, client in enumerate(clients):
            if used[c] == 0:
                continue
            visits = examples.visits(client, request.round, request.edge_round, num_phases)
            distortions = examples.distortions(client, request.round, request.edge_round, visits)
            at = (slice(None), slice(0, int(self.steps_C[c])), c)

            def place(target: np.ndarray, values: np.ndarray, c: int = c, at: tuple[slice, slice, int] = at) -> None:
                """Cut rows of visits into batches, the last padded, and lay them out step after step."""
                # Padding repeats the client's own: another's example could be broken, and 0 · NaN is NaN.
                padded = np.repeat(values[:, :1], per_epoch[c] * batch, axis=1)
                padded[:, : used[c]] = values[:, : used[c]]
                target[at] = padded.reshape(num_phases, self.steps_C[c], batch, *values.shape[2:])

            place(self.index, visits)
            full = np.full(per_epoch[c], batch)
            full[-1] = used[c] - (per_epoch[c] - 1) * batch
            self.count[at] = np.tile(full, epochs)
            if distortions is not None and self.offset is not None and self.flip is not None:
                place(self.offset, distortions[0].numpy())
                place(self.flip, distortions[1].numpy())

    def active(self, step: int) -> int:
        """Return how many clients, the first of the stack, still have a batch at this step."""
        return int((self.steps_C > step).sum())


class Stack:
    """The clients' weights and momenta, and the round's schedule, in buffers that stay where they are."""

    def __init__(self, trainer: VmapTrainer, schedule: Schedule, like: Parts) -> None:
        self.trainer = trainer
        device, training = trainer.device, trainer.examples.training
        num_phases, num_steps, self.capacity = schedule.count.shape
        self.num_steps = int(num_steps * 1.25)  # other rounds select clients with more data
        shape = (num_phases, self.num_steps, self.capacity)
        self.index = torch.zeros((*shape, training.batch_size), dtype=torch.int64, device=device)
        self.count = torch.zeros(shape, dtype=torch.int64, device=device)
        distorted = self.index.shape if trainer.examples.augment else (num_phases, self.num_steps, self.capacity, 0)
        self.offset = torch.zeros((*distorted, 2), dtype=torch.int64, device=device)
        self.flip = torch.zeros(distorted, dtype=torch.bool, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)
        self.loss_sum = torch.zeros(self.capacity, dtype=torch.float64, device=device)
        self.parts = {p: self._buffers(params) for p, params in like.items()}
        trained = [name for name, _ in trainer.network.named_parameters()]
        self.velocity = {p: self._buffers({name: params[name] for name in trained}) for p, params in like.items()}
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self.position = torch.arange(training.batch_size, device=device)

    def _buffers(self, like: Params) -> Params:
        return {n: torch.zeros((self.capacity, *v.shape), device=self.trainer.device) for n, v in like.items()}

    def holds(self, schedule: Schedule) -> bool:
        """Whether a round of this shape fits the buffers."""
        return schedule.count.shape[2] <= self.capacity and schedule.num_steps <= self.num_steps

    def load(self, schedule: Schedule, requests: Sequence[Train], jobs: Sequence[tuple[int, int]], rate: float) -> None:
        """Put the start of a round in place; ``jobs`` says which client of which request each row is."""
        steps, clients = schedule.num_steps, len(jobs)
        self.count.zero_()  # rows beyond the clients of this round have nothing to do
        pairs = [(self.index, schedule.index), (self.count, schedule.count)]
        pairs += [(self.offset, schedule.offset)] if schedule.offset is not None else []
        pairs += [(self.flip, schedule.flip)] if schedule.flip is not None else []
        for buffer, values in pairs:
            buffer[:, :steps, :clients] = torch.from_numpy(values).to(self.trainer.device)
        self.rate.fill_(rate)
        self.loss_sum.zero_()
        request_of = torch.tensor([r for r, _ in jobs], device=self.trainer.device)
        for part, params in self.parts.items():
            for name, value in params.items():
                starts = torch.stack([request.start[part][name] for request in requests]).to(self.trainer.device)
                value[:clients] = starts[request_of]
        for part, buffers in self.velocity.items():
            for name, value in buffers.items():
                if requests[0].momentum is None:
                    value.zero_()
                else:
                    rows = [m[part][name][c] for r, c in jobs if (m := requests[r].momentum) is not None]
                    value[:clients] = torch.stack(rows)

    def advance(self, number: int, phase: Phase, active: int) -> None:
        """One SGD step of the first ``active`` clients."""
        if self.trainer.device.type != "cuda":
            self._step(number, phase, active)
            return
        rows = self.capacity
        while rows > 1 and (smaller := max(1, int(rows * GRAPH_SHRINK))) >= active:
            rows = smaller
        if (number, rows) not in self.graphs:
            self.graphs[number, rows] = self._capture(lambda: self._step(number, phase, rows))
        self.graphs[number, rows].replay()

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record the kernels of a step; trial runs before it, which libraries need, are undone."""
        tensors = [self.step, self.loss_sum]
        tensors += [v for tree in (self.parts, self.velocity) for params in tree.values() for v in params.values()]
        saved, drawn = [tensor.clone() for tensor in tensors], torch.cuda.get_rng_state()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        for tensor, value in zip(tensors, saved, strict=True):
            tensor.copy_(value)
        torch.cuda.set_rng_state(drawn)
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        collects = gc.isenabled()
        gc.disable()  # a graph of an earlier trainer that is freed in the middle would spoil the capture
        try:
            with torch.cuda.graph(graph):
                work()
        finally:
            if collects:
                gc.enable()
        return graph

    def _step(self, number: int, phase: Phase, rows: int) -> None:
        trainer, training = self.trainer, self.trainer.examples.training
        index_AB, count_A = self._now(self.index, number, rows), self._now(self.count, number, rows)
        weight_AB = (self.position < count_A[:, None]).float()
        pixels, labels = trainer.source["train"]
        x_AB = pixels[index_AB]
        if trainer.examples.augment is not None:
            offset, flip = self._now(self.offset, number, rows), self._now(self.flip, number, rows)
            x_AB = trainer.examples.augment.apply(x_AB, offset, flip)
        x_AB = trainer.examples.normalize(x_AB)
        moving = {part: {name: self.parts[part][name][:rows] for name in trainer.trainable} for part in phase.moves}
        frozen = {
            part: {name: value[:rows] for name, value in params.items() if name not in moving.get(part, {})}
            for part, params in self.parts.items()
        }
        step = vmap(grad_and_value(trainer.loss), randomness="different")
        gradient, loss_A = step(moving, frozen, x_AB, labels[index_AB], weight_AB)
        for part, params in moving.items():
            if penalty := phase.penalty.get(part, 0.0):
                gradient[part] = {name: g + penalty * params[name] for name, g in gradient[part].items()}
        if training.clip_norm is not None:
            scopes = [list(moving)] if training.clip_scope == "joint" else [[part] for part in moving]
            for scope in scopes:
                _clip([g for part in scope for g in gradient[part].values()], training.clip_norm)
        alive_A = count_A > 0  # rows of a captured prefix that have finished must not coast on
        for part, params in moving.items():
            decay = training.weight_decay + phase.decay.get(part, 0.0)
            for name, weight in params.items():
                alive = alive_A.reshape(-1, *[1] * (weight.dim() - 1))
                before = self.velocity[part][name][:rows]
                after = torch.where(alive, training.momentum * before + gradient[part][name] + decay * weight, before)
                before.copy_(after)
                weight.sub_(self.rate * alive * after)
        self.loss_sum[:rows] += torch.where(alive_A, loss_A.double() * count_A, 0.0)
        self.step += 1

    def _now(self, buffer: Tensor, number: int, rows: int) -> Tensor:
        return buffer[number, :, :rows].index_select(0, self.step)[0]


def _clip(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Scale each client's gradient, in place, to a norm of at most ``max_norm``."""
    norm_A = torch.linalg.vector_norm(torch.cat([g.flatten(1) for g in gradients], 1), dim=1)
    scale_A = (max_norm / (norm_A + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale_A.reshape(-1, *[1] * (g.dim() - 1)))


def _rows(tree: Parts, rows: np.ndarray) -> Parts:
    """Copy rows of a stack out of its buffers."""
    return {
        part: {name: value[torch.as_tensor(rows, device=value.device)] for name, value in params.items()}
        for part, params in tree.items()
    }
