"""Files by which the command of a site and its processes under NVFlare talk: both are on the same machine."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

from fedbac.deploy.nvflare.places import FOLDER
from fedbac.errors import DeployError
from fedbac.files import make_folder, read_json, write_whole

ORDER, OUTCOME, STOP = "fedbac.json", "outcome.json", "stop"


@dataclass(frozen=True)
class SiteOrder:
    """What a site's operator wants: options of fedbac cloud, edge and client."""

    data: str | None = None
    state: str | None = None
    device: str = "cpu"
    out: str | None = None
    rounds: int | None = None
    overwrite: bool = False
    track: str | None = None

    @classmethod
    def read(cls, workspace: Path) -> Self:
        """Return the order in a site's workspace."""
        path = workspace / "local" / ORDER
        try:
            return cls(**read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise DeployError(f"{path}: it cannot be read; start the site by fedbac cloud, edge or client") from error

    def save(self, kit: Path) -> None:
        """Put the order into a kit."""
        write_whole(make_folder(kit / FOLDER / "local") / ORDER, json.dumps(asdict(self)))

    def begun(self, kit: Path) -> Self:
        """Note that the run has begun: a job that is submitted again goes on with it, and overwrites nothing."""
        if not self.overwrite:
            return self
        order = replace(self, overwrite=False)
        order.save(kit)
        return order


@dataclass(frozen=True)
class Outcome:
    """How the cloud's part of a job ended; there is none where its process died."""

    job: str
    ended: Literal["finished", "stopped", "failed", "refused"]
    """A job that failed may go better the next time; one that the cloud refused to play will not."""
    said: str = ""

    def save(self, kit: Path) -> None:
        """Write it for the supervisor."""
        write_whole(make_folder(kit / "state") / OUTCOME, json.dumps(asdict(self)))

    @classmethod
    def read(cls, kit: Path, job: str) -> Self | None:
        """Return how a job ended; None if its process did not live to say so."""
        try:
            found = cls(**read_json(kit / "state" / OUTCOME))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.job == job else None


def ask_to_stop(kit: Path, wanted: bool) -> None:
    """Ask the run to stop once its round is saved, or take that back."""
    path = make_folder(kit / "state") / STOP
    if wanted:
        write_whole(path, "")
    else:
        path.unlink(missing_ok=True)


def stop_asked(kit: Path) -> bool:
    """Whether the run is to stop."""
    return (kit / "state" / STOP).exists()
