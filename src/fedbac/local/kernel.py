"""The trainer for the paper's networks on a CPU: clients go through the native kernel, one per core at a time."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedbac import native
from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Personalization, Phase
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.settings import IntArray
from fedbac.local.examples import Examples, rates


class NativeTrainer:
    """Trains and evaluates in threads of this process; the same bits for any number of threads."""

    device = torch.device("cpu")

    def __init__(
        self, network: nn.Module, scheme: Personalization, examples: Examples, layers: native.Layers, threads: int
    ) -> None:
        self.path = f"native-{native.default_instruction_set()}"
        self.examples = examples
        self.scheme = scheme
        self.layers = layers
        self.threads = threads
        self.like: Params = {name: value.detach() for name, value in network.named_parameters()}
        self.images = {"train": self._images("train"), "test": self._images("test")}

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests; all belong to the same edge round."""
        jobs = [(r, client) for r, request in enumerate(requests) for client in request.clients]
        networks = Table()
        start_JP = np.array([[networks.row(requests[r].start[part]) for part in self.scheme.scopes] for r, _ in jobs])
        table_TD, velocity = networks.stacked(), self._velocity(requests)
        phases = self.scheme.phases()
        first = requests[0]
        visits = [self.examples.visits(client, first.round, first.edge_round, len(phases)) for _, client in jobs]
        loss_J = np.zeros(len(jobs))
        for number, phase in enumerate(phases):
            done = native.train(
                self.layers,
                self.images["train"],
                table_TD,
                start_JP,
                self._schedule(number, first, [client for _, client in jobs], visits),
                self._sgd(phase, first.learning_rate),
                velocity_JPD=velocity,
                return_velocity=velocity is not None or number + 1 < len(phases),
                num_threads=self.threads,
            )
            # The next phase goes on from here.
            table_TD = done.parameters_JPD.reshape(-1, done.parameters_JPD.shape[-1])
            start_JP, velocity = np.arange(len(table_TD)).reshape(start_JP.shape), done.velocity_JPD
            loss_J += np.where(done.finite_J, done.loss_J, np.nan) / len(phases)
        out, begin = [], 0
        for request in requests:
            rows = slice(begin, begin + len(request.clients))
            begin = rows.stop
            kept = None if velocity is None or request.momentum is None else self._parts(velocity[rows])
            out.append(Trained(self._parts(done.parameters_JPD[rows]), loss_J[rows], kept))
        return out

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests, each distinct network once per example."""
        measured = [self._evaluate([r for r in requests if (r.split == "test") == test]) for test in (False, True)]
        return [next(measured[request.split == "test"]) for request in requests]

    def close(self) -> None:
        """Nothing to release."""

    def _evaluate(self, requests: Sequence[Evaluate]) -> Iterator[Measured]:
        if not requests:
            return
        networks = Table()
        models: list[list[int]] = []
        groups: list[IntArray] = []
        pairs: list[tuple[int, int]] = []
        for request in requests:
            mine = self.examples.groups(request)
            models_here = [[networks.row(model[part]) for part in self.scheme.scopes] for model in request.models]
            pairs += [(len(models) + v, len(groups) + g) for v in range(len(models_here)) for g in range(len(mine))]
            models += models_here
            groups += mine
        found = native.evaluate(
            self.layers,
            self.images["test" if requests[0].split == "test" else "train"],
            networks.stacked(),
            np.array(models),
            groups,
            np.array(pairs),
            num_threads=self.threads,
        )
        begin = 0
        for request in requests:
            count = [group.size for group in self.examples.groups(request)]
            shape = (len(request.models), len(count))
            rows = slice(begin, begin + shape[0] * shape[1])
            begin = rows.stop
            loss_VG, accuracy_VG = rates(found.correct[rows].reshape(shape), found.loss[rows].reshape(shape), count)
            yield Measured(loss_VG, accuracy_VG, np.array(count))

    def _images(self, split: Split) -> native.Images:
        pixels, labels = self.examples.source(split)
        if self.examples.normalization is None:
            return native.Images(pixels.float().numpy(), labels.numpy())
        return native.Images(pixels.numpy(), labels.numpy(), *self.examples.normalization)

    def _schedule(
        self, phase: int, request: Train, clients: Sequence[int], visits: Sequence[IntArray]
    ) -> native.Schedule:
        epochs = self.examples.training.epochs
        rows = slice(phase * epochs, (phase + 1) * epochs)
        crop = flip = None
        if self.examples.augment is not None:
            crops, flips = [], []
            for client, visit in zip(clients, visits, strict=True):
                drawn = self.examples.distortions(client, request.round, request.edge_round, visit)
                assert drawn is not None
                crops.append(drawn[0][rows].reshape(-1, 2).numpy() - self.examples.augment.crop_padding)
                flips.append(drawn[1][rows].reshape(-1).numpy())
            crop, flip = np.concatenate(crops).astype(np.int8), np.concatenate(flips)
        return native.Schedule(
            examples_S=np.concatenate([visit[rows].reshape(-1) for visit in visits]),
            num_examples_J=np.array([visit.shape[1] for visit in visits]),
            num_epochs_J=np.full(len(visits), epochs),
            crop_S2=crop,
            flip_S=flip,
        )

    def _sgd(self, phase: Phase, rate: float) -> native.Sgd:
        training = self.examples.training
        return native.Sgd(
            batch_size=training.batch_size,
            learning_rate=rate,
            momentum=training.momentum,
            weight_decay=[training.weight_decay + phase.decay.get(part, 0.0) for part in self.scheme.scopes],
            l2=[phase.penalty.get(part, 0.0) for part in self.scheme.scopes],
            max_norm=training.clip_norm or 0.0,
            clip_per_part=training.clip_scope == "per_network",
            frozen=[part not in phase.moves for part in self.scheme.scopes],
            drop_last=training.drop_last,
        )

    def _velocity(self, requests: Sequence[Train]) -> NDArray[np.float32] | None:
        if requests[0].momentum is None:
            return None
        rows = [
            torch.stack(
                [torch.cat([v.flatten(1) for v in request.momentum[part].values()], 1) for part in self.scheme.scopes],
                dim=1,
            )
            for request in requests
            if request.momentum is not None
        ]
        return torch.cat(rows).numpy()

    def _parts(self, rows_CPD: NDArray[np.float32]) -> Parts:
        return {
            part: trees.unravel(torch.from_numpy(rows_CPD[:, p]), self.like)
            for p, part in enumerate(self.scheme.scopes)
        }


KNOWN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)
"""Layers that the kernels can stand for; a class of the user's that is derived from one may do something else."""


class Table:
    """Distinct networks as rows of one array."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, Params]] = {}

    def row(self, params: Params) -> int:
        """Return the network's row, adding it when it is new."""
        return self.rows.setdefault(id(params), (len(self.rows), params))[0]

    def stacked(self) -> NDArray[np.float32]:
        """Return all rows."""
        return np.stack([trees.ravel(params).numpy() for _, params in self.rows.values()])


def layers_of(network: nn.Module, shape: tuple[int, ...]) -> native.Layers | None:
    """Describe a network to the kernel, or return None when it is not of the form the kernel knows.

    That form is an ``nn.Sequential`` of blocks (5-square or other convolution without padding, ReLU, 2×2 max pooling),
    a flattening, and linear layers with ReLU between them; all of it is trained.
    """
    if type(network).forward is not nn.Sequential.forward or len(shape) != 3:
        return None  # not a row of layers, or one that does more than run them
    if not all(parameter.requires_grad for parameter in network.parameters()):
        return None  # layers that the user froze
    if not all(type(layer) in KNOWN for layer in network.children()):
        return None
    layers = list(network.children())
    if len(set(map(id, layers))) < len(layers) or any(_watched(module) for module in network.modules()):
        return None  # layers used twice, hooks
    convolutions = []
    while len(layers) >= 3 and isinstance(layers[0], nn.Conv2d):
        convolution, activation, pooling, *layers = layers
        assert isinstance(convolution, nn.Conv2d)
        plain = (
            convolution.kernel_size[0] == convolution.kernel_size[1]
            and convolution.stride == convolution.dilation == (1, 1)
            and convolution.padding == (0, 0)
            and convolution.groups == 1
            and convolution.bias is not None
        )
        pools = (
            isinstance(pooling, nn.MaxPool2d)
            and pooling.kernel_size in (2, (2, 2))
            and pooling.stride in (2, (2, 2))
            and pooling.padding in (0, (0, 0))
            and pooling.dilation in (1, (1, 1))
            and not pooling.ceil_mode
        )
        if not (plain and isinstance(activation, nn.ReLU) and pools):
            return None
        convolutions.append((convolution.out_channels, convolution.kernel_size[0]))
    if not layers or not isinstance(layers[0], nn.Flatten) or layers[0].start_dim != 1 or layers[0].end_dim != -1:
        return None
    linears, others = layers[1::2], layers[2::2]
    known = all(isinstance(x, nn.Linear) and x.bias is not None for x in linears) and len(linears) > 0
    if not known or not all(isinstance(x, nn.ReLU) for x in others) or len(linears) != len(others) + 1:
        return None
    if max(len(convolutions), len(linears)) > native.MAX_LAYERS:
        return None
    outputs = tuple(int(x.out_features) for x in linears if isinstance(x, nn.Linear))
    return native.Layers(*shape, tuple(convolutions), outputs)


def _watched(module: nn.Module) -> bool:
    """Whether something else happens when the module runs: hooks, or a parametrization of its weights."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or hasattr(module, "parametrizations")
