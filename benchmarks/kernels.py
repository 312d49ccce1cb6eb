"""How long our GPU kernels take for LeNet-5: each of a step, and all of a round's training.

    python benchmarks/kernels.py [--task cifar10] [--batch 64] [--turns 5] [--json FILE]

Times are those of the first round of Fed-BAC in a setting of the paper, with random images. The learning rate is zero,
so that every turn finds the same weights. Kernels are timed alone, one lane of the first step at a time; the step has
all lanes side by side; ``few`` is a step of an eighth of the clients; ``launching`` is the host's part of the round.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbac import Dataset, configure, method
from fedbac.config.experiment import Runtime
from fedbac.config.explain import parse
from fedbac.gpu.driver import current_stream, pointers
from fedbac.local.batches import VisitTable
from fedbac.local.fused import FusedTrainer, Moves, Sums
from fedbac.local.networks import Fleet
from fedbac.presets.tasks import TASKS
from fedbac.runs.configure import Inputs
from fedbac.runs.play import play

SHAPES = {"cifar10": (3, 32, 32), "svhn": (3, 32, 32), "fashion-mnist": (1, 28, 28)}
PER_KERNEL = 15


def random_images(shape: tuple[int, int, int]) -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60000, *shape), dtype=np.uint8), rng.permutation(np.arange(60000) % 10)
    return Dataset("random", x[:50000], y[:50000], x[50000:], y[50000:], 10)


def microseconds(work: Callable[[], None], turns: int) -> float:
    work()
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(turns):
        work()
    after.record()
    torch.cuda.synchronize()
    return 1000 * before.elapsed_time(after) / turns


def measure_phases(turns: int, found: dict[str, float]) -> None:
    """Have the trainer time the launches of a phase before it runs it."""
    play_phase = FusedTrainer._run

    def run(
        self: FusedTrainer, moves: Moves, fleet: Fleet, batches: VisitTable, rate_J: NDArray[np.float32], sums: Sums,
        last: bool,
    ) -> None:  # fmt: skip
        networks = moves.stage.networks
        parts, rows = len(networks), rate_J.size * len(networks)
        table, start_JP = fleet.start(networks)
        self.room.weights[:rows] = table[torch.from_numpy(start_JP).to(self.device)].flatten(0, 1)
        there = self._tables(batches, 0 * rate_J, (), fleet)
        given = [self._lane(lane.jobs, parts, there, fleet, sums, moves.rule) for lane in batches.lanes]
        arguments = [pointers([one.buffers, one.rule, one.step]) for one in given]

        def step(number: int, share: int = 1) -> None:
            with self.streams.fork() as streams:
                launch(number, share, streams)

        def launch(number: int, share: int, streams: list[Any]) -> None:
            for lane, one, values, stream in zip(batches.lanes, given, arguments, streams, strict=False):
                if number < len(lane.active):
                    one.step.value = number
                    self._launch(self.plan.training, parts * max(1, lane.active[number] // share), stream, values)

        def whole() -> None:
            with self.streams.fork() as streams:
                for number in range(max(len(lane.active) for lane in batches.lanes)):
                    launch(number, 1, streams)

        found["training"] = microseconds(whole, turns)
        began = time.perf_counter()
        whole()
        found["launching"] = 1e6 * (time.perf_counter() - began)
        found["step"] = microseconds(lambda: step(0), PER_KERNEL)
        found["few"] = microseconds(lambda: step(0, 8), PER_KERNEL)
        first, stream = parts * batches.lanes[0].active[0], current_stream(self.device)
        given[0].step.value = 0
        for kernel in self.plan.training:
            alone = partial(self._launch, [kernel], first, stream, arguments[0])
            found[kernel.name] = microseconds(alone, PER_KERNEL)
        play_phase(self, moves, fleet, batches, rate_J, sums, last)

    FusedTrainer._run = run  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(SHAPES), default="cifar10")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/kernels.py times kernels on a GPU, and there is none here")
    batch = options.batch or TASKS[options.task].training.batch_size
    inputs = Inputs(dataset=random_images(SHAPES[options.task]))
    settings = [f"task.training.batch_size={batch}"]
    whole = TASKS[options.task]  # of which this is a round
    experiment = configure(method("fed-bac", whole), whole, rounds=1, settings=settings, inputs=inputs)
    found: dict[str, float] = {}
    measure_phases(options.turns, found)
    next(play(experiment, inputs=inputs, runtime=parse(Runtime, {"device": "cuda", "trainer": "native"})))
    for name, value in found.items():
        print(f"{name:22}{value:>9.1f} µs")
    if options.json:
        options.json.write_text(json.dumps({"task": options.task, "batch": batch, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
