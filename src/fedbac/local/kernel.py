"""The trainer for the paper's networks on a CPU: clients go through the native kernel, one per core at a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedbac import native
from fedbac.core.parts import Anatomy, Params, Personalization
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.settings import FloatArray, IntArray
from fedbac.local.examples import Examples, Losses, cells, rates, shares
from fedbac.local.networks import Fleet, NetworkTable, momenta, parts_of, present, shifts
from fedbac.local.stages import Stage, places, span, stages_now, stages_of


class NativeTrainer:
    """Trains and evaluates in threads of this process; the same bits for any number of threads."""

    device = torch.device("cpu")

    def __init__(
        self, network: nn.Module, scheme: Personalization, examples: Examples, layers: native.Network, threads: int
    ) -> None:
        self.path = f"native-{native.default_instruction_set()}"
        self.examples, self.network = examples, network
        self.layers = layers
        self.threads = threads
        self.anatomy = Anatomy(scheme, network)
        self.stages = stages_of(self.anatomy, examples.training)
        self.like: Params = {name: value.detach() for name, value in network.named_parameters()}
        self.images = {"train": self._images("train"), "test": self._images("test")}

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests, each at the moment and the rate of its own request."""
        networks, table = present(self.anatomy, requests[0].bank), NetworkTable(self.anatomy)
        row_J = {n: np.concatenate([table.rows(r.bank, r.row_C, n) for r in requests]) for n in networks}
        kept = momenta(self.anatomy, requests, networks)
        shift = shifts(self.anatomy, requests, networks, self.like, self.device)
        fleet = Fleet(table.stacked(), row_J, kept or {}, shift)
        num_jobs = sum(len(request.clients) for request in requests)
        loss_J, square_J, epochs = np.zeros(num_jobs), np.zeros(num_jobs), []
        running = {number: stage for number, stage in enumerate(stages_now(self.stages, requests)) if stage.epochs}
        total = sum(stage.epochs for stage in running.values())
        visits = {stage.epochs: self._visits(requests, stage.epochs) for stage in running.values()}
        for number, stage in running.items():
            later = {network for n, after in running.items() if n > number for network in after.moving}
            goes_on = kept is not None or bool(later & stage.changed)
            rate_J = np.concatenate([request.rates(number) for request in requests])
            done = self._run(stage, fleet, visits[stage.epochs], rate_J, goes_on)
            failed_J = np.where(done.finite_J, 0.0, np.nan)
            loss_J += (done.loss_J + failed_J) * (stage.epochs / total)
            square_J += (done.square_J + failed_J) * (stage.epochs / total)
            epochs.append(done.loss_JE + failed_J[:, None])
        losses = Losses(loss_J, square_J, np.concatenate(epochs, 1))
        out = []
        for request, rows in zip(requests, shares(requests), strict=True):
            parts_C = parts_of(self.anatomy, {n: fleet.now(n)[rows] for n in networks}, self.like)
            momentum = None
            if request.momentum is not None:
                momentum = parts_of(self.anatomy, {n: fleet.velocity_JD[n][rows] for n in networks}, self.like)
            out.append(losses.of(request, rows, parts_C, momentum))
        return out

    def _run(
        self, stage: Stage, fleet: Fleet, visits: native.JobVisits, rate_J: FloatArray, goes_on: bool
    ) -> native.TrainingOutcome:
        """Run a phase of all jobs; momentum is handed on only where it ``goes_on``."""
        table_TD, start_JP = fleet.start(stage.networks)
        velocity_JPD, shift_JPD = fleet.velocity(stage.networks), fleet.shift(stage.networks)
        training, spans = self.examples.training, [span(stage, network, self.like) for network in stage.networks]
        anchor_JP = None
        if stage.anchors:
            nothing = np.full(rate_J.size, -1)
            anchor_JP = np.stack([nothing if s.anchor is None else fleet.row_J[s.anchor] for s in spans], 1)
        sgd = native.JobSgd(
            training.batch_size, rate_J, stage.momentum, [s.decay for s in spans], [s.penalty for s in spans],
            training.clip_norm or 0.0, clip_per_part=training.clip_scope == "per_network",
            moving=[s.weights for s in spans], drop_last=training.drop_last,
        )  # fmt: skip
        anchors_AD = fleet.table_TD if stage.anchors else None
        given = {"anchors_AD": anchors_AD, "velocity_JPD": velocity_JPD, "shift_JPD": shift_JPD}
        arrays: dict[str, Any] = {name: value.numpy() for name, value in given.items() if value is not None}
        done = native.interruptible(
            lambda stop: native.train(
                self.layers, self.images["train"], table_TD.numpy(), start_JP, visits, sgd, anchor_JP=anchor_JP,
                return_velocity=goes_on, num_threads=self.threads, stop=stop, **arrays,
            )
        )  # fmt: skip
        after = None if done.velocity_JPD is None else torch.from_numpy(done.velocity_JPD)
        shared = {copy: places(copy.names, self.like) for copy in stage.copies}
        fleet.move(stage, torch.from_numpy(done.parameters_JPD), after, shared)
        return done

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests, each distinct network once per example."""
        measured = [self._evaluate([r for r in requests if (r.split == "test") == test]) for test in (False, True)]
        return [next(measured[request.split == "test"]) for request in requests]

    def close(self) -> None:
        """Nothing to release."""

    def _evaluate(self, requests: Sequence[Evaluate]) -> Iterator[Measured]:
        if not requests:
            return
        table, num_models = NetworkTable(self.anatomy), 0
        models: list[IntArray] = []
        groups: list[IntArray] = []
        asked: list[tuple[IntArray, list[IntArray]]] = []
        for request in requests:
            mine = self.examples.groups(request)
            models.append(np.stack([table.rows(request.bank, request.row_V, n) for n in self.anatomy.judged], 1))
            asked.append((cells(request) + np.array([num_models, len(groups)]), mine))
            num_models += len(models[-1])
            groups += mine
        pairs_ = np.concatenate([pairs.reshape(-1, 2) for pairs, _ in asked])
        images = self.images["test" if requests[0].split == "test" else "train"]
        found = native.interruptible(
            lambda stop: native.evaluate(
                self.layers, images, table.stacked().numpy(), np.concatenate(models), groups, pairs_,
                num_threads=self.threads, stop=stop,
            )
        )  # fmt: skip
        begin = 0
        for pairs, mine in asked:
            shape, count_G = pairs.shape[:2], np.array([group.size for group in mine], dtype=np.int64)
            rows = slice(begin, begin + shape[0] * shape[1])
            begin = rows.stop
            loss_VG, accuracy_VG = rates(found.correct[rows].reshape(shape), found.loss[rows].reshape(shape), count_G)
            yield Measured(loss_VG, accuracy_VG, count_G)

    def _images(self, split: Split) -> native.Images:
        pixels, labels = self.examples.source(split)
        if self.examples.normalization is None:
            layers = self.layers
            shape = (len(labels), layers.channels, layers.height, layers.width)  # also of a row of numbers
            return native.Images(pixels.float().numpy().reshape(shape), labels.numpy())
        return native.Images(pixels.numpy(), labels.numpy(), *self.examples.normalization)

    def _visits(self, requests: Sequence[Train], epochs: int) -> native.JobVisits:
        at = [(client, request.round, request.edge_round) for request in requests for client in request.clients]
        visits = [self.examples.visits(*address, epochs) for address in at]
        sizes, crop, flip = [visit.shape[1] for visit in visits], *self.examples.crops_and_flips(at, visits)
        examples = np.concatenate([visit.reshape(-1) for visit in visits])
        return native.JobVisits(examples, np.array(sizes), np.full(len(visits), epochs), crop, flip)


KNOWN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)
"""Layers that the kernels can stand for; a class of the user's that is derived from one may do something else."""
INSTEAD = {"Pool": "nn.MaxPool2d(2)", "Norm": "the network without it", "Dropout": "the network without it"}
"""What they know instead of a layer, by a part of its name."""
SAME = {
    "Conv2d": {"stride": 1, "padding": 0, "dilation": 1},
    "MaxPool2d": {"kernel_size": 2, "stride": 2, "padding": 0},
}
"""What layers must be like, whichever way it is written."""


def as_image(x: NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of an example to the kernels: a row of numbers is an image of one line."""
    return (1, 1, *x.shape[1:]) if x.ndim == 2 and x.dtype == np.float32 else x.shape[1:]


def barred(network: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return what keeps a network from all of our kernels, whatever its layers, and what would not."""
    if len(shape) != 3:
        return (
            f"an example of shape {list(shape)} is neither an image nor a row of numbers; [channels, height, width] or "
            "[numbers] would be known"
        )
    if frozen := [name for name, value in network.named_parameters() if not value.requires_grad]:
        return f"{frozen[0]} is frozen; a network that is trained as a whole would be known"
    if any(map(_watched, network.modules())):
        return "it has hooks or parametrized weights; plain layers would be known"
    return None


def layers_of(network: nn.Module, shape: tuple[int, ...]) -> native.Layers | None:
    """Describe a network to the kernels, or return None when it is not of the form that they know."""
    found = described(network, shape)
    return None if isinstance(found, str) else found


def described(network: nn.Module, shape: tuple[int, ...]) -> native.Layers | str:
    """Describe a network to the kernels, or say which layer they do not know, and what they would.

    They know an ``nn.Sequential`` of blocks (square convolution without padding, ReLU, 2×2 max pooling), a flattening,
    and linear layers with ReLU between them; all of it is trained.
    """
    if found := barred(network, shape):
        return found
    if type(network).forward is not nn.Sequential.forward:
        return f"{type(network).__name__} has a forward of its own; an nn.Sequential of plain layers would be known"
    layers = list(network._modules.items())  # which, unlike children, has a layer as often as it is used
    for name, layer in layers:
        if layer is None or (trouble := _strange(layer)):
            return f"layer {name} ({type(layer).__name__}): {trouble}"
    if len({id(layer) for _, layer in layers}) < len(layers):
        return "a layer is used twice; one for each place would be known"
    kinds, order = [type(layer) for _, layer in layers], [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    blocks = kinds.count(nn.Conv2d)
    order = order * blocks + [nn.Flatten, *[nn.Linear, nn.ReLU] * kinds.count(nn.Linear)][:-1]
    for (name, layer), wanted in zip([*layers, ("at the end", None)], [*order, type(None)], strict=False):
        if type(layer) is not wanted:
            there = "the network ends" if layer is None else f"layer {name} ({type(layer).__name__}) stands"
            return f"{there} where our kernels know {_words(wanted)}"
    linears = [layer for _, layer in layers if isinstance(layer, nn.Linear)]
    if not linears or max(blocks, len(linears)) > native.MAX_LAYERS:
        return f"it has {blocks} convolutions and {len(linears)} linear layers; up to {native.MAX_LAYERS} are known"
    convolutions = [(int(x.out_channels), int(x.kernel_size[0])) for _, x in layers if isinstance(x, nn.Conv2d)]
    outputs = tuple(int(layer.out_features) for layer in linears)
    return native.Layers(shape[0], shape[1], shape[2], tuple(convolutions), outputs)


def _words(kind: type) -> str:
    return "its end" if kind is type(None) else "nn.MaxPool2d(2)" if kind is nn.MaxPool2d else f"nn.{kind.__name__}"


def _strange(layer: nn.Module) -> str | None:
    """Return what the kernels do not know of a layer, and what they would."""
    if type(layer) not in KNOWN:
        return instead(layer, KNOWN)
    kind = type(layer).__name__
    wanted: dict[str, tuple[Any, ...]] = {name: (size, (size, size)) for name, size in SAME.get(kind, {}).items()}
    if isinstance(layer, nn.Conv2d):
        side = layer.kernel_size[0]
        wanted |= {"kernel_size": (side, (side, side)), "groups": (1,)}
    elif isinstance(layer, nn.MaxPool2d):
        wanted |= {"dilation": (1, (1, 1)), "ceil_mode": (False,), "return_indices": (False,)}
    elif isinstance(layer, nn.Flatten):
        wanted = {"start_dim": (1,), "end_dim": (-1,)}
    if trouble := unlike(layer, wanted):
        return trouble
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is None:
        return "bias=False is not in our kernels; bias=True would be"
    return None


def instead(layer: nn.Module, known: Sequence[type]) -> str:
    """Return that a kernel does not know a layer, and what it knows instead."""
    kind, elementwise = type(layer).__name__, type(layer).__module__ == "torch.nn.modules.activation"
    near = "nn.ReLU" if elementwise else next((text for part, text in INSTEAD.items() if part in kind), None)
    return f"it is not in our kernels; {near or ', '.join(one.__name__ for one in known) + ' of torch.nn'} would be"


def unlike(layer: nn.Module, wanted: Mapping[str, tuple[Any, ...]]) -> str | None:
    """Return which attribute of a layer has a value that is not wanted, and which would be: the first."""
    for name, allowed in wanted.items():
        if (value := getattr(layer, name)) not in allowed:
            value = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
            return f"{name}={value} is not in our kernels; {name}={allowed[0]} would be"
    return None


def _watched(module: nn.Module) -> bool:
    """Whether something else happens when the module runs: hooks, or a parametrization of its weights."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or hasattr(module, "parametrizations")
