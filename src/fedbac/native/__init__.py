"""Train and evaluate many small convolutional networks in a native kernel, on all cores."""

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, addressof, byref, c_char_p, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Axes: J jobs, P parts, D parameters of one network, T networks in a table, S visits of all jobs, V models, G groups,
# N examples, C channels, H height, W width, E epochs.


MAX_LAYERS, MAX_STEPS = 8, 64
"""Linear layers, and layers of images, that the kernel has room for; blocks that the GPU's have."""


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class ImagesArgument(Structure):
    """``fedbac_images``."""

    _fields_ = [("pixels", c_void_p), ("is_float", c_int32), *_fields(c_void_p, "scale shift labels")]


class TrainCall(Structure):
    """``fedbac_train_call``."""

    _fields_ = [
        ("shape", c_void_p), *_fields(c_int32, "num_parts num_threads instruction_set"), ("images", ImagesArgument),
        ("num_jobs", c_int64), *_fields(c_void_p, "networks start schedule schedule_begin num_examples num_epochs"),
        ("batch_size", c_int64), ("drop_last", c_int32), *_fields(c_void_p, "crop flip learning_rate"),
        ("momentum", c_float), *_fields(c_void_p, "weight_decay l2 anchors anchor moving_begin moving_end"),
        ("max_norm", c_float), ("clip_per_part", c_int32),
        *_fields(c_void_p, "shift velocity_in velocity_out trained loss square epoch_loss"), ("max_epochs", c_int64),
        *_fields(c_void_p, "finite stop"),
    ]  # fmt: skip


class EvaluateCall(Structure):
    """``fedbac_evaluate_call``."""

    _fields_ = [
        ("shape", c_void_p), *_fields(c_int32, "num_parts num_threads instruction_set"), ("images", ImagesArgument),
        *_fields(c_void_p, "networks models"), ("num_groups", c_int64), *_fields(c_void_p, "examples group_begin"),
        ("num_pairs", c_int64), *_fields(c_void_p, "pair_model pair_group loss correct stop"),
    ]  # fmt: skip


Struct = TypeVar("Struct", bound=Structure)


def filled(kind: type[Struct], **given: Any) -> Struct:
    """Return a struct that points to the arrays given, and keeps them alive."""
    struct = kind(**{name: v.ctypes.data if isinstance(v, np.ndarray) else v for name, v in given.items()})
    struct.given = given
    return struct


Result = TypeVar("Result")


def interruptible(work: Callable[[c_int32], Result]) -> Result:
    """Return ``work(stop)``, done in another thread while this one waits. Python's signal handlers run on the main
    thread, and not while it is in the kernel; here it only waits. When a handler raises, ``stop`` tells the kernel to
    end after the samples in hand, and what it computed is lost."""
    stop = c_int32(0)
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(work, stop).result()
        except BaseException:
            stop.value = 1
            raise


def missing() -> str | None:
    """Return why the kernel cannot be used, or None where it can."""
    if _path() is None:
        return "it was not built when fedbac was installed; that takes GCC or Clang (pip install -v shows what failed)"
    try:
        library = _library()
    except OSError as error:
        return f"it cannot be loaded: {error}"
    layout = 2 * 10**12 + 10**6 * ctypes.sizeof(TrainCall) + ctypes.sizeof(EvaluateCall)
    if not hasattr(library, "fedbac_layout") or library.fedbac_layout() != layout:
        return "it was built for another version of fedbac; install fedbac again (in a checkout: pip install -e .)"
    return None


Kind = Literal["block", "convolution", "max_pool", "average_pool", "norm", "add"]


@dataclass(frozen=True)
class ImageStep:
    """A layer of images: it reads those of an earlier one, and ends with a ReLU if told so."""

    kind: Kind
    """A block is a convolution of stride 1, ReLU and 2×2 max pooling at once, and much faster than these."""
    reads: int
    """The place of a step among all, or −1: the images given."""
    other: int = -1
    """What ``add`` adds to it."""
    outputs: int = 0
    """Channels, of a convolution; others keep theirs."""
    size: tuple[int, int] = (1, 1)
    """Height and width of the kernel of a convolution, where they are equal, or of the window of a pool."""
    stride: tuple[int, int] = (1, 1)
    padding: int = 0
    groups: int = 1
    """Of a norm: channels of a group share their mean and deviation."""
    epsilon: float = 0.0
    relu: bool = False
    weight: int = -1
    """Where the weights begin in a flat network; −1: there are none."""
    bias: int = -1

    def of(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the shape of its output: channels, height and width."""
        channels, *sides = shape
        if self.kind in ("norm", "add"):
            return channels, sides[0], sides[1]
        each = zip(sides, self.size, self.stride, strict=True)
        height, width = ((side + 2 * self.padding - size) // stride + 1 for side, size, stride in each)
        pooled = 2 if self.kind == "block" else 1
        return self.outputs or channels, height // pooled, width // pooled

    def numbers(self) -> list[int]:
        """Return the step as the kernel reads it."""
        sizes = [self.outputs, *self.size, *self.stride, self.padding, self.groups]
        epsilon = int(np.float32(self.epsilon).view(np.int32))
        return [KINDS.index(self.kind), self.reads, self.other, *sizes, epsilon, self.relu, self.weight, self.bias]


KINDS = get_args(Kind)
"""In the kernel's order."""


@dataclass(frozen=True)
class Dense:
    """A linear layer, with a ReLU at its end if told so."""

    outputs: int
    relu: bool
    weight: int
    bias: int = -1


@dataclass(frozen=True)
class Graph:
    """Layers of images, of which each but the last is read by a later one, then linear layers."""

    channels: int
    height: int
    width: int
    steps: tuple[ImageStep, ...]
    linears: tuple[Dense, ...]
    """The last one gives the logits."""

    @cached_property
    def num_parameters(self) -> int:
        """The number of weights and biases of one network."""
        return _num_parameters(self)

    @property
    def num_classes(self) -> int:
        """The number of logits."""
        return self.linears[-1].outputs

    @cached_property
    def numbers(self) -> NDArray[np.int32]:
        """The network as the kernel reads it."""
        rows = [self.channels, self.height, self.width, len(self.steps), len(self.linears)]
        for step in self.steps:
            rows += step.numbers()
        for linear in self.linears:
            rows += [linear.outputs, linear.relu, linear.weight, linear.bias]
        return np.array(rows, np.int32)


@dataclass(frozen=True)
class Layers:
    """Blocks of convolution, ReLU and 2×2 max pooling, then linear layers with ReLU between them."""

    channels: int
    height: int
    width: int
    convolutions: tuple[tuple[int, int], ...]
    """Output channels and kernel side of each block."""
    linears: tuple[int, ...]
    """Outputs of each linear layer; the last one gives the logits."""

    @cached_property
    def num_parameters(self) -> int:
        """The number of weights and biases of one network."""
        return _num_parameters(self)

    @property
    def num_classes(self) -> int:
        """The number of logits."""
        return self.linears[-1]

    @property
    def numbers(self) -> NDArray[np.int32]:
        """The network as the kernel reads it."""
        return self.graph.numbers

    @cached_property
    def graph(self) -> Graph:
        """The same network as a graph."""
        steps: list[ImageStep] = []
        linears: list[Dense] = []
        begin, shape = 0, (self.channels, self.height, self.width)
        for outputs, side in self.convolutions:
            bias = begin + outputs * shape[0] * side**2
            block = ImageStep(
                "block", len(steps) - 1, outputs=outputs, size=(side, side), relu=True, weight=begin, bias=bias
            )
            steps.append(block)
            begin, shape = bias + outputs, block.of(shape)
        features = math.prod(shape)
        for outputs in self.linears:
            size, last = features * outputs, len(linears) + 1 == len(self.linears)
            linears.append(Dense(outputs, not last, begin, begin + size))
            begin, features = begin + size + outputs, outputs
        return Graph(self.channels, self.height, self.width, tuple(steps), tuple(linears))


Network = Layers | Graph


def _num_parameters(network: Network) -> int:
    count = int(_library().fedbac_num_parameters(network.numbers.ctypes.data))
    if count < 0:
        raise ValueError(
            f"{network} is no network: sizes must be positive, an image at least as large as its kernel and at least "
            f"two pixels wide after each convolution of a block, and there are at most {MAX_STEPS} layers of images "
            f"and {MAX_LAYERS} linear ones"
        )
    return count


@dataclass(frozen=True, eq=False)
class Images:
    """The examples of all clients: ``uint8`` pixels, read as (pixel/255 - mean)/std, or ``float32``, as they are."""

    pixels_NCHW: NDArray[Any]
    labels_N: NDArray[np.int64]
    mean_C: ArrayLike = 0.0
    std_C: ArrayLike = 1.0

    def __post_init__(self) -> None:
        if self.pixels_NCHW.dtype not in (np.uint8, np.float32) or self.pixels_NCHW.ndim != 4:
            raise ValueError("pixels must be uint8 or float32 of shape [N, C, H, W]")
        if len(self.labels_N) != len(self.pixels_NCHW):
            raise ValueError(f"{len(self.pixels_NCHW)} images but {len(self.labels_N)} labels")


@dataclass(frozen=True)
class JobVisits:
    """Which examples every job visits, in which order and how augmented. The jobs follow one another, and in each job
    its epochs; visits that ``drop_last`` drops are listed too."""

    examples_S: NDArray[Any]
    num_examples_J: NDArray[Any]
    num_epochs_J: NDArray[Any]
    crop_S2: NDArray[np.int8] | None = None
    """Pixel (y, x) is taken from (y + dy, x + dx); outside the image it is raw pixel 0 (normalized like any other)."""
    flip_S: NDArray[Any] | None = None
    """Mirror left to right, after the crop."""


@dataclass(frozen=True)
class JobSgd:
    """How jobs train; a number given for all parts may also be a sequence with one entry for each. g = ∇(mean
    cross-entropy of the batch) + l2·(w - anchor);  g ← g·min(1, max_norm / (‖g‖ + 1e-6)) + shift; v ← momentum·v + g +
    weight_decay·w;  w ← w - learning_rate·v, as ``torch.optim.SGD`` after ``clip_grad_norm_``."""

    batch_size: int
    learning_rate: float | Sequence[float] | NDArray[Any]
    """For all jobs, or one for each."""
    momentum: float = 0.0
    weight_decay: float | Sequence[float] = 0.0
    l2: float | Sequence[float] = 0.0
    max_norm: float = 0.0
    """0 turns clipping off."""
    clip_per_part: bool = False
    moving: Sequence[slice] | None = None
    """Per part, the span of parameters that move, whole layers; all of them when not given. The others do not count for
    the norm; a network of which nothing moves, ``slice(0)``, only adds its logits."""
    drop_last: bool = False


@dataclass(frozen=True, eq=False)
class TrainingOutcome:
    """What training returns for every job."""

    parameters_JPD: NDArray[np.float32]
    loss_J: NDArray[np.float64]
    """Mean cross-entropy over all visits, 0 for a job without any."""
    square_J: NDArray[np.float64]
    """Mean of the squared cross-entropies."""
    loss_JE: NDArray[np.float64]
    """Mean over each epoch; NaN past a job's last epoch."""
    finite_J: NDArray[np.bool_]
    """Whether the job's loss and all its parameters are finite."""
    velocity_JPD: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What evaluation returns for every pair of a model and a group."""

    loss: NDArray[np.float64]
    """Summed cross-entropy."""
    correct: NDArray[np.int64]
    """Examples whose largest logit, the lowest class winning ties, is the label's."""
    count: NDArray[np.int64]


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this processor can run, best first."""
    return tuple(name for name, number in _instruction_sets().items() if _library().fedbac_supported(number))


def default_instruction_set() -> str:
    """Return what calls use that name none: the environment's ``FEDBAC_NATIVE_ISA``, else the best there is."""
    return os.environ.get("FEDBAC_NATIVE_ISA") or instruction_sets()[0]


def train(
    layers: Network,
    images: Images,
    networks_TD: NDArray[np.float32],
    start_JP: NDArray[np.int64],
    visits: JobVisits,
    sgd: JobSgd,
    *,
    anchors_AD: NDArray[np.float32] | None = None,
    anchor_JP: NDArray[np.int64] | None = None,
    velocity_JPD: NDArray[np.float32] | None = None,
    shift_JPD: NDArray[np.float32] | None = None,
    return_velocity: bool = False,
    num_threads: int = 1,
    instruction_set: str | None = None,
    stop: c_int32 | None = None,
) -> TrainingOutcome:
    """Train every job from its rows of ``networks_TD``; the same bits for any number of threads and order of jobs.
    ``anchor_JP`` names the rows of ``anchors_AD`` to which ``l2`` pulls; it pulls to zero where that is negative.
    Another thread may set ``stop`` to end the work early, by an InterruptedError."""
    start = np.ascontiguousarray(start_JP, np.int64)
    num_jobs, num_parts = start.shape
    networks = _networks(layers, networks_TD)
    _check_range("start_JP", start, len(networks))
    examples = _indices("examples_S", visits.examples_S, len(images.pixels_NCHW))
    num_examples = _per_job("num_examples_J", visits.num_examples_J, num_jobs)
    num_epochs = _per_job("num_epochs_J", visits.num_epochs_J, num_jobs)
    length = num_examples * num_epochs
    if length.sum() != len(examples):
        raise ValueError(
            f"examples_S has {len(examples)} visits, but the jobs' examples times epochs are {length.sum()}"
        )
    if sgd.batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {sgd.batch_size}")
    begin = np.cumsum(length) - length
    crop = None if visits.crop_S2 is None else _shaped("crop_S2", visits.crop_S2, np.int8, (len(examples), 2))
    flip = None if visits.flip_S is None else _shaped("flip_S", visits.flip_S, np.uint8, (len(examples),))
    size = (num_jobs, num_parts, layers.num_parameters)
    velocity_in = None if velocity_JPD is None else _shaped("velocity_JPD", velocity_JPD, np.float32, size)
    shift = None if shift_JPD is None else _shaped("shift_JPD", shift_JPD, np.float32, size)
    velocity_out = np.empty(size, np.float32) if return_velocity else None
    weight_decay = np.ascontiguousarray(np.broadcast_to(sgd.weight_decay, num_parts), np.float32)
    l2 = np.ascontiguousarray(np.broadcast_to(sgd.l2, num_parts), np.float32)
    rate = np.ascontiguousarray(np.broadcast_to(sgd.learning_rate, num_jobs), np.float32)
    spans = [slice(None)] * num_parts if sgd.moving is None else sgd.moving
    moving = np.array([span.indices(layers.num_parameters)[:2] for span in spans], np.int64).reshape(num_parts, 2)
    moving_begin, moving_end = (np.ascontiguousarray(bound) for bound in moving.T)
    anchors = anchor = None
    if anchors_AD is not None and anchor_JP is not None:
        anchors = _networks(layers, anchors_AD)
        anchor = _shaped("anchor_JP", anchor_JP, np.int64, start.shape)
        _check_range("anchor_JP", np.maximum(anchor, 0), len(anchors))
    parameters = np.empty(size, np.float32)
    loss, square = np.zeros(num_jobs), np.zeros(num_jobs)
    max_epochs = int(num_epochs.max(initial=0))
    epoch_loss = np.full((num_jobs, max_epochs), np.nan)
    finite = np.zeros(num_jobs, np.uint8)

    call = filled(
        TrainCall, shape=layers.numbers, num_parts=num_parts, num_threads=num_threads,
        instruction_set=_choose(instruction_set), images=_argument(layers, images), num_jobs=num_jobs,
        networks=networks, start=start, schedule=examples, schedule_begin=begin, num_examples=num_examples,
        num_epochs=num_epochs, batch_size=sgd.batch_size, drop_last=sgd.drop_last, crop=crop, flip=flip,
        learning_rate=rate, momentum=sgd.momentum, weight_decay=weight_decay, l2=l2, anchors=anchors, anchor=anchor,
        moving_begin=moving_begin, moving_end=moving_end, max_norm=sgd.max_norm, clip_per_part=sgd.clip_per_part,
        shift=shift, velocity_in=velocity_in, velocity_out=velocity_out, trained=parameters, loss=loss, square=square,
        epoch_loss=epoch_loss, max_epochs=max_epochs, finite=finite, stop=None if stop is None else addressof(stop),
    )  # fmt: skip
    _raise_for(_library().fedbac_train(byref(call)), num_parts)
    return TrainingOutcome(parameters, loss, square, epoch_loss, finite.astype(bool), velocity_out)


def evaluate(
    layers: Network,
    images: Images,
    networks_TD: NDArray[np.float32],
    models_VP: NDArray[np.int64],
    groups: Sequence[NDArray[Any]],
    pairs: NDArray[np.int64],
    *,
    num_threads: int = 1,
    instruction_set: str | None = None,
    stop: c_int32 | None = None,
) -> Evaluated:
    """Measure each (model, group) row of ``pairs``; a network shared by several models runs once on a group."""
    models = np.ascontiguousarray(models_VP, np.int64)
    networks = _networks(layers, networks_TD)
    _check_range("models_VP", models, len(networks))
    pairs = np.asarray(pairs, np.int64).reshape(-1, 2)
    pair_model, pair_group = (np.ascontiguousarray(column) for column in pairs.T)
    _check_range("pairs[:, 0]", pair_model, len(models))
    _check_range("pairs[:, 1]", pair_group, len(groups))
    count = np.array([len(group) for group in groups], np.int64)
    begin = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    joined = np.concatenate([np.asarray(group) for group in groups]) if groups else np.empty(0, np.int32)
    examples = _indices("groups", joined, len(images.pixels_NCHW))
    loss = np.zeros(len(pairs))
    correct = np.zeros(len(pairs), np.int64)

    call = filled(
        EvaluateCall, shape=layers.numbers, num_parts=models.shape[1], num_threads=num_threads,
        instruction_set=_choose(instruction_set), images=_argument(layers, images), networks=networks, models=models,
        num_groups=len(groups), examples=examples, group_begin=begin, num_pairs=len(pairs), pair_model=pair_model,
        pair_group=pair_group, loss=loss, correct=correct, stop=None if stop is None else addressof(stop),
    )  # fmt: skip
    _raise_for(_library().fedbac_evaluate(byref(call)), models.shape[1])
    return Evaluated(loss, correct, count[pair_group])


def launcher() -> Callable[[Any, int, int], int] | None:
    """Return what starts many GPU kernels in one call, given the driver's function, the rows and their count."""
    return _library().fedbac_launch if missing() is None and hasattr(_library(), "fedbac_launch") else None


def _path() -> Path | None:
    built = Path(__file__).parent.glob("_kernel*.so")  # by whatever Python: nothing of it is inside
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_path()))
    library.fedbac_instruction_set.argtypes = [c_int32]
    library.fedbac_instruction_set.restype = c_char_p
    library.fedbac_supported.argtypes = [c_int32]
    if hasattr(library, "fedbac_layout"):
        library.fedbac_layout.restype = c_int64
    library.fedbac_num_parameters.argtypes = [c_void_p]
    library.fedbac_num_parameters.restype = c_int64
    library.fedbac_train.argtypes = [POINTER(TrainCall)]
    library.fedbac_evaluate.argtypes = [POINTER(EvaluateCall)]
    if hasattr(library, "fedbac_launch"):
        library.fedbac_launch.argtypes = [c_void_p, c_void_p, c_int64]
    return library


@functools.cache
def _instruction_sets() -> dict[str, int]:
    sets: dict[str, int] = {}
    while (name := _library().fedbac_instruction_set(len(sets))) is not None:
        sets[name.decode()] = len(sets)
    return sets


def _choose(name: str | None) -> int:
    name = name or default_instruction_set()
    if name not in instruction_sets():
        raise ValueError(
            f"instruction set {name!r} is not available here; choose one of {', '.join(instruction_sets())}"
        )
    return _instruction_sets()[name]


def _raise_for(status: int, num_parts: int) -> None:
    if status == 1:
        raise ValueError(f"a model is the sum of 1 to 16 networks, not {num_parts}")
    if status == 3:
        raise MemoryError("not enough memory for the kernel's workspaces; use fewer threads")
    if status == 4:
        raise InterruptedError("the kernel was told to stop")


def _networks(layers: Network, networks_TD: NDArray[np.float32]) -> NDArray[np.float32]:
    return _shaped("networks_TD", networks_TD, np.float32, (len(networks_TD), layers.num_parameters))


def _argument(layers: Network, images: Images) -> ImagesArgument:
    expected = (layers.channels, layers.height, layers.width)
    if images.pixels_NCHW.shape[1:] != expected:
        raise ValueError(f"the network takes images of shape {expected}, not {images.pixels_NCHW.shape[1:]}")
    pixels, labels = np.ascontiguousarray(images.pixels_NCHW), np.ascontiguousarray(images.labels_N, np.int64)
    _check_range("labels_N", labels, layers.num_classes)
    mean = np.broadcast_to(np.asarray(images.mean_C, np.float64), layers.channels)
    std = np.broadcast_to(np.asarray(images.std_C, np.float64), layers.channels)
    scale, shift = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    is_float = int(pixels.dtype == np.float32)
    return filled(ImagesArgument, pixels=pixels, is_float=is_float, scale=scale, shift=shift, labels=labels)


def _indices(name: str, array: NDArray[Any], limit: int) -> NDArray[np.int32]:
    if limit > np.iinfo(np.int32).max:
        raise ValueError(f"at most {np.iinfo(np.int32).max} examples, not {limit}")
    _check_range(name, np.asarray(array), limit)
    return np.ascontiguousarray(array, np.int32)


def _check_range(name: str, array: NDArray[Any], limit: int) -> None:
    if array.size and (int(array.min()) < 0 or int(array.max()) >= limit):
        raise ValueError(f"{name} must lie in [0, {limit}), but it runs from {array.min()} to {array.max()}")


def _per_job(name: str, array: NDArray[Any], num_jobs: int) -> NDArray[np.int64]:
    values = _shaped(name, array, np.int64, (num_jobs,))
    if (values < 0).any():
        raise ValueError(f"{name} must not be negative")
    return values


def _shaped(name: str, array: NDArray[Any], kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    result = np.ascontiguousarray(array, kind)
    if result.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {result.shape}")
    return result
