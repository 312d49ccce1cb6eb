"""What a crash of the system may leave of a folder: every prefix of the disk operations, in the orders a disk may take.

Only what was synced is sure: the content of a file, and which entries a folder has. Of all that came later, any part
may be on the disk. So for every moment there are: all of it, none, each changed entry alone, and all but one; and the
files that were not synced are whole, or as they were when they were synced last.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Tree = dict[str, bytes | None]
"""Contents by path; None for a folder."""
OPERATIONS = ("fsync", "replace", "write", "unlink", "mkdir", "rmdir", "ftruncate")


@dataclass
class Disk:
    """Follows what happens below a folder."""

    root: Path
    done: Callable[[], int]
    """How many rounds somebody has been told of."""
    crashes: dict[frozenset[tuple[str, bytes | None]], int] = field(default_factory=dict)
    """Everything that a crash may have left, each with the rounds that must not be lost."""
    _inodes: dict[int, int] = field(default_factory=dict)
    """A handle of each that was ever seen, so that no number is used again."""
    _synced: dict[int, Any] = field(default_factory=dict)
    """By inode: the content of a file, or the entries of a folder, as they are on the disk for sure."""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Look at the folder before each operation, and note what is synced."""
        self._synced[self._seen(self.root)] = self._entries(self.root)
        for name in OPERATIONS:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Any) -> Any:
        def watched(*words: Any, **options: Any) -> Any:
            self.look()
            answer = real(*words, **options)
            if name == "fsync":
                there = os.fstat(words[0])
                path = Path(os.readlink(f"/proc/self/fd/{words[0]}"))
                if path.is_relative_to(self.root):
                    self._synced[there.st_ino] = (
                        self._entries(path) if stat.S_ISDIR(there.st_mode) else path.read_bytes()
                    )
            return answer

        return watched

    def look(self) -> None:
        """Note what a crash at this moment may leave."""
        changed = [key for key, _ in self._changes(self.root)]
        choices: list[set[Any]] = [set(changed), set()]
        for one in changed:
            choices += [{one}, set(changed) - {one}]
        for kept in choices:
            for data in (True, False):
                left = frozenset(self._left(self.root, "", kept, data))
                self.crashes[left] = max(self.crashes.get(left, 0), self.done())

    def close(self) -> None:
        """Let go of the files."""
        for handle in self._inodes.values():
            os.close(handle)

    def _seen(self, path: Path) -> int:
        number = path.lstat().st_ino
        if number not in self._inodes:
            self._inodes[number] = os.open(path, os.O_RDONLY)
        return number

    def _entries(self, folder: Path) -> dict[str, tuple[int, bool]]:
        return {path.name: (self._seen(path), path.is_dir()) for path in folder.iterdir()}

    def _sure(self, number: int, default: Any) -> Any:
        return self._synced.get(number, default)

    def _changes(self, folder: Path) -> Iterator[tuple[tuple[int, str], bool]]:
        """Yield the entries below a folder that are not on the disk for sure."""
        number = self._seen(folder)
        now, sure = self._entries(folder), self._sure(number, {})
        for name in sorted({*now, *sure}):
            if now.get(name) != sure.get(name):
                yield (number, name), True
            if name in now and now[name][1]:
                yield from self._changes(folder / name)

    def _left(self, folder: Path, path: str, kept: set[Any], data: bool) -> Iterator[tuple[str, bytes | None]]:
        number = self._seen(folder)
        now, sure = self._entries(folder), self._sure(number, {})
        for name in {*now, *sure}:
            there = (now if (number, name) in kept or now.get(name) == sure.get(name) else sure).get(name)
            if there is None:
                continue
            entry, is_folder = there
            place = f"{path}{name}"
            if is_folder:
                yield place, None
                if name in now:
                    yield from self._left(folder / name, f"{place}/", kept, data)
            else:
                yield place, self._current(entry) if data else self._sure(entry, b"")

    def _current(self, number: int) -> bytes:
        handle = self._inodes[number]
        return os.pread(handle, os.fstat(handle).st_size, 0)


def put(left: frozenset[tuple[str, bytes | None]], folder: Path) -> None:
    """Make a folder what a crash left."""
    for path, content in sorted(left, key=lambda item: item[0]):
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
