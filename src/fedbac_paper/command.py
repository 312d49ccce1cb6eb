"""The command ``fedbac reproduce``: run what is missing, collect what it showed, render the pages."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedbac.cli.terminal import (
    MOST_JOBS,
    DataOption,
    DeviceOption,
    OutOption,
    SetOption,
    TrainerOption,
    say,
    say_if_runs_take_turns,
)
from fedbac.errors import ConfigError
from fedbac_paper import ARTEFACT_NAMES

MOST_SEEDS = 1000
NAMES = ", ".join((*ARTEFACT_NAMES, "all"))


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="ARTEFACT...", help=f"{NAMES} (all but calibration).")],
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=MOST_SEEDS, help="Seeds 0 to n − 1; they set partition and start.")
    ] = 3,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, help="Run only seeds from this one on; earlier results stay.")
    ] = 0,
    out_folder: OutOption = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="A quick pass: so many rounds.")] = None,
    fraction: Annotated[
        float | None, typer.Option("--fraction-of-data", help="A quick pass: this share of every class.")
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    datasets: Annotated[list[str], typer.Option("--data-set", help="Only runs on this data set; repeatable.")] = [],  # noqa: B006
    tasks: Annotated[list[str], typer.Option("--task", help="Only runs of this task; repeatable.")] = [],  # noqa: B006
    variants: Annotated[list[str], typer.Option("--variant", help="Only this row of the artefact; repeatable.")] = [],  # noqa: B006
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, max=1e9, help="Time limit; the same command resumes.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=MOST_JOBS, help="Runs at a time; 1 on a GPU, else one per core.")
    ] = None,
    device: DeviceOption = "auto",
    trainer: TrainerOption = "auto",
    data_folder: DataOption = None,
    results_folder: Annotated[
        Path | None, typer.Option("--results", help="Folder of the result files; by default OUT/results.")
    ] = None,
    pages_folder: Annotated[
        Path | None, typer.Option("--pages", help="Folder of the pages; by default OUT/pages.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the runs and what they would take.")] = False,
    collect_only: Annotated[
        bool, typer.Option("--collect-only", help="Run nothing: result files and pages from finished runs in OUT.")
    ] = False,
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Run nothing: pages from the result files.")
    ] = False,
) -> None:
    """Reproduce the paper's tables and figures: run what is missing, resume what was interrupted, render."""
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
        for artefact in artefacts:
            found = collect(artefact, seeds, change, parent, before[artefact.name])
            say(f"Results: {write_results(found, place)}")
    for path in write_pages([artefact.name for artefact in artefacts], place, pages_place):
        say(f"Page: {path}")
    if stopped:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)
