"""Tune every method with the same effort on some seeds, then confirm ours beside its best rivals on others, once.

    python benchmarks/tuning.py run FILE [--part images] [--points first|all|missing] [--seeds 0] [--limit SECONDS]
                                [--methods NAME ...] [--settings NAME ...] [--processes 8] [--device cuda]
                                [--data FOLDER]
    python benchmarks/tuning.py plan FILE --tuned TUNING_FILE...
    python benchmarks/tuning.py confirm FILE --tuned TUNING_FILE... [the same options but --points]
    python benchmarks/tuning.py table FILE
    python benchmarks/tuning.py verdict FILE

A run is one line of FILE, and one that is there is not run again, so a pass may be stopped and continued. No run starts
after ``--limit`` seconds. ``first`` runs the presets as they are, ``all`` every point of the grids, ``missing`` what
``confirm`` still needs to know; the last takes some passes, as one may show what the next has to run.

``run`` chooses, and takes seeds 0 to 11 only. ``confirm`` takes seeds 30 to 39 only, setting by setting, so that a part
of it is of use. The TUNING_FILEs, which must be complete, say who is confirmed where and at which points; of a method
that a later one has, only those runs count. ``plan`` names all runs of a part in planned.jsonl beside FILE, which is
committed before the first of them and does not change. docs/decisions/0033-next-protocol.md says why, and by what rule
``verdict`` judges.
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
from fedbac.rounds.metrics import JUDGED_AT
from fedbac_paper import confirmed
from fedbac_paper.confirmed import CONTROLS, KIN, MARGINS, NATURAL, OURS, SIMPLE, Point, means
from fedbac_paper.measures import edges_of_rounds
from fedbac_paper.settings import CALIBRATED

SEEDS = {"run": range(12), "confirm": range(30, 40)}
RANKED_ON, GRIDS_ON = 0, ("svhn-severe", "fashion-mnist-severe")
"""The seed and the settings on which grids are run."""
FIRST, MENDED = "tuning.jsonl", ("apfl-edges", "ditto-edges", "fedala-edges", "pfedgraph-edges")
"""The file of the first comparison, and whose runs in it do not count: these methods were weaker than their papers."""
GO_ON, FAR = {"accuracy": 3, "edge_min": 1}, 0.02
"""By measure, how many rivals are confirmed in a setting; one by each where even the most accurate is so far behind
ours."""


def _grid(path: str, *values: object) -> list[tuple[str, ...]]:
    return [(f"{path}={value}",) for value in values]


SHARING, SCHEME = "method.sharing", "method.personalization"
GRIDS: dict[str, list[tuple[str, ...]]] = {
    "fedavg-ft": _grid(f"{SHARING}.alone_rounds", 3, 20, 30, 45, 60),
    "fedper-edges": [
        *_grid(f"{SCHEME}.head_layers", 2, 3, 4),
        (f"{SCHEME}.order=head_first",),
        (f"{SCHEME}.order=head_first", f"{SCHEME}.body_epochs=1"),
    ],
    "ditto-edges": _grid(f"{SCHEME}.strength", 0.03, 0.1, 0.3, 3, 10),
    "fedrod-edges": [
        *_grid(f"{SCHEME}.head_layers", 2, 3),
        *_grid(f"{SCHEME}.head_epochs", 1, 2),
        (f"{SCHEME}.balanced=false",),
    ],
    "fedbabu-edges": [
        (f"{SHARING}.alone_rounds={last}", f"{SCHEME}.last={last}", f"{SCHEME}.head_layers={head}")
        for last, head in ((20, 1), (30, 1), (60, 1), (10, 2), (30, 2))
    ],
    "apfl-edges": [
        *_grid(f"{SCHEME}.alpha", 0.25, 0.75, 1.0),
        (f"{SCHEME}.adaptive=false",),
        (f"{SCHEME}.adaptive=false", f"{SCHEME}.alpha=0.75"),
    ],
    "fedala-edges": [*_grid(f"{SCHEME}.top_layers", 2, 3, 5), *_grid(f"{SCHEME}.mix_rate", 0.1, 10)],
    "pfedgraph-edges": _grid(f"{SHARING}.strength", 0.3, 0.6, 2.5, 5, 10),
    "phe-fl": _grid(f"{SHARING}.blend", "by_data", 0.3, 0.5, 0.7, 0.9),
    "hierfavg": _grid(f"{SCHEME}.proximal", 0.001, 0.01, 0.1),
    "local": [],
}
"""By rival, the points beside the preset as it is. HierFAVG and edges alone have less to tune. Ours has its preset."""
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
SETTINGS |= {name: (name, ()) for name in NATURAL}
"""By name: the task and what is set for every method alike."""
PARTS = {
    "images": (
        "planted", "noisy", "fashion-mnist", "per-class", "fashion-mnist-severe", "svhn", "svhn-severe", "cifar10",
        "cifar10-severe",
    ),
    "natural": tuple(NATURAL),
}  # fmt: skip
"""What is confirmed together, the quickest first."""
TWICE = {"flights": "task.network.hidden=[64]"}
TWICE |= dict.fromkeys(("shakespeare", "udhr", "udhr-varieties"), "task.network.hidden=[128]")
"""By setting, what makes a network of twice the weights; elsewhere it is a wider LeNet-5."""
WIDER = "task.network.width=1.41"


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
    spared = "evaluation.global_every=1000"  # nobody reads that accuracy here
    began = time.time()
    run = fedbac.run(
        job.method, task, seed=job.seed, settings=[*common, spared, *extra, *job.point], device=device,
        data_folder=data, workers=1 if device == "cpu" else None, progress=False,
    )  # fmt: skip
    found = {name: run.summary[name] for name in ("accuracy", "active_clusters", "bytes_total")} | edges_of_rounds(run)
    last, moments = run.records[-1], {name: run.summary[name] for name in JUDGED_AT}
    return {
        **job._asdict(), **found, **moments, "per_edge": [round(one, 4) for one in last["accuracy_per_edge"]],
        "seconds": round(time.time() - began, 1),
    }  # fmt: skip


def lines(path: Path) -> dict[Job, dict[str, Any]]:
    """Return the runs of a file."""
    return {Job(row["method"], tuple(row["point"]), row["setting"], row["seed"]): row for row in confirmed.read(path)}


def tuned(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the runs that choose."""
    return [row for file in files for row in confirmed.read(file) if file.name != FIRST or row["method"] not in MENDED]


def best_points(found: Iterable[dict[str, Any]]) -> dict[str, Point]:
    """Return the best point of each method, by its mean accuracy over the settings with grids."""
    accuracy = means((row for row in found if row["seed"] == RANKED_ON), "accuracy")
    best: dict[str, Point] = {}
    for method, grid in GRIDS.items():
        runs = {point: [accuracy[method, point].get(setting, {}) for setting in GRIDS_ON] for point in [(), *grid]}
        mean = {point: sum(by[RANKED_ON] for by in some) for point, some in runs.items() if all(some)}
        if mean:
            best[method] = max(mean, key=lambda point: mean[point])
    return best


class Ranking:
    """The runs of all points of all methods in one setting, on the seed that ranks."""

    def __init__(self, found: Iterable[dict[str, Any]], setting: str) -> None:
        self.rows: dict[str, dict[Point, dict[str, Any]]] = defaultdict(dict)
        for row in found:
            method, point = row["method"], tuple(row["point"])
            if (row["setting"], row["seed"]) == (setting, RANKED_ON) and point in [(), *GRIDS.get(method, [])]:
                self.rows[method][point] = row

    def top(self, measure: str, method: str) -> Point:
        """Return the best point of a method."""
        return max(self.rows[method], key=lambda point: self.rows[method][point][measure])

    def first(self, measure: str, count: int) -> list[str]:
        """Return so many rivals, best first."""
        rivals = [method for method in self.rows if method not in (OURS, KIN, *CONTROLS)]  # both are not of others
        return sorted(rivals, key=lambda method: -self.best(measure, method))[:count]

    def best(self, measure: str, method: str) -> float:
        """Return the number of a method at its best point."""
        return float(self.rows[method][self.top(measure, method)][measure])

    def picked(self) -> dict[str, list[str]]:
        """Return the rivals that are confirmed, with the measures for which they are: the best, and simple answers."""
        (leader,) = self.first("accuracy", 1)
        far = self.best("accuracy", leader) < self.rows[OURS][()]["accuracy"] - FAR
        picked = {method: ["accuracy"] for method in SIMPLE}
        for measure, count in GO_ON.items():
            for method in self.first(measure, 1 if far else count):
                picked.setdefault(method, []).append(measure)
        return {method: list(dict.fromkeys(measures)) for method, measures in picked.items()}


def missing(found: Iterable[dict[str, Any]], part: str) -> list[Job]:
    """Return the runs without which it is not known who is confirmed, and at which points."""
    found, settings = list(found), PARTS[part]
    done = {Job(row["method"], tuple(row["point"]), row["setting"], row["seed"]) for row in found}
    grids = [setting for setting in settings if setting in GRIDS_ON]
    wanted = [Job(method, (), setting, RANKED_ON) for setting in settings for method in (OURS, *GRIDS)]
    wanted += [Job(m, point, setting, RANKED_ON) for setting in grids for m, grid in GRIDS.items() for point in grid]
    if grids and set(wanted) <= done:  # a rival that is picked by its preset may do better at the best of its grid
        best = best_points(found)
        wanted = [
            Job(method, best[method], setting, RANKED_ON)
            for setting in settings
            for method in Ranking(found, setting).picked()
        ]
    return [job for job in wanted if job not in done]


def going_on(found: Iterable[dict[str, Any]], part: str) -> Going:
    """Return by setting who is confirmed at which points: ours, simple answers, and the best rivals, these also with
    twice the weights.

    A rival is ranked by the best of its points that were run in the setting, and confirmed at that one.
    """
    found, going = list(found), {}
    for setting in PARTS[part]:
        here, wider = Ranking(found, setting), TWICE.get(setting, WIDER)
        going[setting] = {OURS: [()]} | {
            method: [(*point, *wide) for measure in measures for point in [here.top(measure, method)] for wide in
                     ((), (wider,))]
            for method, measures in here.picked().items()
        }  # fmt: skip
    return going


def jobs(options: argparse.Namespace, done: Mapping[Job, Any]) -> Iterator[Job]:
    """Yield what is to be run, setting by setting and seed by seed, so that a part of it is of use."""
    if options.what == "run" and options.points == "missing":
        found = tuned([*options.tuned, options.file])
        yield from (job for job in missing(found, options.part) if job.setting in options.settings)
        return
    if options.what == "run":
        grids = GRIDS if options.points == "all" else {}
        every = {method: [(), *grids.get(method, [])] for method in (OURS, *GRIDS)}
        going: Going = dict.fromkeys(options.settings, every)
    else:
        going = going_on(tuned(options.tuned), options.part)
    for setting in options.settings:
        for seed in options.seeds:
            for method in (method for method in going[setting] if method in options.methods):
                for point in dict.fromkeys(going[setting][method]):
                    job = Job(method, point, setting, seed)
                    if job not in done:
                        yield job


def plan(options: argparse.Namespace) -> None:
    """Write down all runs of a part that are to be confirmed, or see that they are still the same."""
    if absent := missing(tuned(options.tuned), options.part):
        raise SystemExit(
            f"--tuned: {len(absent)} runs are missing, such as {absent[0].method} in {absent[0].setting}; "
            f"first: benchmarks/tuning.py run FILE --part {options.part} --points missing --tuned ..."
        )
    everything = {"seeds": SEEDS["confirm"], "settings": PARTS[options.part], "methods": [OURS, *GRIDS]}
    planned = list(jobs(argparse.Namespace(**vars(options) | everything), {}))
    file = options.file.with_name(confirmed.PLANNED)
    if not file.exists():
        file.write_text("".join(json.dumps(job._asdict()) + "\n" for job in planned), encoding="utf-8")
    elif set(lines(file)) != set(planned):
        raise SystemExit(f"--tuned asks for other runs than {file}: they may not change any more")
    sys.stdout.write(f"{len(planned)} runs, {len(set(planned) - lines(options.file).keys())} to be done\n")


def run(options: argparse.Namespace) -> None:
    """Run what is left, several at a time, until the limit."""
    allowed = SEEDS[options.what]
    options.seeds = options.seeds or ([RANKED_ON] if options.what == "run" else list(allowed))
    if not set(options.seeds) <= set(allowed):
        raise SystemExit(f"--seeds: {options.what} takes {allowed.start} to {allowed.stop - 1} only; see the protocol")
    if options.what == "confirm":
        plan(options)
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
    best = {OURS: (), **best_points(found.values())}
    for name in MARGINS:
        values = means(found.values(), name)
        sys.stdout.write(f"\n{name} in percent (seeds), and less {OURS}, seed by seed\n")
        for method, point in best.items():
            cells = []
            for setting in SETTINGS:
                mine, ours = (values[key].get(setting, {}) for key in ((method, point), (OURS, ())))
                both = sorted(set(mine) & set(ours))
                gap = f"{np.mean([mine[seed] - ours[seed] for seed in both]):+6.2f}" if both else " " * 6
                cells.append(f"{np.mean(list(mine.values())):5.2f}({len(mine)}){gap}" if mine else " " * 14)
            sys.stdout.write(f"{method:14}{' | '.join(cells)}   {' '.join(point)}\n")
    sys.stdout.write("\nsettings: " + ", ".join(SETTINGS) + "\n")


def verdict(options: argparse.Namespace) -> None:
    """Judge ours against the best rival, and against the best simple answer, by setting and measure."""
    found = confirmed.at_both_moments(confirmed.read(options.file))
    settings = PARTS[options.part]
    for title, among in (("the best rival", None), ("the best simple answer", SIMPLE)):
        parts = confirmed.parts(found, among=among)
        sys.stdout.write(f"against {title}\n")
        for part in parts:
            mean, half = part.gap.mean, part.gap.half
            sys.stdout.write(
                f"{part.measure:9} {part.setting:22}{part.ours:6.2f} {mean:+6.2f} ± {half:4.2f} {part.word:13} "
                f"best of {part.rivals}: {part.best} ({part.seeds} seeds)\n"
            )
        sys.stdout.write(f"{confirmed.claim(parts, settings)}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "plan", "confirm", "table", "verdict"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--part", choices=list(PARTS), default="images")
    parser.add_argument("--tuned", type=Path, nargs="+", default=[])
    parser.add_argument("--points", choices=("first", "all", "missing"), default="first")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--methods", nargs="+", choices=[OURS, *GRIDS], default=[OURS, *GRIDS])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), help="default: all of the part")
    parser.add_argument("--set", nargs="+", default=[], help="settings of every run, for a quick look")
    parser.add_argument("--limit", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data")
    options = parser.parse_args(arguments)
    options.settings = options.settings or PARTS[options.part]
    options.file.parent.mkdir(parents=True, exist_ok=True)
    {"run": run, "plan": plan, "confirm": run, "table": table, "verdict": verdict}[options.what](options)


if __name__ == "__main__":
    main()
