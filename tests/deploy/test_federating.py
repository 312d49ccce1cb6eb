"""``fedbac federation``, as a person types it."""

import base64
import re
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization

from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.deploy.pki.kits import FederationFolder, Kit
from fedbac.deploy.roles.edge import REGIONS_AT_CLOUD
from tests.test_cli import Shell

SIZES = ["--edges", "2", "--clients", "2,3"]


@pytest.fixture
def fedbac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


def refused(fedbac: Shell, *words: str) -> str:
    """Return the one line that a command ends with."""
    said = fedbac("federation", *words, code=2)
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


def test_init_and_show(fedbac: Shell, tmp_path: Path) -> None:
    settings = ["--set", "task.rounds=9", "--set", "deploy.deadline=60"]
    said = fedbac("federation", "init", "hospital", *SIZES, "--keys", *settings)
    assert "a cloud, 2 edges and 5 clients." in said
    assert "good for 90 days. You hold the keys of these sites" in said
    folder = FederationFolder.load(tmp_path / "hospital")
    assert folder.config.name == "hospital"
    assert [edge.clients for edge in folder.config.edges] == [2, 3]
    assert folder.config.deploy.deadline == 60
    cloud = Kit.load(folder.kit("cloud"))
    experiment = parse(Experiment, yaml.safe_load(cloud.experiment_file.read_text())["experiment"])
    assert experiment.task.clients() == (2, 3)
    assert experiment.task.rounds == 9
    assert experiment.method.name == "fed-bac"
    assert experiment.model_dump(mode="json") == folder.config.experiment
    shown = fedbac("federation", "show", "hospital").splitlines()
    assert [line.split()[0] for line in shown[1:]] == list(folder.config.sites())
    assert re.fullmatch(r"edge-1 +127\.0\.0\.1:8445 +[\d-]{10} +90 +good *", shown[5])
    assert len(shown[1]) < 80


def test_regions_are_the_clouds_work_and_a_new_edge_moves_nobody_to_another(fedbac: Shell, tmp_path: Path) -> None:
    words = ["--method", "hierfavg", "--set", "task.tiers=[2]"]
    said = fedbac("federation", "init", "h", "--edges", "3", "--clients", "1", *words)
    assert REGIONS_AT_CLOUD in said
    fedbac("federation", "add", "h")
    before = (tmp_path / "h" / "federation.yaml").read_bytes()
    assert "task.tiers: with 5 edges instead of 4, some would belong to another region" in refused(fedbac, "add", "h")
    assert (tmp_path / "h" / "federation.yaml").read_bytes() == before
    fedbac("federation", "add", "h", "--edge", "0")


def test_the_experiment_is_a_file_that_show_and_run_take(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "hospital", *SIZES, "--method", "hierfavg", "--task", "demo")
    text = fedbac("show", "hospital/kits/cloud/experiment.yaml")
    (tmp_path / "mine.yaml").write_text(text)
    fedbac("federation", "init", "second", "--edges", "3", "--clients", "1", "--method", "mine.yaml")
    first, second = (FederationFolder.load(tmp_path / name).config.experiment for name in ("hospital", "second"))
    assert first["method"] == second["method"]
    assert (second["task"]["num_edges"], second["task"]["clients_per_edge"]) == (3, 1)


def test_hosts_and_ports(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "one", "--edges", "1", "--clients", "1", "--host", "fl.example.org", "--port", "9000")
    config = FederationFolder.load(tmp_path / "one").config
    assert (config.cloud.address, config.cloud.listen) == ("fl.example.org:9000", "0.0.0.0:9000")
    assert config.edges[0].address == "fl.example.org:9001"
    said = fedbac("federation", "init", "three", *SIZES, "--host", "a.org,fd00::1,a.org")
    assert "this machine" not in said
    config = FederationFolder.load(tmp_path / "three").config
    assert [edge.address for edge in config.edges] == ["[fd00::1]:8443", "a.org:8444"]
    assert config.edges[0].listen == "[::]:8443"


def test_revoke_renew_and_show(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "hospital", *SIZES, "--keys")
    name = "edge-0-client-1"
    said = fedbac("federation", "revoke", "hospital", name)
    assert f"{name} is revoked" in said
    assert "hospital/authority/revoked.crl" in said
    for kit in ("cloud", "edge-0", "edge-1"):
        assert f"  hospital/kits/{kit}\n" in said
        serial = Kit.load(tmp_path / "hospital" / "kits" / name).identity.serial
        assert serial in Kit.load(tmp_path / "hospital" / "kits" / kit).revoked().serials
    assert re.search(rf"^{name} .* revoked [\d-]{{10}} *$", fedbac("federation", "show", "hospital"), re.MULTILINE)
    said = fedbac("federation", "renew", "hospital", "--days", "30")
    assert "hospital/kits/edge-0-client-0\n" in said
    assert f"kits/{name}" not in said
    assert f"Left out, as revoked: {name}." in said
    assert "Left out" not in fedbac("federation", "renew", "hospital", name, "--days", "10")
    shown = fedbac("federation", "show", "hospital")
    assert "revoked" not in shown
    assert {line.split()[-2] for line in shown.splitlines()[1:]} == {"30", "10"}
    assert "Clients of edge-1 do not see the list" in fedbac("federation", "revoke", "hospital", "edge-1")


def test_a_list_is_signed_though_the_kits_have_gone_to_their_machines(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "hospital", *SIZES, "--keys")
    (tmp_path / "hospital" / "kits").rename(tmp_path / "elsewhere")
    fedbac("federation", "revoke", "hospital", "edge-0")
    assert FederationFolder.load(tmp_path / "hospital").authority.revoked().serials
    assert not (tmp_path / "hospital" / "kits").exists()
    assert "revoked" in fedbac("federation", "show", "hospital")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--edges", "0", "--clients", "2"], "--edges: 0 is not allowed; give a number from 1 to"),
        (["--edges", "999999999999", "--clients", "2"], "--edges: 999999999999 is not allowed"),
        (["--edges", "2", "--clients", "2,3,4"], "--clients: '2,3,4' has 3 numbers, but there are 2 edges"),
        (["--edges", "2", "--clients", "2,0"], "--clients: '2,0' is not allowed"),
        (["--edges", "2", "--clients", "two"], "--clients: 'two' is not allowed"),
        (["--edges", "2", "--clients", "-1"], "--clients: '-1' is not allowed"),
        (["--edges", "2", "--clients", "9999"], "edges: they make 20,001 sites; there may be 10,000"),
        ([*SIZES, "--method", "fed-bak"], "unknown method 'fed-bak'; did you mean 'fed-bac'?"),
        ([*SIZES, "--method", "no.yaml"], "no.yaml: the file cannot be read"),
        ([*SIZES, "--task", "demmo"], "unknown task 'demmo'"),
        ([*SIZES, "--set", "task.num_edges=3"], "--edges and --clients say this already"),
        ([*SIZES, "--set", "task.roundz=3"], "task.roundz: unknown field"),
        ([*SIZES, "--set", "deploy.deadlin=3"], "deploy.deadlin: unknown field 'deadlin'; did you mean 'deadline'?"),
        ([*SIZES, "--set", "deploy.min_clients=3"], "deploy.min_clients: an edge has only 2 clients"),
        ([*SIZES, "--host", "a,b"], "--host: 'a,b' has 2 hosts; give one, or 3"),
        ([*SIZES, "--host", "a b"], "cloud.address: 'a b:8443' is no address"),
        ([*SIZES, "--port", "65534"], "--port: 65534 is not allowed; give one from 1 to 65533"),
        ([*SIZES, "--days", "0"], "--days: 0 is not allowed"),
        ([*SIZES, "--days", "9"], "--days: certificates are made later; give it to fedbac federation sign"),
    ],
)
def test_init_refuses_what_cannot_be_and_leaves_nothing(
    fedbac: Shell, tmp_path: Path, words: list[str], problem: str
) -> None:
    assert problem in refused(fedbac, "init", "hospital", *words)
    assert not (tmp_path / "hospital").exists()


def test_init_refuses_folders_that_are_in_use_or_have_no_plain_name(fedbac: Shell, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("used", "file"):
        assert f"{name}: it exists and is not empty" in refused(fedbac, "init", name, *SIZES)
    assert "'my hospital' is no name for a federation" in refused(fedbac, "init", "my hospital", *SIZES)
    assert (tmp_path / "used" / "letter.txt").read_text() == "dear"


def test_commands_refuse_unknown_folders_and_sites(fedbac: Shell, tmp_path: Path) -> None:
    for words in (["show", "nowhere"], ["renew", "nowhere"], ["revoke", "nowhere", "edge-0"]):
        assert "nowhere: there is no federation.yaml" in refused(fedbac, *words)
    fedbac("federation", "init", "hospital", "--edges", "1", "--clients", "1", "--keys")
    keys = {key: key.read_bytes() for key in (tmp_path / "hospital").rglob("*.key")}
    assert "unknown site 'edge-7'" in refused(fedbac, "renew", "hospital", "edge-0", "edge-7")
    assert "--days: 4000 is not allowed" in refused(fedbac, "renew", "hospital", "--days", "4000")
    assert "unknown site 'edge-0-client-9'" in refused(fedbac, "revoke", "hospital", "edge-0-client-9")
    assert "make a new federation" in refused(fedbac, "revoke", "hospital", "cloud")
    assert {key: key.read_bytes() for key in keys} == keys


def test_without_the_extra_a_sentence_says_what_to_install(fedbac: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedbac.deploy.pki.kits", None)
    assert "pip install 'fedbac[deploy]'" in refused(fedbac, "show", "hospital")


def test_no_key_is_ever_said_or_written_anywhere_else(fedbac: Shell, tmp_path: Path) -> None:
    said, keys = "", set[Path]()
    secrets: set[str] = set()

    def note() -> None:
        for path in (tmp_path / "hospital").rglob("*.key"):
            keys.add(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            pem = path.read_bytes()
            number = serialization.load_pem_private_key(pem, None).private_numbers().private_value  # type: ignore[union-attr]
            raw = number.to_bytes(32, "big")
            secrets.update({*pem.decode().splitlines()[1:-1], raw.hex(), str(number), base64.b64encode(raw).decode()})

    for words in (
        ["init", "hospital", *SIZES, "--keys"],
        ["show", "hospital"],
        ["renew", "hospital"],
        ["revoke", "hospital", "edge-0"],
        ["show", "hospital"],
    ):
        said += fedbac("federation", *words)
        note()
    broken = tmp_path / "hospital" / "authority" / "ca.key"
    broken.write_bytes(broken.read_bytes()[:-40])
    said += refused(fedbac, "show", "hospital")
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path not in keys]
    assert len(keys) == 9
    for text in (said, *(path.read_text() for path in others)):
        assert "PRIVATE" not in text
        assert not [secret for secret in secrets if secret in text]


def members(folder: Path) -> dict[str, object]:
    """Return who came, left and moved, as federation.yaml has it."""
    found = yaml.safe_load((folder / "federation.yaml").read_text())["members"]
    assert isinstance(found, dict)
    return found


def test_a_client_moves_again_and_from_an_edge_that_has_left(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "h", *SIZES)
    fedbac("federation", "move", "h", "edge-1-client-0", "--to", "0")
    fedbac("federation", "move", "h", "edge-0-client-2", "--to", "1")
    fedbac("federation", "leave", "h", "edge-0")
    fedbac("federation", "move", "h", "edge-0-client-0", "--to", "1")
    moved = {"edge-0-client-2": "edge-1-client-0", "edge-1-client-3": "edge-0-client-2"}
    assert members(tmp_path / "h")["moved"] == moved | {"edge-1-client-4": "edge-0-client-0"}
    assert FederationFolder.load(tmp_path / "h").config.sites()["edge-1-client-4"].number == 7


def test_changes_of_members_that_cannot_be_are_refused(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "h", *SIZES)
    before = (tmp_path / "h" / "federation.yaml").read_text()
    assert "unknown site 'edge-0'" in refused(fedbac, "move", "h", "edge-0", "--to", "1")
    assert "unknown site 'cloud'" in refused(fedbac, "leave", "h", "cloud")
    assert (tmp_path / "h" / "federation.yaml").read_text() == before
    fedbac("federation", "leave", "h", "edge-0")
    for words in (("add", "h", "--edge", "0"), ("move", "h", "edge-1-client-0", "--to", "0")):
        assert ": 0 is no edge; give one of 1" in refused(fedbac, *words)
    fedbac("federation", "leave", "h", "edge-1-client-0")
    fedbac("federation", "leave", "h", "edge-1-client-1")
    assert "every client has left" in refused(fedbac, "leave", "h", "edge-1-client-2")
    assert "every client has left" in refused(fedbac, "leave", "h", "edge-1")


def test_a_new_edge_gets_an_address_that_is_free(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("federation", "init", "h", *SIZES, "--host", "a.org,b.org,c.org", "--port", "8444")
    for port in ("8443", "8443", "8443"):
        fedbac("federation", "add", "h", "--host", "b.org", "--port", port)
    config = FederationFolder.load(tmp_path / "h").config
    found = [edge.address for edge in config.edges]
    assert found == ["b.org:8444", "c.org:8444", "b.org:8443", "b.org:8445", "b.org:8446"]


def test_two_commands_at_once_lose_nothing(fedbac: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins while the first has read federation.yaml, and not yet written it."""
    fedbac("federation", "init", "hospital", *SIZES)
    change = FederationFolder.change

    def hurry() -> None:
        with FederationFolder.locked(tmp_path / "hospital"):
            folder = FederationFolder.load(tmp_path / "hospital")
            deploy = folder.config.deploy.model_copy(update={"deadline": 77.0})
            change(folder, folder.config.model_copy(update={"deploy": deploy}))

    second = threading.Thread(target=hurry)

    def slow(folder: FederationFolder, *changed: Any) -> list[str]:
        second.start()
        second.join(0.5)
        return change(folder, *changed)

    monkeypatch.setattr(FederationFolder, "change", slow)
    fedbac("federation", "add", "hospital", "--edge", "0", "--clients", "2")
    second.join()
    config = FederationFolder.load(tmp_path / "hospital").config
    assert ([edge.clients for edge in config.edges], config.deploy.deadline) == ([4, 3], 77)
