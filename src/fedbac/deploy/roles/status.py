"""Who is there, and how far the run is: a small file that the cloud and edges keep up to date, and anybody may read."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedbac.errors import DeployError, OutputError
from fedbac.files import make_folder, read_json, write_whole

FILE = "status.json"
EVERY = 1.0
"""Seconds between two looks."""
STALE = 10.0
"""Seconds after which a file that nobody renews tells of a process that is gone."""


class Board:
    """Writes the status of a site, once a second and when something changes."""

    def __init__(self, folder: Path, look: Callable[[], dict[str, Any]]) -> None:
        self.path, self.look = make_folder(folder) / FILE, look
        self.said: dict[str, Any] = {"doing": "starting"}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._write, name="fedbac-status", daemon=True)
        self.thread.start()

    def say(self, **news: Any) -> None:
        """Note what the site is doing."""
        self.said |= news

    def close(self) -> None:
        """Write a last time."""
        self.stopped.set()
        self.thread.join()

    def _write(self) -> None:
        while True:
            over = self.stopped.wait(EVERY)
            with suppress(OutputError):  # a full disk must not end the run; the file is for people
                write_whole(self.path, json.dumps({**self.look(), **self.said, "at": time.time()}))
            if over:
                return


def read_status(folder: Path, state: Path | None = None) -> dict[str, Any]:
    """Return the status of a kit; ``state`` is where the site keeps it, if not in the kit."""
    if not folder.is_dir():
        raise DeployError(f"{folder}: there is no such kit; name that of the cloud or of an edge")
    path = (state or folder / "state") / FILE
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise DeployError(
            f"{folder}: there is no status; name the kit of the cloud or of an edge, and start that site first"
        ) from error
    if not isinstance(found, dict):
        raise DeployError(f"{path}: it holds no status")
    return found
