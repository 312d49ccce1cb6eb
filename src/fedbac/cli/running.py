"""``fedbac run``, ``compare``, ``sweep``, ``tune``, ``resume``, ``verify``, ``audit``: runs laid out, played, shown."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbac.cli.reporting import LiveOption, conclude, conclude_sweep, run_folders, shown_live
from fedbac.cli.terminal import (
    DEVICE_HELP,
    METHOD_HELP,
    TRAINER_HELP,
    AllowOption,
    DataOption,
    DeviceOption,
    NetworkOption,
    OverwriteOption,
    SetOption,
    SourceOption,
    TaskOption,
    TrackOption,
    TrainerOption,
    changed,
    chosen,
    method_names,
    say,
    say_if_runs_take_turns,
)
from fedbac.core.settings import MOST_JOBS
from fedbac.errors import ConfigError
from fedbac.presets import DEFAULT_TASK
from fedbac.runs.folders import shortened

if TYPE_CHECKING:
    from fedbac.config.experiment import Runtime
    from fedbac.runs.configure import Inputs
    from fedbac.runs.store import RunFolder, StoredRun
    from fedbac.runs.sweep import Point
    from fedbac.runs.tune import Play

METHODS_HELP = "Names of methods (see: fedbac methods), or files. If one is a file, all methods run on its task."
SEED_HELP = "Seed of every random draw. Default: 0, or the file's."
ENGINE_HELP = "simulator (all edges in this process) or ray (edges in other processes)."
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Number of cloud rounds. Default: the task's.")]
SeedsOption = Annotated[list[int], typer.Option("--seed", help=f"{SEED_HELP} Repeatable.", show_default=False)]
PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="float32, or tf32 or bf16: faster for networks that torch trains on a GPU."),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Address of the Ray cluster to join. Default: a local one.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="Number of threads or processes on the CPU. Default: one per core.")
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory", help="Memory limit in GiB for the clients trained at once. Default: a share of what is free."
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, max=MOST_JOBS, help="Number of runs at a time. Default: one per core."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Folder to write to. Default: a folder in runs/ named after the method or command and the task."
    ),
]


def run(
    method: Annotated[str, typer.Argument(help=METHOD_HELP, autocompletion=method_names)],
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", help=SEED_HELP)] = None,
    rounds: RoundsOption = None,
    device: Annotated[str | None, typer.Option("--device", help=f"{DEVICE_HELP} Default: auto, or the file's.")] = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    trainer: Annotated[
        str | None, typer.Option("--trainer", help=f"{TRAINER_HELP} Default: auto, or the file's.")
    ] = None,
    precision: PrecisionOption = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help=f"{ENGINE_HELP} Default: simulator, or the file's.")
    ] = None,
    address: AddressOption = None,
    out_folder: OutOption = None,
    data: SourceOption = None,
    network: NetworkOption = None,
    overwrite: OverwriteOption = False,
    live: LiveOption = False,
    track: TrackOption = None,
) -> None:
    """Run one method on one task. The same command resumes an interrupted run."""
    from fedbac.runs.configure import Inputs, check_ready, configure, is_file, reached, runtime_in, with_settings
    from fedbac.runs.store import RunFolder
    from fedbac.runs.sweep import Point

    settings, data_folder = chosen(settings, network, data)
    experiment = configure(method, task, seed=seed, rounds=rounds, settings=settings)
    runtime = runtime_in(method) if is_file(method) else None
    source = Path(experiment.task.dataset).stem if is_file(method) else _source((), task, data)
    runtime = changed(runtime, device=device, workers=workers, memory_gib=memory, trainer=trainer, engine=engine)
    runtime = with_settings(changed(runtime, precision=precision, track=track), settings)
    runtime = reached(runtime, address, Path(method))
    name = shortened(f"{experiment.method.name}-{source}-seed{experiment.seed}")
    folder = RunFolder(out_folder or Path("runs") / name)
    below = [path.parent.name for path in folder.path.glob("*/config.yaml")]
    if below:
        raise ConfigError(f"--out: {folder.path} holds the runs {', '.join(sorted(below))}; choose another folder")
    point, inputs = Point(experiment, folder, ()), Inputs(data_folder=data_folder)
    check_ready([experiment], runtime, inputs)
    _play([point], folder.path, runtime, inputs, overwrite, live)


def compare(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[METHOD...]", help=METHODS_HELP, autocompletion=method_names)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Compare every method there is.")] = False,
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seeds: SeedsOption = [],  # noqa: B006
    rounds: RoundsOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    trainer: TrainerOption = "auto",
    precision: PrecisionOption = None,
    engine: Annotated[str, typer.Option("--engine", help=ENGINE_HELP)] = "simulator",
    address: AddressOption = None,
    out_folder: OutOption = None,
    data: SourceOption = None,
    network: NetworkOption = None,
    overwrite: OverwriteOption = False,
    live: LiveOption = False,
    track: TrackOption = None,
) -> None:
    """Run several methods on the same task, one after another. The same command resumes a comparison."""
    from fedbac.presets import methods
    from fedbac.runs.configure import Inputs, check_ready, with_settings
    from fedbac.runs.sweep import grid, names_beside

    settings, data_folder = chosen(settings, network, data)
    if bool(names) == everything:
        raise ConfigError("METHOD: name the methods to compare, or give --all for every one")
    names = names or list(methods.known())
    runtime = changed(device=device, workers=workers, memory_gib=memory, trainer=trainer, engine=engine)
    runtime = with_settings(changed(runtime, address=address, precision=precision, track=track), settings)
    parent = out_folder or Path("runs") / shortened(f"compare-{_source(names, task, data)}")
    named = names_beside(len(seeds))
    points, inputs = grid(names, task, (), (), seeds, rounds, settings, parent, named), Inputs(data_folder=data_folder)
    check_ready([point.experiment for point in points], runtime, inputs)
    _play(points, parent, runtime, inputs, overwrite, live)


def sweep(
    names: Annotated[list[str], typer.Argument(metavar="METHOD...", help=METHODS_HELP, autocompletion=method_names)],
    axes: Annotated[
        list[str],
        typer.Option(
            "--grid", metavar="PATH=V1,V2", help="Values of one setting to try. Repeatable: all combinations run."
        ),
    ] = [],  # noqa: B006
    listed: Annotated[
        list[str],
        typer.Option("--point", metavar="'PATH=V PATH=V'", help="One combination of settings to try. Repeatable."),
    ] = [],  # noqa: B006
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seeds: SeedsOption = [],  # noqa: B006
    rounds: RoundsOption = None,
    jobs: JobsOption = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    precision: PrecisionOption = None,
    engine: Annotated[
        str, typer.Option("--engine", help="simulator (runs on this machine) or ray (runs anywhere on a cluster).")
    ] = ("simulator"),
    address: AddressOption = None,
    out_folder: OutOption = None,
    data: SourceOption = None,
    network: NetworkOption = None,
    overwrite: OverwriteOption = False,
    live: LiveOption = False,
    track: TrackOption = None,
) -> None:
    """Run every combination of methods, settings and seeds, several at a time. The same command resumes them."""
    from fedbac.local import num_cores
    from fedbac.runs.configure import Inputs, check_ready, with_settings
    from fedbac.runs.sweep import grid

    settings, data_folder = chosen(settings, network, data)
    parent = out_folder or Path("runs") / shortened(f"sweep-{_source(names, task, data)}")
    points, inputs = grid(names, task, axes, listed, seeds, rounds, settings, parent), Inputs(data_folder=data_folder)
    jobs = min(jobs or num_cores(), len(points))
    # Several runs at a time use one core each; the engine spreads the runs, not their edges.
    alone = jobs == 1 and engine == "simulator"
    workers = None if alone else 1
    own = changed(device=device, trainer=trainer, precision=precision, track=track, workers=workers)
    own = with_settings(own, settings)
    spread = changed(device=device, engine=engine, address=address)
    say_if_runs_take_turns(device, jobs)
    if spread.engine == "simulator":  # elsewhere there may be what is not here
        check_ready([point.experiment for point in points], own, inputs)
    _play(points, parent, own, inputs, overwrite, live, conclude_sweep, jobs, spread)


def tune(
    names: Annotated[list[str], typer.Argument(metavar="METHOD...", help=METHODS_HELP, autocompletion=method_names)],
    task: TaskOption = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Number of points to try of each method.")] = 20,
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="PATH=V1,V2",
            help="Values of a setting to try, for the methods that have it, instead of drawing points. Repeatable.",
        ),
    ] = [],  # noqa: B006
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seeds: Annotated[list[int], typer.Option("--seed", help="Tuning seed. Repeatable.")] = [0],  # noqa: B006
    confirm: Annotated[
        list[int], typer.Option("--confirm", help="Seed to compare the tuned methods on. Repeatable.")
    ] = [20, 21, 22, 23, 24],  # noqa: B006
    rounds: RoundsOption = None,
    jobs: JobsOption = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    precision: PrecisionOption = None,
    out_folder: OutOption = None,
    data: SourceOption = None,
    network: NetworkOption = None,
) -> None:
    """Tune every method with the same effort, then compare them on other seeds. The same command resumes it."""
    from fedbac.config.explain import changes_of
    from fedbac.local import num_cores
    from fedbac.runs import tune
    from fedbac.runs.configure import Inputs, check_ready, with_settings
    from fedbac.runs.sweep import values_of

    settings, data_folder = chosen(settings, network, data)
    out = out_folder or Path("runs") / shortened(f"tune-{_source(names, task, data)}")
    inputs, jobs = Inputs(data_folder=data_folder), jobs or num_cores()
    own = changed(device=device, trainer=trainer, precision=precision, workers=None if jobs == 1 else 1)
    own = with_settings(own, settings)
    check_ready((), own, inputs)
    axes = [[change[:2] for change in changes_of(values_of(axis, "--over"))] for axis in over]
    plan = tune.plan(
        names, task, out, budget=budget, over=axes, seeds=seeds, confirm=confirm, rounds=rounds, settings=settings,
        inputs=inputs,
    )  # fmt: skip
    say_if_runs_take_turns(device, jobs)

    conclude_sweep(tune.tune(plan, player(own, inputs, jobs), say), out / "confirmed")
    say(plan.effort)


def player(own: "Runtime", inputs: "Inputs", jobs: int) -> "Play":
    """Return what lays out runs and plays them up to a round or their end, before a person's eyes."""
    from fedbac.cli.playing import play_all
    from fedbac.runs.sweep import lay_out

    def play(points: Sequence["Point"], folder: Path, until: int | None) -> Sequence["StoredRun"]:
        laid = lay_out(points, own, parent=folder)
        runs = play_all(points, None, inputs=inputs, laid=laid, jobs=min(jobs, len(points)), until=until)
        if len(runs) < len(points):
            raise typer.Exit(1)
        return runs

    return play


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison or a sweep.")],
    data_folder: DataOption = None,
    allowed: AllowOption = None,
    device: Annotated[str | None, typer.Option("--device", help=f"{DEVICE_HELP} Default: as before.")] = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    engine: Annotated[str | None, typer.Option("--engine", help=f"{ENGINE_HELP} Default: as before.")] = None,
    address: AddressOption = None,
    mixed: Annotated[
        str | None,
        typer.Option(
            "--mixed",
            help="If code, torch, numpy, trainer or processor are others than before: allow it with a warning, refuse "
            "it, or replay the last saved round and go on if it has the same bits. Default: as before (allow).",
        ),
    ] = None,
) -> None:
    """Resume interrupted runs, one after another, exactly as if they had never stopped."""
    from fedbac.cli.playing import play_all
    from fedbac.runs.configure import Inputs, check_ready, experiment_in, reached
    from fedbac.runs.sweep import Point, lay_out

    points, runtimes, inputs = [], [], Inputs(data_folder=data_folder)
    for place in run_folders([folder]):
        experiment, before = experiment_in(place)
        runtime = changed(before, device=device, workers=workers, memory_gib=memory, engine=engine, mixed=mixed)
        runtime = reached(runtime, address, place.config_file)
        if runtime != before:  # which the folder is about to state
            check_ready((), runtime, inputs)
        runtimes.append(runtime)
        points.append(Point(experiment, place, ()))
    for point, runtime in zip(points, runtimes, strict=True):
        lay_out([point], runtime)
    runs = play_all(points, folder, inputs=inputs)
    conclude(runs, folder)
    if len(runs) < len(points):
        raise typer.Exit(1)


def verify(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")],
    count: Annotated[
        int,
        typer.Option("--rounds", min=1, help="Rounds to replay, at random, of those that follow a saved checkpoint."),
    ] = 3,
    everything: Annotated[bool, typer.Option("--all", help="Replay every round.")] = False,
    data_folder: DataOption = None,
    allowed: AllowOption = None,
) -> None:
    """Replay rounds of saved runs and compare them bit for bit. Ends with status 1 if one differs."""
    if not replayed_alike(run_folders(folders), None if everything else count, data_folder):
        raise typer.Exit(1)


def replayed_alike(places: Sequence["RunFolder"], count: int | None, data_folder: Path | None) -> bool:
    """Replay rounds of runs, so many of each or all, say what became of them, and return whether all are the same."""
    from fedbac.runs.configure import Inputs
    from fedbac.runs.provenance import in_words
    from fedbac.runs.replay import verify

    alike = True
    for place in places:
        found = None
        for found in verify(place, Inputs(data_folder=data_folder), count):
            span = f"round {found.last}" if found.first == found.last else f"rounds {found.first} to {found.last}"
            same = f"the same bits ({'records and weights' if found.weights else 'records'})"
            say(f"{place.path}: {span}: {same if found.difference is None else f'DIFFERENT: {found.difference}'}")
            alike &= found.difference is None
        if found is None:
            raise ConfigError(f"{place.path}: no round was played yet, so there is nothing to replay")
        say(f"{place.path}: replayed by {in_words(found.by)}")
    return alike


def audit(
    method: Annotated[str, typer.Argument(help=METHOD_HELP, autocompletion=method_names)],
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", help="Seed.")] = None,
    rounds: RoundsOption = None,
    canaries: Annotated[
        int | None, typer.Option("--canaries", min=1, help="How many. Default: half of the clients.")
    ] = None,
    data: SourceOption = None,
) -> None:
    """Test a promise of privacy by canaries: how large epsilon is at least."""
    from fedbac.runs.audit import audit as audited
    from fedbac.runs.configure import Inputs, check_ready, configure

    settings, data_folder = chosen(settings, None, data)
    experiment = configure(method, task, seed=seed, rounds=rounds, settings=settings)
    runtime, inputs = changed(), Inputs(data_folder=data_folder)
    check_ready([experiment], runtime, inputs)
    found = audited(experiment, canaries, runtime=runtime, inputs=inputs)
    promised = "nothing" if found.promised is None else f"epsilon {found.promised:.4g}"
    say(
        f"Promised: {promised}. Of {found.guesses} guesses about {found.canaries} canaries {found.right} were right: "
        f"epsilon is at least {found.at_least:.3g}, with 95 % confidence."
    )
    if found.broken:
        say("So the promise is broken.")
        raise typer.Exit(1)


def _source(names: Sequence[str], task: str | None, data: str | None) -> str:
    """Return what the folder of runs is named after: the file that has the task, the task, or the data."""
    from fedbac.runs.configure import is_file

    file = next((name for name in names if is_file(name)), None)
    own = None if data is None or Path(data).is_dir() else data
    return Path(file or task or own or DEFAULT_TASK).stem


def _play(
    points: Sequence["Point"], folder: Path, runtime: "Runtime", inputs: "Inputs", overwrite: bool, live: bool,
    show: Callable[[Sequence["StoredRun"], Path], None] = conclude, jobs: int = 1, spread: "Runtime | None" = None,
) -> None:  # fmt: skip
    """Lay out the runs of a folder, or the one that it is, play them, and show them; fail if one of them did."""
    from fedbac.cli.playing import play_all
    from fedbac.runs.sweep import lay_out

    with shown_live(folder, live):
        laid = lay_out(points, runtime, overwrite, None if points[0].folder.path == folder else folder)
        runs = play_all(points, folder, inputs=inputs, laid=laid, jobs=jobs, spread=spread)
        show(runs, folder)
    if len(runs) < len(points):
        raise typer.Exit(1)
