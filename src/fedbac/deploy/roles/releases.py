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

import torch

from fedbac.core.parts import Parts
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import received, sent
from fedbac.deploy.protocol.wire import WireError, decode
from fedbac.errors import DeployError
from fedbac.files import make_folder, opened, read_bytes, remove, write_whole

NAME = re.compile(r"released-(\d{6,})-(\d+)\.safetensors")
ROUNDS_KEPT = 4
"""How far a cloud may go back and be answered: one that goes back further is refused."""
SECRET_BYTES = 32


class Releases:
    """What one site has released in a run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def secret(self) -> int:
        """The seed of the site's noise, which never leaves it."""
        file = make_folder(self.folder) / "noise.key"
        if not file.exists():
            if self._files():
                raise DeployError(f"{file}: it is gone, and noise that was released came from it; restore it")
            write_whole(file, os.urandom(SECRET_BYTES), mode=0o600)
        return int.from_bytes(read_bytes(file), "big")

    def once(self, moment: tuple[int, int], start: Parts, make: Callable[[], Parts]) -> Parts:
        """Return what is released for a round and edge round from these networks: what was made the first time."""
        files, stamp = self._files(), stamp_of(start)
        newest = max(files, default=(0, 0))
        if moment in files:
            kept = self._read(files[moment])
            if kept is None or kept[0] != stamp:
                raise SiteError(Failure.SPENT, moment[0])
            return kept[1]
        if moment[0] <= newest[0] - ROUNDS_KEPT:  # what was released then is here no more
            raise SiteError(Failure.SPENT, moment[0])
        parts = make()
        name = f"released-{moment[0]:06d}-{moment[1]}.safetensors"
        write_whole(make_folder(self.folder) / name, sent("release", stamp=stamp, parts=parts), mode=0o600)
        for made, file in files.items():
            if made[0] <= moment[0] - ROUNDS_KEPT:
                remove(file)
        return parts

    def _files(self) -> dict[tuple[int, int], Path]:
        found = {file: NAME.fullmatch(file.name) for file in self.folder.glob("released-*.safetensors")}
        return {(int(name[1]), int(name[2])): file for file, name in found.items() if name}

    def _read(self, file: Path) -> tuple[str, Parts] | None:
        try:
            with opened(file) as kept:
                release = received(decode(kept.read(), ("release",)))
        except (WireError, OSError):
            return None
        return release["stamp"], release["parts"]


def stamp_of(parts: Parts) -> str:
    """Return a hash of networks."""
    digest = hashlib.sha256()
    for part, params in sorted(parts.items()):
        for name, value in sorted(params.items()):
            digest.update(f"{part}/{name}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
