"""All clients at once through ``torch.func``: the trainer for a GPU.

Clients are sorted by their number of steps; at every step the clients that still have a batch form a prefix of the
stack, so that only the last, ragged batch of an epoch is padded.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedbac import trees
from fedbac.local.examples import Examples, rates
from fedbac.local.loop import distinct
from fedbac.rng import torch_seed
from fedbac.types import Evaluate, Measured, Parts, Personalization, Phase, Train, Trained

EVALUATION_BATCH = 4096


class VmapTrainer:
    """Trains the clients of all requests in step."""

    def __init__(self, network: nn.Module, scheme: Personalization, examples: Examples, device: torch.device) -> None:
        self.path = f"torch-vmap-{device.type}"
        self.examples = examples
        self.scheme = scheme
        self.network = network.to(device)
        self.device = device
        self.source = {split: tuple(t.to(device) for t in examples.source(split)) for split in ("train", "test")}

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests in one stack; all belong to the same edge round."""
        jobs = [(r, c) for r, request in enumerate(requests) for c in range(len(request.clients))]
        clients = np.array([requests[r].clients[c] for r, c in jobs])
        sizes = np.array([self.examples.shards.train[client].size for client in clients])
        order = np.argsort(-sizes, kind="stable")
        rank = np.argsort(order)
        parts = {
            part: {
                name: torch.stack([requests[jobs[j][0]].start[part][name].to(self.device) for j in order])
                for name in requests[0].start[part]
            }
            for part in self.scheme.scopes
        }
        velocity = self._velocity(requests, jobs, order, parts)
        first = requests[0]
        loss_sum = torch.zeros(len(jobs), device=self.device, dtype=torch.float64)
        schedule = Schedule(self.examples, clients[order], first, len(self.scheme.phases()), self.device)
        self.network.train(True)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(torch_seed(self.examples.seed, "dropout", first.round, first.edge_round))
            for phase_index, phase in enumerate(self.scheme.phases()):
                for step in range(schedule.num_steps):
                    active, index_AB, weight_AB, distortion = schedule.step(phase_index, step)
                    loss_A = self._step(
                        phase, parts, velocity, active, index_AB, weight_AB, distortion, first.learning_rate
                    )
                    loss_sum[:active] += loss_A.double() * weight_AB.sum(1)
        mean_C = (loss_sum / schedule.seen.clamp(min=1)).cpu().numpy()
        out, start = [], 0
        for request in requests:
            rows = rank[start : start + len(request.clients)]
            start += len(request.clients)
            index = torch.as_tensor(rows, device=self.device)
            pick = {part: {name: value[index] for name, value in params.items()} for part, params in parts.items()}
            kept = None
            if request.momentum is not None:
                kept = {part: {name: value[index] for name, value in v.items()} for part, v in velocity.items()}
            out.append(Trained(pick, mean_C[rows], kept))
        return out

    def _velocity(
        self, requests: Sequence[Train], jobs: list[tuple[int, int]], order: np.ndarray, parts: Parts
    ) -> Parts:
        trained = [name for name, _ in self.network.named_parameters()]
        if requests[0].momentum is None:
            return {part: {name: torch.zeros_like(p[name]) for name in trained} for part, p in parts.items()}
        rows = [(requests[jobs[j][0]].momentum or {}, jobs[j][1]) for j in order]
        return {
            part: {name: torch.stack([m[part][name][c].to(self.device) for m, c in rows]) for name in trained}
            for part in parts
        }

    def _step(
        self, phase: Phase, parts: Parts, velocity: Parts, active: int, index_AB: Tensor, weight_AB: Tensor,
        distortion: tuple[Tensor, Tensor] | None, rate: float,
    ) -> Tensor:  # fmt: skip
        """One SGD step of the first ``active`` clients, in place; returns their mean batch losses."""
        training = self.examples.training
        pixels, labels = self.source["train"]
        flat = index_AB.reshape(-1)
        x = pixels[flat]
        if distortion is not None and self.examples.augment is not None:
            x = self.examples.augment.apply(x, distortion[0].reshape(-1, 2), distortion[1].reshape(-1))
        x = self.examples.normalize(x)
        x_AB, y_AB = x.reshape(*index_AB.shape, *x.shape[1:]), labels[index_AB]
        moving = {part: {name: parts[part][name][:active] for name in velocity[part]} for part in phase.moves}
        frozen = {
            part: {name: value[:active] for name, value in params.items() if name not in moving.get(part, {})}
            for part, params in parts.items()
        }
        gradient, loss_A = vmap(grad_and_value(self._loss), randomness="different")(
            moving, frozen, x_AB, y_AB, weight_AB
        )
        for part, params in moving.items():
            penalty = phase.penalty.get(part, 0.0)
            if penalty:
                gradient[part] = {name: g + penalty * params[name] for name, g in gradient[part].items()}
        if training.clip_norm is not None:
            scopes = [list(moving)] if training.clip_scope == "joint" else [[part] for part in moving]
            for scope in scopes:
                _clip([gradient[part] for part in scope], training.clip_norm)
        for part, params in moving.items():
            decay = training.weight_decay + phase.decay.get(part, 0.0)
            for name, weight in params.items():
                v = velocity[part][name][:active]
                v.mul_(training.momentum).add_(gradient[part][name]).add_(weight, alpha=decay)
                weight.sub_(v, alpha=rate)
        result: Tensor = loss_A
        return result

    def _loss(self, moving: Parts, frozen: Parts, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        def apply(part: str, x: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.network, {**frozen[part], **moving.get(part, {})}, (x,))
            return logits

        loss_B = F.cross_entropy(self.scheme.predict(apply, x), y, reduction="none")
        return (loss_B * weight).sum() / weight.sum()

    @torch.no_grad()
    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""
        self.network.train(False)
        return [self._evaluate_one(request) for request in requests]

    def _evaluate_one(self, request: Evaluate) -> Measured:
        groups = self.examples.groups(request)
        networks, table = distinct(request.models)
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
            for v, row in enumerate(table):
                score = self.scheme.predict(lambda part, _, row=row, logits=logits: logits[row[part]], x)  # type: ignore[misc]
                loss_B = F.cross_entropy(score, y, reduction="none").double()
                loss[v].index_add_(0, group_of[chunk], loss_B)
                correct[v].index_add_(0, group_of[chunk], (score.argmax(1) == y).double())
        count = [group.size for group in groups]
        loss_VG, accuracy_VG = rates(correct.cpu().tolist(), loss.cpu().tolist(), count)
        return Measured(loss_VG, accuracy_VG, np.array(count))

    def close(self) -> None:
        """Nothing to release."""


class Schedule:
    """Which examples every client visits at every step, on the device."""

    def __init__(
        self, examples: Examples, clients: np.ndarray, request: Train, num_phases: int, device: torch.device
    ) -> None:
        batch, epochs = examples.training.batch_size, examples.training.epochs
        slices = [examples.batches(examples.shards.train[client].size) for client in clients]
        self.num_steps = epochs * max((len(s) for s in slices), default=0)
        self.steps_C = np.array([epochs * len(s) for s in slices])
        shape = (len(clients), num_phases, self.num_steps, batch)
        index = np.zeros(shape, dtype=np.int64)
        weight = np.zeros(shape, dtype=np.float32)
        offset = np.zeros((*shape, 2), dtype=np.int64) if examples.augment else None
        flip = np.zeros(shape, dtype=bool)
        for c, client in enumerate(clients):
            visits = examples.visits(client, request.round, request.edge_round, num_phases)
            distortions = examples.distortions(client, request.round, request.edge_round, visits)
            for row, order in enumerate(visits):
                phase, epoch = divmod(row, epochs)
                for b, piece in enumerate(slices[c]):
                    at = (c, phase, epoch * len(slices[c]) + b, slice(0, piece.stop - piece.start))
                    index[at] = order[piece]
                    weight[at] = 1.0
                    if offset is not None and distortions is not None:
                        offset[at], flip[at] = distortions[0][row, piece], distortions[1][row, piece]
        self.index, self.weight = torch.from_numpy(index).to(device), torch.from_numpy(weight).to(device)
        self.offset = None if offset is None else torch.from_numpy(offset).to(device)
        self.flip = torch.from_numpy(flip).to(device)
        self.seen = self.weight.double().sum((1, 2, 3))

    def step(self, phase: int, step: int) -> tuple[int, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Return the number of clients still at work, their examples, their weights and their distortions."""
        active = int((self.steps_C > step).sum())
        at = (slice(0, active), phase, step)
        distortion = None if self.offset is None else (self.offset[at], self.flip[at])
        return active, self.index[at], self.weight[at], distortion


def _clip(gradients: Sequence[Mapping[str, Tensor]], max_norm: float) -> None:
    """Scale each client's gradient, in place, to a norm of at most ``max_norm``."""
    squares = [g.square().flatten(1).sum(1) for part in gradients for g in part.values()]
    scale_A = (max_norm / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    for part in gradients:
        for g in part.values():
            g.mul_(scale_A.reshape(-1, *[1] * (g.dim() - 1)))
