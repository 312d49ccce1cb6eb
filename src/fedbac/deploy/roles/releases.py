"""What a site has released with noise, kept so that a round is answered once and never spent twice.

Noise comes from a secret of the site, drawn once, and the address of a round. The same noise in two different sums
would cancel when one is taken from the other; so what has been released for a round is kept before it is sent, and is
sent again if the round is played again from the same networks, whoever takes part then. From other networks it would be
another answer, and is refused.
"""

import hashlib
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from fedbac.core.parts import Parts
from fedbac.deploy import log
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import received, sent
from fedbac.deploy.protocol.wire import WireError, decode
from fedbac.errors import DeployError
from fedbac.files import make_folder, opened, read_bytes, remove, write_whole

ROUNDS_KEPT = 4
"""How far a cloud may go back and be answered: one that goes back further is refused."""
SECRET_BYTES = 32

Training = tuple[int, int]
"""A round and an edge round."""


class RoundFiles:
    """What a site keeps of rounds of a run: a message each, in a file of its own."""

    name: ClassVar[str]
    kind: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _files(self) -> dict[Training, Path]:
        name = re.compile(rf"{self.name}-(\d{{6,}})-(\d+)\.safetensors")
        found = {file: name.fullmatch(file.name) for file in self.folder.glob(f"{self.name}-*.safetensors")}
        return {(int(of[1]), int(of[2])): file for file, of in found.items() if of}

    def _read(self, file: Path) -> dict[str, Any] | None:
        try:
            with opened(file) as kept:
                return received(decode(kept.read(), (self.kind,)))
        except (WireError, OSError) as error:
            log.warning("%s cannot be read (%s)", file, error)
            return None

    def _write(self, moment: Training, **values: Any) -> None:
        file = make_folder(self.folder) / f"{self.name}-{moment[0]:06d}-{moment[1]}.safetensors"
        write_whole(file, sent(self.kind, **values), mode=0o600)


class Releases(RoundFiles):
    """What one site has released in a run, in a folder."""

    name, kind = "released", "release"

    @cached_property
    def secret(self) -> int:
        """The seed of the site's noise, which never leaves it."""
        file = make_folder(self.folder) / "noise.key"
        if not file.exists():
            if self._files():
                raise DeployError(f"{file}: it is gone, and noise that was released came from it; restore it")
            write_whole(file, os.urandom(SECRET_BYTES), mode=0o600)
        return int.from_bytes(read_bytes(file), "big")

    def once(self, moment: Training, start: Parts, make: Callable[[], Parts]) -> Parts:
        """Return what is released for a round and edge round from these networks: what was made the first time."""
        files, stamp = self._files(), stamp_of(start)
        newest = max(files, default=(0, 0))
        if moment in files:
            kept = self._read(files[moment])
            if kept is None or kept["stamp"] != stamp:
                raise SiteError(Failure.SPENT, moment[0])
            parts: Parts = kept["parts"]
            return parts
        if moment[0] <= newest[0] - ROUNDS_KEPT:  # what was released then is here no more
            raise SiteError(Failure.SPENT, moment[0])
        parts = make()
        self._write(moment, stamp=stamp, parts=parts)
        for made, file in files.items():
            if made[0] <= moment[0] - ROUNDS_KEPT:
                remove(file)
        return parts


def stamp_of(parts: Parts) -> str:
    """Return a hash of networks."""
    digest = hashlib.sha256()
    for part, params in sorted(parts.items()):
        for name, value in sorted(params.items()):
            digest.update(f"{part}/{name}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
