"""What an owner keeps for itself between rounds: its own parts, momentum, and what it left out of its updates.

Versions are files, named after the round and the edge round that made them. A cloud that is started again may go back a
round or two, so an owner goes back with it: it uses the newest version from before the round that it is asked for.
"""

import logging
import re
from pathlib import Path
from typing import Any

from fedbac.core.parts import Parts
from fedbac.deploy.protocol.messages import received, sent
from fedbac.deploy.wire import WireError, decode
from fedbac.files import make_folder, remove, write_whole

NAME = re.compile(r"own-(\d{6,})-(\d+)\.safetensors")
ROUNDS_BACK = 3
"""How far a cloud may go back: it keeps two checkpoints, and may have died before it wrote one."""

log = logging.getLogger("fedbac")

Moment = tuple[int, int]
"""A round and an edge round."""


class Keepsakes:
    """The versions of what one owner keeps, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, moment: Moment) -> dict[str, Any] | None:
        """Return the newest version made before a moment, by the fields of the message; None if there is none."""
        for made, file in sorted(self._files().items(), reverse=True):
            if made >= moment:
                continue
            try:
                return received(decode(file.read_bytes(), ("version",)))
            except (WireError, OSError) as error:
                log.warning("%s cannot be read (%s); going back to the version before it", file, error)
        return None

    def keep(self, moment: Moment, **kept: Parts | dict[str, Parts]) -> None:
        """Write a version if there is something to keep, and remove those that nobody goes back to."""
        if not any(kept.values()):
            return
        make_folder(self.folder)
        path = self.folder / f"own-{moment[0]:06d}-{moment[1]}.safetensors"
        write_whole(path, sent("version", **{"parts": {}, "momentum": {}, "left": {}, "links": {}, **kept}), mode=0o600)
        files = self._files()
        old = sorted(made for made in files if made < (moment[0] - ROUNDS_BACK, 0))
        for made in old[:-1]:  # the newest of them is what a cloud that goes back would ask for
            remove(files[made])

    def _files(self) -> dict[Moment, Path]:
        found = {}
        for file in self.folder.glob("own-*.safetensors"):
            name = NAME.fullmatch(file.name)
            if name is not None:
                found[int(name[1]), int(name[2])] = file
        return found
