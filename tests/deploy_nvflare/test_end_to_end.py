"""A federation that NVFlare runs on this machine; and its processes, its jobs and its administrator."""

import socket
import ssl
from pathlib import Path

import numpy as np
import pytest
from nvflare.fuel.flare_api.flare_api import new_secure_session

from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.transports.nvflare.files import ADMIN, ADMINISTRATOR, SITES, write_job
from fedbac.deploy.transports.nvflare.project import provision
from tests.deploy.clinics import Clinic, family
from tests.deploy.story import Story

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of HTTP/2, with empty settings."""


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


class OverNvflare(Story):
    """Sites that NVFlare runs."""

    patience = 900.0

    def log_of(self, name: str) -> str:
        return (self.clinic.folder.kit(name) / "nvflare" / "nvflare.log").read_text()

    def strangers_are_refused(self) -> None:
        """Dial cloud and relays with certificates of this federation, of another, and without any."""
        ours = self.clinic.folder
        stranger = FederationFolder.init(self.folder / "other" / "clinic", ours.config)
        provision(stranger)
        foreign = stranger.kit("edge-0-client-0") / "nvflare" / "startup"
        genuine = ours.kit("edge-0-client-0") / "nvflare" / "startup"
        for address in (ours.config.cloud.address, *(edge.address for edge in ours.config.edges)):
            assert answered(address, genuine)
            assert not answered(address, foreign)
            assert not answered(address, None)

    def more_happens(self) -> None:
        """A job that brings code is refused; one that lost a process is submitted again."""
        self.report()
        administrator = new_secure_session(ADMINISTRATOR, str(self.clinic.folder.kit("cloud") / ADMIN))
        smuggled = administrator.submit_job(str(job_with_code(self.folder)))
        failed = "the job failed"
        before = (self.folder / "logs" / "cloud.log").read_text().count(failed)
        processes = family(self.trial, "edge-0-client-1")
        (worker,) = (one for one in processes if any("worker_process" in word for word in one.cmdline()))
        worker.kill()
        log = self.folder / "logs" / "cloud.log"
        self.until("the job is submitted again", lambda: log.read_text().count(failed) > before)
        status = administrator.get_job_meta(smuggled)["status"]
        administrator.close()
        assert status.startswith("FINISHED:")
        assert status not in {"FINISHED:COMPLETED", "FINISHED:ABNORMAL"}  # no site even took it
        assert not (self.folder / "ran").exists()

    def report(self) -> None:
        """Print what was measured, for whoever runs this with -s."""
        everybody = [one for name in self.trial.processes for one in family(self.trial, name)]
        memory = sum(one.memory_full_info().pss for one in everybody) / 2**30
        seconds = np.median([record["seconds"] for record in self.records])
        print(f"median round {seconds:.2f} s, {len(everybody)} processes, {memory:.2f} GiB")  # noqa: T201


@pytest.mark.timeout(3000)
def test_three_tiers_over_nvflare_play_the_simulators_rounds_and_outlive_what_happens(
    clinic: Clinic, tmp_path: Path
) -> None:
    OverNvflare(clinic, tmp_path).told()
