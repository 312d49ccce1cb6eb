"""What lies in a run's folder where it has files of its own, and is none of them."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from fedbac.errors import RunFolderError

NAMES = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}


def refuse_strangers(files: Sequence[Path], folder: Path) -> None:
    """Refuse links and whatever else lies where a run has these files and this folder: it would be written through."""
    for path, kind in {**dict.fromkeys(files, stat.S_IFREG), folder: stat.S_IFDIR}.items():
        if os.path.lexists(path) and (there := stat.S_IFMT(path.lstat().st_mode)) != kind:
            raise RunFolderError(
                f"{path}: it is {NAMES.get(there, 'no file')}, but a run has {NAMES[kind]} of its own there; move it "
                "away"
            )
