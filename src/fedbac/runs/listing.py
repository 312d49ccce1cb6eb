"""``runs.json``: the runs that a comparison or sweep consists of, written before the first of their folders.

A command that dies while it lays out folders leaves some of them missing, which nothing else could tell.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedbac.files import make_folder, read_json, remove, write_whole

NAME = "runs.json"


def list_runs(parent: Path, names: Iterable[str], anew: bool = False) -> None:
    """Add names of run folders to the list of the folder that they are in, or begin it ``anew``."""
    known = listed(parent)
    wanted = list(dict.fromkeys([*([] if anew else known), *names]))
    if wanted != known:
        write_whole(make_folder(parent) / NAME, json.dumps(wanted, indent=1) + "\n")


def list_again(parent: Path, names: Sequence[str]) -> None:
    """Make the list what it was before, which may be none."""
    if names:
        list_runs(parent, names, anew=True)
    else:
        remove(parent / NAME)


def listed(parent: Path) -> list[str]:
    """Return the listed names; none where there is no list that can be read."""
    try:
        names = read_json(parent / NAME)
    except (OSError, ValueError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
