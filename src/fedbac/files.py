"""Files on the disk: each is written whole or not at all, and only regular ones of a sensible size are read."""

import errno
import json
import math
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedbac.errors import ConfigError, OutputError, quoted

PARTIAL = ".partial"
"""How the name of a file ends that is being written; one that a killed process left is of no use."""
MOST = 2**26
"""Bytes of one of our own files, or of one line of a longer one."""


@contextmanager
def replacing(path: Path, sync_folder: bool = True, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new file to write to; at the end it is put on the disk and takes the place of ``path``.

    At any moment the old or the new file is there, whole. A link at ``path`` is replaced, never written through.
    ``sync_folder`` is false where a file that vouches for this one follows into the same folder. ``mode`` is who may
    read and write the file from its first moment on, less what the umask forbids.
    """
    partial = path.parent / f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}"  # two processes may write the same file
    with explained(path):
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            mode = stat.S_IMODE(partial.stat().st_mode)  # as the umask has it
            yield partial
            partial.chmod(mode)  # a library may have put a file of its own there, which only its owner may read
            sync(partial)
            os.replace(partial, path)
            if sync_folder:
                sync(path.parent)
        except BaseException:  # a second Ctrl-C is no Exception
            partial.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file. What UTF-8 cannot hold of a text (half a surrogate pair) becomes a character reference."""
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(content.encode(errors="xmlcharrefreplace") if isinstance(content, str) else content)


def write_copy(path: Path, source: BufferedReader) -> None:
    """Write what is left of an open file, however large, even if it was deleted since."""
    with replacing(path) as partial, partial.open("wb") as file:
        shutil.copyfileobj(source, file)


def as_path(field: str, value: object) -> Path:
    """Return a path that somebody gave in Python."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ConfigError(f"{field}: {quoted(value)} is no path; give a text or a pathlib.Path")
    return Path(value)


def make_folder(path: Path) -> Path:
    """Make a folder, and those above it, where there is none yet."""
    with explained(path):
        add_folder(path)
    return path


def add_folder(path: Path) -> None:
    """Make a folder so that no crash of the system loses it, and with it all that is synced into it later."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        with suppress(PermissionError):  # one that may be written to but not read
            sync(folder.parent)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system says about a file that cannot be written into one sentence."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({why(error)}); mend that, or choose another place") from error


def why(error: OSError) -> str:
    """Return what the system says, on one line and without the path."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full"
    return error.strerror or " ".join(str(error).split())


def remove_empty(folder: Path) -> None:
    """Remove a folder if nothing is in it."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; a link itself, not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partial(folder: Path, name: str = "*") -> None:
    """Remove what processes that died left of files that they were writing; nobody may be writing now."""
    for partial in folder.glob(f"{name}{PARTIAL}"):
        remove(partial)


@contextmanager
def opened(path: Path, most: float = math.inf) -> Iterator[BufferedReader]:
    """Open a regular file of at most so many bytes: one would wait for a pipe, and never reach the end of a device."""
    waitless = getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | waitless)) as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "It is no regular file", str(path))
        if there.st_size > most:
            raise OSError(errno.EFBIG, f"It is longer than {most:,} bytes, as none of ours is", str(path))
        yield file


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """Return what is in a regular file of at most so many bytes."""
    with opened(path, most) as file:
        return file.read(most)


def lines_of(file: BufferedReader) -> Iterator[bytes]:
    """Yield the complete lines that are left of a file; one that is far too long is cut, and is the last."""
    while (line := file.readline(MOST)).endswith(b"\n"):
        yield line[:-1]
    if len(line) == MOST:
        yield line


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a regular file."""
    with opened(path) as file:
        yield from lines_of(file)


def read_json(path: Path) -> Any:
    """Return what a JSON file says; a ValueError if it says nothing sensible."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def sync(path: Path) -> None:
    """Put a file on the disk, or which files a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems cannot sync a folder
            raise
    finally:
        os.close(handle)
