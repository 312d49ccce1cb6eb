"""What the commands share: the two consoles, progress bars, and the options that several of them take."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape as escape_glob
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedbac.errors import ConfigError, visible
from fedbac.packages import VARIABLE, allow, is_own
from fedbac.presets import DEFAULT_TASK

if TYPE_CHECKING:
    from fedbac.config.experiment import Runtime

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

ROOMY = 100
"""Columns of a terminal from which a line of progress has room for more than the accuracy."""
METHOD_HELP = "Name of a method (see: fedbac methods), a file written by fedbac show, or a run's config.yaml."
DEVICE_HELP = "Where to train: cpu, cuda, or auto (a GPU if there is one)."
TRAINER_HELP = "What trains: native (our own kernels), torch, or auto (native for networks it knows)."


def method_names(incomplete: str) -> list[str]:
    """Complete the name of a method, or of a file that may hold one."""
    from fedbac.presets import methods

    return [*_names(methods.known(), incomplete), *_files(incomplete)]


def task_names(incomplete: str) -> list[str]:
    """Complete the name of a task, or of a file that may hold one."""
    from fedbac.presets import tasks

    return [*_names(tasks.TASKS, incomplete), *_files(incomplete)]


def data_names(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    from fedbac import data

    return _names([entry.name for entry in data.available()], incomplete)


def _names(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]


def _files(incomplete: str) -> list[str]:
    return [path for path in glob(f"{escape_glob(incomplete)}*") if path.endswith((".yaml", ".yml"))]


TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        help=f"Name of a task (see: fedbac tasks), or a .yaml file. Default: {DEFAULT_TASK}, or the file's.",
        autocompletion=task_names,
    ),
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="PATH=VALUE", help="Change a setting, such as task.rounds=9. Repeatable.")
]
DeviceOption = Annotated[str, typer.Option("--device", help=DEVICE_HELP)]
TrainerOption = Annotated[str, typer.Option("--trainer", help=TRAINER_HELP)]
TrackOption = Annotated[
    str | None, typer.Option("--track", help="Also log every round to tensorboard, mlflow or wandb.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder with data sets. It is searched before FEDBAC_DATA and the cache.")
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Data set to use: its name, an .npz file, file.py:function or package.module:function; or a folder with "
        "data sets, which is searched before FEDBAC_DATA and the cache. Default: the task's.",
    ),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="Network to use: lenet5, mlp, resnet, lstm, transformer, file.py:Net or package.module:Net. "
        "Default: the task's.",
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the runs that are already in the folder.")]


def allow_here(entries: list[str] | None) -> list[str] | None:
    """Let this process import these packages and files, and say which they are."""
    for name, digest in allow(*entries).items() if entries else ():
        say(f"Allowed here: {name}, with the hash {digest}", err)
    return entries


AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="CODE[=HASH]",
        help=f"A package or file.py whose network, loss or data may be used here. Repeatable; or set {VARIABLE}.",
        callback=allow_here,
    ),
]


def chosen(settings: Sequence[str], network: str | None, data: str | None) -> tuple[list[str], Path | None]:
    """Return the settings with the network and the data that options name, and the folder to look for data in."""
    folder = data is not None and (Path(data).is_dir() or (os.sep in data and not is_own(data)))
    named = {"network": network, "dataset": None if folder else data}
    found = [*settings, *(f"task.{field}={name}" for field, name in named.items() if name is not None)]
    return found, Path(data) if folder and data is not None else None


def shown(text: object) -> str:
    """Return text of a file or a person for one line of the terminal, among our own markup."""
    return escape(visible(text).replace("\n", "\\n"))


def say(sentence: str, console: Console = out) -> None:
    """Print one line that has no markup."""
    console.print(shown(sentence), highlight=False, soft_wrap=True)


def needed_width(table: Table) -> Measurement:
    """Return how wide a table must be at least, and how wide it is where there is room."""
    return Measurement.get(out, out.options.update(max_width=10_000), table)


@contextmanager
def extra(name: str, user: str) -> Iterator[None]:
    """Say which extra of the package is not installed, and what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing; {user} needs: pip install 'fedbac[{name}]'") from error


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield progress bars; silent where nobody watches."""
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=30 if err.width >= ROOMY else 14),  # a full line would wrap when the terminal shows ^C
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    # On the console of warnings, which then appear above the bars instead of among them.
    with _no_key_echo(), Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        yield progress


@contextmanager
def _no_key_echo() -> Iterator[None]:
    """Keep the terminal from writing ^C into a line of progress."""
    if termios is None or not (err.is_terminal and sys.stdin.isatty()):
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def say_if_runs_take_turns(device: str, jobs: int) -> None:
    """Say what several runs on one GPU lack: without NVIDIA's multi-process service their kernels only take turns."""
    import torch

    service = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")
    if jobs > 1 and device != "cpu" and torch.cuda.is_available() and not service.exists():
        say(
            f"{jobs} runs at a time take turns on the GPU; with NVIDIA's multi-process service they run side by side: "
            "nvidia-cuda-mps-control -d (docs/gpu.md)",
            err,
        )


def changed(runtime: "Runtime | None" = None, **choices: object) -> "Runtime":
    """Return the runtime, or the default one, with what was chosen; what was not stays."""
    from fedbac.config.experiment import Runtime
    from fedbac.config.explain import parse

    chosen = {key: value for key, value in choices.items() if value is not None}
    return parse(Runtime, (runtime or Runtime()).model_dump() | chosen, "runtime")
