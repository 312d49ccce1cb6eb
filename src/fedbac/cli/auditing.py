"""``fedbac audit``: whether the privacy that a method promises withstands canaries."""

from typing import Annotated

import typer

from fedbac.cli.running import RoundsOption
from fedbac.cli.terminal import METHOD_HELP, SetOption, SourceOption, TaskOption, changed, chosen, method_names, say


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
