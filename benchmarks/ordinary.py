"""Ordinary networks on a CPU: our kernel against the torch loop that they would fall to.

    python benchmarks/ordinary.py [--networks NAME ...] [--shapes 1x28x28 3x32x32] [--turns 4] [--json FILE]
    python benchmarks/ordinary.py --together [--networks NAME ...] [--turns 4] [--json FILE]

Two clients with 128 images each train for two epochs in batches of 32, on one thread. Both trainers take turns in one
process; the first turn is a warm-up, and the ratio is the median over the others of the time that the processor
worked. Trained weights that differ by more than rounding end it with an error.

With ``--together``: networks that our kernel does not know, all clients at once through ``torch.func``, as on a GPU,
against the loop; 20 clients with 40 images each in batches of 10, and with 64 in batches of 32, and 100 with 20 in
batches of 10, for one epoch.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import networks
import numpy as np
import torch
from torch import nn
from work import RATE, Work

from fedbac import LeNet5, ResNet, Runtime
from fedbac.core.requests import Train, Trainer
from fedbac.local import LoopTrainer, VmapTrainer, describe, make_trainer

SAME = 1e-3
CLIENTS, IMAGES, BATCH, EPOCHS = 2, 128, 32, 2


def padded(inputs: int, outputs: int, side: int = 3, norm: bool = False) -> list[nn.Module]:
    """Return a padded convolution, perhaps a group normalization, and a ReLU."""
    between = [nn.GroupNorm(2, outputs)] if norm else []
    return [nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=not norm), *between, nn.ReLU()]


def ending(features: int, classes: int, *hidden: int) -> list[nn.Module]:
    """Return linear layers with ReLU between them."""
    layers = [nn.Linear(*pair) for pair in pairwise([features, *hidden, classes])]
    return [nn.Flatten(), *(part for layer in layers for part in (layer, nn.ReLU()))][:-1]


def one(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(*padded(shape[0], 16), nn.MaxPool2d(2), *ending(16 * (shape[1] // 2) ** 2, classes))


def two(shape: tuple[int, ...], classes: int, norm: bool = False) -> nn.Module:
    first, second = padded(shape[0], 16, norm=norm), padded(16, 32, norm=norm)
    last = ending(32 * (shape[1] // 4) ** 2, classes, *([] if norm else [64]))
    return nn.Sequential(*first, nn.MaxPool2d(2), *second, nn.MaxPool2d(2), *last)


def pairs(shape: tuple[int, ...], classes: int) -> nn.Module:
    first, second = padded(shape[0], 16) + padded(16, 16), padded(16, 32) + padded(32, 32)
    last = ending(32 * (shape[1] // 4) ** 2, classes, 64)
    return nn.Sequential(*first, nn.MaxPool2d(2), *second, nn.MaxPool2d(2), *last)


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    first, second = padded(shape[0], 32, 5), padded(32, 64, 5)
    last = ending(64 * (shape[1] // 4) ** 2, classes, 512)
    return nn.Sequential(*first, nn.MaxPool2d(2), *second, nn.MaxPool2d(2), *last)


def strided(shape: tuple[int, ...], classes: int) -> nn.Module:
    first, second = nn.Conv2d(shape[0], 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *ending(32 * (-(-shape[1] // 4)) ** 2, classes))


def plain(shape: tuple[int, ...], classes: int) -> nn.Module:
    first, second = nn.Conv2d(shape[0], 6, 5), nn.Conv2d(6, 16, 5)
    size = 16 * (((shape[1] - 4) // 2 - 4) // 2) ** 2
    last = nn.Flatten(), nn.Linear(size, 84), nn.Linear(84, classes)
    return nn.Sequential(first, nn.MaxPool2d(2), second, nn.MaxPool2d(2), *last)


CASES: dict[str, Callable[..., nn.Module]] = {
    "one padded convolution of 16 channels, ReLU, 2×2 max pooling": one,
    "two such, of 16 and 32 channels": two,
    "LeNet-5 with average pooling": LeNet5(pooling="average").build,
    "LeNet-5 without activations": plain,
    "two convolutions of stride 2": strided,
    "the second row with group normalization": lambda shape, classes: two(shape, classes, norm=True),
    "two pairs of padded convolutions, of 16 and 32 channels": pairs,
    "two padded convolutions of 5×5, of 32 and 64 channels": wide,
    "ResNet-8": ResNet().build,
}


def perceptron(width: int, act: Callable[[], nn.Module] = nn.GELU, norm: bool = False) -> Callable[..., nn.Module]:
    """Return what makes three linear layers, with layer normalization between them if so wished."""

    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        between = [nn.LayerNorm(width), act()] if norm else [act()]
        first, second = nn.Linear(math.prod(shape), width), nn.Linear(width, width)
        return nn.Sequential(nn.Flatten(), first, *between, second, *between, nn.Linear(width, classes))

    return make


def curved(shape: tuple[int, ...], classes: int) -> nn.Module:
    first = nn.Conv2d(shape[0], 8, 3, padding=1)
    return nn.Sequential(first, nn.GELU(), nn.MaxPool2d(4), *ending(8 * (shape[1] // 4) ** 2, classes))


UNKNOWN: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "perceptron of 16 and 16, GELU, 64 inputs": (perceptron(16), "1x8x8"),
    "perceptron of 64 and 64, GELU": (perceptron(64), "1x28x28"),
    "perceptron of 64 and 64, layer normalization": (perceptron(64, norm=True), "1x28x28"),
    "perceptron of 200 and 200, layer normalization": (perceptron(200, norm=True), "1x28x28"),
    "padded convolution of 8 channels, GELU": (curved, "1x28x28"),
    "transformer of 4 layers of 64 (`vit-tiny`)": (networks.NETWORKS["vit-tiny"], "3x32x32"),
}
"""Networks that our kernel does not know, and their inputs."""
SIZES = (20, 40, 10), (20, 64, 32), (100, 20, 10)


def known(name: str, shape: str, turns: int) -> float:
    """Return how many times as fast the kernel is."""
    networks.NETWORKS[name] = CASES[name]
    work = Work(name, shape, CLIENTS, IMAGES, BATCH, EPOCHS, device="cpu")
    network = work.start()
    one, other = (
        make_trainer(network, work.scheme, work.examples, Runtime(device="cpu", trainer=kind, workers=1))
        for kind in ("native", "torch")
    )
    return ratio(work, network, one, other, turns)


def unknown(name: str, size: tuple[int, int, int], turns: int) -> float:
    """Return how many times as fast all clients at once are."""
    networks.NETWORKS[name], shape = UNKNOWN[name]
    work = Work(name, shape, *size, 1, device="cpu")
    network, given = work.start(), (work.scheme, work.examples)
    one, other = VmapTrainer(network, *given, torch.device("cpu")), LoopTrainer(network, *given)
    return ratio(work, network, one, other, turns)


def ratio(work: Work, network: nn.Module, one: Trainer, other: Trainer, turns: int) -> float:
    """Return how many times as fast one trainer is as another."""
    row, trainers = np.zeros(work.clients, dtype=np.int64), {"one": one, "other": other}
    bank = work.scheme.init(lambda index: network, {"cloud": 1})
    (part,) = bank
    seconds: dict[str, list[float]] = {kind: [] for kind in trainers}
    found = {}
    for _ in range(turns):
        for kind, trainer in trainers.items():
            begun = time.process_time()
            (trained,) = trainer.train([Train(tuple(range(work.clients)), bank, {part: row}, 1, 0, RATE)])
            seconds[kind].append(time.process_time() - begun)
            found[kind] = trained.parts_C[part]
    apart = max(float((found["one"][key] - value).abs().max()) for key, value in found["other"].items())
    if apart > SAME:
        sys.exit(f"{work.network}: weights differ by {apart:.2g}: not the same work")
    return median(slow / fast for slow, fast in zip(seconds["other"][1:], seconds["one"][1:], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--networks", nargs="+", choices=[*CASES, *UNKNOWN])
    parser.add_argument("--shapes", nargs="+", default=["1x28x28", "3x32x32"])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in asked.networks or (UNKNOWN if asked.together else CASES):
        if asked.together:
            found = {"{} × {}, batch {}".format(*size): unknown(name, size, asked.turns) for size in SIZES}
        else:
            found = {shape: known(name, shape, asked.turns) for shape in asked.shapes}
        rows.append({"network": name} | found)
        print(*(f"{value:.1f}" for key, value in rows[-1].items() if key != "network"), name, flush=True)
    if asked.json:
        told = {"machine": describe(torch.device("cpu")), "rows": rows}
        asked.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
