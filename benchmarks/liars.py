"""What liars do to methods, and which rules withstand them.

    python benchmarks/liars.py run FILE [--methods NAME ...] [--attacks NAME ...] [--rules NAME ...] [--shares 0.3 ...]
                               [--settings cifar10 cifar10-severe] [--seeds 0 1 2] [--who clients] [--limit SECONDS]
                               [--processes 8] [--device cuda] [--data FOLDER] [--set PATH=VALUE ...]
    python benchmarks/liars.py table FILE
    python benchmarks/liars.py cost [--methods NAME ...] [--rules NAME ...] [--settings cifar10] [--rounds 25]
                               [--device cuda] [--data FOLDER] [--set PATH=VALUE ...] [--json results/liars/cost.json]

A run is one line of FILE, and one that is there is not run again, so a pass may be stopped and continued. No run starts
after ``--limit`` seconds. Beside every attack each rule is run with nobody lying (the attack ``none``): what it costs.
``table`` prints the mean over seeds of the accuracy and of the worst honest edge, and by rule the worst of all attacks
against the plain mean with nobody lying. The attack ``alie~0.5`` is ``alie`` with a jitter of 0.5: liars differ on
purpose. The setting ``planted-groups`` is small, for lies about losses. ``cost`` prints the milliseconds of a round by
each rule, in turns.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbac_paper.settings import CALIBRATED

NOBODY, MEAN = "none", "mean"
AT_EDGES, LOSSES = "method.cloud_aggregation=mean", "method.measurement.average=median"
NO_VOICE = (
    "method.aggregation={kind: trimmed_mean, faulty: 3, "
    "before: [{kind: one_voice, count: never}, {kind: nnm, faulty: 3}]}"
)
RULES: dict[str, tuple[str, ...]] = {
    MEAN: (),
    "median": ("method.aggregation=median", AT_EDGES),
    "trimmed": ("method.aggregation={kind: trimmed_mean, faulty: 3}", AT_EDGES),
    "multi-krum": ("method.aggregation={kind: krum, multi: true, faulty: 3}", AT_EDGES),
    "geometric": ("method.aggregation={kind: geometric_median, iterations: 8}", AT_EDGES),
    "clipping": ("method.aggregation=centred_clipping", AT_EDGES),
    "diameter": ("method.aggregation={kind: minimum_diameter, faulty: 3}", AT_EDGES),
    "nnm+trimmed": (
        "method.aggregation={kind: trimmed_mean, faulty: 3, before: {kind: nnm, faulty: 3}}",
        AT_EDGES,
    ),
    "nnm+geometric": (
        "method.aggregation={kind: geometric_median, iterations: 8, before: {kind: nnm, faulty: 3}}",
        AT_EDGES,
    ),
    "bucketing+geometric": ("method.aggregation={kind: geometric_median, iterations: 8, before: bucketing}", AT_EDGES),
    "one-voice+clipping": ("method.aggregation={kind: centred_clipping, before: one_voice}", AT_EDGES),
    "one-voice+median": ("method.aggregation={kind: median, before: one_voice}", AT_EDGES),
    "one-voice+multi-krum": (
        "method.aggregation={kind: krum, multi: true, faulty: 3, before: one_voice}",
        AT_EDGES,
    ),
    "one-voice+nnm+trimmed": (
        "method.aggregation={kind: trimmed_mean, faulty: 3, before: [one_voice, {kind: nnm, faulty: 3}]}",
        AT_EDGES,
    ),
    "no-voice+median": ("method.aggregation={kind: median, before: {kind: one_voice, count: never}}", AT_EDGES),
    "no-voice+trimmed": (NO_VOICE, AT_EDGES),
    "no-voice-0.1+trimmed": (NO_VOICE.replace("never", "never, within: 0.1"), AT_EDGES),
    "no-voice+trimmed-median-losses": (NO_VOICE, AT_EDGES, LOSSES),
    "trimmed-both": ("method.aggregation={kind: trimmed_mean, faulty: 0.375}",),
    "trimmed-cloud": ("method.cloud_aggregation={kind: trimmed_mean, faulty: 0.375}",),
    "nnm+trimmed-both": ("method.aggregation={kind: trimmed_mean, faulty: 0.375, before: {kind: nnm, faulty: 0.375}}",),
    "median-losses": (LOSSES,),
    "larger-sides": ("method.clustering.sides=larger",),
    "one-voice+median-median-losses": ("method.aggregation={kind: median, before: one_voice}", AT_EDGES, LOSSES),
    "one-voice+multi-krum-median-losses": (
        "method.aggregation={kind: krum, multi: true, faulty: 3, before: one_voice}",
        AT_EDGES,
        LOSSES,
    ),
    "one-voice+nnm+trimmed-median-losses": (
        "method.aggregation={kind: trimmed_mean, faulty: 3, before: [one_voice, {kind: nnm, faulty: 3}]}",
        AT_EDGES,
        LOSSES,
    ),
    "nnm+trimmed-median-losses": (
        "method.aggregation={kind: trimmed_mean, faulty: 3, before: {kind: nnm, faulty: 3}}",
        AT_EDGES,
        LOSSES,
    ),
}
"""By name, what is set: at edges (8 of 10 clients train, of which 3 may lie), at the cloud, or at both."""
FIVE = ("label_flip", "sign_flip", "gaussian", "alie", "min_max")
GROUPS, OF_GROUPS = (
    "planted-groups",
    (
        "task.num_edges=12",
        "task.clients_per_edge=10",
        "task.rounds=30",
        "task.network={kind: mlp, hidden: []}",
        "task.training={epochs: 2, batch_size: 10, learning_rate: 0.1, momentum: 0}",
        "method.clustering.period=3",
    ),
)
"""A setting in which clusters decide: edges of three groups call the same classes by other names."""
FIRST = (MEAN, "median", "trimmed", "multi-krum", "geometric", "clipping", "nnm+trimmed")


class Job(NamedTuple):
    """One run."""

    method: str
    setting: str
    attack: str
    share: float
    who: str
    rule: str
    seed: int


def play(job: Job, device: str, data: str | None, extra: tuple[str, ...]) -> dict[str, Any]:
    """Return the line of a run."""
    import torch

    import fedbac
    from fedbac.data import planted_groups

    torch.set_num_threads(1)
    attack, _, jitter = job.attack.partition("~")
    lies = f"task.world.liars={{attack: {attack}, jitter: {jitter or 0}, {job.who}: {job.share}}}"
    lying = [] if attack == NOBODY else [lies]
    named, dataset, shards = job.setting, None, None
    if named == GROUPS:
        named = "planted"
        dataset, shards, _ = planted_groups(12, 10, train=10, validation=5, seed=job.seed)
    common = OF_GROUPS if job.setting == GROUPS else CALIBRATED.get(fedbac.task(named).dataset, ())
    began = time.time()
    settings = [*common, "evaluation.global_every=1000", *lying, *RULES[job.rule], *extra]
    experiment = fedbac.configure(job.method, named, seed=job.seed, settings=settings)
    run = fedbac.run(
        job.method, named, seed=job.seed, device=device, data_folder=data, progress=False, settings=settings,
        workers=1 if device == "cpu" else None, dataset=dataset, shards=shards,
    )  # fmt: skip
    task, honest = experiment.task, np.ones(experiment.task.num_edges, dtype=bool)
    if task.liars is not None and job.who == "edges":
        edges = tuple(range(task.num_edges))
        honest = ~task.liars.among(job.seed, edges, np.array(edges), task.num_edges)[0]
    last = run.records[-experiment.evaluation.last_rounds :]
    accuracy_E = np.array([record["accuracy_per_edge"] for record in last], dtype=float).mean(0)[honest]
    return {
        **job._asdict(), "accuracy": float(accuracy_E.mean()), "edge_min": float(accuracy_E.min()),
        "per_edge": [round(one, 4) for one in accuracy_E.tolist()], "active_clusters": run.summary["active_clusters"],
        "seconds": round(time.time() - began, 1), "set": list(extra),
    }  # fmt: skip


def lines(path: Path) -> dict[Job, dict[str, Any]]:
    """Return the runs of a file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {Job(*(row[name] for name in Job._fields)): row for row in rows}


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yield what is to be run, seed by seed and setting by setting, so that a part of it is of use."""
    done = lines(options.file)
    for seed in options.seeds:
        for setting in options.settings:
            for share in dict.fromkeys((0.0, *options.shares)):
                for attack in options.attacks if share else [NOBODY]:
                    for method in options.methods:
                        for rule in options.rules:
                            job = Job(method, setting, attack, share, options.who if share else "", rule, seed)
                            if job not in done:
                                yield job


def run(options: argparse.Namespace) -> None:
    """Run what is left, several at a time, until the limit."""
    began, todo = time.monotonic(), list(jobs(options))
    waiting, live, finished = iter(todo), dict[Future[dict[str, Any]], Job](), 0
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:

        def start() -> None:
            job = next(waiting, None) if time.monotonic() - began < options.limit else None
            if job is not None:
                live[pool.submit(play, job, options.device, options.data, tuple(options.set))] = job

        for _ in range(options.processes):
            start()
        while live:
            for future in wait(live, return_when=FIRST_COMPLETED)[0]:
                job = live.pop(future)
                start()
                if future.exception() is not None:
                    sys.stderr.write(f"{job}: {future.exception()}\n")
                    continue
                finished += 1
                row = future.result()
                with options.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                numbers = f"{100 * row['accuracy']:6.2f} {100 * row['edge_min']:6.2f} {row['seconds']:6.0f} s"
                print(f"{numbers}  {' '.join(map(str, job))}", flush=True)
    print(f"{finished} of {len(todo)} runs in {time.monotonic() - began:.0f} s")


def table(options: argparse.Namespace) -> None:
    """Print the means over seeds, and what the worst attack takes from the plain mean with nobody lying."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for job, row in lines(options.file).items():
        found[job[:-1]].append(row)
    mean = {
        key: [100 * float(np.mean([row[name] for row in rows])) for name in ("accuracy", "edge_min")]
        for key, rows in found.items()
    }
    for method, setting in sorted({key[:2] for key in mean}):
        mine = {key[2:]: numbers for key, numbers in mean.items() if key[:2] == (method, setting)}
        plain = mine.get((NOBODY, 0.0, "", MEAN))
        if plain is None:
            continue
        print(f"\n{method} on {setting}; mean and worst edge; nobody lies, by the mean: {plain[0]:.2f} {plain[1]:.2f}")
        columns = sorted({key[:3] for key in mine}, key=lambda one: (one[2], one[1], one[0]))
        names = ["nobody" if not share else f"{attack} {share:g} {who}" for attack, share, who in columns]
        print(f"{'rule':26}" + "".join(f"{name:>24}" for name in names) + f"{'worst loss':>14}")
        for rule in dict.fromkeys(key[3] for key in sorted(mine, key=lambda key: list(RULES).index(key[3]))):
            cells = [mine.get((*column, rule)) for column in columns]
            lost = max((plain[0] - one[0] for one in cells if one is not None), default=0.0)
            shown = [f"{one[0]:.2f} {one[1]:.2f}" if one else "" for one in cells]
            print(f"{rule:26}" + "".join(f"{one:>24}" for one in shown) + f"{lost:14.2f}")


def cost(options: argparse.Namespace) -> None:
    """Print what a round takes, twice for each method and rule, and write it."""
    import torch

    import fedbac
    from fedbac.local import describe

    (setting, *_), found = options.settings, defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for turn in (1, 2):
        for method in options.methods:
            for rule in dict.fromkeys((MEAN, *options.rules)):
                clustered = hasattr(fedbac.configure(method, setting).method.clustering, "period")
                often = ("method.clustering.period=5",) if clustered else ()
                common = CALIBRATED.get(fedbac.task(setting).dataset, ())
                run = fedbac.run(
                    method, setting, rounds=options.rounds, settings=[*common, *often, *RULES[rule], *options.set],
                    device=options.device, data_folder=options.data, progress=False,
                )  # fmt: skip
                seconds = float(np.mean([record["seconds"] for record in run.records][options.rounds // 5 :]))
                found[method][rule].append(seconds)
                print(f"turn {turn}, {method:10} {rule:32} {1000 * seconds:6.1f} ms a round", flush=True)
    if options.json is not None:
        device, asked = describe(torch.device(options.device)), {"rounds": options.rounds, "set": options.set}
        row = {"setting": setting, "device": device, **asked, "seconds": found}
        options.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "cost"])
    parser.add_argument("file", type=Path, nargs="?", default=Path("liars.jsonl"))
    parser.add_argument("--methods", nargs="+", default=["hierfavg", "fed-bac", "fedfork"])
    parser.add_argument("--attacks", nargs="+", default=list(FIVE))
    parser.add_argument("--rules", nargs="+", default=list(FIRST), choices=list(RULES))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.3])
    parser.add_argument("--settings", nargs="+", default=["cifar10", "cifar10-severe"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--who", choices=["clients", "edges"], default="clients")
    parser.add_argument("--limit", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data")
    parser.add_argument("--rounds", type=int, default=25, help="of cost; the first fifth does not count")
    parser.add_argument("--json", type=Path, help="where cost writes its seconds")
    parser.add_argument("--set", nargs="*", default=[])
    options = parser.parse_args()
    if not set(options.seeds) <= set(range(12)):
        raise SystemExit("--seeds: 0 to 11 only; see docs/decisions/0018-protocol.md")
    {"run": run, "table": table, "cost": cost}[options.what](options)


if __name__ == "__main__":
    main()
