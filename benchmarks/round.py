"""One FedAvg round, ours against a plain PyTorch loop over clients, and on request against other packages.

    python benchmarks/round.py [--network lenet5|resnet8|resnet18|mlp|lstm|vit-tiny] [--shape 1x28x28|3x32x32]
                               [--clients 100] [--precision float32|tf32|bf16] [--peers] [--turns 3] [--json FILE]
    python benchmarks/round.py --network smollm2-lora --shape 128 --images 1 --batch 1 --epochs 1 --precision bf16

The work: every client trains a network from the same start on its own images, with clipped momentum SGD.
Time is given per sample-step: one image once forward and backward through one network. ``smollm2-lora`` is a frozen
language model of the shape of SmolLM2-135M, random and in bf16, with adapters in float32; its shape is the tokens of a
text, and clients hold ``--images`` texts.

Each contestant runs in a process of its own and times one round after a warm-up round. The contestants take turns, so
that whatever else the machine does meets them all alike: times are the best of the turns, speed-ups the medians over
them. Peak memory is that of the process and all it starts. A contestant whose averaged network differs from the loop's
has done other work, and the run ends with an error.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from networks import NETWORKS
from safetensors.torch import load_file, save_file
from work import RATE, Outcome, Work, train_client

from fedbac import Runtime
from fedbac.core import trees
from fedbac.core.parts import Params
from fedbac.core.requests import Train
from fedbac.local import describe, make_trainer, num_cores, pool
from fedbac.models import weights

PEERS = {"flower": ("flwr", "peers.flower", 1), "pfl": ("pfl", "peers.pfl_research", num_cores())}
"""The package, our module for it, and the processes to start on a CPU; Flower starts its own. On a GPU there is one."""
SAME = {"float32": 1e-4, "tf32": 1e-2, "bf16": 1e-2}
"""Largest difference between averaged weights that passes for rounding, by precision. In float32 that makes about 1e-7;
leaving out the last batch of every client makes 2e-3."""
SAME_ADAPTERS = {"float32": 1e-3, "tf32": 5e-2, "bf16": 5e-2}
"""As a share of their largest change: a frozen network in bf16 rounds gradients by about 1e-2."""
SAME_NORMED = {"float32": 2e-2, "tf32": 5e-2, "bf16": 5e-2}
"""The same with batch normalization, which makes 2e-3 of the least rounding; leaving out last batches makes 0.1."""
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Row:
    """A contestant's line of the table."""

    name: str
    path: str
    us_per_sample_step: float | None = None
    speedup_over_loop: float | None = None
    peak_memory_mib: float | None = None
    peak_device_mib: float | None = None
    difference: float | None = None
    """Largest difference of its averaged weights from the loop's; of adapters, and with batch normalization, as a share
    of the largest change."""


@dataclass(frozen=True)
class Turn:
    """A contestant's outcome and memory in one turn."""

    path: str
    seconds: float
    device_mib: float | None
    memory_mib: float | None
    averaged: Params


# -------------------------------------------------------------------------------------------- contestants


def ours(work: Work) -> Outcome:
    """Through the trainer that runs use."""
    pool.START_SECONDS = 0  # workers are started in the round that is not timed
    network = work.start()
    runtime = Runtime(device=work.device, trainer=work.trainer, precision=work.precision)
    trainer = make_trainer(network, work.scheme, work.examples, runtime)
    bank = work.scheme.init(lambda index: network, {"cloud": 1})
    (part,) = bank
    row_C = {part: np.zeros(work.clients, dtype=np.int64)}

    def order(round_: int) -> Train:
        return Train(tuple(range(work.clients)), bank, row_C, round_, 0, RATE)

    trained = trainer.train([order(1)])[0].parts_C[part]  # graphs are captured and workers started once per run
    size = work.examples.shards.train
    averaged = trees.weighted_mean(trained, torch.tensor([float(mine.size) for mine in size]).numpy())
    seconds = _timed(lambda: trainer.train([order(2)]), trainer.device)
    trainer.close()
    return Outcome(trainer.path, seconds, trees.to(averaged, "cpu"), _device_mib(trainer.device))


def loop(work: Work) -> Outcome:
    """One client after another, on as many threads as torch takes by itself."""
    device = work.place
    network = work.start().to(device)
    begin = weights(network)

    def one_round() -> dict[str, torch.Tensor]:
        total = {name: torch.zeros_like(value) for name, value in begin.items()}
        for client in range(work.clients):
            network.load_state_dict(begin, strict=False)
            train_client(network, work, client, device)
            for name, value in weights(network).items():
                total[name] += value / work.clients
        return total

    averaged = one_round()
    seconds = _timed(one_round, device)
    return Outcome("one client after another", seconds, trees.to(averaged, "cpu"), _device_mib(device))


def _timed(one_round: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    one_round()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _device_mib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None


def contest(name: str, work: Work, folder: Path) -> None:
    """Do the work as one contestant and leave the outcome in a folder; what its own process does."""
    contestant = {"loop": loop, "ours": ours}.get(name) or importlib.import_module(PEERS[name][1]).contest
    outcome = contestant(work)
    if outcome is not None:
        save_file({key: value.contiguous() for key, value in outcome.averaged.items()}, folder / "averaged.safetensors")
        told = {"path": outcome.path, "seconds": outcome.seconds, "device_mib": outcome.device_mib}
        (folder / "outcome.json").write_text(json.dumps(told))


# ----------------------------------------------------------------------------------------------- the host


def host(name: str, work: Work) -> Turn | None:
    """Run a contestant in a process of its own and watch its memory; None when its package is not installed."""
    package, _, processes = PEERS.get(name, ("fedbac", "", 1))
    if importlib.util.find_spec(package) is None:
        return None
    command = [sys.executable, __file__, "--contest", name, "--work", json.dumps(work.spec())]
    device = work.place.type
    if processes > 1 and device == "cpu":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with tempfile.TemporaryDirectory() as place:
        command += ["--folder", place]
        with (Path(place) / "log").open("w+") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=_environment(name, device))
            peak_mib = _watch(child)
            if child.returncode:
                log.seek(0)
                sys.exit(f"{name} failed:\n{log.read()[-3000:]}")
        told = json.loads((Path(place) / "outcome.json").read_text())
        return Turn(**told, memory_mib=peak_mib, averaged=load_file(Path(place) / "averaged.safetensors"))


def _environment(name: str, device: str) -> dict[str, str]:
    """Peers run one thread per process, as many processes as cores; the others choose for themselves."""
    peers = {"OMP_NUM_THREADS": "1", "PFL_PYTORCH_DEVICE": device, "FLWR_TELEMETRY_ENABLED": "0"}
    return os.environ | (peers if name in PEERS else {})


def _watch(child: subprocess.Popen[bytes]) -> float | None:
    """Wait for a process and return the most memory that it and its descendants held, each shared page counted once."""
    peak, ended = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(SAMPLE_SECONDS):
            peak = max(peak, sum(map(_own_kib, _family(child.pid))))

    watcher = threading.Thread(target=sample)
    watcher.start()
    child.wait()
    ended.set()
    watcher.join()
    return peak / 1024 or None


def _family(root: int) -> list[int]:
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children[parent].append(int(entry.parent.name))
    family = [root]
    for pid in family:
        family += children[pid]
    return family


def _own_kib(pid: int) -> int:
    """Return a process's proportional share of memory, on systems that tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# ---------------------------------------------------------------------------------------------- the table


def judge(name: str, turns: Sequence[Turn | None], loops: Sequence[Turn], work: Work) -> Row:
    """Compare a contestant's turns with those of the loop."""
    done = [turn for turn in turns if turn is not None]
    if not done:
        return Row(name, "not installed: pip install fedbac[peers]")
    loop = loops[0].averaged
    difference, same = max(float((done[0].averaged[key] - value).abs().max()) for key, value in loop.items()), SAME
    if work.words is not None:  # adapters move by little; by how much is what B is, which began at zero
        same, moved = SAME_ADAPTERS, [value for key, value in loop.items() if key.endswith(".b")]
        difference /= max(float(value.abs().max()) for value in moved)
    elif any(key.endswith("running_mean") for key in loop):
        begin, same = weights(work.start()), SAME_NORMED
        difference /= max(float((value - begin[key]).abs().max()) for key, value in loop.items())
    if difference > same[work.precision]:
        sys.exit(f"{name}: its averaged weights differ from the loop's by up to {difference:.2g}: not the same work")
    return Row(
        name,
        done[0].path,
        us_per_sample_step=1e6 * min(turn.seconds for turn in done) / work.sample_steps,
        speedup_over_loop=median(slow.seconds / turn.seconds for slow, turn in zip(loops, done, strict=True)),
        peak_memory_mib=max((turn.memory_mib for turn in done if turn.memory_mib), default=None),
        peak_device_mib=done[0].device_mib,
        difference=difference,
    )


def show(row: Row) -> None:
    """Print a line of the table."""
    numbers = (row.us_per_sample_step, row.speedup_over_loop, row.peak_memory_mib)
    forms = ((20, ".2f"), (10, ".1f"), (18, ".0f"))
    columns = [f"{'' if n is None else format(n, form):>{w}}" for n, (w, form) in zip(numbers, forms, strict=True)]
    device = "" if row.peak_device_mib is None else f" ({row.peak_device_mib:.0f} MiB on the device)"
    print(f"{row.name:10}{''.join(columns)}   {row.path}{device}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Work()
    for name, value in usual.spec().items():
        allowed = {"network": list(NETWORKS), "precision": list(SAME)}.get(name)
        parser.add_argument(f"--{name}", type=type(value), default=value, choices=allowed)
    parser.add_argument("--peers", action="store_true", help="Also run Flower (on the CPU) and pfl.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    for internal in ("--contest", "--work", "--folder"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contest:
        contest(args.contest, Work(**json.loads(args.work)), Path(args.folder))
        return
    work = Work(**{name: getattr(args, name) for name in usual.spec()})
    names = ["loop", "ours", *(PEERS if args.peers else ())]
    turns: dict[str, list[Turn | None]] = {name: [] for name in names}
    for number in range(1, args.turns + 1):
        for name in names:
            print(f"turn {number} of {args.turns}: {name}", file=sys.stderr)
            turns[name].append(host(name, work))
    loops = [turn for turn in turns["loop"] if turn is not None]
    rows = {name: judge(name, turns[name], loops, work) for name in names}
    size = f"{work.clients} clients x {work.images} images of {work.shape}, batch {work.batch}, {work.epochs} epochs"
    print(f"{work.network}, {work.precision}, {size}")
    print(f"{'':10}{'us per sample-step':>20}{'speed-up':>10}{'peak memory, MiB':>18}   path")
    for row in rows.values():
        show(row)
    if args.json:
        device = torch.device("cuda" if rows["ours"].peak_device_mib is not None else "cpu")
        told = {"machine": describe(device)} | work.spec() | asdict(rows["ours"])
        told |= {"loop_us_per_sample_step": rows["loop"].us_per_sample_step}
        told |= {"contestants": [asdict(row) for row in rows.values()]}
        args.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
