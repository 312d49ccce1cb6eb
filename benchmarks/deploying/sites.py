"""Makes federations, and sees what their processes need."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedbac.config.experiment import Experiment
from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig
from fedbac.deploy.trial import Trial, cut_data
from fedbac.federation import assemble

MIB = 2**20


def made(folder: Path, experiment: Experiment, deploy: DeploySettings, client_options: Sequence[str] = ()) -> Trial:
    """Return a federation whose sites can be started: kits, data of their own, and free ports."""
    place = {"address": "127.0.0.1:1", "listen": "127.0.0.1:1"}  # each site is told the true ones
    config = FederationConfig(
        name="benchmark",
        cloud=CloudPlace(**place),
        edges=tuple(EdgePlace(**place, clients=count) for count in experiment.task.clients()),
        deploy=deploy,
        experiment=experiment.model_dump(mode="json"),
    )
    FederationFolder.init(folder / "federation", config)
    cut_data(experiment, assemble(experiment), folder / "data")
    return Trial(folder / "federation" / "kits", folder / "data", folder, config.sites(), (), tuple(client_options))


def family(pid: int) -> Iterator[int]:
    """Go through a process and all that it started; those that have ended are left out."""
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from family(child)


def memory(pid: int) -> dict[str, float]:
    """Return the MiB that a process holds: all of it, and its fair share of what it shares with others."""
    found = {"rss": 0.0, "pss": 0.0}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return found
    for line in lines:
        name, _, rest = line.partition(":")
        if name.lower() in found:
            found[name.lower()] = int(rest.split()[0]) * 1024 / MIB
    return found


def whole_memory(pid: int) -> dict[str, float]:
    """Return the MiB of a process and all that it started."""
    each = [memory(one) for one in family(pid)]
    return {kind: sum(one[kind] for one in each) for kind in ("rss", "pss")}


def strays(folder: Path) -> list[str]:
    """Return the commands of processes that work for a folder and outlived whoever started them."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(str(folder).encode() in word for word in words):
                found.append(b" ".join(words).decode(errors="replace")[:200])
    return found
