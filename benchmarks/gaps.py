"""How far apart the networks of edges are that share a class mix, and of edges that do not, as merging would see it.

    python benchmarks/gaps.py [--task planted] [--rounds 2 5 10 20 30] [--split train] [--seed 0] [--set PATH=VALUE]

Every edge trains a cluster of its own, all clients in every round. For each way to measure the gap between two edges:
the largest of any two with the same mix / the smallest of any two with different ones. A gap is good evidence where the
first is well below the second. A gap is the mean of both ways, or the larger ("max"), in one of these units: λ of
``Merging``; the edge's own loss; what it has learned, ln(number of classes) less that loss.
"""

import argparse
import math

import numpy as np

from fedbac import Random, Runtime, configure, method, task
from fedbac.clustering.merging import LEAST_UNIT
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.engines import connect
from fedbac.federation import assemble
from fedbac.rounds.cloud import rounds
from fedbac.rounds.messages import MeasureOrder, Wanted
from fedbac.rounds.start import start


def gaps(loss_MM: FloatArray, num_classes: int) -> dict[str, FloatArray]:
    own_M = np.diag(loss_MM)
    learned_M = np.maximum(math.log(num_classes) - own_M, LEAST_UNIT)
    found = {}
    for name, unit_M in {"λ": np.minimum(learned_M, own_M), "loss": own_M, "learned": learned_M}.items():
        gap_MM = (loss_MM - own_M[:, None]) / unit_M[:, None]
        found[name] = (gap_MM + gap_MM.T) / 2
        found[f"{name}, max"] = np.maximum(gap_MM, gap_MM.T)
    return found


def extremes(gap_MM: FloatArray, same_MM: BoolArray) -> str:
    alike = f"{gap_MM[same_MM].max():.2f}" if same_MM.any() else "–"
    return f"{alike} / {gap_MM[~same_MM & ~np.eye(len(gap_MM), dtype=bool)].min():.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="planted")
    parser.add_argument("--rounds", type=int, nargs="+", default=[2, 5, 10, 20, 30])
    parser.add_argument("--split", choices=["train", "validation"], default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    args = parser.parse_args()
    everyone = method("singletons", task(args.task)).model_copy(update={"selection": Random()})
    experiment = configure(everyone, args.task, seed=args.seed, rounds=max(args.rounds), settings=args.settings)
    federation = assemble(experiment)
    edges = connect(experiment, federation, Runtime(workers=1))
    num_edges = experiment.task.num_edges
    mix_M = np.arange(num_edges) % (experiment.task.partition.edge_distributions or num_edges)
    same_MM = (mix_M[:, None] == mix_M) & ~np.eye(num_edges, dtype=bool)
    print(f"{args.task}, measured on {args.split} data: largest gap of equal mixes / smallest of different ones\n")
    begin = start(experiment, federation.build, federation.sites)
    for record, state in rounds(experiment, federation.sites, edges, begin):
        if record["round"] not in args.rounds:
            continue
        rows = {"global": np.zeros(num_edges, dtype=np.int64), "cluster": np.arange(num_edges)}
        wanted = (Wanted(rows, args.split, max_samples=256),)
        orders = [MeasureOrder(m, state.parts, wanted, selection=state.selection_M[m]) for m in range(num_edges)]
        loss_MM = np.stack([report.readings[0].loss_VG[:, 0] for report in edges.measure(orders)])
        found = gaps(loss_MM, federation.dataset.num_classes)
        if record["round"] == min(args.rounds):
            print("| round | " + " | ".join(found) + " |")
            print("|---" * (len(found) + 1) + "|")
        print(
            f"| {record['round']} | " + " | ".join(extremes(gap, same_MM) for gap in found.values()) + " |", flush=True
        )
    edges.close()


if __name__ == "__main__":
    main()
