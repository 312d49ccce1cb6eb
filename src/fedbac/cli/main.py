"""The command ``fedbac``: run, compare, resume, report, methods, tasks, data; sweep and reproduce are next door."""

import logging
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from fedbac import data
from fedbac.cli.sweep import sweep
from fedbac.cli.terminal import (
    TASK_HELP,
    AddressOption,
    DataOption,
    DeviceOption,
    EngineOption,
    MemoryOption,
    OutOption,
    OverwriteOption,
    RoundsOption,
    SetOption,
    TaskOption,
    TrainerOption,
    WorkersOption,
    err,
    out,
    progress_bars,
)
from fedbac.config.experiment import Experiment, Runtime, parse
from fedbac.errors import ConfigError, FederationError, PartitionError
from fedbac.presets import methods, tasks
from fedbac.runs.play import Inputs, Stop, configure, play, read_experiment
from fedbac.runs.store import Run, RunFolder
from fedbac.version import __version__
from fedbac_paper.command import reproduce

app = typer.Typer(
    help="Three-tier federated learning with clustered personalization and learned decisions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets: where they are, and how to get them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

WIDE = 125
"""Columns of a terminal from which the final table has one run per line."""


@dataclass
class Plan:
    """A run that is about to be played."""

    experiment: Experiment
    folder: RunFolder
    runtime: Runtime
    continued: bool = False
    overwrite: bool = False
    inputs: Inputs = field(default_factory=Inputs)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedbac {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _options(version: VersionOption = False) -> None:
    pass


@app.command("run")
def run_command(
    method: Annotated[str, typer.Argument(help="A method's name (see: fedbac methods) or a run's config.yaml.")],
    task: Annotated[str | None, typer.Option("--task", help=f"{TASK_HELP} Default: {tasks.DEFAULT_TASK}.")] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", help="Default: 0.")] = None,
    rounds: RoundsOption = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")] = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    trainer: Annotated[str | None, typer.Option("--trainer", help="auto, torch or native (CPU).")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="simulator, or ray: every edge an actor.")] = None,
    address: AddressOption = None,
    out_folder: OutOption = None,
    data_folder: DataOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Run one method on one task."""
    chosen = {
        "device": device,
        "workers": workers,
        "memory_gib": memory,
        "trainer": trainer,
        "engine": engine,
        "address": address,
    }
    if method.endswith((".yaml", ".yml")):
        if task is not None:
            raise ConfigError(f"--task: {method} has its task already; change it with --set task....")
        changes = [*settings, *([] if seed is None else [f"seed={seed}"])]
        changes += [] if rounds is None else [f"task.rounds={rounds}"]
        experiment, runtime = read_experiment(method, changes)
        runtime = _runtime(**runtime.model_dump() | {key: value for key, value in chosen.items() if value is not None})
        source = experiment.task.dataset
    else:
        runtime = _runtime(**{key: value for key, value in chosen.items() if value is not None})
        named = task or tasks.DEFAULT_TASK
        experiment = configure(method, named, seed=seed or 0, num_rounds=rounds, settings=settings)
        source = Path(named).stem
    name = f"{experiment.method.name}-{source}-seed{experiment.seed}"
    folder = RunFolder(out_folder or Path("runs") / name)
    below = [path.parent.name for path in folder.path.glob("*/config.yaml")]
    if below:
        raise ConfigError(f"--out: {folder.path} holds the runs {', '.join(sorted(below))}; choose a folder of its own")
    plan = Plan(experiment, folder, runtime, overwrite=overwrite, inputs=Inputs(data_folder=data_folder))
    _conclude(_play_all([plan]), folder.path / "report.html", folder.path)


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(metavar="METHOD...", help="Methods to compare (see: fedbac methods).")],
    task: TaskOption = tasks.DEFAULT_TASK,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seeds: Annotated[list[int], typer.Option("--seed", help="May be given several times.")] = [0],  # noqa: B006
    rounds: RoundsOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    trainer: TrainerOption = "auto",
    engine: EngineOption = "simulator",
    address: AddressOption = None,
    out_folder: OutOption = None,
    data_folder: DataOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Run several methods on the same task and data, one run folder each, and report on all together."""
    runtime = _runtime(
        device=device, workers=workers, memory_gib=memory, trainer=trainer, engine=engine, address=address
    )
    parent = out_folder or Path("runs") / f"compare-{Path(task).stem}"
    if len(set(names)) < len(names):
        raise ConfigError(f"METHOD: {', '.join(names)} names a method twice; repeat with --seed instead")
    plans = []
    for seed in seeds:
        for name in names:
            experiment = configure(name, task, seed=seed, num_rounds=rounds, settings=settings)
            folder = RunFolder(parent / (name if len(seeds) == 1 else f"{name}-seed{seed}"))
            plans.append(Plan(experiment, folder, runtime, overwrite=overwrite, inputs=Inputs(data_folder=data_folder)))
    taken = [str(plan.folder.path) for plan in plans if plan.folder.has_run()]
    if taken and not overwrite:
        raise ConfigError(
            f"--out: there are runs already in {', '.join(taken)}; go on with them (fedbac resume {parent}), replace "
            "them (--overwrite), or choose another --out"
        )
    # Every folder gets its configuration first, so that an interrupted comparison can be resumed as a whole.
    for plan in plans:
        with plan.folder.locked():
            plan.folder.clear()
            plan.folder.write_config(
                {"experiment": plan.experiment.model_dump(mode="json"), "runtime": runtime.model_dump(mode="json")}
            )
        plan.continued, plan.overwrite = True, False
    _conclude(_play_all(plans), parent / "report.html", parent)


app.command("sweep")(sweep)
app.command("reproduce")(reproduce)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or that of a comparison.")],
    data_folder: DataOption = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda; by default as before.")] = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
) -> None:
    """Go on with an interrupted run or comparison, exactly as if it had never stopped."""
    plans = []
    for place in _run_folders([folder]):
        place.read_config()
        experiment, runtime = read_experiment(place.config_file)
        changes = {"device": device, "workers": workers, "memory_gib": memory}
        runtime = _runtime(**runtime.model_dump() | {key: value for key, value in changes.items() if value is not None})
        plans.append(Plan(experiment, place, runtime, continued=True, inputs=Inputs(data_folder=data_folder)))
    _conclude(_play_all(plans), folder / "report.html", folder)


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")],
    out_file: Annotated[Path | None, typer.Option("--out", help="The page; by default report.html.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Also write every figure into this folder.")] = None,
) -> None:
    """Print the table of finished or unfinished runs and write their report."""
    runs = [place.read() for place in _run_folders(folders)]
    empty = [str(run.folder) for run in runs if not run.records]
    if empty:
        raise ConfigError(f"no complete round yet in {', '.join(empty)}")
    # A page about several folders is nobody's own: it goes where the command was typed.
    _show(runs, out_file or (folders[0] if len(folders) == 1 else Path()) / "report.html")
    if figures is not None:
        from fedbac import report  # matplotlib is slow to import and needed only here

        for path in report.save_figures(runs, figures):
            out.print(f"Figure: {path}", highlight=False, soft_wrap=True)


@app.command("methods")
def methods_command() -> None:
    """List the methods: one row of choices each."""
    table = Table(box=None, pad_edge=False)
    for title in ("method", "clustering", "selection", "personal", "adaptive", "shared"):
        table.add_column(title, no_wrap=title == "method")
    any_task = tasks.task(tasks.DEFAULT_TASK)
    for name, preset in methods.METHODS.items():
        row = preset(any_task)
        chosen = [row.clustering.kind, f"{row.selection.kind} p={row.selection.fraction:g}", row.personalization.kind]
        table.add_row(name, *chosen, "yes" if row.adaptive else "no", ", ".join(row.shared) or "nothing")
    out.print(table)
    out.print("\nOne in words, with every setting: fedbac show METHOD")


@app.command()
def show(
    method: Annotated[str, typer.Argument(help="A method's name.")],
    task: TaskOption = tasks.DEFAULT_TASK,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
) -> None:
    """Print a method's whole configuration on a task, as it would be run."""
    import yaml

    experiment = configure(method, task, settings=settings)
    typer.echo(f"# {methods.METHODS[method].__doc__}")
    typer.echo(yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False), nl=False)


@app.command("tasks")
def tasks_command() -> None:
    """List the tasks: data, federation and training."""
    table = Table(box=None, pad_edge=False)
    for title in ("task", "data set", "M", "N", "α M", "α N", "T", "E", "batch"):
        table.add_column(title, no_wrap=title in {"task", "data set"})
    for name, task in tasks.TASKS.items():
        numbers = (
            task.num_edges,
            sum(task.clients()),
            task.partition.dirichlet_server,
            task.partition.dirichlet_client,
        )
        work = (task.rounds, task.training.epochs, task.training.batch_size)
        table.add_row(name, task.dataset, *(f"{number:g}" for number in (*numbers, *work)))
    out.print(table)


@data_app.command("list")
def data_list(data_folder: DataOption = None) -> None:
    """List the data sets and where each was found."""
    table = Table(box=None, pad_edge=False)
    for title in ("data set", "found in", "what it is", "licence"):
        table.add_column(title, overflow="fold")
    for entry in data.available(data_folder):
        table.add_row(entry.name, str(entry.where or "not here"), entry.description, entry.licence)
    out.print(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A data set's name (see: fedbac data list).")],
    folder: Annotated[
        Path | None, typer.Option("--to", help="Folder; by default the cache, where it is found.")
    ] = None,
) -> None:
    """Download a data set from its official source and check it."""
    out.print(f"{name} is in {data.fetch(name, folder)}", highlight=False, soft_wrap=True)


# ------------------------------------------------------------------------------------------------ playing


def _runtime(**choices: object) -> Runtime:
    return parse(Runtime, choices, "runtime")


def _play_all(plans: Sequence[Plan]) -> list[Run]:
    """Play plans one after another with live progress; Ctrl-C ends after the round in hand is saved."""
    stop, runs = Stop(), []
    with stop.caught(), progress_bars() as progress:
        for plan in plans:
            playing = play(
                plan.experiment,
                folder=plan.folder,
                runtime=plan.runtime,
                inputs=plan.inputs,
                continued=plan.continued,
                overwrite=plan.overwrite,
                stop=stop,
            )
            runs.append(_follow(plan, playing, progress, stop))
            if stop.wanted:
                break
    if stop.wanted and not (len(runs) == len(plans) and all(run.summary["finished"] for run in runs)):
        place = plans[0].folder.path if len(plans) == 1 else plans[0].folder.path.parent
        err.print(f"stopped; everything is saved. Go on with: fedbac resume {place}", highlight=False, soft_wrap=True)
        raise typer.Exit(130)
    return runs


def _follow(plan: Plan, playing: Generator[dict[str, Any], None, Run], progress: Progress, stop: Stop) -> Run:
    total = plan.experiment.task.rounds
    label = plan.experiment.method.name + (f" seed {plan.experiment.seed}" if plan.experiment.seed else "")
    before = len(plan.folder.read_records()) if plan.continued else 0
    line = progress.add_task(label, total=total, completed=before, note="")
    while True:
        try:
            record = next(playing)
        except StopIteration as done:
            run: Run = done.value
            progress.update(line, completed=run.summary["rounds"], note=_note(run.records[-1]))
            return run
        note = _note(record) + (" [yellow]stopping" if stop.wanted else "")
        progress.update(line, completed=record["round"], note=note)
        if not out.is_terminal and (record["round"] % max(1, total // 10) == 0 or record["round"] == 1):
            out.print(f"{label}: round {record['round']}/{total}, {_note(record)}", highlight=False)


def _note(record: dict[str, Any]) -> str:
    clusters = record["active_clusters"]
    text = f"accuracy {100 * record['accuracy']:.2f} %, {clusters} cluster{'s' if clusters > 1 else ''}"
    return text + (f", [red]{len(record['failed'])} clients failed[/]" if record["failed"] else "")


def _conclude(runs: Sequence[Run], page: Path, folder: Path) -> None:
    _show(runs, page)
    out.print(f"Runs: {folder}", highlight=False, soft_wrap=True)


def _show(runs: Sequence[Run], page: Path) -> None:
    from fedbac import report  # matplotlib is slow to import and needed only here

    (header, rows), best = report.final(runs)
    out.print()
    out.print(_wide(header, rows, best) if out.width >= WIDE else _tall(header, rows, best))
    out.print(f"\n{report.outcome(runs)}", highlight=False, markup=False)
    for run in runs:
        wanted = run.config["experiment"]["task"]["rounds"]
        if len(run.records) < wanted:
            out.print(f"{run.name}: stopped after {len(run.records)} of {wanted} rounds", highlight=False, markup=False)
    try:
        report.write_report(runs, page)
    except OSError as error:
        raise ConfigError(f"--out: {page} cannot be written ({error.strerror}); choose another place") from error
    out.print(f"\nReport: {page}", highlight=False, soft_wrap=True)


def _wide(header: Sequence[str], rows: Sequence[Sequence[str]], best: int) -> Table:
    """One run, or method, per line."""
    table = Table(box=None, pad_edge=False)
    for index, title in enumerate(header):
        table.add_column(title, justify="left" if index == 0 else "right")
    for index, row in enumerate(rows):
        table.add_row(*map(escape, row), style="bold green" if index == best else "")
    return table


def _tall(header: Sequence[str], rows: Sequence[Sequence[str]], best: int) -> Table:
    """One run, or method, per column, for narrow terminals."""
    table = Table(box=None, pad_edge=False)
    table.add_column(header[0])
    for index, row in enumerate(rows):
        table.add_column(escape(row[0]), justify="right", style="bold green" if index == best else "")
    for line, title in enumerate(header[1:], start=1):
        table.add_row(title, *(row[line] for row in rows))
    return table


def _run_folders(folders: Sequence[Path]) -> list[RunFolder]:
    """Return the run folders among these and directly below them."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
        inside = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
        here = [RunFolder(path) for path in inside if RunFolder(path).has_run()]
        here.sort(key=lambda place: place.config_file.stat().st_mtime_ns)  # in the order in which they were begun
        if not here:
            raise ConfigError(f"{folder}: neither it nor a folder in it holds a run (no config.yaml)")
        found += here
    return found


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, under a name that typer does not take for itself, so that there is a word about it."""


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted


def main() -> None:
    """Run the command; errors that a person can mend are one message, not a traceback."""
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=err, show_path=False)]
    )
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        app()
    except Interrupted:
        err.print(
            "stopped at once; complete rounds are saved, fedbac resume (of a sweep: the same command) goes on there",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(130)
    except (ConfigError, PartitionError, FederationError) as error:
        err.print("[bold red]error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
