"""Seconds a round of every method, as a ratio to HierFAVG's on the same task and machine.

    python benchmarks/methods.py [--task demo] [--rounds 5] [--turns 3] [--device auto] [--methods NAME ...]

Methods take turns, and each turn is a few rounds after one to warm up; the ratio is the median over the turns, each to
HierFAVG in the same turn. A ratio above 5 is explained by what the method does more: networks that are measured,
epochs, networks that are trained, or a trainer that is not our own kernels.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from fedbac import METHODS, configure
from fedbac.config.experiment import Experiment, Runtime
from fedbac.config.explain import parse
from fedbac.runs.play import play

REFERENCE = "hierfavg"


def one_turn(experiment: Experiment, runtime: Runtime, rounds: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a round after the first, and the last record."""
    playing = play(experiment, runtime=runtime)
    next(playing)
    began = time.perf_counter()
    record: dict[str, Any] = {}
    for _ in range(rounds):
        record = next(playing)
    seconds = (time.perf_counter() - began) / rounds
    playing.close()
    return seconds, record


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
    experiments = {name: configure(name, options.task, rounds=options.rounds + 1) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.turns):
        for name, experiment in experiments.items():
            seconds[name].append(one_turn(experiment, runtime, options.rounds)[0])
    rows = []
    for name, experiment in experiments.items():
        ratios = [mine / theirs for mine, theirs in zip(seconds[name], seconds[REFERENCE], strict=True)]
        rows.append(
            {
                "method": name,
                "seconds_a_round": min(seconds[name]),
                "ratio": median(ratios),
                "work": work(experiment) / work(experiments[REFERENCE]),
            }
        )
    print(f"{'method':20} {'s a round':>10} {'ratio':>6} {'training':>9}   (to {REFERENCE})")
    for row in sorted(rows, key=lambda row: row["ratio"]):
        print(f"{row['method']:20} {row['seconds_a_round']:10.3f} {row['ratio']:6.2f} {row['work']:9.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
