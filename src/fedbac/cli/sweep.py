"""The command ``fedbac sweep``."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedbac.cli.terminal import (
    AddressOption,
    DataOption,
    DeviceOption,
    EngineOption,
    OutOption,
    RoundsOption,
    SetOption,
    TaskOption,
    TrainerOption,
    err,
    out,
    progress_bars,
    say_if_runs_take_turns,
)
from fedbac.config.experiment import Runtime, parse
from fedbac.local import num_cores
from fedbac.presets import tasks
from fedbac.runs import sweep as sweeps


def sweep(
    names: Annotated[list[str], typer.Argument(metavar="METHOD...", help="Methods to run (see: fedbac methods).")],
    axes: Annotated[list[str], typer.Option("--grid", metavar="PATH=V1,V2", help="Values of a setting to try.")] = [],  # noqa: B006
    listed: Annotated[
        list[str], typer.Option("--point", metavar="'PATH=V PATH=V'", help="Settings of one point; repeatable.")
    ] = [],  # noqa: B006
    task: TaskOption = tasks.DEFAULT_TASK,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seeds: Annotated[list[int], typer.Option("--seed", help="May be given several times.")] = [0],  # noqa: B006
    rounds: RoundsOption = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Runs at a time; by default one per core.")] = None,
    device: DeviceOption = "cpu",
    trainer: TrainerOption = "auto",
    engine: EngineOption = "simulator",
    address: AddressOption = None,
    out_folder: OutOption = None,
    data_folder: DataOption = None,
) -> None:
    """Run a grid or a list of settings and seeds in parallel; the same command again goes on where it stopped."""
    parent = out_folder or Path("runs") / f"sweep-{Path(task).stem}"
    points = sweeps.grid(names, task, axes, listed, seeds, rounds, settings, parent)
    # Each run stays in its own process, one core each; the engine spreads the runs.
    alone = parse(Runtime, {"device": device, "trainer": trainer, "workers": 1}, "runtime")
    spread = parse(Runtime, {"device": device, "engine": engine, "address": address}, "runtime")
    jobs = jobs or num_cores()
    say_if_runs_take_turns(device, jobs)
    sweeps.lay_out(points, alone)
    folders = [point.folder for point in points]
    total = sum(point.experiment.task.rounds for point in points)
    failures: dict[Path, Exception] = {}
    with progress_bars() as progress:
        line = progress.add_task(f"{len(points)} runs", total=total, note="")
        for done in sweeps.run_all(folders, spread, jobs, data_folder, failures):
            finished = sum(done[p.folder.path] == p.experiment.task.rounds for p in points)
            progress.update(line, completed=sum(done.values()), note=f"{finished} of {len(points)} runs finished")
    for path, error in failures.items():
        err.print(f"{path.name} failed: {error}", highlight=False, markup=False, soft_wrap=True)
    runs = [folder.read() for folder in folders if folder.path not in failures]
    if not runs:
        raise typer.Exit(1)
    rows = sweeps.collect(runs)
    (parent / "sweep.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = Table(box=None, pad_edge=False)
    for title in ("runs", "seeds", "accuracy (%)", "± over seeds", "σ over edges", "worst edge (%)"):
        table.add_column(title, justify="left" if title == "runs" else "right")
    for row in rows:
        numbers = [row[key] for key in ("accuracy", "accuracy_std_seeds", "edge_std", "edge_min")]
        percents = ["–" if number is None else f"{100 * number:.2f}" for number in numbers]
        table.add_row(row["runs"][0].rpartition("_seed")[0], str(len(row["seeds"])), *percents)
    out.print(table)
    from fedbac import report  # matplotlib is slow to import and needed only here

    out.print(f"\nReport: {report.write_report(runs, parent / 'report.html')}", highlight=False, soft_wrap=True)
    out.print(f"Table: {parent / 'sweep.json'}", highlight=False, soft_wrap=True)
    if failures:
        raise typer.Exit(1)
