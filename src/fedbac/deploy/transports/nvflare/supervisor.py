"""Has NVFlare run the federation's job, and submits it again when it fails: the run goes on from its checkpoint."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import new_secure_session

from fedbac.deploy import log
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.roles.status import read_status
from fedbac.deploy.settings import client_name, edge_name, quorum
from fedbac.deploy.transports.base import MISSED
from fedbac.deploy.transports.nvflare.files import (
    ADMIN,
    ADMINISTRATOR,
    FOLDER,
    LOOK,
    JobOutcome,
    Returning,
    SiteOrder,
    ask_to_stop,
    write_job,
)
from fedbac.deploy.transports.nvflare.hosting import Host
from fedbac.errors import DeployError
from fedbac.files import make_folder, read_json, write_whole
from fedbac.runs.stopping import Stop

GATHER = 60.0
"""Seconds that a run which has begun waits for all sites, before it goes on with those that are there."""
FRUITLESS = 5
"""Jobs in a row that fail before a round is finished, after which something is wrong that time does not mend."""
PATIENCE = 10.0
"""Seconds that NVFlare's server has to let the administrator in."""
SILENT = 30
"""Seconds after which NVFlare takes a site that says nothing for gone; the cloud itself knows sooner."""


class Supervisor:
    """Keeps a federation's job running until its run is over."""

    def __init__(self, kit: Kit, counts: Sequence[int], stop: Stop, show: Callable[[str], None]) -> None:
        self.kit, self.stop, self.show = kit, stop, show
        self.edges = {edge_name(m): [client_name(m, n) for n in range(count)] for m, count in enumerate(counts)}
        self.others = {*self.edges, *(client for clients in self.edges.values() for client in clients)}
        self.since = self.submitted = time.time()
        self.session: Any = None
        self.state: Path | None = None
        """Where the cloud keeps its status, if not in the kit."""
        self.waited_for = ""
        self.round = 0

    def run(self, order: SiteOrder, begun: bool) -> JobOutcome:
        """Have the run played; ``begun`` is whether some of it was played before."""
        self.state = None if order.state is None else Path(order.state)
        _keep_within(self.kit.folder / FOLDER)
        order.save(self.kit.folder)
        fruitless = 0
        with contextlib.closing(Host(self.kit, (FOLDER,))) as host:
            try:
                while True:
                    before = self.round
                    outcome = self._one_job(host, begun)
                    if outcome.ended == "refused":
                        raise DeployError(outcome.said)
                    if outcome.ended == "finished" or self.stop.wanted:
                        return outcome
                    begun, fruitless = begun or self.round > 0, 0 if self.round > before else fruitless + 1
                    if outcome.ended == "stopped":  # for a site that has come back
                        continue
                    if fruitless == FRUITLESS:
                        raise DeployError(f"the job failed {FRUITLESS} times without finishing a round: {outcome.said}")
                    again = "the job failed (%s); it is submitted again and goes on from the last checkpoint"
                    log.warning(again, outcome.said)
            finally:
                self._disconnect()

    def _one_job(self, host: Host, begun: bool) -> JobOutcome:
        """Submit the job once everybody is there, and follow it; return how it ended."""
        ask_to_stop(self.kit.folder, False)
        missing = self._gather(host, begun)
        if self.stop.wanted:
            return JobOutcome("", "stopped")
        server = host.processes[FOLDER].pid
        try:
            with tempfile.TemporaryDirectory() as folder:
                job = str(self.session.submit_job(str(write_job(Path(folder) / "job", self.edges, self._fewest()))))
        except Exception as error:  # whatever NVFlare raises when its server gives no answer
            self._disconnect()
            return JobOutcome("", "failed", f"it could not be submitted: {type(error).__name__}")
        log.info("job %s was submitted", job)
        self.submitted = time.time()
        patience = MISSED * self.kit.site.deploy.heartbeat  # within which a site that only froze is in its job again
        self._follow(host, job, server, Returning(self.edges, missing, patience))
        return JobOutcome.read(self.kit.folder, job) or JobOutcome(job, "failed", "its process ended")

    def _fewest(self) -> int:
        """Return how many sites a job needs at least: as many edges as must answer, each with its clients."""
        deploy = self.kit.site.deploy
        fewest = quorum(deploy.min_clients, min(map(len, self.edges.values())))
        return quorum(deploy.min_edges, len(self.edges)) * (1 + fewest)

    def _gather(self, host: Host, begun: bool) -> list[str]:
        """Wait for all sites, or if a run has begun some time for all, then for enough; return who is missing."""
        since = time.monotonic()
        missing: list[str] = []
        while not self.stop.wanted:
            host.look_after()
            here = set(self._heard())
            missing = sorted(self.others - here)
            if not missing or (begun and time.monotonic() - since > GATHER and len(here) >= self._fewest()):
                break
            self._wait_for(f"waiting for {', '.join(missing)}")
            time.sleep(LOOK)
        return missing

    def _heard(self) -> dict[str, float]:
        """Return when NVFlare last heard of each connected site; nobody is while the server itself is starting."""
        found = self._asked(lambda session: session.get_system_info().client_info)
        return {client.name: float(client.last_connect_time) for client in found or ()}

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        """Return the server's answer to the administrator; None if there is none now."""
        try:
            if self.session is None:
                with contextlib.redirect_stdout(io.StringIO()):  # NVFlare greets people
                    self.session = new_secure_session(ADMINISTRATOR, str(self.kit.folder / ADMIN), timeout=PATIENCE)
            return question(self.session)
        except Exception as error:  # NVFlare has many
            log.debug("NVFlare's server gave no answer: %s", type(error).__name__)
            self._disconnect()
            return None

    def _follow(self, host: Host, job: str, server: int, returning: Returning) -> None:
        """Show how far the job is until it has ended, or the process of the server that ran it has."""
        while True:
            host.look_after()
            self._show_round()
            if self.stop.wanted:
                ask_to_stop(self.kit.folder, True)
                if JobOutcome.read(self.kit.folder, job) is not None:
                    return  # NVFlare takes some more seconds to end a job, in which nothing happens
            elif JobOutcome.read(self.kit.folder, job) == JobOutcome(job, "stopped"):
                self._asked(lambda session: session.abort_job(job))  # it would wait a minute for those who left it
            elif back := self._back(returning):
                self._wait_for(f"{', '.join(back)} came back; a new job begins once this round is saved")
                ask_to_stop(self.kit.folder, True)
            meta = self._asked(lambda session: session.get_job_meta(job))
            status = str(meta.get("status", "")) if meta else ""
            if status.startswith("FINISHED") or host.processes[FOLDER].pid != server:
                self._show_round()
                log.info("job %s has ended: %s", job, status or "with its server")
                return
            time.sleep(LOOK)

    def _back(self, returning: Returning) -> list[str]:
        """Return the sites that can take part again, if only in a new job."""
        try:
            status = read_status(self.kit.folder, self.state)
        except DeployError:
            return []
        return returning.back(status, self._heard()) if status["at"] > self.submitted else []

    def _show_round(self) -> None:
        with contextlib.suppress(DeployError):
            found = read_status(self.kit.folder, self.state)
            round_ = int(found.get("round", 0))
            if round_ > self.round and "accuracy" in found and float(found["at"]) > self.since:
                self.round = round_
                self.show(f"round {round_}: accuracy {100 * found['accuracy']:.2f} %")

    def _wait_for(self, what: str) -> None:
        if what != self.waited_for:
            self.waited_for = what
            log.info("%s", what)

    def _disconnect(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            with contextlib.suppress(Exception):  # the server may be gone
                session.close()


def _keep_within(workspace: Path) -> None:
    """Have NVFlare's server keep its jobs in the kit, and notice soon that a site is gone."""
    path = workspace / "local" / "resources.json"
    resources = read_json(path)
    kept = make_folder(workspace / "kept")
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str((kept / "snapshots").resolve())
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str((kept / "jobs").resolve())
    resources["servers"][0]["heart_beat_timeout"] = SILENT
    write_whole(path, json.dumps(resources, indent=2))
