"""One client after another, on flat parameters: the trainer for any network on a CPU."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbac.core import trees
from fedbac.core.parts import Anatomy, Apply, Params, Parts, Personalization, Stepping, predict
from fedbac.core.requests import Evaluate, Measured, Teachers, Train, Trained, gathered
from fedbac.core.rng import torch_seed
from fedbac.core.runtime import draws, one_thread, seeded
from fedbac.errors import ConfigError
from fedbac.local.examples import Examples, Tally, cells, rates
from fedbac.local.networks import present
from fedbac.local.own_steps import OwnSteps
from fedbac.local.stages import Copy, Moving, Stage, adamw_of, adamw_step, corrections, joined, stages_now, stages_of
from fedbac.models import duplicate

EVALUATION_BATCH = 512
LOGITS = 2**25
"""Of a batch that is evaluated: where a vocabulary is large, batches are smaller."""


class FlatModel:
    """Copies of a network, one for each that a scheme names, whose parameters are views of one flat vector. With one
    vector, clipping, weight decay and momentum are a handful of calls per step, however many layers there are."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        self.modules = {name: duplicate(network) for name in names}
        self.weight = torch.zeros(len(names) * sum(p.numel() for p in network.parameters() if p.requires_grad))
        self.gradient = torch.zeros_like(self.weight)
        self.others = {name: buffer.clone() for name, buffer in network.named_buffers()}
        self.at: dict[str, dict[str, slice]] = {}
        """Where the parameters of each network lie in the vector."""
        start = 0
        for network_name, module in self.modules.items():
            self.at[network_name] = {}
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:  # frozen: all copies share it
                    continue
                stop = start + parameter.numel()
                parameter.data = self.weight[start:stop].view_as(parameter)
                parameter.grad = self.gradient[start:stop].view_as(parameter)
                self.at[network_name][name] = slice(start, stop)
                start = stop

    def apply(self, network: str, x: Tensor) -> Tensor:
        """Run one network."""
        logits: Tensor = self.modules[network](x)
        return logits

    def load(self, network: str, params: Params) -> None:
        """Copy weights (and buffers) in."""
        module = self.modules[network]
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in self.at[network]:
                    parameter.copy_(params[name])
            for name, buffer in module.named_buffers():
                # Those that are not averaged, such as counters, begin anew with every client.
                buffer.copy_(params[name] if name in params else self.others[name])

    def read(self, network: str, names: Iterable[str]) -> Params:
        """Copy weights (and buffers) out."""
        module = self.modules[network]
        values = dict([*module.named_parameters(), *module.named_buffers()])
        return {name: values[name].detach().clone() for name in names}

    @torch.no_grad()
    def copy(self, shared: Copy, velocity: Tensor) -> None:
        """Let other networks take over weights (and buffers) of one, and their momentum."""
        source, at = self.read(shared.source, shared.names), self.at[shared.source]
        for target in shared.targets:
            module = self.modules[target]
            for name, value in [*module.named_parameters(), *module.named_buffers()]:
                if name in source:
                    value.copy_(source[name])
                if name in source and name in at:
                    velocity[self.at[target][name]] = velocity[at[name]]

    def prepare(self, stage: Stage) -> None:
        """Let only the weights that move receive gradients."""
        for network, module in self.modules.items():
            moved = {name for moving in stage.moving.get(network, ()) for name in moving.names}
            for name, parameter in module.named_parameters():
                if name in self.at[network]:
                    parameter.requires_grad_(name in moved)

    def runs(self, stage: Stage, networks: Iterable[str]) -> list[slice]:
        """Return where the weights of these networks lie that move, those side by side as one."""
        moved = [(network, moving) for network in networks for moving in stage.moving.get(network, ())]
        return joined(self.at[network][name] for network, moving in moved for name in moving.names)

    def spread(self, stage: Stage, value: Callable[[Moving, str], float | Tensor]) -> Tensor:
        """Return a number for every weight, given by the name of what moves: zero where it keeps still."""
        out = torch.zeros_like(self.weight)
        for network, parts in stage.moving.items():
            for moving in parts:
                for name in moving.names:
                    out[self.at[network][name]] = value(moving, name)
        return out

    def anchor(self, stage: Stage, received: Tensor) -> Tensor:
        """Return for every weight the point to which it is pulled."""
        return self.spread(stage, lambda m, name: received[self.at[m.anchor][name]] if m.anchor is not None else 0.0)

    def train(self, mode: bool) -> None:
        """Switch layers such as dropout on or off."""
        for module in self.modules.values():
            module.train(mode)


def distilled(
    loss: Tensor, logits: Tensor, mean: Callable[[Tensor], Tensor], target: Tensor, share: Tensor, temperature: Tensor
) -> Tensor:
    """Return the loss of a batch of one client, given its cross-entropy and what its teachers predict together. Σ_j
    β_j·KL(p_j ‖ q) is −Σ_k (Σ_j β_j p_jk)·log q_k and a number without a gradient, which is left out."""
    soft_B = -(target * torch.log_softmax(logits / temperature, -1)).sum(-1)
    return torch.where(share > 0, (1 - share) * loss + share * temperature**2 * mean(soft_B), loss)


class Targets:
    """The distillation targets of one client: what its teachers predict."""

    def __init__(self, network: nn.Module, teachers: Teachers, client: int) -> None:
        self.network = network
        weights = enumerate(teachers.weight_CT[client].tolist())
        self.teachers = [(weight, trees.take(teachers.bank, t)) for t, weight in weights if weight > 0]
        self.share, self.temperature = map(torch.tensor, (float(teachers.share_C[client]), float(teachers.temperature)))

    @classmethod
    def of(cls, network: nn.Module, request: Train, client: int) -> "Targets | None":
        """Return the targets of a client of a request, by networks at rest; None where it has no teachers."""
        teachers = request.teachers
        return cls(network, teachers, client) if teachers is not None and teachers.shares[client] else None

    def loss(self, loss: Tensor, logits: Tensor, x: Tensor) -> Tensor:
        """Return the loss of a batch, given its cross-entropy."""
        with torch.no_grad():
            scores = [(weight, functional_call(self.network, params, (x,))) for weight, params in self.teachers]
            target = torch.stack([weight * torch.softmax(z / self.temperature, -1) for weight, z in scores]).sum(0)
        return distilled(loss, logits, torch.mean, target, self.share, self.temperature)


def too_small(size: int, client: int, error: ValueError) -> ConfigError:
    """Return what is said of a batch on which a network cannot train."""
    return ConfigError(
        f"network: it cannot train on a batch of {size} of client {client}: {error}. Leave out ragged "
        "batches (task.training.drop_last=true) and tiny clients (task.partition.min_client_samples)"
    )


def at_once(examples: Examples) -> int:
    """Return how many examples are evaluated at once."""
    each = examples.dataset.num_classes * math.prod(examples.dataset.y_test.shape[1:])
    return max(1, min(EVALUATION_BATCH, LOGITS // each))


def at_rest(network: nn.Module) -> nn.Module:
    """Return a copy of a network that predicts and does not train: without dropout, by the statistics it has."""
    return duplicate(network).eval()


class LoopTrainer:
    """Trains and evaluates in this process, on one thread, so that results do not depend on the number of cores."""

    path = "torch-loop"
    device = torch.device("cpu")

    def __init__(self, network: nn.Module, scheme: Personalization, examples: Examples) -> None:
        self.examples = examples
        self.scheme, self.network = scheme, network
        self.anatomy = Anatomy(scheme, network)
        self.drawing = draws(network, examples.some())
        own = isinstance(scheme, Stepping)
        self.own = OwnSteps(network, scheme, examples, self.device, together=False) if own else None
        self.stages = stages_of(self.anatomy, examples.training)
        self.model = FlatModel(network, self.anatomy.networks)
        self.teacher = at_rest(network) if any(stage.taught for stage in self.stages) else network

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests."""
        return [gathered([self.train_one(request, i) for i in range(len(request.clients))]) for request in requests]

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""
        return [self.evaluate_one(request) for request in requests]

    def close(self) -> None:
        """Nothing to release."""

    def train_one(self, request: Train, index: int) -> Trained:
        """Run LocalSGD for one client of a request, or the steps of the scheme."""
        if self.own is not None:
            return self.own.train([request.part(slice(index, index + 1))])[0]
        at = (request.clients[index], request.round, request.edge_round)
        start = {part: trees.take(stack, int(request.row_C[part][index])) for part, stack in request.bank.items()}
        networks = present(self.anatomy, request.bank)
        for network in networks:
            self.model.load(network, self.anatomy.assemble(start, network))
        received = self.model.weight.clone() if any(stage.anchors for stage in self.stages) else self.model.weight
        velocity = self._flat(request.momentum or {}, index)
        shift = self._flat(request.shift, index) if request.shift else None
        targets = Targets.of(self.teacher, request, index)
        stages = stages_now(self.stages, [request])
        tally, begun = Tally(request.keep, sum(stage.epochs for stage in stages), self.examples.loss.loss), 0
        self.model.train(True)
        seed = torch_seed(self.examples.seed, "dropout", request.round, request.edge_round, request.clients[index])
        with one_thread(), seeded(seed, self.drawing):
            for number, stage in enumerate(stages):
                step = self._stepper(stage, received, velocity, shift, float(request.rates(number)[index]))
                for epoch, x, y in self._batches(at, stage.epochs):
                    logits = self._predict(stage, x, at[0])
                    loss = self.examples.loss.loss(logits, y)
                    learned = targets.loss(loss, logits, x) if targets is not None and stage.taught else loss
                    learned.backward()  # type: ignore[no-untyped-call]
                    step()
                    tally.add(begun + epoch, loss, logits, y)
                begun += stage.epochs
                for shared in stage.copies:
                    self.model.copy(shared, velocity)
        holder = {part: network for network in networks for part in self.anatomy.parts[network]}
        parts = {
            part: {n: v[None] for n, v in self.model.read(holder[part], self.anatomy.weights[part]).items()}
            for part in self.scheme.parts
            if part in holder
        }
        momentum = None
        if request.momentum is not None:
            at_of = {part: self.model.at[self.scheme.parts[part].networks[0]] for part in request.momentum}
            momentum = {
                part: {n: velocity[at_of[part][n]].clone().view_as(v[:1]) for n, v in buffers.items()}
                for part, buffers in request.momentum.items()
            }
        return tally.of(request, parts, momentum)

    def _flat(self, parts_C: Parts, index: int) -> Tensor:
        """Return numbers of a client's weights where these lie; zero where there are none."""
        out = torch.zeros_like(self.model.weight)
        for part, params in parts_C.items():
            for network in self.scheme.parts[part].networks:
                for name, value in params.items():
                    if name in self.model.at[network]:
                        out[self.model.at[network][name]] = value[index].reshape(-1)
        return out

    def _batches(self, at: tuple[int, int, int], epochs: int) -> Iterable[tuple[int, Tensor, Tensor]]:
        """Yield a client's batches of one phase, as the network sees them, each with its epoch."""
        visits = self.examples.visits(*at, epochs)
        distortions = self.examples.distortions(*at, visits)
        pixels, labels = self.examples.source("train")
        for epoch, order in enumerate(visits):
            index = torch.from_numpy(order)
            x, y = pixels[index], labels[index]
            if distortions is not None and self.examples.augment is not None:
                x = self.examples.augment.apply(x, distortions[0][epoch], distortions[1][epoch])
            x = self.examples.normalize(x)
            for batch in self.examples.batches(order.size):
                yield epoch, x[batch], y[batch]

    def _predict(self, stage: Stage, x: Tensor, client: int) -> Tensor:
        try:
            return predict(self.scheme, stage.terms, self.model.apply, x)
        except ValueError as error:  # batch normalization of a batch of one
            raise too_small(len(x), client, error) from error

    def _stepper(
        self, stage: Stage, received: Tensor, velocity: Tensor, shift: Tensor | None, rate: float
    ) -> Callable[[], None]:
        """Return the update of one step: pull, clip, shift, and then as PyTorch's SGD or AdamW goes on."""
        training, model = self.examples.training, self.model
        weight, gradient = model.weight, model.gradient
        gradient.zero_()
        model.prepare(stage)
        decay, penalty = model.spread(stage, lambda m, _: m.decay), model.spread(stage, lambda m, _: m.penalty)
        penalized, anchor = bool(penalty.any()), model.anchor(stage, received) if stage.anchors else None
        moving = model.runs(stage, stage.moving)
        each = [model.runs(stage, (network,)) for network in stage.moving]
        clipped = [moving] if moving and training.clip_scope == "joint" else each
        adam = adamw_of(training)
        first, second, steps = torch.zeros_like(velocity), torch.zeros_like(velocity), 0

        @torch.no_grad()
        def step() -> None:
            nonlocal steps
            steps += 1
            if penalized:
                gradient.addcmul_(penalty, weight if anchor is None else weight - anchor)
            if training.clip_norm is not None:
                for runs in clipped:
                    pieces = [gradient[run] for run in runs]
                    norm = torch.linalg.vector_norm(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
                    for run in runs:
                        gradient[run].mul_((training.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
            if shift is not None:
                gradient.add_(shift)
            if adam is None:
                gradient.addcmul_(decay, weight)
            for run in moving:  # what is held still neither moves nor loses its momentum
                if adam is None:
                    velocity[run].mul_(stage.momentum).add_(gradient[run])
                    weight[run].add_(velocity[run], alpha=-rate)
                else:
                    moments, corrected = (first[run], second[run]), corrections(adam, steps)
                    adamw_step(adam, weight[run], moments, gradient[run], decay[run], rate, corrected)
            gradient.zero_()

        return step

    def evaluate_one(self, request: Evaluate) -> Measured:
        """Return losses and accuracies of a request's models on its groups."""
        pixels, labels = self.examples.source(request.split)
        groups, pairs = self.examples.groups(request), cells(request)
        networks, table = distinct(self.anatomy, request)
        loss, correct = np.zeros(pairs.shape[:2]), np.zeros(pairs.shape[:2])
        most = at_once(self.examples)
        self.model.train(False)
        with one_thread(), torch.no_grad():
            for g, group in enumerate(groups):
                models = pairs[:, g, 0].tolist()
                needed = dict.fromkeys(place for v in models for place in table[v].values())
                for start in range(0, group.size, most):
                    index = torch.from_numpy(group[start : start + most])
                    x, y = self.examples.normalize(pixels[index]), labels[index]
                    logits = {i: self._logits(networks[i][0], networks[i][1], x) for i in needed}
                    for cell, v in enumerate(models):
                        apply = recall(x, logits, table[v], networks, self._logits)
                        score = predict(self.scheme, self.scheme.terms, apply, x)
                        loss[cell, g] += float(self.examples.loss.loss(score, y, "sum"))
                        correct[cell, g] += float(self.examples.loss.right(score, y).sum())
        count_G = np.array([group.size for group in groups], dtype=np.int64)
        loss_VG, accuracy_VG = rates(correct, loss, count_G)
        return Measured(loss_VG, accuracy_VG, count_G)

    def _logits(self, network: str, params: Params, x: Tensor) -> Tensor:
        self.model.load(network, params)
        return self.model.apply(network, x)


def distinct(anatomy: Anatomy, request: Evaluate) -> tuple[list[tuple[str, Params]], list[dict[str, int]]]:
    """Return the distinct networks of a request's models, by name, and where each model finds its own among them."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    networks: list[tuple[str, Params]] = []
    table: list[dict[str, int]] = []
    for v in range(request.num_models):
        places = {}
        for network in anatomy.judged:
            rows = {part: int(request.row_V[part][v]) for part in anatomy.parts[network]}
            key = (network, tuple(rows.values()))
            if key not in found:
                found[key] = len(networks)
                parts = {part: trees.take(request.bank[part], row) for part, row in rows.items()}
                networks.append((network, anatomy.assemble(parts, network)))
            places[network] = found[key]
        table.append(places)
    return networks, table


def recall(
    x: Tensor,
    logits: Mapping[int, Tensor],
    places: Mapping[str, int],
    networks: Sequence[tuple[str, Params]],
    run: Callable[[str, Params, Tensor], Tensor],
) -> Apply:
    """Return an ``apply`` that looks up logits on ``x``, so that networks shared by models run once; else it runs."""

    def apply(network: str, z: Tensor) -> Tensor:
        return logits[places[network]] if z is x else run(network, networks[places[network]][1], z)

    return apply
