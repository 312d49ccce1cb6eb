"""Seconds a round of every method, as a ratio to HierFAVG's on the same task and machine.

    python benchmarks/methods.py [--task demo] [--rounds 5] [--turns 3] [--device auto] [--methods NAME ...]

Methods take turns, and each turn is a few rounds after one to warm up; the ratio is the median over the turns, each to
HierFAVG in the same turn. Beside it stands how much more a method trains: epochs, networks, and clients selected.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

from fedbac import METHODS, configure, method, task
from fedbac.config.experiment import Experiment, Runtime
from fedbac.config.explain import parse
from fedbac.local import describe
from fedbac.runs.play import play
from fedbac_paper.compared import OWN_KERNELS, reasons

REFERENCE = "hierfavg"


def one_turn(experiment: Experiment, runtime: Runtime) -> tuple[float, str]:
    """Return the seconds of a round after the first, and the trainer."""
    playing = play(experiment, runtime=runtime)
    next(playing)
    began = time.perf_counter()
    while True:
        try:
            next(playing)
        except StopIteration as end:
            seconds = (time.perf_counter() - began) / (experiment.task.rounds - 1)
            return seconds, str(end.value.config["trainer"])


def work(experiment: Experiment) -> float:
    """Return the passes of a client's data through networks, forward and backward, in a round."""
    training, scheme = experiment.task.training, experiment.method.personalization
    passes = sum(
        (training.epochs if phase.epochs is None else phase.epochs) * len(phase.terms or scheme.terms or scheme.parts)
        for phase in scheme.phases()
    )
    return passes * experiment.method.selection.fraction * experiment.method.topology.edge_rounds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runtime = parse(Runtime, {"device": options.device})
    names = [REFERENCE, *(name for name in options.methods if name != REFERENCE)]
    whole = task(options.task)  # of which these rounds are some
    experiments = {name: configure(method(name, whole), whole, rounds=options.rounds + 1) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    trainer: dict[str, str] = {}
    for turn in range(options.turns):
        for name, experiment in experiments.items():
            spent, trainer[name] = one_turn(experiment, runtime)
            seconds[name].append(spent)
            print(f"turn {turn + 1}: {name} {spent:.3f} s a round", file=sys.stderr)
    rows = [
        {
            "method": name,
            "seconds_a_round": min(seconds[name]),
            "ratio": median(mine / theirs for mine, theirs in zip(seconds[name], seconds[REFERENCE], strict=True)),
            "training": work(experiment) / work(experiments[REFERENCE]),
            "trainer": trainer[name],
        }
        for name, experiment in experiments.items()
    ]
    rows.sort(key=lambda row: row["ratio"])
    print(f"{'method':20} {'s a round':>10} {'ratio':>6} {'training':>9}  trainer   (ratios to {REFERENCE})")
    for row in rows:
        numbers = f"{row['seconds_a_round']:10.3f} {row['ratio']:6.2f} {row['training']:9.2f}"
        print(f"{row['method']:20} {numbers}  {row['trainer']}")
    own = sum(row["trainer"].startswith(OWN_KERNELS) for row in rows)
    print(f"{own} of {len(rows)} methods use our own kernels")
    machine = describe(torch.device("cuda" if options.device == "cuda" else "cpu"))
    settings = {"task": options.task, "rounds": options.rounds, "turns": options.turns}
    found = {"machine": machine, **settings, "settings": experiments[REFERENCE].task.model_dump(mode="json")}
    found["methods"] = rows
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(reasons([found])))


if __name__ == "__main__":
    main()
