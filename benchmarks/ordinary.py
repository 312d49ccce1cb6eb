"""Ordinary convolutional networks on a CPU: our kernel against the torch loop that they would fall to.

    python benchmarks/ordinary.py [--networks NAME ...] [--shapes 1x28x28 3x32x32] [--turns 4] [--json FILE]

Two clients with 128 images each train for two epochs in batches of 32, on one thread. Both trainers take turns in one
process; the first turn is a warm-up, and the ratio is the median over the others of the time that the processor
worked. Trained weights that differ by more than rounding end it with an error.
"""

import argparse
import json
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
from fedbac.core.requests import Train
from fedbac.local import describe, make_trainer

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


def ratio(name: str, shape: str, turns: int) -> float:
    """Return how many times as fast the kernel is."""
    networks.NETWORKS[name] = CASES[name]
    work = Work(name, shape, CLIENTS, IMAGES, BATCH, EPOCHS, device="cpu")
    network, row = work.start(), np.zeros(CLIENTS, dtype=np.int64)
    trainers = {
        kind: make_trainer(network, work.scheme, work.examples, Runtime(device="cpu", trainer=kind, workers=1))
        for kind in ("native", "torch")
    }
    bank = work.scheme.init(lambda index: network, {"cloud": 1})
    (part,) = bank
    seconds: dict[str, list[float]] = {kind: [] for kind in trainers}
    found = {}
    for _ in range(turns):
        for kind, trainer in trainers.items():
            begun = time.process_time()
            (trained,) = trainer.train([Train(tuple(range(CLIENTS)), bank, {part: row}, 1, 0, RATE)])
            seconds[kind].append(time.process_time() - begun)
            found[kind] = trained.parts_C[part]
    apart = max(float((found["native"][key] - value).abs().max()) for key, value in found["torch"].items())
    if apart > SAME:
        sys.exit(f"{name}: weights differ by {apart:.2g}: not the same work")
    return median(slow / fast for slow, fast in zip(seconds["torch"][1:], seconds["native"][1:], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--shapes", nargs="+", default=["1x28x28", "3x32x32"])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in asked.networks:
        rows.append({"network": name} | {shape: ratio(name, shape, asked.turns) for shape in asked.shapes})
        print(*(f"{value:.1f}" for key, value in rows[-1].items() if key != "network"), name, flush=True)
    if asked.json:
        told = {"machine": describe(torch.device("cpu")), "rows": rows}
        asked.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
