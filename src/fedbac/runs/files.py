"""Writing files of a run so that at any moment either the old or the new one is there, whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a place to write to; what is there at the end is put on the disk and takes the place of ``path``."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:  # a second Ctrl-C is no Exception
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode())
