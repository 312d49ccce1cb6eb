"""What a site keeps beside NVFlare: the names of its folders, the job, orders to its processes, and who came back.

Nothing here imports NVFlare, and no code travels with a job: it says which class works where.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from fedbac.errors import DeployError
from fedbac.files import make_folder, read_json, write_whole

FOLDER, RELAY, ADMIN = "nvflare", "nvflare-relay", "nvflare-admin"
"""Workspaces of NVFlare: in every kit, in that of an edge, and in that of the cloud."""
ADMINISTRATOR = "cloud@fedbac.local"
"""Who submits the job."""


def relay_name(edge: int) -> str:
    """Return the name of the relay that is the way into an edge."""
    return f"relay-{edge}"


NAME = "fedbac"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SITES = "fedbac.deploy.transports.nvflare.sites"
CLOUD_SITE, EDGE_SITE, CLIENT_SITE = f"{SITES}.CloudSite", f"{SITES}.EdgeSite", f"{SITES}.ClientSite"
ALLOWED = (CONTROLLER, EXECUTOR, CLOUD_SITE, EDGE_SITE, CLIENT_SITE)
"""All classes that a job may use at our sites."""
SERVER = "server"
"""What NVFlare calls the site of the cloud in a job."""
LOOK = 0.5
"""Seconds between two looks at a process, a job, or whether the run is to stop."""
START = 120.0
"""Seconds that a site has to start its process of a job: importing torch on a busy machine takes a while."""


def write_job(folder: Path, edges: Mapping[str, Sequence[str]], min_sites: int) -> Path:
    """Write the job of these clients by edge; ``min_sites`` of both must be there for it to start and to go on."""
    clients = [client for names in edges.values() for client in names]
    place = {"cloud": [SERVER], "edge": list(edges), "client": clients}
    _write(folder / "meta.json", {"name": NAME, "min_clients": min_sites, "resource_spec": {}, "deploy_map": place})
    work = {"server_obj_id": "site", "sync_task_timeout": START}
    cloud = {"workflows": [{"id": "rounds", "path": CONTROLLER, "args": work}]}
    _write(folder / "cloud" / "config" / "config_fed_server.json", cloud | _component(CLOUD_SITE))
    for role, site in (("edge", EDGE_SITE), ("client", CLIENT_SITE)):
        executor = {"path": EXECUTOR, "args": {"client_obj_id": "site"}}
        served = {"executors": [{"tasks": ["*"], "executor": executor}]}
        _write(folder / role / "config" / "config_fed_client.json", served | _component(site))
    return folder


def _component(path: str) -> dict[str, Any]:
    return {"format_version": 2, "components": [{"id": "site", "path": path, "args": {}}]}


def _write(path: Path, content: dict[str, Any]) -> None:
    make_folder(path.parent)
    write_whole(path, json.dumps(content, indent=2))


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
    accept_rollback: bool = False
    refresh: list[str] = field(default_factory=list)
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
class JobOutcome:
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


class Returning:
    """Follows the sites of one job, by the status of its cloud and by when NVFlare last heard of each.

    ``missing`` were not there when the job began. Of all others only one that was in the job can come back: a new job
    would refuse again whom this one has refused. ``patience`` is the seconds within which the job itself takes a site
    again that only froze.
    """

    def __init__(self, edges: Mapping[str, Sequence[str]], missing: Collection[str], patience: float) -> None:
        self.edges, self.patience = edges, patience
        self._known = set(missing)
        """Sites that a new job would take, as far as anybody knows."""
        self._lost: dict[str, float] = {}
        """When the job was first without a site."""
        self._again: dict[str, float] = {}
        """When NVFlare heard of it after that."""

    def back(self, status: Mapping[str, Any], heard: Mapping[str, float]) -> list[str]:
        """Return the sites that are there but not in the job, and will not be."""
        found = []
        for name, here, when in self._seen(status):
            if here:
                self._known.add(name)
                self._lost.pop(name, None)
                self._again.pop(name, None)
            elif name in self._known:
                lost = self._lost.setdefault(name, when)
                if heard.get(name, 0.0) > lost:
                    again = self._again.setdefault(name, heard[name])
                    if when > again + self.patience:
                        found.append(name)
        return found

    def _seen(self, status: Mapping[str, Any]) -> Iterator[tuple[str, bool, float]]:
        """Yield sites, whether each is in the job, and when that was so. Of an absent edge's clients nobody knows."""
        for edge, clients in self.edges.items():
            here = bool(status.get("edges", {}).get(edge, {}).get("present"))
            yield edge, here, float(status["at"])
            if here and edge in status.get("spoke", {}):
                for client in clients:
                    yield client, client in status["clients"][edge], float(status["spoke"][edge])
