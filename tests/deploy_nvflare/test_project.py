"""What NVFlare's provisioning makes of a federation: who listens how, and what a site lets others do."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.transports.nvflare.files import ALLOWED, write_job
from fedbac.deploy.transports.nvflare.project import project_of, provision
from fedbac.errors import DeployError
from tests.deploy.clinics import Clinic

SITES = ["cloud", *(f"edge-{m}{rest}" for m in (0, 1) for rest in ("", "-client-0", "-client-1"))]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_every_relay_listens_with_mutual_tls(clinic: Clinic) -> None:
    for number, edge in enumerate(clinic.folder.config.edges):
        host, _, port = edge.address.rpartition(":")
        relay = clinic.folder.kit(f"edge-{number}") / "nvflare-relay"
        listening = read(relay / "local" / "comm_config.json")["internal"]
        assert listening == {
            "scheme": "grpc",
            "resources": {"host": host, "port": int(port), "connection_security": "mtls"},
        }
        up = read(relay / "startup" / "fed_relay.json")["connect_to"]
        assert (up["connection_security"], up["identity"]) == ("mtls", "cloud")
        assert (relay / "startup" / "server.key").stat().st_mode & 0o77 == 0


def test_the_cloud_listens_and_everybody_dials_with_mutual_tls(clinic: Clinic) -> None:
    (server,) = read(clinic.folder.kit("cloud") / "nvflare" / "startup" / "fed_server.json")["servers"]
    assert server["connection_security"] == "mtls"
    for name in SITES[1:]:
        local = clinic.folder.kit(name) / "nvflare" / "local"
        relay = read(local / "relay__resources.json")["relay_config"]
        assert (relay["connection_security"], relay["identity"]) == ("mtls", f"relay-{name[5]}")
        assert read(local / "comm_config.json")["allow_adhoc_conns"] is False
        assert read(local.parent / "startup" / "fed_client.json")["client"]["connection_security"] == "mtls"


def test_nothing_in_the_project_is_left_to_defaults_that_listen_in_the_clear(clinic: Clinic) -> None:
    project = project_of(clinic.folder.config)
    assert project["connection_security"] == "mtls"
    for person in project["participants"]:
        assert person["connection_security"] == "mtls"
        for place in ("listening_host", "connect_to"):
            assert person.get(place, {"connection_security": "mtls"})["connection_security"] == "mtls"
        assert "parent" not in person


def test_a_site_runs_our_job_only_takes_no_code_and_keeps_its_log(clinic: Clinic, tmp_path: Path) -> None:
    job = write_job(tmp_path, {"edge-0": ["edge-0-client-0"]}, 2)
    used = [
        found
        for path in job.rglob("config_fed_*.json")
        for found in (line.split('"')[3] for line in path.read_text().splitlines() if '"path"' in line)
    ]
    assert sorted(set(used)) == sorted(ALLOWED)
    assert not [path for path in job.rglob("*") if path.name == "custom" or path.suffix == ".py"]
    for name in SITES:
        local = clinic.folder.kit(name) / "nvflare" / "local"
        resources = read(local / "resources.json")
        assert resources["class_allow_list"] == list(ALLOWED)
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert resources["allow_log_streaming"] is False
        assert "log" not in " ".join(component["id"] for component in resources["components"])
        permissions = read(local / "authorization.json")["permissions"]
        assert list(permissions) == ["lead"]
        assert permissions["lead"]["byoc"] == "none"
        assert "shell_commands" not in permissions["lead"]


def test_the_key_of_the_administrator_is_in_the_clouds_kit_alone_and_no_kit_has_the_authoritys(clinic: Clinic) -> None:
    kits = clinic.folder.path / "kits"
    assert [path.parent.name for path in kits.glob("*/nvflare-admin")] == ["cloud"]
    assert not [path for path in kits.rglob("*") if path.name in {"cert.json", "rootCA.key"}]
    assert (clinic.folder.path / "nvflare").stat().st_mode & 0o77 == 0
    assert not list((clinic.folder.path / "nvflare").rglob("*.key"))


def test_a_federation_of_another_transport_is_refused(clinic: Clinic, tmp_path: Path) -> None:
    config = clinic.folder.config
    plain = config.model_copy(update={"deploy": config.deploy.model_copy(update={"transport": "grpc"})})
    with pytest.raises(DeployError, match=r"deploy.transport is grpc; set it to nvflare"):
        provision(FederationFolder.init(tmp_path / "clinic", plain))
