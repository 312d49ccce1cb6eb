"""Rounds per second of whole runs in the paper's CIFAR-10 setting, and where the time goes.

    python benchmarks/paper_run.py [--methods fed-bac hierfavg] [--rounds 200] [--data FOLDER] [--profile] [--json FILE]
    python benchmarks/paper_run.py --processes 3 --methods fed-bac --rounds 60 [--json FILE]
    python benchmarks/paper_run.py --pfl [--json FILE]

M = 10 edges, N = 100 clients, E = 5 epochs, batch 64, Dirichlet sizes; evaluation and bandits included. Of fewer
rounds than 200 the first counts once, and the mean of the others for the rest. Without CIFAR-10 at hand random images
of its shape take its place: the time does not depend on what is in them. Several processes run the same at a time.
With ``--verify`` runs are saved, and so many of their rounds replayed and compared bit for bit.

``--pfl`` has the size of pfl-research's benchmark on CIFAR-10 instead: FedAvg, 1,500 rounds of 50 of 1,000 clients with
50 images each, one epoch in batches of 10, LeNet-5; all test images are measured in every round.
"""

import argparse
import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbac import Dataset, Shards, configure, method, native, task
from fedbac.config.experiment import Experiment, Runtime
from fedbac.config.explain import parse
from fedbac.data import load
from fedbac.errors import DataNotFoundError
from fedbac.federation import assemble
from fedbac.gpu.driver import Module
from fedbac.gpu.network import GROUP
from fedbac.runs.configure import Inputs
from fedbac.runs.play import play
from fedbac.runs.replay import verify
from fedbac.runs.store import RunFolder


def data(folder: Path | None) -> tuple[Dataset, bool]:
    try:
        return load("cifar10", folder), True
    except DataNotFoundError:
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (60000, 3, 32, 32), dtype=np.uint8), rng.permutation(np.arange(60000) % 10)
        return Dataset("random", x[:50000], y[:50000], x[50000:], y[50000:], 10), False


def of_pfl(rounds: int, dataset: Dataset) -> tuple[Experiment, Inputs]:
    """Return the experiment of pfl-research's size, with images dealt out at random."""
    held = np.random.default_rng(0).permutation(len(dataset.y_train))[:50_000].reshape(1000, 50)
    none = np.zeros(0, dtype=np.int64)
    shards = Shards(tuple(held), (none,) * 1000, (np.arange(len(dataset.y_test)),), (range(1000),))
    inputs = Inputs(dataset=dataset, shards=shards)
    settings = ["method.selection={kind: random, fraction: 0.05}", "task.partition.validation_fraction=0"]
    settings += ["task.training={epochs: 1, batch_size: 10, learning_rate: 0.1, momentum: 0, schedule: constant}"]
    return configure("fedavg", "cifar10", rounds=rounds, settings=settings, inputs=inputs), inputs


def useful_share(experiment: Experiment, dataset: Dataset) -> float:
    """Return the share of useful samples among those computed: the last block of a batch may be half empty."""
    examples = assemble(experiment, dataset=dataset).examples
    counts = [b.stop - b.start for mine in examples.shards.train for b in examples.batches(mine.size)]
    return sum(counts) / sum(-(-count // GROUP) * GROUP for count in counts)


class KernelTimes:
    """Times every launch of our GPU kernels by events around it, from ``begin`` on."""

    def __init__(self) -> None:
        self.names: dict[int | None, str] = {}
        self.events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)
        self.active = False
        find, launch = Module.kernel, Module.launch

        def found(module: Module, name: str, shared_bytes: int = 0) -> c_void_p:
            kernel = find(module, name, shared_bytes)
            self.names[kernel.value] = name
            return kernel

        def launched(module: Module, kernel: c_void_p, *rest: Any) -> None:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            launch(module, kernel, *rest)
            after.record()
            if self.active:
                self.events[self.names[kernel.value]].append((before, after))

        Module.kernel, Module.launch = found, launched  # type: ignore[method-assign]
        native.launcher = lambda: None  # one by one

    def print(self, rounds: int) -> None:
        """Print milliseconds a round."""
        torch.cuda.synchronize()
        spent = {name: sum(a.elapsed_time(b) for a, b in pairs) / rounds for name, pairs in self.events.items()}
        for name, ms in sorted(spent.items(), key=lambda item: -item[1]):
            print(f"  {name:22}{len(self.events[name]) // rounds:>6} launches{ms:>9.2f} ms a round")
        print(f"  {'all kernels':22}{'':15}{sum(spent.values()):>9.2f} ms a round")


def several(args: argparse.Namespace) -> None:
    """Run the same in several processes, and say how long a round takes in each."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.json") for number in range(args.processes)]
        words = ["--methods", *args.methods, "--rounds", str(args.rounds), "--device", args.device]
        words += [] if args.data is None else ["--data", str(args.data)]
        started = [subprocess.Popen([sys.executable, __file__, *words, "--json", file]) for file in files]
        codes = [process.wait() for process in started]
        if any(codes):
            sys.exit("one of the processes failed")
        found = [json.loads(file.read_text()) for file in files]
    service = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()
    rows = [
        {
            "method": method,
            "processes": args.processes,
            "service": service,
            "rounds": args.rounds,
            "median_round": float(np.mean([rows[number]["median_round"] for rows in found])),
        }
        for number, method in enumerate(args.methods)
    ]
    for row in rows:
        each, count = row["median_round"], args.processes
        print(f"{row['method']}: {each:.3f} s a round in each of {count} processes, {each / count:.3f} s in all")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fed-bac", "hierfavg"])
    parser.add_argument("--pfl", action="store_true", help="FedAvg at the size of pfl-research's benchmark")
    parser.add_argument("--rounds", type=int, help="default: 200, with --pfl 1,500")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--profile", action="store_true", help="host functions, and on a GPU our kernels")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verify", type=int, default=0, help="rounds of each run to replay")
    parser.add_argument("--processes", type=int, default=1, help="so many at a time, each with all methods")
    args = parser.parse_args()
    size = 1500 if args.pfl else 200
    args.rounds, args.methods = args.rounds or size, ["fedavg"] if args.pfl else args.methods
    if args.processes > 1:
        several(args)
        return
    gc.freeze()  # as the command does
    dataset, real = data(args.data)
    times = KernelTimes() if args.profile and torch.cuda.is_available() else None
    results = []
    print(f"CIFAR-10 setting, {'real' if real else 'random'} images, {args.rounds} rounds")
    print(f"{'method':12}{'trainer':18}{'first round':>12}{'median round':>14}{f'{size} rounds':>12}")
    for name in args.methods:
        inputs = Inputs(dataset=dataset)
        if times is not None:
            times.active = False
            times.events.clear()
        preset = method(name, task("cifar10"))  # for all of its rounds, of which these are some
        experiment = configure(
            preset, "cifar10", rounds=args.rounds, settings=["task.training.batch_size=64"], inputs=inputs
        )
        if args.pfl:
            experiment, inputs = of_pfl(args.rounds, dataset)
        profile = cProfile.Profile()
        if args.profile:
            profile.enable()
        kept = tempfile.TemporaryDirectory() if args.verify else None
        folder = Path(kept.name, name) if kept else None
        playing = play(experiment, folder=folder, inputs=inputs, runtime=parse(Runtime, {"device": args.device}))
        seconds = []
        start = time.perf_counter()
        while True:
            try:
                seconds.append(next(playing)["seconds"])
                if times is not None:
                    times.active = True  # the first round is left out
            except StopIteration as done:
                run = done.value
                break
        total = time.perf_counter() - start
        profile.disable()
        median = float(np.median(seconds[1:] or seconds))
        row = {
            "method": name,
            "trainer": run.config["trainer"],
            "first_round": seconds[0],
            "median_round": median,
            f"seconds_{size}_rounds": seconds[0] + (size - 1) * float(np.mean(seconds[1:] or seconds)),
            "total": total,
        }
        if run.config["trainer"] == "cuda-fused" and not args.pfl:
            row["useful_share"] = useful_share(experiment, dataset)
        results.append(row)
        print(
            f"{name:12}{row['trainer']:18}{seconds[0]:>11.2f}s{median:>13.3f}s{row[f'seconds_{size}_rounds']:>11.1f}s"
        )
        if kept is not None and folder is not None:
            with kept:
                differ = [one.difference for one in verify(RunFolder(folder), inputs, args.verify) if one.difference]
            if differ:
                sys.exit(f"  replayed rounds differ: {differ[0]}")
            print("  replayed rounds have the same bits")
        if "useful_share" in row:
            print(f"  of the samples computed in training {100 * row['useful_share']:.1f} % were useful")
        if times is not None:
            times.print(args.rounds - 1)
        if args.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(15)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
