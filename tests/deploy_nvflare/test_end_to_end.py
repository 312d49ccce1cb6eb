"""A federation that NVFlare runs on this machine: the simulator's numbers, lost sites and processes, strangers."""

import os
import signal
import socket
import ssl
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from nvflare.fuel.flare_api.flare_api import new_secure_session

from fedbac.deploy.kits import FederationFolder
from fedbac.deploy.nvflare.job import SITES, write_job
from fedbac.deploy.nvflare.places import ADMIN, ADMINISTRATOR
from fedbac.deploy.nvflare.project import provision
from fedbac.deploy.trial import Trial
from fedbac.runs.configure import Inputs
from fedbac.runs.play import play
from tests.deploy.following import records, until
from tests.deploy.in_memory import CPU, gathered
from tests.deploy_nvflare.conftest import COUNTS, Clinic

PATIENCE = 900.0
"""Seconds: the machine may be slow, and nothing here depends on how fast it is."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of HTTP/2, with empty settings."""


def simulated(clinic: Clinic, rounds: int) -> list[dict[str, Any]]:
    """Return the first records of the same experiment in the simulator, on everybody's data."""
    sites = {path.name: dict(np.load(path / "data.npz")) for path in clinic.data.iterdir()}
    inputs = Inputs(*gathered(clinic.experiment.task.dataset, sites, COUNTS, 10))
    playing = play(clinic.experiment, runtime=CPU, inputs=inputs)
    first = list(islice(playing, rounds))
    playing.close()
    return first


def family(trial: Trial, name: str) -> list[psutil.Process]:
    """Return the processes below that of a site."""
    return list(psutil.Process(trial.processes[name].pid).children(recursive=True))


def kill(trial: Trial, name: str) -> None:
    """Kill the command of a site; Linux ends NVFlare's processes with it."""
    below = family(trial, name)
    os.kill(trial.processes[name].pid, signal.SIGKILL)
    trial.processes[name].wait()
    until("its processes end too", lambda: not any(process.is_running() for process in below), trial, PATIENCE)


def kill_worker(trial: Trial, name: str) -> None:
    """Kill only the process in which a site does its part of the job."""
    (worker,) = (one for one in family(trial, name) if any("worker_process" in word for word in one.cmdline()))
    worker.kill()


def answered(address: str, startup: Path | None) -> bool:
    """Whether a place says a byte of HTTP/2 to who proves to be what the certificate of a startup folder says."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is the other side that is tested
    context.set_alpn_protocols(["h2"])
    if startup is not None:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        with socket.create_connection((host, int(port)), timeout=30) as plain, context.wrap_socket(plain) as link:
            link.sendall(PREFACE)
            return bool(link.recv(9))
    except (ssl.SSLError, ConnectionError):
        return False


def job_with_code(folder: Path) -> Path:
    """Write a job that brings code, as an administrator of NVFlare may where sites keep its defaults."""
    job = write_job(folder / "smuggled", {"edge-0": ["edge-0-client-0"]}, 1)
    for role in ("cloud", "edge", "client"):
        (job / role / "custom").mkdir()
        (job / role / "custom" / "smuggled.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Site: pass\n")
        for config in (job / role / "config").iterdir():
            config.write_text(config.read_text().replace(f"{SITES}.{role.capitalize()}Site", "smuggled.Site"))
    return job


@pytest.mark.timeout(3000)
def test_nvflare_plays_the_simulators_rounds_and_outlives_a_client_a_failed_job_and_strangers(
    clinic: Clinic, tmp_path: Path
) -> None:
    folder = clinic.folder
    expected = simulated(clinic, 3)
    trial = Trial(folder.path / "kits", clinic.data, tmp_path, folder.config.sites())
    began = time.monotonic()
    with trial.running():
        until("a round", lambda: records(trial), trial, PATIENCE)
        cold = time.monotonic() - began
        until("three rounds", lambda: len(records(trial)) >= 3, trial, PATIENCE)
        for mine, theirs in zip(records(trial)[:3], expected, strict=True):
            for key in theirs.keys() - {"seconds"}:
                assert mine[key] == theirs[key], (mine["round"], key)

        stranger = FederationFolder.init(tmp_path / "other" / "clinic", folder.config)
        provision(stranger)
        foreign = stranger.kit("edge-0-client-0") / "nvflare" / "startup"
        genuine = folder.kit("edge-0-client-0") / "nvflare" / "startup"
        for address in (folder.config.cloud.address, *(edge.address for edge in folder.config.edges)):
            assert answered(address, genuine)
            assert not answered(address, foreign)
            assert not answered(address, None)

        _report(trial, cold)
        administrator = new_secure_session(ADMINISTRATOR, str(folder.kit("cloud") / ADMIN))
        smuggled = administrator.submit_job(str(job_with_code(tmp_path)))
        kill(trial, "edge-1-client-0")
        alone = len(records(trial))
        until("rounds without the client", lambda: len(records(trial)) >= alone + 4, trial, PATIENCE)
        assert 2 not in records(trial)[-1]["selected"][1]
        trial.start("edge-1-client-0")

        before = len(records(trial))
        kill_worker(trial, "edge-0-client-1")  # NVFlare ends a job that lost a process; the supervisor goes on
        until("everybody is back", lambda: 2 in records(trial)[-1]["selected"][1], trial, PATIENCE)
        assert len(records(trial)) > before
        status = administrator.get_job_meta(smuggled)["status"]
        administrator.close()
        assert status.startswith("FINISHED:")
        assert status not in {"FINISHED:COMPLETED", "FINISHED:ABNORMAL"}  # no site even took it
        assert not (tmp_path / "ran").exists()
        trial.processes["cloud"].send_signal(signal.SIGTERM)
        assert trial.processes["cloud"].wait(PATIENCE) == 130  # it saved the round in hand and stopped
    assert [record["round"] for record in records(trial)] == list(range(1, len(records(trial)) + 1))
    _keeps_secrets(trial, folder)


def _report(trial: Trial, cold: float) -> None:
    """Print what was measured, for whoever runs this with -s."""
    everybody = [one for name in trial.processes for one in family(trial, name)]
    memory = sum(one.memory_full_info().pss for one in everybody) / 2**30
    seconds = np.median([record["seconds"] for record in records(trial)])
    print(f"cold start {cold:.1f} s, median round {seconds:.2f} s, {len(everybody)} processes, {memory:.2f} GiB")  # noqa: T201


def _keeps_secrets(trial: Trial, folder: FederationFolder) -> None:
    secrets = [path.read_text().splitlines()[1] for path in folder.path.rglob("*.key")]
    written = [*(trial.folder / "logs").iterdir(), *trial.run.rglob("*.*"), *folder.path.rglob("*.log")]
    for path in written:
        text = path.read_bytes().decode(errors="replace")
        assert not any(line in text for line in secrets), path
