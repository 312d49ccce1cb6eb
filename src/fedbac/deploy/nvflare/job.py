"""The job that NVFlare runs: which class works where, and nothing else. No code travels with it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbac.files import make_folder, write_whole

NAME = "fedbac"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SITES = "fedbac.deploy.nvflare.sites"
CLOUD_SITE, EDGE_SITE, CLIENT_SITE = f"{SITES}.CloudSite", f"{SITES}.EdgeSite", f"{SITES}.ClientSite"
ALLOWED = (CONTROLLER, EXECUTOR, CLOUD_SITE, EDGE_SITE, CLIENT_SITE)
"""All classes that a job may use at our sites."""
SERVER = "server"
"""What NVFlare calls the site of the cloud in a job."""
START = 120.0
"""Seconds that a site has to start its process of a job: importing torch on a busy machine takes a while."""


def write_job(folder: Path, edges: Mapping[str, Sequence[str]], min_sites: int) -> Path:
    """Write the job of a federation with these clients by edge.

    ``min_sites`` edges and clients must be there for it to start and to go on.
    """
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
