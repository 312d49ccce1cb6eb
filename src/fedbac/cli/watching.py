"""``fedbac watch``, and ``--live`` of other commands: a local page that follows runs while they are running."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbac.cli.reporting import runs_in
from fedbac.cli.terminal import say
from fedbac.errors import ConfigError
from fedbac.runs.stopping import Interrupted

if TYPE_CHECKING:
    from fedbac.report.live import Live
    from fedbac.runs.store import RunFolder

MOST_PORT = 65535
LiveOption = Annotated[
    bool, typer.Option("--live", help="Also show progress on a local web page, as fedbac watch does.")
]


def watch(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that contain run folders, now or later.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=MOST_PORT, help="Port to listen on, on this machine only. Default: any free one."
        ),
    ] = None,
) -> None:
    """Follow runs on a local web page that updates as rounds finish. It only reads files, and never changes them."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder; name one that runs are, or will be, written to")
    live = _live(folders, port)
    say(f"Open {live.address} in a browser. Ctrl-C ends the page, not the runs.")
    try:
        live.serve()
    except Interrupted:
        say("The page has ended; runs are not affected.")


@contextmanager
def shown_live(folder: Path, wanted: bool) -> Iterator[None]:
    """Show the runs in a folder on a page while they are running, if that is wanted."""
    if not wanted:
        yield
        return
    live = _live([folder], None)
    say(f"Live page: {live.address} (it ends with this command)")
    with live.beside():
        yield
    say(f"The live page has ended. Open browsers keep it; the same figures are in {folder / 'report.html'}")


def _live(folders: Sequence[Path], port: int | None) -> "Live":
    try:
        from fedbac.report.live import Live  # an extra, and slow to import
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing; the live page needs: pip install 'fedbac[watch]'") from error
    return Live(lambda: [place for folder in folders for place in _runs_now(folder)], port)


def _runs_now(folder: Path) -> list["RunFolder"]:
    """Return the runs in a folder; none while it is gone, for instance to be replaced."""
    try:
        return runs_in(folder)
    except ConfigError:
        return []
