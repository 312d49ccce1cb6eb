"""Tune every method with the same effort: as many points each, on the same seeds and settings.

    python benchmarks/tuning.py run FILE [--points first|all|best] [--seeds 0] [--methods NAME ...]
                                [--settings NAME ...] [--limit SECONDS] [--processes 8] [--device cuda] [--data FOLDER]
    python benchmarks/tuning.py confirm FILE --tuned TUNING_FILE [the same options]
    python benchmarks/tuning.py table FILE
    python benchmarks/tuning.py verdict FILE

A run is one line of FILE, and one that is there is not run again, so a pass may be stopped and continued. No run starts
after ``--limit`` seconds. ``first`` runs the presets as they are, ``all`` every point of the grids, ``best`` for each
method the point with the highest mean accuracy over the settings and seeds that all its points were run on.

``run`` chooses, and takes seeds 0 to 11 only. ``confirm`` runs the best points of TUNING_FILE, on seeds 20 to 29 only:
ours, the control, and in each setting the rivals that did best there in TUNING_FILE.
docs/decisions/0018-protocol.md says why, and by what rule ``verdict`` judges.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbac.presets.tasks import TASKS
from fedbac_paper import confirmed
from fedbac_paper.confirmed import CONTROL, MARGINS, OURS, Point, means
from fedbac_paper.settings import CALIBRATED

SEEDS = {"run": range(12), "confirm": range(20, 30)}
CONTROLLED = "fedavg-ft"
"""The rival that is the control with a network of twice the weights, as ours sums two: how much is owed to size."""
CONTROL_SEEDS = range(20, 23)
WIDER = "task.network.width=1.41"
RANKED_ON = 0
"""The seed whose runs say which rivals are confirmed."""
GO_ON = {"accuracy": 3, "edge_min": 2}
"""By measure, how many rivals are confirmed in a setting."""
BEHIND = {"accuracy": 2.0, "edge_min": 3.0}
"""By measure, how many points a rival may be behind the best one to be among them."""


def _grid(path: str, *values: object) -> list[tuple[str, ...]]:
    return [(f"{path}={value}",) for value in values]


SHARING, SCHEME = "method.sharing", "method.personalization"
GRIDS: dict[str, list[tuple[str, ...]]] = {
    OURS: [*_grid("method.clustering.alone_steps", 500, 700, 1500, 2000), (f"{SHARING}=apart",)],
    "fedavg-ft": _grid(f"{SHARING}.alone_rounds", 3, 20, 30, 45, 60),
    "fedper": [
        *_grid(f"{SCHEME}.head_layers", 2, 3, 4),
        (f"{SCHEME}.order=head_first",),
        (f"{SCHEME}.order=head_first", f"{SCHEME}.body_epochs=1"),
    ],
    "ditto-edges": _grid(f"{SCHEME}.strength", 0.03, 0.1, 0.3, 3, 10),
    "fedrod": [
        *_grid(f"{SCHEME}.head_layers", 2, 3),
        *_grid(f"{SCHEME}.head_epochs", 1, 2),
        (f"{SCHEME}.balanced=false",),
    ],
    "fedbabu": [
        (f"{SHARING}.alone_rounds={last}", f"{SCHEME}.last={last}", f"{SCHEME}.head_layers={head}")
        for last, head in ((20, 1), (30, 1), (60, 1), (10, 2), (30, 2))
    ],
    "apfl-edges": [
        *_grid(f"{SCHEME}.alpha", 0.25, 0.75, 1.0),
        (f"{SCHEME}.adaptive=false",),
        (f"{SCHEME}.adaptive=false", f"{SCHEME}.alpha=0.75"),
    ],
    "fedala": [*_grid(f"{SCHEME}.top_layers", 2, 3, 5), *_grid(f"{SCHEME}.mix_rate", 0.1, 10)],
    "pfedgraph": _grid(f"{SHARING}.strength", 0.3, 0.6, 2.5, 5, 10),
    "phe-fl": _grid(f"{SHARING}.blend", "by_data", 0.3, 0.5, 0.7, 0.9),
    "fedbac-plus": [
        *_grid(f"{SHARING}.share", 0.03, 0.3),
        ("method.sharing=towards_mean",),
        ("method.sharing={kind: towards_mean, share: 0.3}",),
        ("method.selection.fraction=1.0",),
    ],
    "hierfavg": _grid(f"{SCHEME}.proximal", 0.001, 0.01, 0.1),
    "local": [],
}
"""By method, the points beside the preset as it is. HierFAVG and edges alone have less to tune, and the control is
tuned with the rival that it controls."""
GRIDS[CONTROL] = []
PER_CLASS = "task.partition.mode=per_class"
SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (name, CALIBRATED[TASKS[name].dataset])
    for name in ("svhn-severe", "cifar10", "fashion-mnist-severe", "cifar10-severe", "svhn", "fashion-mnist")
}
SETTINGS |= {
    "planted": ("planted", ()),
    "noisy": ("noisy", ()),
    "per-class": ("fashion-mnist", (*CALIBRATED["fashion-mnist"], PER_CLASS)),
}
"""By name: the task and what is set for every method alike."""


Going = Mapping[str, Mapping[str, Sequence[Point]]]
"""By setting and method, the points to run."""


class Job(NamedTuple):
    """One run."""

    method: str
    point: tuple[str, ...]
    setting: str
    seed: int


def play(job: Job, device: str, data: str | None, extra: Sequence[str]) -> dict[str, Any]:
    """Return the line of a run."""
    import torch

    import fedbac

    torch.set_num_threads(1)
    task, common = SETTINGS[job.setting]
    method, network = (CONTROLLED, (WIDER,)) if job.method == CONTROL else (job.method, ())
    began = time.time()
    run = fedbac.run(
        method, task, seed=job.seed, settings=[*common, *network, *extra, *job.point], device=device, data_folder=data,
        workers=1 if device == "cpu" else None, progress=False,
    )  # fmt: skip
    found = {name: run.summary[name] for name in ("accuracy", "edge_min", "edge_std", "active_clusters", "bytes_total")}
    last = run.records[-1]
    return {
        **job._asdict(), **found, "per_edge": [round(one, 4) for one in last["accuracy_per_edge"]],
        "seconds": round(time.time() - began, 1),
    }  # fmt: skip


def lines(path: Path) -> dict[Job, dict[str, Any]]:
    """Return the runs of a file."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        row = json.loads(line)
        found[Job(row["method"], tuple(row["point"]), row["setting"], row["seed"])] = row
    return found


def best_points(found: Iterable[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the best point of each method's grid, by its mean over settings and seeds that all its points have."""
    accuracy = means(found, "accuracy")
    best = {}
    for method in {method for method, _ in accuracy}:
        points = [point for point in [(), *GRIDS[method]] if (method, point) in accuracy]
        runs = [{(s, seed) for s, by in accuracy[method, p].items() for seed in by} for p in points]
        common = set.intersection(*runs) or set.union(*runs)

        def mean(point: tuple[str, ...], method: str = method, common: set[tuple[str, int]] = common) -> float:
            by = accuracy[method, point]
            values = [by[setting][seed] for setting, seed in common if seed in by.get(setting, {})]
            return float(np.mean(values)) if values else -np.inf

        best[method] = max(points, key=mean)
    return best


def going_on(found: Iterable[dict[str, Any]]) -> Going:
    """Return by setting who is confirmed at which points: ours, the control, and for each measure the best rivals.

    A rival is ranked by the best of its points that were run in the setting, and confirmed at that one. Where its grid
    was not run, it is also confirmed at its best point over all settings.
    """
    found = [row for row in found if row["seed"] == RANKED_ON]
    best, going = best_points(found), {}
    for setting in SETTINGS:
        chosen = {OURS: [best.get(OURS, ())], CONTROL: [best.get(CONTROLLED, ())]}
        for name, behind in BEHIND.items():
            rivals: dict[str, dict[Point, float]] = defaultdict(dict)
            for (method, point), by in means(found, name).items():
                if method not in (OURS, CONTROL) and point in [(), *GRIDS[method]] and by.get(setting):
                    rivals[method][point] = by[setting][RANKED_ON]
            top = {method: max(points, key=lambda point: points[point]) for method, points in rivals.items()}
            order = sorted(rivals, key=lambda method: -rivals[method][top[method]])
            for method in order[: GO_ON[name]]:
                if rivals[method][top[method]] >= rivals[order[0]][top[order[0]]] - behind:
                    also = [best[method]] if len(rivals[method]) == 1 else []
                    chosen[method] = list(dict.fromkeys([*chosen.get(method, []), top[method], *also]))
        going[setting] = chosen
    return going


def _points(which: str, grid: Sequence[Point], best: Point) -> Sequence[Point]:
    points: dict[str, Sequence[Point]] = {"first": [()], "all": [(), *grid], "best": [best]}
    return points[which]


def jobs(options: argparse.Namespace, done: dict[Job, dict[str, Any]]) -> Iterator[Job]:
    """Yield what is to be run, seed by seed and setting by setting, so that a part of it is of use."""
    if options.what == "confirm":
        going = going_on(lines(options.tuned).values())
    else:
        best = best_points(done.values())
        grids: dict[str, Sequence[Point]] = {
            method: _points(options.points, grid, best.get(method, ())) for method, grid in GRIDS.items()
        }
        going = dict.fromkeys(SETTINGS, grids)
    for seed in options.seeds:
        for setting in options.settings:
            for method in (method for method in options.methods if method in going[setting]):
                if options.what == "confirm" and method == CONTROL and seed not in CONTROL_SEEDS:
                    continue
                for point in going[setting][method]:
                    job = Job(method, point, setting, seed)
                    if job not in done:
                        yield job


def run(options: argparse.Namespace) -> None:
    """Run what is left, several at a time, until the limit."""
    allowed = SEEDS[options.what]
    options.seeds = options.seeds or [allowed.start]
    if not set(options.seeds) <= set(allowed):
        raise SystemExit(f"--seeds: {options.what} takes {allowed.start} to {allowed.stop - 1} only; see the protocol")
    if options.what == "confirm" and options.tuned is None:
        raise SystemExit("--tuned: name the file of the runs that chose")
    began, todo = time.monotonic(), list(jobs(options, lines(options.file)))
    waiting, live = iter(todo), {}
    finished = 0
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:

        def start() -> None:
            job = next(waiting, None) if time.monotonic() - began < options.limit else None
            if job is not None:
                live[pool.submit(play, job, options.device, options.data, tuple(options.set))] = job

        for _ in range(options.processes):
            start()
        while live:
            ready: set[Future[dict[str, Any]]] = wait(live, return_when=FIRST_COMPLETED)[0]
            for future in ready:
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
                sys.stdout.write(f"{numbers}  {job.setting:22} seed {job.seed}  {job.method} {' '.join(job.point)}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{finished} of {len(todo)} runs in {time.monotonic() - began:.0f} s\n")


def table(options: argparse.Namespace) -> None:
    """Print for each method its best point: mean accuracy and worst edge, by setting, and the gap to ours."""
    found = lines(options.file)
    best = best_points(found.values())
    for name in MARGINS:
        values = means(found.values(), name)
        sys.stdout.write(f"\n{name} in percent (seeds), and less {OURS}, seed by seed\n")
        for method, point in best.items():
            cells = []
            for setting in SETTINGS:
                mine, ours = (values[key].get(setting, {}) for key in ((method, point), (OURS, best.get(OURS, ()))))
                both = sorted(set(mine) & set(ours))
                gap = f"{np.mean([mine[seed] - ours[seed] for seed in both]):+6.2f}" if both else " " * 6
                cells.append(f"{np.mean(list(mine.values())):5.2f}({len(mine)}){gap}" if mine else " " * 14)
            sys.stdout.write(f"{method:14}{' | '.join(cells)}   {' '.join(point)}\n")
    sys.stdout.write("\nsettings: " + ", ".join(SETTINGS) + "\n")


def verdict(options: argparse.Namespace) -> None:
    """Judge ours against the best rival, by setting and measure."""
    found = confirmed.parts(confirmed.read(options.file))
    for part in found:
        word, mean, half = part.judged
        beside = "" if part.control is None else f"; control {part.control:+.2f}"
        sys.stdout.write(
            f"{part.measure:9} {part.setting:22}{part.ours:6.2f} {mean:+6.2f} ± {half:4.2f} {word:13} "
            f"best of {part.rivals}: {part.best} ({part.seeds} seeds){beside}\n"
        )
    sys.stdout.write(f"{confirmed.claim(found)}\n")


def main() -> None:
    """Run or tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "confirm", "table", "verdict"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--tuned", type=Path)
    parser.add_argument("--points", choices=("first", "all", "best"), default="first")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--methods", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--set", nargs="+", default=[], help="settings of every run, for a quick look")
    parser.add_argument("--limit", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data")
    options = parser.parse_args()
    {"run": run, "confirm": run, "table": table, "verdict": verdict}[options.what](options)


if __name__ == "__main__":
    main()
