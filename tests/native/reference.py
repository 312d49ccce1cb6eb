"""What the native kernel is compared with: the same training in PyTorch, and small cases for both."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedbac import native
from fedbac.native import Graph, Images, JobSgd, JobVisits, Layers, Network
from tests.native import lenet5

if native.missing() is not None:
    pytest.skip(f"the native kernel cannot be used: {native.missing()}", allow_module_level=True)

MEAN, STD = (0.4, 0.5, 0.6, 0.3), (0.2, 0.25, 0.3, 0.5)
TINY = Layers(1, 13, 14, ((3, 3), (5, 2)), (9, 7))
NETWORKS = {
    "lenet5-1x28x28": lenet5(1, 28, 28),
    "lenet5-3x32x32": lenet5(3, 32, 32),
    "lenet5-wide": lenet5(3, 32, 32, 17, (8, 23, 169, 118)),
    "lenet5-odd": lenet5(2, 23, 19, 3, (7, 5, 13, 11)),
    "tiny": TINY,
    "one convolution": Layers(2, 9, 12, ((5, 4),), (6,)),
    "three convolutions": Layers(2, 31, 27, ((4, 3), (7, 2), (6, 3)), (5, 4)),
    "large kernels": Layers(1, 25, 24, ((2, 7), (3, 6)), (4,)),
    "kernel of one": Layers(3, 9, 8, ((4, 1), (13, 1)), (5,)),
    "perceptron": Layers(1, 3, 4, (), (19, 5)),
    "linear": Layers(2, 5, 5, (), (3,)),
}
MODULES: dict[Graph, nn.Module] = {}
"""What a graph was made of."""
SETS = native.instruction_sets()
torch.set_num_threads(1)  # the reference's steps are too small to share


def torch_network(layers: Network) -> nn.Module:
    if isinstance(layers, Graph):
        return copy.deepcopy(MODULES[layers])
    modules: list[nn.Module] = []
    channels, height, width = layers.channels, layers.height, layers.width
    for outputs, kernel in layers.convolutions:
        modules += [nn.Conv2d(channels, outputs, kernel), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = outputs, (height - kernel + 1) // 2, (width - kernel + 1) // 2
    modules.append(nn.Flatten())
    features = channels * height * width
    for outputs in layers.linears:
        modules += [nn.Linear(features, outputs), nn.ReLU()]
        features = outputs
    return nn.Sequential(*modules[:-1])


def flat(network: nn.Module) -> np.ndarray:
    return torch.cat([weight.detach().flatten() for weight in network.parameters()]).numpy()


def start_networks(layers: Network, count: int, seed: int = 0) -> np.ndarray:
    torch.manual_seed(seed)
    networks = [torch_network(layers) for _ in range(count)]
    for network in networks if isinstance(layers, Graph) else ():
        for module in network.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        for value in network.parameters():  # of norms too, which begin as ones and zeros
            value.data += 0.1 * torch.rand_like(value) * value.abs().mean().clamp(min=0.1)
    return np.stack([flat(network) for network in networks]).astype(np.float32)


def load(layers: Network, flat_weights: np.ndarray, dtype: torch.dtype) -> nn.Module:
    network = torch_network(layers).to(dtype)
    nn.utils.vector_to_parameters(torch.tensor(flat_weights, dtype=dtype), network.parameters())
    return network


def make_images(layers: Network, count: int, *, is_float: bool = False, seed: int = 0) -> Images:
    rng = np.random.default_rng(seed)
    shape = (count, layers.channels, layers.height, layers.width)
    pixels = rng.normal(size=shape).astype(np.float32) if is_float else rng.integers(0, 256, shape, dtype=np.uint8)
    channels = layers.channels
    return Images(pixels, rng.integers(0, layers.num_classes, count), MEAN[:channels], STD[:channels])


def make_visits(images: Images, sizes: list[int], epochs: list[int], seed: int = 0) -> JobVisits:
    rng = np.random.default_rng(seed)
    visits = [np.empty(0, np.int64)]
    for size, count in zip(sizes, epochs, strict=True):
        chosen = rng.choice(len(images.labels_N), size, replace=False)
        visits += [rng.permutation(chosen) for _ in range(count)]
    return JobVisits(np.concatenate(visits), np.array(sizes), np.array(epochs))


def read(
    images: Images, visits: np.ndarray, crop: np.ndarray | None, flip: np.ndarray | None, dtype: torch.dtype
) -> torch.Tensor:
    raw = torch.from_numpy(images.pixels_NCHW[visits])
    height, width = raw.shape[2:]
    if crop is not None:
        padded = functional.pad(raw, (128, 128, 128, 128))
        raw = torch.stack(
            [
                one[:, 128 + dy : 128 + dy + height, 128 + dx : 128 + dx + width]
                for one, (dy, dx) in zip(padded, crop.astype(int), strict=True)
            ]
        )
    if flip is not None:
        raw = torch.where(torch.from_numpy(flip.astype(bool))[:, None, None, None], raw.flip(-1), raw)
    if raw.dtype == torch.float32:
        return raw.to(dtype)
    mean, std = (torch.tensor(value, dtype=dtype)[:, None, None] for value in (images.mean_C, images.std_C))
    return (raw.to(dtype) / 255 - mean) / std


def torch_train(
    layers: Network,
    images: Images,
    networks_TD: np.ndarray,
    start_JP: np.ndarray,
    visits: JobVisits,
    sgd: JobSgd,
    *,
    anchors_AD: np.ndarray | None = None,
    anchor_JP: np.ndarray | None = None,
    velocity_JPD: np.ndarray | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[np.ndarray, np.ndarray, list[list[float]]]:
    """Train job after job, step after step, with PyTorch's own optimizer and clipping."""
    num_parts = start_JP.shape[1]
    decay, l2 = (np.broadcast_to(value, num_parts) for value in (sgd.weight_decay, sgd.l2))
    rate_J = np.broadcast_to(sgd.learning_rate, len(start_JP))
    results, velocities, losses, at = [], [], [], 0
    for job, rows in enumerate(start_JP):
        parts = [load(layers, networks_TD[row], dtype) for row in rows]
        spans = [slice(None)] * num_parts if sgd.moving is None else sgd.moving
        moving = [moved(part, span) for part, span in zip(parts, spans, strict=True)]
        anchors = [
            [torch.zeros_like(w) for w in part.parameters()]
            if anchors_AD is None or anchor_JP is None or anchor_JP[job, p] < 0
            else list(load(layers, anchors_AD[anchor_JP[job, p]], dtype).parameters())
            for p, part in enumerate(parts)
        ]
        live = [p for p in range(num_parts) if moving[p]]
        optimizer = torch.optim.SGD(
            [{"params": moving[p], "weight_decay": float(decay[p])} for p in live] or [torch.zeros(1)],
            lr=float(rate_J[job]),
            momentum=sgd.momentum,
        )
        if velocity_JPD is not None:
            for p in live:
                begin = 0
                for weight in parts[p].parameters():
                    buffer = torch.from_numpy(velocity_JPD[job, p, begin : begin + weight.numel()])
                    optimizer.state[weight]["momentum_buffer"] = buffer.to(dtype).view_as(weight).clone()
                    begin += weight.numel()
        epochs = []
        for _ in range(visits.num_epochs_J[job]):
            total, visited = 0.0, 0
            for begin in range(0, visits.num_examples_J[job], sgd.batch_size):
                end = min(begin + sgd.batch_size, visits.num_examples_J[job])
                if sgd.drop_last and begin > 0 and end - begin < sgd.batch_size:
                    continue
                rows_ = slice(at + begin, at + end)
                batch = visits.examples_S[rows_]
                crop = None if visits.crop_S2 is None else visits.crop_S2[rows_]
                flip = None if visits.flip_S is None else visits.flip_S[rows_]
                x = read(images, batch, crop, flip, dtype)
                logits = torch.stack([part(x) for part in parts]).sum(0)
                loss = functional.cross_entropy(logits, torch.from_numpy(images.labels_N[batch]))
                total, visited = total + loss.item() * (end - begin), visited + end - begin
                if not live:
                    continue
                for part in parts:
                    part.zero_grad()
                for p in live:
                    for w, anchor in zip(parts[p].parameters(), anchors[p], strict=True):
                        loss = loss + float(l2[p]) / 2 * ((w - anchor) ** 2).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                if sgd.max_norm:
                    scopes = [[p] for p in live] if sgd.clip_per_part else [live]
                    for scope in scopes:
                        nn.utils.clip_grad_norm_([w for p in scope for w in moving[p]], sgd.max_norm)
                optimizer.step()
            at += int(visits.num_examples_J[job])
            epochs.append(total / visited if visited else 0.0)
        results.append([flat(part) for part in parts])
        losses.append(epochs)
        buffers = [
            [optimizer.state[w].get("momentum_buffer", torch.zeros_like(w)) for w in part.parameters()]
            for part in parts
        ]
        velocities.append([torch.cat([buffer.detach().flatten() for buffer in part]).numpy() for part in buffers])
    return np.array(results), np.array(velocities), losses


def moved(network: nn.Module, span: slice) -> list[nn.Parameter]:
    """Return the parameters that lie in a span of the flat network."""
    found, begin = [], 0
    start, stop, _ = span.indices(sum(weight.numel() for weight in network.parameters()))
    for weight in network.parameters():
        if start <= begin < stop:
            found.append(weight)
        begin += weight.numel()
    return found


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float, instruction_set: str) -> None:
    """Allow a few filters to be less close: of two pixels under a window that tie but for rounding, either may win."""
    error = np.abs(found - expected)
    assert np.mean(error > tolerance) < 1e-3, instruction_set
    assert error.max(initial=0) < 100 * tolerance, instruction_set


def assert_equals_torch(
    layers: Network,
    images: Images,
    networks: np.ndarray,
    start: np.ndarray,
    visits: JobVisits,
    sgd: JobSgd,
    *,
    tolerance: float = 2e-6,
    velocity: np.ndarray | None = None,
    **pull: Any,
) -> list[native.TrainingOutcome]:
    """Train by PyTorch once, and by the kernel with every set of instructions; compare weights, momentum and losses."""
    expected, velocities, losses = torch_train(
        layers, images, networks, start, visits, sgd, velocity_JPD=velocity, **pull
    )
    outcomes = []
    for instruction_set in SETS:
        found = native.train(
            layers,
            images,
            networks,
            start,
            visits,
            sgd,
            velocity_JPD=velocity,
            return_velocity=True,
            num_threads=2,
            instruction_set=instruction_set,
            **pull,
        )
        assert_close(found.parameters_JPD, expected, tolerance, instruction_set)
        if sgd.momentum:
            assert found.velocity_JPD is not None
            assert_close(found.velocity_JPD, velocities, 20 * tolerance, instruction_set)
        for job, epochs in enumerate(losses):
            np.testing.assert_allclose(found.loss_JE[job, : len(epochs)], epochs, rtol=1e-5, atol=1e-6)
            assert np.isnan(found.loss_JE[job, len(epochs) :]).all()
            np.testing.assert_allclose(found.loss_J[job], np.mean(epochs) if epochs else 0, rtol=1e-5, atol=1e-6)
        assert found.finite_J.all()
        outcomes.append(found)
    return outcomes
