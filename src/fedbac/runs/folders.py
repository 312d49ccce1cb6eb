"""Folders of runs: their names, what may lie in them, and ``runs.json``, the list of a comparison or sweep."""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedbac.errors import ConfigError, RunFolderError, quoted
from fedbac.files import as_path, make_folder, read_json, remove, write_whole

LONGEST, KEPT = 200, 160
"""Bytes of a name that we make, and how many stay of a longer one; file systems take 255."""


def shortened(name: str) -> str:
    """Return a folder's name; of one that is too long its beginning, and a hash that tells it from others like it."""
    raw = name.encode(errors="surrogatepass")
    if len(raw) <= LONGEST:
        return name
    return f"{raw[:KEPT].decode(errors='ignore')}-{hashlib.sha256(raw).hexdigest()[:12]}"


def usable(path: Path | str) -> Path:
    """Return a path, or raise a ConfigError where no file system could have it."""
    path = as_path("folder", path)
    if "\0" in str(path):
        raise ConfigError(f"{quoted(str(path))}: a folder's name cannot hold the character NUL; choose another")
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # safetensors could not read what is saved there
        raise ConfigError(f"{quoted(str(path))}: a folder's name must be text in UTF-8; choose another") from error
    for part in path.parts:
        if len(part.encode(errors="surrogatepass")) > 255:
            raise ConfigError(f"{quoted(part)}: a folder's name has at most 255 bytes; choose a shorter one")
    return path


NAMES = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}


def refuse_strangers(files: Sequence[Path], folder: Path) -> None:
    """Refuse links and whatever else lies where a run has these files and this folder: it would be written through."""
    for path, kind in {**dict.fromkeys(files, stat.S_IFREG), folder: stat.S_IFDIR}.items():
        if os.path.lexists(path) and (there := stat.S_IFMT(path.lstat().st_mode)) != kind:
            raise RunFolderError(
                f"{path}: it is {NAMES.get(there, 'no file')}, but a run has {NAMES[kind]} of its own there; move it "
                "away"
            )


NAME = "runs.json"


def list_runs(parent: Path, names: Iterable[str], anew: bool = False) -> None:
    """Add names of run folders to the list of the folder that they are in, or begin it ``anew``; none needs no list."""
    known = listed(parent)
    wanted = list(dict.fromkeys([*([] if anew else known), *names]))
    if not wanted:
        remove(parent / NAME)
    elif wanted != known:
        write_whole(make_folder(parent) / NAME, json.dumps(wanted, indent=1) + "\n")


def listed(parent: Path) -> list[str]:
    """Return the listed names; none where there is no list that can be read."""
    try:
        names = read_json(parent / NAME)
    except (OSError, ValueError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
