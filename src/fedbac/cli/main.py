"""The command ``fedbac``: its commands, and what becomes of errors and signals."""

import logging
import sys
from typing import Annotated

import typer
from rich.logging import RichHandler
from rich.markup import escape

from fedbac.cli import lists, reporting, running
from fedbac.cli.playing import MENDABLE
from fedbac.cli.terminal import err
from fedbac.runs.stopping import Interrupted, interrupting
from fedbac.version import __version__
from fedbac_paper.command import reproduce

app = typer.Typer(
    help="Three-tier federated learning with clustered personalization and learned decisions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    running.run,
    running.compare,
    running.sweep,
    reproduce,
    running.resume,
    reporting.report,
    lists.methods,
    lists.show,
    lists.tasks,
):
    app.command()(command)
app.add_typer(lists.data_app, name="data")


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


def main() -> None:
    """Run the command; errors that a person can mend are one message, not a traceback."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_path=False, show_time=False)],
    )
    try:
        with interrupting():
            app()
    except Interrupted:
        err.print("Stopped at once; all complete rounds are saved. The same command resumes.", soft_wrap=True)
        sys.exit(130)
    except MENDABLE as error:
        err.print("[bold red]error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
