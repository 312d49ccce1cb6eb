"""What the native kernel is told of a network: its forward is traced, and every layer becomes a step of a graph."""

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from fedbac import native
from fedbac.local.kernel import barred, instead, unlike
from fedbac.models import duplicate

WITH_WEIGHTS = (nn.Conv2d, nn.Linear, nn.GroupNorm, nn.InstanceNorm2d)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
KNOWN = (*WITH_WEIGHTS, *POOLS, nn.ReLU, nn.Flatten)
"""Layers that a graph may have; a class of the user's that is derived from one may do something else."""


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


CALLED: dict[Any, Callable[..., nn.Module]] = {
    F.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU, F.max_pool2d: nn.MaxPool2d, F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d, torch.flatten: _flatten, "flatten": _flatten,
}  # fmt: skip
"""The layers that functions, and methods by their names, stand for."""
SIZES = ("size", getattr, operator.getitem)
"""What gives numbers, of which view and reshape take the number of examples."""
ADDS = (operator.add, operator.iadd, torch.add)


class UnknownError(Exception):
    """What the kernel does not know of a network, and what it would."""


@dataclass(frozen=True)
class Seen:
    """What a node of the trace holds."""

    step: int
    """Whose images it is made of; −1: those given."""
    shape: tuple[int, ...]
    """Of one example: of images, or of features."""
    linears: int = 0
    """How many linear layers made it."""


def graph_of(network: nn.Module, shape: tuple[int, ...], rows: bool = False) -> native.Graph | str:
    """Describe a network to the native kernel, or say which layer it does not know, and what it would.

    It knows convolutions with square kernels, max and average pooling, group and instance normalization, ReLU and sums,
    in any order and with shortcuts; then a flattening, and linear layers with or without ReLU.
    """
    if found := barred(network, shape):
        return found
    for name, module in network.named_modules():
        if next(module.parameters(recurse=False), None) is not None and type(module) not in WITH_WEIGHTS:
            return _says(name, module, _unknown(module))
    if buffers := [name for name, _ in network.named_buffers()]:
        return f"{buffers[0]} is a buffer; a network without it would be known"
    try:
        learning, at_rest = (_traced(network, training) for training in (True, False))
    except Exception as error:  # of code that asks for numbers while it is traced
        why = str(error).partition("\n")[0]
        return f"{type(network).__name__} cannot be traced ({why}); layers of torch.nn after one another would be known"
    try:
        graph = Walk(network, shape, rows).graph(learning)
    except UnknownError as error:
        return str(error)
    if _written(learning) != _written(at_rest):
        return f"{type(network).__name__} does something else in training; one that does not would be known"
    return graph


def _traced(network: nn.Module, training: bool) -> fx.Graph:
    """Return what a network does, without layers that do nothing."""
    graph = fx.Tracer().trace(duplicate(network).train(training))
    for node in list(graph.nodes):
        if node.op == "call_module" and type(network.get_submodule(str(node.target))) is nn.Identity:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph


def _written(graph: fx.Graph) -> list[str]:
    return [f"{node} {node.target} {node.args} {node.kwargs}" for node in graph.nodes]


class Walk:
    """Goes through a trace and writes down the steps."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...], rows: bool) -> None:
        self.network, self.shape = network, shape
        self.given = Seen(-1, shape[2:] if rows else shape)
        self.steps: list[native.ImageStep] = []
        self.linears: list[native.Dense] = []
        self.seen: dict[fx.Node, Seen] = {}
        sizes = {name: value.numel() for name, value in network.named_parameters()}
        self.begin = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        """Where the weights of each name begin in a flat network."""
        self.used: list[str] = []

    def graph(self, trace: fx.Graph) -> native.Graph:
        """Return what the kernel is told."""
        for node in trace.nodes:
            if node.op == "placeholder":
                self.seen |= {} if self.seen else {node: self.given}  # what else a forward takes has no value here
            elif node.op == "output":
                self._check_end(node.args[0])
            elif not node.users:  # which may overwrite what others read
                raise UnknownError(
                    f"the result of {_named(node)} is not used; a network that uses every one would be known"
                )
            elif node.op == "call_module":
                module = self.network.get_submodule(str(node.target))
                self._layer(node, str(node.target), module, self._given(node, node.args[0]))
            else:
                self._call(node)
        if unused := set(self.begin) - set(self.used):
            raise UnknownError(f"{min(unused)} is not used; a network that uses all of its weights would be known")
        channels, height, width = self.shape
        return native.Graph(channels, height, width, fused(self.steps), tuple(self.linears))

    def _check_end(self, result: Any) -> None:
        if not isinstance(result, fx.Node) or self.seen[result].linears != len(self.linears) or not self.linears:
            raise UnknownError(
                "its forward does not end with the last nn.Linear; one that returns its output would be known"
            )
        if self.linears[-1].relu:
            raise UnknownError(
                "its forward ends with a ReLU; one that returns the output of an nn.Linear would be known"
            )
        if max(len(self.linears) / native.MAX_LAYERS, len(self.steps) / native.MAX_STEPS) > 1:
            raise UnknownError(
                f"it has {len(self.steps)} layers before the flattening and {len(self.linears)} linear ones; up to "
                f"{native.MAX_STEPS} and {native.MAX_LAYERS} are known"
            )

    def _given(self, node: fx.Node, argument: Any) -> Seen:
        if not isinstance(argument, fx.Node) or argument not in self.seen:
            raise UnknownError(
                f"{_named(node)} reads no images or features; layers of torch.nn after one another would"
            )
        return self.seen[argument]

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if target in SIZES:
            return
        given = self._given(node, node.args[0] if node.args else None)
        if target in ("view", "reshape"):
            self.seen[node] = self._flattened(node, given, node.args[1:])
        elif target in ("mean", torch.mean):
            self._mean(node, given)
        elif target in ADDS:
            self._add(node, given)
        elif target in CALLED:
            try:
                layer = CALLED[target](*node.args[1:], **node.kwargs)
            except TypeError as error:
                raise UnknownError(f"{_named(node)}: {error}") from error
            self._layer(node, _named(node), layer, given)
        else:
            left_out = any(part in _named(node) for part in ("drop", "norm", "softmax"))
            near = "the network without it" if left_out else "layers of torch.nn"
            raise UnknownError(f"its forward calls {_named(node)}, which is not in our kernels; {near} would be")

    def _layer(self, node: fx.Node, name: str, layer: nn.Module, given: Seen) -> None:
        if type(layer) not in KNOWN:
            raise UnknownError(_says(name, layer, _unknown(layer)))
        if isinstance(layer, nn.ReLU):
            self.seen[node] = self._relu(node, given, layer)
            return
        images = len(given.shape) == 3
        if isinstance(layer, nn.Flatten) and not images:
            self.seen[node] = given
            return
        if images == isinstance(layer, nn.Linear):
            wanted = "features, as nn.Flatten makes them" if images else "images"
            raise UnknownError(_says(name, layer, f"it does not read {wanted}, which our kernels know it for"))
        if trouble := _strange(layer):
            raise UnknownError(_says(name, layer, trouble))
        if isinstance(layer, nn.Flatten):
            self.seen[node] = self._flattened(node, given, (-1, torch.Size(given.shape).numel()))
            return
        for own, _ in layer.named_parameters():
            if f"{name}.{own}" in self.used or f"{name}.{own}" not in self.begin:
                raise UnknownError(_says(name, layer, "it is used twice; one for each place would be known"))
            self.used.append(f"{name}.{own}")
        weight, bias = (self.begin.get(f"{name}.{own}", -1) for own in ("weight", "bias"))
        if isinstance(layer, nn.Linear):
            if given.linears != len(self.linears):
                raise UnknownError(
                    _says(name, layer, "it reads what others read; linear layers after one another are known")
                )
            self.linears.append(native.Dense(layer.out_features, False, weight, bias))
            self.seen[node] = Seen(given.step, (layer.out_features,), len(self.linears))
        elif isinstance(layer, nn.Conv2d):
            side, padding = layer.kernel_size[0], {"valid": 0, "same": layer.kernel_size[0] // 2}
            self._append(
                node, given, kind="convolution", outputs=layer.out_channels, size=(side, side),
                stride=_pair(layer.stride), weight=weight, bias=bias,
                padding=padding[layer.padding] if isinstance(layer.padding, str) else layer.padding[0],
            )  # fmt: skip
        elif isinstance(layer, nn.GroupNorm | nn.InstanceNorm2d):
            groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else layer.num_features
            self._append(node, given, kind="norm", groups=groups, epsilon=layer.eps, weight=weight, bias=bias)
        elif isinstance(layer, nn.AdaptiveAvgPool2d):
            outputs = [
                side if asked is None else asked
                for asked, side in zip(_pair(layer.output_size), given.shape[1:], strict=True)
            ]
            height, width = (side / asked for asked, side in zip(outputs, given.shape[1:], strict=True))
            if height % 1 or width % 1:
                trouble = f"output_size={tuple(outputs)} of images of {given.shape[1:]} is not in our kernels"
                raise UnknownError(_says(name, layer, f"{trouble}; output_size=1 would be"))
            self._append(node, given, kind="average_pool", size=(window := (int(height), int(width))), stride=window)
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            kind: native.Kind = "max_pool" if isinstance(layer, nn.MaxPool2d) else "average_pool"
            self._append(
                node, given, kind=kind, size=_pair(layer.kernel_size), stride=_pair(layer.stride),
                padding=_pair(layer.padding)[0],
            )  # fmt: skip

    def _append(self, node: fx.Node, given: Seen, **step: Any) -> None:
        self.steps.append(native.ImageStep(reads=given.step, **step))
        self.seen[node] = Seen(len(self.steps) - 1, self.steps[-1].of(given.shape))

    def _relu(self, node: fx.Node, given: Seen, layer: nn.ReLU) -> Seen:
        """At the end of the layer that it reads, where no other reads that; else as a window of one pixel."""
        alone = self._alone(node)
        if layer.inplace and not alone:
            raise UnknownError(f"{_named(node)} overwrites what others read; one that is not inplace would be known")
        if given.linears:
            if not alone:
                raise UnknownError(f"{_named(node)}: linear layers after one another are known")
            self.linears[-1] = replace(self.linears[-1], relu=True)
        elif given.step >= 0 and (alone or self.steps[given.step].relu):
            self.steps[given.step] = replace(self.steps[given.step], relu=True)
        elif len(given.shape) == 3:
            self.steps.append(native.ImageStep("max_pool", given.step, relu=True))
            return Seen(len(self.steps) - 1, given.shape)
        else:
            raise UnknownError(f"{_named(node)} reads the numbers of an example; one after a layer would be known")
        return given

    def _alone(self, node: fx.Node) -> bool:
        """Whether nothing else reads what a node reads."""
        read = node.args[0]
        assert isinstance(read, fx.Node)
        return sum(user.target not in SIZES for user in read.users) == 1

    def _add(self, node: fx.Node, given: Seen) -> None:
        other = self._given(node, node.args[1] if len(node.args) == 2 else None)
        if node.kwargs or len(given.shape) != 3 or given.shape != other.shape or given.step == other.step:
            raise UnknownError(f"{_named(node)}: sums of images of one shape, of two layers, are known")
        if node.target is operator.iadd and not self._alone(node):
            raise UnknownError(f"{_named(node)} overwrites what others read; x + y would be known")
        self._append(node, given, kind="add", other=other.step)

    def _mean(self, node: fx.Node, given: Seen) -> None:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        both = isinstance(axes, Sequence) and set(axes) in ({2, 3}, {-1, -2})
        if not both or len(given.shape) != 3 or len(node.args) > 2 or set(node.kwargs) - {"dim", "keepdim"}:
            raise UnknownError(f"{_named(node)}: the mean over both sides of images, dim=(2, 3), is known")
        self._append(node, given, kind="average_pool", size=given.shape[1:], stride=given.shape[1:])
        if not node.kwargs.get("keepdim"):
            self.seen[node] = self._flattened(node, self.seen[node], (-1, given.shape[0]))

    def _flattened(self, node: fx.Node, given: Seen, sizes: Sequence[Any]) -> Seen:
        """Of images; the examples must stay apart."""
        if len(sizes) == 1 and isinstance(sizes[0], Sequence):
            sizes = sizes[0]
        features = torch.Size(given.shape).numel()
        if len(sizes) != 2 or not (sizes[1] == features or (sizes[1] == -1 and _counts(sizes[0]))):
            raise UnknownError(f"{_named(node)}{tuple(sizes)} is not in our kernels; flatten(1) would be")
        if given.step >= 0 and not self._alone(node):
            raise UnknownError(
                f"{_named(node)} reads what others read; images that are flattened at the end alone are known"
            )
        return replace(given, shape=(features,))


def fused(steps: Sequence[native.ImageStep]) -> tuple[native.ImageStep, ...]:
    """Make a block of each convolution with max pooling of 2×2 that nobody else reads."""
    readers = Counter(
        read for step in steps for read in ((step.reads, step.other) if step.kind == "add" else (step.reads,))
    )
    out: list[native.ImageStep] = []
    place = {-1: -1}
    for number, step in enumerate(steps):
        before = steps[step.reads] if step.reads >= 0 else None
        pools = step.kind == "max_pool" and step.size == step.stride == (2, 2) and not step.padding
        alone = before is not None and readers[step.reads] == readers[before.reads] == 1
        fits = before is not None and before.kind == "convolution" and before.stride == (1, 1) and before.bias >= 0
        if pools and alone and fits and (step.relu or steps[step.reads].relu):
            at = place[step.reads]
            out[at] = replace(out[at], kind="block", relu=True)
            place[number] = at
        else:
            out.append(replace(step, reads=place[step.reads], other=place[step.other]))
            place[number] = len(out) - 1
    return tuple(out)


def _strange(layer: nn.Module) -> str | None:
    """Return what the kernel does not know of a layer, and what it would."""
    wanted: dict[str, tuple[Any, ...]] = {}
    if isinstance(layer, nn.Conv2d):
        wanted = {name: _even(getattr(layer, name)) for name in ("kernel_size", "stride", "padding")}
        wanted |= {"dilation": (1, (1, 1)), "groups": (1,), "padding_mode": ("zeros",)}
        if layer.padding == "same" and layer.kernel_size[0] % 2 == 0:
            return "padding=same of an even kernel is not in our kernels; an odd kernel_size would be"
    elif isinstance(layer, nn.MaxPool2d):
        wanted = {"padding": _even(layer.padding), "dilation": (1, (1, 1)), "ceil_mode": (False,)}
        wanted |= {"return_indices": (False,)}
    elif isinstance(layer, nn.AvgPool2d):
        wanted = {"padding": (0, (0, 0)), "ceil_mode": (False,), "divisor_override": (None,)}
    elif isinstance(layer, nn.InstanceNorm2d):
        wanted = {"track_running_stats": (False,)}
    elif isinstance(layer, nn.Flatten):
        wanted = {"start_dim": (1,), "end_dim": (-1, 3)}
    return unlike(layer, wanted)


def _even(value: Any) -> tuple[Any, ...]:
    """Return the values that are the same down and across, as the first number of this one is, or words."""
    first = value[0] if isinstance(value, tuple) else value
    return first, (first, first)


def _unknown(layer: nn.Module) -> str:
    return instead(layer, KNOWN)


def _says(name: str, layer: nn.Module, trouble: str) -> str:
    return f"layer {name} ({type(layer).__name__}): {trouble}"


def _named(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.name


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, tuple) else (value, value)
    return first, second


def _counts(value: Any) -> bool:
    """Whether this is the number of examples: the first size of something that has the axis of examples."""
    if not isinstance(value, fx.Node):
        return False
    if value.target == "size":
        return bool(value.args[1:] == (0,))
    read = value.args[0]
    sizes = isinstance(read, fx.Node) and (
        read.target == "size" or (read.target is getattr and read.args[1] == "shape")
    )
    return bool(sizes and value.target is operator.getitem and value.args[1] == 0)
