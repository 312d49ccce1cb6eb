"""What many children send is kept on the disk, so that a parent needs memory for one of them at a time."""

import os
from pathlib import Path
from tempfile import TemporaryFile

SMALL = 2**20
"""Bytes of a message that is kept in memory."""
PIECE = 2**24
"""Bytes that are read at once."""


class Spool:
    """Bytes in a file without a name, which goes with the last who uses them: added at the end, read anywhere."""

    def __init__(self, folder: Path | None) -> None:
        """``folder`` is on a disk, as the system's for temporary files is often not."""
        self._file, self._size = TemporaryFile(buffering=0, dir=folder), 0  # noqa: SIM115 (see __del__)

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # or there was no room for one
            self._file.close()

    def __len__(self) -> int:
        return self._size

    def add(self, data: memoryview) -> None:
        """Add bytes; an OSError says that there is no room for them."""
        while data:
            written = os.pwrite(self._file.fileno(), data, self._size)
            data, self._size = data[written:], self._size + written

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return b"".join(os.pread(self._file.fileno(), min(PIECE, stop - at), at) for at in range(start, stop, PIECE))

    def __bytes__(self) -> bytes:
        return self[:]

    @property
    def path(self) -> str:
        """Where the file can be opened while this is in use."""
        return f"/dev/fd/{self._file.fileno()}"


Payload = bytes | Spool
"""A message, as it arrived."""
