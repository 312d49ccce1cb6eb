"""The commands of the study: ``fedbac reproduce``, for the paper's pages, and ``benchmark``, for anybody's method."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedbac.cli.running import JobsOption, player, replayed_alike
from fedbac.cli.terminal import (
    METHOD_HELP,
    AllowOption,
    DataOption,
    DeviceOption,
    SetOption,
    TrainerOption,
    changed,
    method_names,
    say,
    say_if_runs_take_turns,
)
from fedbac.core.settings import MOST_JOBS
from fedbac.errors import ConfigError
from fedbac.runs.folders import shortened
from fedbac_paper import ARTEFACT_NAMES

MOST_SEEDS = 1000
NAMES = ", ".join((*ARTEFACT_NAMES, "all"))


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="ARTEFACT...", help=f"{NAMES}. 'all' leaves out calibration.")],
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", min=1, max=MOST_SEEDS, help="Number of seeds. Every run is repeated with seeds 0, 1, …"
        ),
    ] = 3,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, help="Skip the seeds before this one. Their results are kept.")
    ] = 0,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder to write to. Default: runs/reproduce; runs/reproduce-quick for a quick look."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="For a quick look: stop after this many rounds.")
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option("--fraction-of-data", help="For a quick look: use only this share of the data, such as 0.1."),
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    datasets: Annotated[list[str], typer.Option("--data-set", help="Run only on this data set. Repeatable.")] = [],  # noqa: B006
    tasks: Annotated[list[str], typer.Option("--task", help="Run only this task. Repeatable.")] = [],  # noqa: B006
    variants: Annotated[
        list[str], typer.Option("--variant", help="Run only this row of the artefact. Repeatable.")
    ] = [],  # noqa: B006
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0, max=1e9, help="Stop after this many minutes. The same command resumes."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, max=MOST_JOBS, help="Number of runs at a time. Default: 1 on a GPU, else one per core."
        ),
    ] = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    data_folder: DataOption = None,
    results_folder: Annotated[
        Path | None, typer.Option("--results", help="Folder for the result files. Default: OUT/results.")
    ] = None,
    pages_folder: Annotated[
        Path | None, typer.Option("--pages", help="Folder for the pages. Default: OUT/pages.")
    ] = None,
    verified: Annotated[
        int, typer.Option("--verify", min=0, help="Also replay so many rounds of every finished run.")
    ] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="List the runs, and estimate how long they would take, without running them.")
    ] = False,
    collect_only: Annotated[
        bool,
        typer.Option("--collect-only", help="Run nothing. Write result files and pages from the finished runs in OUT."),
    ] = False,
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Run nothing. Write the pages from the result files.")
    ] = False,
) -> None:
    """Reproduce the paper's tables and figures: run what is missing, then write the pages."""
    import torch

    from fedbac.config.experiment import Runtime
    from fedbac.config.explain import parse
    from fedbac.local import num_cores
    from fedbac_paper.collect import check_pass, collect
    from fedbac_paper.pages import write_pages
    from fedbac_paper.plan import Filter, Pass, points
    from fedbac_paper.reproducing import artefacts_named, run_missing, show_plan
    from fedbac_paper.results import read_results, write_results

    started = time.monotonic()
    stopped = failed = False
    artefacts = artefacts_named(names)
    change = Pass(rounds, fraction, tuple(settings))
    parent = out_folder or Path("runs") / ("reproduce-quick" if change.changes else "reproduce")
    place, pages_place = results_folder or parent / "results", pages_folder or parent / "pages"
    keep = Filter(tuple(datasets), tuple(tasks), tuple(variants))
    keep.check(artefacts)
    if first_seed >= seeds:
        raise ConfigError(f"--first-seed {first_seed}: the last of --seeds {seeds} is {seeds - 1}; choose more seeds")
    if not render_only:
        wanted = points(artefacts, range(first_seed, seeds), change, parent, keep)
        before = {artefact.name: read_results(artefact.name, place) for artefact in artefacts}
        for known in before.values():
            check_pass(known, change)
        if plan:
            show_plan(wanted)
            return
        jobs = jobs or (1 if device != "cpu" and torch.cuda.is_available() else num_cores())
        alone = parse(Runtime, {"device": device, "trainer": trainer, "workers": 1 if jobs > 1 else None}, "runtime")
        deadline = None if minutes is None else started + 60 * minutes
        if not collect_only:
            say_if_runs_take_turns(device, jobs)
            stopped, failed = run_missing(wanted, alone, jobs, data_folder, deadline)
        finished = [point.folder for point in wanted if point.folder.finished()] if verified else []
        failed |= not replayed_alike(finished, verified, data_folder)
        for artefact in artefacts:
            found = collect(artefact, seeds, change, parent, before[artefact.name])
            say(f"Results: {write_results(found, place)}")
    for path in write_pages([artefact.name for artefact in artefacts], place, pages_place):
        say(f"Page: {path}")
    if stopped:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def benchmark(
    method: Annotated[str, typer.Argument(help=METHOD_HELP, autocompletion=method_names)],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write to. Default: a folder in runs/ named after the method."),
    ] = None,
    chosen_tasks: Annotated[
        list[str], typer.Option("--task", help="A task or a part (natural, paper) of the protocol. Repeatable.")
    ] = ["natural"],  # noqa: B006
    points: Annotated[
        int | None,
        typer.Option("--points", min=1, help="Points of tuning, if not the protocol's; 1 takes the method as it is."),
    ] = None,
    jobs: JobsOption = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Run nothing; write the page of the runs that are finished.")
    ] = False,
    verified: Annotated[
        int,
        typer.Option(
            "--verify",
            min=0,
            help="Also replay so many rounds of every judged run; with --so-far, hold benchmark.json to the runs.",
        ),
    ] = 0,
    data_folder: DataOption = None,
    allowed: AllowOption = None,
) -> None:
    """Put a method to the frozen protocol."""
    from fedbac.files import read_bytes
    from fedbac.local import num_cores
    from fedbac.runs.configure import Inputs, check_ready
    from fedbac.runs.store import differences
    from fedbac_paper import benchmark as protocol

    out = out or Path("runs") / shortened(f"benchmark-{Path(method).stem}")
    inputs, jobs = Inputs(data_folder=data_folder), jobs or num_cores()
    own = changed(device=device, trainer=trainer, workers=None if jobs == 1 else 1)
    wrong: list[str] = []
    if so_far:
        claimed = protocol.stated(out) if verified else {}
        page = protocol.collect(out)
        wrong = differences(claimed, protocol.stated(out)) if claimed else []
    else:
        check_ready((), own, inputs)
        plans = protocol.plans(method, out, chosen_tasks, points, inputs)
        say_if_runs_take_turns(device, jobs)
        page = protocol.benchmark(plans, out, player(own, inputs, jobs), say)
    for line in read_bytes(page).decode().splitlines():
        say(line)
    say(f"It is in {out / protocol.PAGE}, and in {out / protocol.FILE} for a leaderboard.")
    for line in wrong:
        say(f"{out / protocol.FILE} was not what the runs say: {line}")
    if (verified and not replayed_alike(protocol.judged_runs(out), verified, data_folder)) or wrong:
        raise typer.Exit(1)
