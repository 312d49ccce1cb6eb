"""What docs/fedfork-why.md and decision 11 say of runs: one row per method, over its seeds.

    python benchmarks/plus.py FOLDER...        (folders of a sweep)

Beside the accuracy (mean over seeds, and that of each): moves, the round of the last one, clusters at the end, their
adjusted Rand index against the planted groups, the share of selections in the second half of a run that went to noisy
clients, ``overfitting`` in the last ten rounds and at most in the first half of a run, the round from which clusters
shared, and bytes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

import fedbac
from fedbac import Run
from fedbac.data import load
from fedbac.federation import assemble
from fedbac.runs.sweep import collect


def rand_index(run: Run) -> float:
    task = run.config["experiment"]["task"]
    groups = task["partition"]["edge_distributions"]
    if groups is None:
        return float("nan")
    return float(adjusted_rand_score(np.arange(task["num_edges"]) % groups, run.records[-1]["assignment_next"]))


def noisy_share(run: Run) -> float:
    experiment = fedbac.Experiment.model_validate(run.config["experiment"])
    if experiment.task.noise is None:
        return float("nan")
    noisy = set(assemble(experiment, dataset=load(experiment.task.dataset)).shards.noisy)
    late = run.records[len(run.records) // 2 :]
    return float(np.mean([client in noisy for record in late for edge in record["selected"] for client in edge]))


def last_move(run: Run) -> int:
    return max((record["round"] for record in run.records if record["moves"]), default=0)


def overfitting(run: Run) -> float:
    found = [record["notes"].get("overfitting") for record in run.records[-10:]]
    return float(np.mean(np.array(found, dtype=float)))  # None is NaN


def early_overfitting(run: Run) -> float:
    found = [record["notes"].get("overfitting") for record in run.records[: len(run.records) // 2]]
    return max((value for value in found if value is not None), default=float("nan"))


def shares_from(run: Run) -> str:
    kind, half = run.config["experiment"]["method"]["sharing"]["kind"], len(run.records) // 2
    if kind != "once_overfitted":
        return "1" if kind == "towards_mean" else "–"
    # The rule of the policy: nobody begins in the second half.
    late = [record["round"] + 1 for record in run.records[:half] if (record["notes"]["overfitting"] or 0) > 1]
    return str(late[0]) if late else "–"


def _or_dash(value: Any, form: str) -> str:
    return "–" if np.isnan(value) else form.format(value)


def row(summary: dict[str, Any], runs: list[Run]) -> str:
    name = runs[0].folder.name.rpartition("_seed")[0] if runs[0].folder else summary["method"]
    cells = [
        name,
        f"{100 * summary['accuracy']:.1f}",
        ", ".join(f"{100 * run.summary['accuracy']:.1f}" for run in runs),
        f"{100 * summary['edge_min']:.1f}",
        ", ".join(str(run.summary["moves"]) for run in runs),
        ", ".join(str(last_move(run)) for run in runs),
        ", ".join(str(len(set(run.records[-1]["assignment_next"]))) for run in runs),
        _or_dash(np.mean([rand_index(run) for run in runs]), "{:.2f}"),
        _or_dash(100 * np.mean([noisy_share(run) for run in runs]), "{:.0f} %"),
        _or_dash(np.mean([overfitting(run) for run in runs]), "{:.2f}"),
        _or_dash(max(map(early_overfitting, runs)), "{:.2f}"),
        ", ".join(map(shares_from, runs)),
        f"{summary['bytes_total'] / 1e9:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        runs = [fedbac.load(file.parent) for file in sorted(folder.glob("*/summary.json"))]
        runs = [run for run in runs if run.summary["finished"]]
        runs.sort(key=lambda run: run.config["experiment"]["seed"])
        print(f"\n{folder.name}\n")
        columns = ("run", "accuracy", "of each seed", "worst edge", "moves", "last move", "clusters", "Rand index")
        columns += ("noisy", "overfitting", "at most, first half", "shares from", "GB")
        print("| " + " | ".join(columns) + " |")
        print("|---" * len(columns) + "|")
        for summary in collect(runs):
            print(row(summary, [run for run in runs if run.folder and run.folder.name in summary["runs"]]))


if __name__ == "__main__":
    main()
