"""The command ``fedbac``: its commands, and what becomes of errors and signals."""

import io
import logging
import platform
import re
import sys
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from rich.text import Text
from typer.core import TyperCommand
from typer.main import get_command

from fedbac.cli import deploying, federating, lists, modelling, reporting, running
from fedbac.cli.streams import lasting
from fedbac.cli.terminal import err, say
from fedbac.errors import ConfigError, Error, visible
from fedbac.runs.stopping import Interrupted, interrupting
from fedbac.version import full_version
from fedbac_command import leaving_on_interrupt
from fedbac_paper.command import benchmark, reproduce


class _Prepared(TyperCommand):
    """A command that imports the libraries it works with once it is asked to work, not for its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; where a person writes what other programs take, say what to write here."""
        listed = re.search(r"--seed[ =](\d+(?:,\d+)+)(?: |$)", " ".join(args))
        if listed is not None:
            each = " ".join(f"--seed {seed}" for seed in listed[1].split(","))
            once = any("--seed" in option.opts and not getattr(option, "multiple", False) for option in self.params)
            raise ConfigError(f"--seed {listed[1]}: write {'fedbac compare METHOD ' * once}{each}")
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if self.name == "run" and "unexpected extra argument" in str(error):
                raise ConfigError("fedbac run plays one method; for several write fedbac compare") from error
            option = str(getattr(error, "option_name", ""))
            if not option or ctx.resilient_parsing:
                raise
            from fedbac.runs.configure import called

            name = option.lstrip("-").replace("-", "_")
            if not (meant := called(name)):
                raise
            raise ConfigError(f"{option}: there is no such option; write --set {meant[0]}=VALUE") from error

    def invoke(self, ctx: Any) -> Any:
        """Import them, while Ctrl-C can do no harm, and run the command."""
        with leaving_on_interrupt():
            import fedbac.api  # noqa: F401 (commands take from it what they need)
        return super().invoke(ctx)


app = typer.Typer(
    help="Three-tier federated learning with clustered personalization and learned decisions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (
    running.run,
    running.compare,
    running.sweep,
    running.tune,
    benchmark,
    reproduce,
    running.resume,
    running.verify,
    running.audit,
    reporting.report,
    reporting.table,
    reporting.watch,
    reporting.export,
    lists.methods,
    lists.show,
    lists.tasks,
):
    app.command(cls=_Prepared)(command)
data_app = typer.Typer(help="List the data sets, or download one.", no_args_is_help=True)
data_app.command("list", cls=_Prepared)(lists.data_list)
data_app.command("get", cls=_Prepared)(lists.data_get)
app.add_typer(data_app, name="data")
app.add_typer(federating.federation_app, name="federation")
for site in (deploying.cloud, deploying.edge, deploying.client, deploying.status, modelling.model):
    app.command()(site)


def _version(wanted: bool) -> None:
    if wanted:
        with leaving_on_interrupt():
            import torch

            from fedbac.local import kernels
        typer.echo(f"fedbac {full_version()}, torch {torch.__version__}, Python {platform.python_version()}")
        typer.echo(f"kernels: {'; '.join(kernels())}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


command_line = get_command(app)


class _Plain(logging.Formatter):
    """Warnings quote paths and files, which may hold anything."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def main() -> None:
    """Run the command; errors that a person can mend are one message, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding cannot show
    handler = RichHandler(console=err, show_path=False, show_time=False)
    handler.setFormatter(_Plain("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    with lasting():
        try:
            with interrupting():
                command_line(prog_name="fedbac")  # however it was started
        except Interrupted:
            say("Stopped at once; saved rounds are safe. The same command resumes.", err)
            sys.exit(130)
        except Error as error:
            _fail(str(error))
        except MemoryError:
            _fail("there is not enough memory; use fewer or smaller edges, clients or networks")
        except OSError as error:  # a place on the disk that nobody checked before it was used
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> None:
    """Say what is wrong and end the command; lines after the first are indented, so that a name cannot forge one."""
    text = visible(message).replace("\n", "\n  ")
    err.print("[bold red]error:[/]", Text(text), highlight=False, soft_wrap=True)
    sys.exit(2)
