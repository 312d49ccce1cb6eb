"""One client after another, on flat parameters: the trainer for any network on a CPU."""

import copy
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.core import trees
from fedbac.core.parts import Apply, Params, Parts, Personalization, Phase
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.rng import torch_seed
from fedbac.errors import ConfigError
from fedbac.local.examples import Examples, rates
from fedbac.local.threads import one_thread, seeded

EVALUATION_BATCH = 512


class FlatModel:
    """Copies of a network, one per part, whose parameters are views of one flat vector.

    With one vector, clipping, weight decay and momentum are a handful of calls per step, however many layers there are.
    """

    def __init__(self, network: nn.Module, part_names: Sequence[str]) -> None:
        self.modules = {part: copy.deepcopy(network) for part in part_names}
        sizes = {part: sum(p.numel() for p in module.parameters()) for part, module in self.modules.items()}
        self.weight = torch.zeros(sum(sizes.values()))
        self.gradient = torch.zeros_like(self.weight)
        self.trainable = torch.cat([torch.full((p.numel(),), float(p.requires_grad)) for p in network.parameters()])
        self.frozen = [not parameter.requires_grad for parameter in network.parameters()]
        self.others = {name: buffer.clone() for name, buffer in network.named_buffers()}
        self.range: dict[str, slice] = {}
        start = 0
        for part, module in self.modules.items():
            self.range[part] = slice(start, start + sizes[part])
            for parameter in module.parameters():
                stop = start + parameter.numel()
                parameter.data = self.weight[start:stop].view_as(parameter)
                parameter.grad = self.gradient[start:stop].view_as(parameter)
                start = stop

    def apply(self, part: str, x: Tensor) -> Tensor:
        """Run one part."""
        logits: Tensor = self.modules[part](x)
        return logits

    def load(self, part: str, params: Params) -> None:
        """Copy weights (and buffers) in."""
        module = self.modules[part]
        with torch.no_grad():
            for name, value in [*module.named_parameters(), *module.named_buffers()]:
                # Buffers that are not averaged, such as counters, begin anew with every client.
                value.copy_(params[name] if name in params else self.others[name])

    def read(self, part: str, names: Sequence[str]) -> Params:
        """Copy weights (and buffers) out."""
        module = self.modules[part]
        values = dict([*module.named_parameters(), *module.named_buffers()])
        return {name: values[name].detach().clone() for name in names}

    def prepare(self, phase: Phase) -> Tensor:
        """Let only the phase's parts receive gradients, and mark the weights that move; what the user froze stays."""
        moving = torch.zeros_like(self.weight)
        for part, module in self.modules.items():
            if part in phase.moves:
                moving[self.range[part]] = self.trainable
            for (_, parameter), frozen in zip(module.named_parameters(), self.frozen, strict=True):
                parameter.requires_grad_(part in phase.moves and not frozen)
        return moving

    def train(self, mode: bool) -> None:
        """Switch layers such as dropout on or off."""
        for module in self.modules.values():
            module.train(mode)


class LoopTrainer:
    """Trains and evaluates in this process, on one thread, so that results do not depend on the number of cores."""

    path = "torch-loop"
    device = torch.device("cpu")

    def __init__(self, network: nn.Module, scheme: Personalization, examples: Examples) -> None:
        self.examples = examples
        self.scheme = scheme
        self.model = FlatModel(network, tuple(scheme.scopes))

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests."""
        return [gather([self.train_one(request, i) for i in range(len(request.clients))]) for request in requests]

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""
        return [self.evaluate_one(request) for request in requests]

    def close(self) -> None:
        """Nothing to release."""

    def train_one(self, request: Train, index: int) -> tuple[Parts, float, Parts | None]:
        """Run LocalSGD for one client of a request and return its parts, mean loss and momentum."""
        client = request.clients[index]
        for part, params in request.start.items():
            self.model.load(part, params)
        velocity = torch.zeros_like(self.model.weight)
        if request.momentum is not None:
            for part, buffers in request.momentum.items():
                velocity[self.model.range[part]] = trees.ravel(trees.take(buffers, index))
        phases = self.scheme.phases()
        visits = self.examples.visits(client, request.round, request.edge_round, len(phases))
        distortions = self.examples.distortions(client, request.round, request.edge_round, visits)
        pixels, labels = self.examples.source("train")
        total = torch.zeros(())
        seen = 0
        self.model.train(True)
        seed = torch_seed(self.examples.seed, "dropout", request.round, request.edge_round, client)
        with one_thread(), seeded(seed):
            for epoch, order in enumerate(visits):
                phase = phases[epoch // self.examples.training.epochs]
                if epoch % self.examples.training.epochs == 0:
                    step = self._stepper(phase, velocity, request.learning_rate)
                index_B = torch.from_numpy(order)
                x, y = pixels[index_B], labels[index_B]
                if distortions is not None and self.examples.augment is not None:
                    x = self.examples.augment.apply(x, distortions[0][epoch], distortions[1][epoch])
                x = self.examples.normalize(x)
                for batch in self.examples.batches(order.size):
                    loss = F.cross_entropy(self._predict(x[batch], client), y[batch])
                    loss.backward()  # type: ignore[no-untyped-call]
                    step()
                    total += loss.detach() * (batch.stop - batch.start)
                    seen += batch.stop - batch.start
        parts = {part: self.model.read(part, list(params)) for part, params in request.start.items()}
        momentum = None
        if request.momentum is not None:
            momentum = {
                part: trees.unravel(velocity[self.model.range[part]].clone(), trees.take(buffers, index))
                for part, buffers in request.momentum.items()
            }
        return parts, float(total) / max(seen, 1), momentum

    def _predict(self, x: Tensor, client: int) -> Tensor:
        try:
            return self.scheme.predict(self.model.apply, x)
        except ValueError as error:  # batch normalization of a batch of one
            raise ConfigError(
                f"network: it cannot train on a batch of {len(x)} of client {client}: {error}. Leave out ragged "
                "batches (task.training.drop_last=true) and tiny clients (task.partition.min_client_samples)"
            ) from error

    def _stepper(self, phase: Phase, velocity: Tensor, rate: float) -> Callable[[], None]:
        """Return the update of one step: penalty, clip, weight decay, momentum, as PyTorch's SGD does them."""
        training, model = self.examples.training, self.model
        weight, gradient = model.weight, model.gradient
        gradient.zero_()
        moving = model.prepare(phase)
        everything_moves = bool(moving.all())
        decay, penalty = torch.zeros_like(weight), torch.zeros_like(weight)
        for part in phase.moves:
            decay[model.range[part]] = training.weight_decay + phase.decay.get(part, 0.0)
            penalty[model.range[part]] = phase.penalty.get(part, 0.0)
        decay, penalty = decay * moving, penalty * moving
        penalized = bool(penalty.any())
        clipped = [slice(None)] if training.clip_scope == "joint" else [model.range[part] for part in phase.moves]

        @torch.no_grad()
        def step() -> None:
            if penalized:
                gradient.addcmul_(penalty, weight)
            if training.clip_norm is not None:
                for piece in clipped:
                    norm = torch.linalg.vector_norm(gradient[piece])
                    gradient[piece].mul_((training.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
            gradient.addcmul_(decay, weight)
            if everything_moves:
                velocity.mul_(training.momentum).add_(gradient)
                weight.add_(velocity, alpha=-rate)
            else:  # what is held still neither moves nor loses its momentum
                velocity.copy_(torch.where(moving > 0, training.momentum * velocity + gradient, velocity))
                weight.sub_(rate * moving * velocity)
            gradient.zero_()

        return step

    def evaluate_one(self, request: Evaluate) -> Measured:
        """Return losses and accuracies of a request's models on its groups."""
        pixels, labels = self.examples.source(request.split)
        groups = self.examples.groups(request)
        networks, model_table = distinct(request.models)
        loss = [[0.0] * len(groups) for _ in request.models]
        correct = [[0] * len(groups) for _ in request.models]
        self.model.train(False)
        with one_thread(), torch.no_grad():
            for g, group in enumerate(groups):
                for start in range(0, group.size, EVALUATION_BATCH):
                    index = torch.from_numpy(group[start : start + EVALUATION_BATCH])
                    x, y = self.examples.normalize(pixels[index]), labels[index]
                    logits = [self._logits(part, params, x) for part, params in networks]
                    for v, row in enumerate(model_table):
                        score = self.scheme.predict(recall(x, logits, row, networks, self._logits), x)
                        loss[v][g] += float(F.cross_entropy(score, y, reduction="sum"))
                        correct[v][g] += int((score.argmax(1) == y).sum())
        loss_VG, accuracy_VG = rates(correct, loss, [group.size for group in groups])
        return Measured(loss_VG, accuracy_VG, np.array([group.size for group in groups]))

    def _logits(self, part: str, params: Params, x: Tensor) -> Tensor:
        self.model.load(part, params)
        return self.model.apply(part, x)


def distinct(models: Sequence[Parts]) -> tuple[list[tuple[str, Params]], list[dict[str, int]]]:
    """Return the distinct (part, network) pairs of several models, and where each model finds its parts among them."""
    found: dict[tuple[str, int], int] = {}
    networks: list[tuple[str, Params]] = []
    table: list[dict[str, int]] = []
    for model in models:
        row = {}
        for part, params in model.items():
            key = (part, id(params))
            if key not in found:
                found[key] = len(networks)
                networks.append((part, params))
            row[part] = found[key]
        table.append(row)
    return networks, table


def recall(
    x: Tensor,
    logits: Mapping[int, Tensor] | Sequence[Tensor],
    row: Mapping[str, int],
    networks: Sequence[tuple[str, Params]],
    run: Callable[[str, Params, Tensor], Tensor],
) -> Apply:
    """Return an ``apply`` that looks up logits on ``x``, so that networks shared by models run once; else it runs."""

    def apply(part: str, z: Tensor) -> Tensor:
        return logits[row[part]] if z is x else run(part, networks[row[part]][1], z)

    return apply


def gather(outcomes: Sequence[tuple[Parts, float, Parts | None]]) -> Trained:
    """Stack the outcomes of a request's clients."""
    parts, losses, momenta = zip(*outcomes, strict=True)
    kept = [momentum for momentum in momenta if momentum is not None]
    return Trained(
        parts_C={name: trees.stack([p[name] for p in parts]) for name in parts[0]},
        loss_C=np.array(losses),
        momentum={name: trees.stack([m[name] for m in kept]) for name in kept[0]} if kept else None,
    )
