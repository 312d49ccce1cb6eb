"""A kit is used only if all of it is there, belongs together, is in date and keeps its key to itself."""

import datetime as dt
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import fedbac
from fedbac.deploy.pki.credentials import Credentials, Revoked
from fedbac.deploy.pki.kits import FederationFolder, Kit, credentials_of
from fedbac.deploy.protocol.handshake import hello
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import decode, encode
from fedbac.deploy.roles.cloud import Cloud, run_folder
from fedbac.deploy.roles.edge import Edge
from fedbac.deploy.settings import FederationConfig, SiteConfig, read_settings
from fedbac.deploy.transports.base import Counted
from fedbac.errors import DeployError, OutputError
from tests.covering import first
from tests.deploy.folders import make, small
from tests.deploy.in_memory import ELSEWHERE, Answer, MemoryChildren


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kits") / "clinic", 1, 2).path


@pytest.fixture
def clinic(made: Path, tmp_path: Path) -> FederationFolder:
    """A federation that a test may spoil."""
    return FederationFolder.load(Path(shutil.copytree(made, tmp_path / "clinic")))


def refusal(folder: Path) -> str:
    with pytest.raises(DeployError) as caught:
        Kit.load(folder)
    assert "\n" not in str(caught.value)
    assert "PRIVATE" not in str(caught.value)
    return str(caught.value)


def edit(file: Path, **fields: object) -> None:
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | fields))


def test_every_site_gets_a_kit_of_its_own(clinic: FederationFolder) -> None:
    kits = {path.name: Kit.load(path) for path in (clinic.path / "kits").iterdir()}
    assert {name: (kit.site.role, kit.site.number, kit.site.parent) for name, kit in kits.items()} == {
        "cloud": ("cloud", 0, None),
        "edge-0": ("edge", 0, "cloud"),
        "edge-0-client-0": ("client", 0, "edge-0"),
        "edge-1": ("edge", 1, "cloud"),
        "edge-1-client-0": ("client", 1, "edge-1"),
        "edge-1-client-1": ("client", 2, "edge-1"),
    }
    assert kits["cloud"].site.children == ("edge-0", "edge-1")
    assert kits["edge-1"].site.children == ("edge-1-client-0", "edge-1-client-1")
    assert kits["edge-1-client-0"].site.parent_address == clinic.config.edges[1].address
    assert len({kit.key for kit in kits.values()}) == len(kits)
    for name, kit in kits.items():
        wanted = {"site.yaml", "site.key", "site.crt", "ca.crt"}
        wanted |= {"revoked.crl"} if "client" not in name else set()
        wanted |= {"experiment.yaml"} if name == "cloud" else set()
        assert {file.name for file in kit.folder.iterdir()} == wanted


def test_keys_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = make(tmp_path / "clinic", 1).path
    finally:
        os.umask(before)
    keys = sorted(path.rglob("*.key"))
    assert len(keys) == 4
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert stat.S_IMODE((path / "authority").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["site.yaml", "site.key", "site.crt", "ca.crt", "revoked.crl", "experiment.yaml"])
def test_a_missing_file_is_named(clinic: FederationFolder, name: str) -> None:
    (clinic.kit("cloud") / name).unlink()
    assert f"{clinic.kit('cloud') / name}: the file is missing" in refusal(clinic.kit("cloud"))


@pytest.mark.parametrize("name", ["site.yaml", "site.key", "site.crt", "ca.crt", "revoked.crl"])
def test_a_file_of_rubbish_is_named(clinic: FederationFolder, name: str) -> None:
    (clinic.kit("edge-0") / name).write_bytes(b"\xff\x00 rubbish: [")
    assert refusal(clinic.kit("edge-0")).startswith(f"{clinic.kit('edge-0') / name}: ")


def test_a_folder_that_is_no_kit(clinic: FederationFolder) -> None:
    assert "there is no such kit" in refusal(clinic.path / "kits" / "edge-9")
    assert "name a folder of kits/" in refusal(clinic.path)


@pytest.mark.skipif(os.name != "posix", reason="files have no modes here")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read(clinic: FederationFolder, mode: int) -> None:
    key = clinic.kit("edge-0") / "site.key"
    key.chmod(mode)
    assert refusal(clinic.kit("edge-0")) == f"{key}: others may read this private key; run: chmod 600 {key}"


@pytest.mark.parametrize(
    ("begin", "problem"), [(-91, "the certificate expired on"), (1, "the certificate is not valid before")]
)
def test_a_certificate_out_of_date(clinic: FederationFolder, begin: int, problem: str) -> None:
    when = dt.datetime.now(dt.UTC) + dt.timedelta(days=begin)
    pair = clinic.authority.issue({"edge-0": "edge"}, 90, when)["edge-0"]
    (clinic.kit("edge-0") / "site.key").write_bytes(pair.key)
    (clinic.kit("edge-0") / "site.crt").write_bytes(pair.certificate)
    assert problem in refusal(clinic.kit("edge-0"))


def test_another_site_s_certificate(clinic: FederationFolder) -> None:
    for name in ("site.crt", "site.key"):
        shutil.copy(clinic.kit("edge-1") / name, clinic.kit("edge-0") / name)
    assert "that of 'edge-1' of 'clinic', but site.yaml says 'edge-0'" in refusal(clinic.kit("edge-0"))


def test_a_key_of_another_certificate(clinic: FederationFolder) -> None:
    shutil.copy(clinic.kit("edge-1") / "site.key", clinic.kit("edge-0") / "site.key")
    assert "the key does not fit site.crt" in refusal(clinic.kit("edge-0"))


@pytest.mark.parametrize("name", ["clinic", "hospice"])
def test_a_certificate_of_a_foreign_authority(clinic: FederationFolder, tmp_path: Path, name: str) -> None:
    """Of the same name, only the signature tells them apart."""
    foreign = make(tmp_path / "foreign", 1, name=name)
    shutil.copy(foreign.kit("edge-0") / "ca.crt", clinic.kit("edge-0") / "ca.crt")
    assert "site.crt: ca.crt did not sign it" in refusal(clinic.kit("edge-0"))


def test_a_list_that_the_authority_did_not_sign(clinic: FederationFolder, tmp_path: Path) -> None:
    shutil.copy(make(tmp_path / "foreign", 1).authority.list_file, clinic.kit("edge-0") / "revoked.crl")
    assert "revoked.crl: the federation's authority did not sign it" in refusal(clinic.kit("edge-0"))


def test_a_revoked_edge_s_own_kit(clinic: FederationFolder) -> None:
    clinic.revoke("edge-0")
    assert "edge-0 was revoked" in refusal(clinic.kit("edge-0"))
    Kit.load(clinic.kit("edge-1"))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"colour": "red"}, "colour: unknown field 'colour'"),
        ({"deploy": {"min_client": 1}}, "deploy.min_client: unknown field 'min_client'; did you mean 'min_clients'?"),
        ({"deploy": {"deadline": 0}}, "deploy.deadline: 0 is not allowed"),
        ({"deploy": {"heartbeat": float("nan")}}, "deploy.heartbeat: nan is not allowed"),
        ({"deploy": {"transport": "carrier pigeon"}}, "deploy.transport: 'carrier pigeon' is not allowed"),
        ({"listen": "8443"}, "listen: '8443' is no address"),
        ({"listen": None}, "listen: give a host:port"),
        ({"parent_address": "cloud:99999"}, "parent_address: 'cloud:99999' is no address"),
        ({"parent_address": None}, "parent_address: give the host:port of cloud"),
        ({"parent": "edge-1"}, "parent: 'edge-1' is not the parent of edge-0; give cloud"),
        ({"name": "edge-00"}, "name: 'edge-00' is no name of this edge"),
        ({"edge": None}, "edge: give the number of the edge"),
        ({"number": 1}, "number: 1 is not the number of this edge; give 0"),
        ({"children": ["edge-1-client-0"]}, "children: 'edge-1-client-0' is no child of edge-0"),
        ({"children": ["edge-0-client-0"] * 2}, "children: a name is given twice"),
        ({"role": "client"}, "name: 'edge-0' is no name of this client"),
    ],
)
def test_a_site_file_that_contradicts_itself(clinic: FederationFolder, fields: dict[str, object], problem: str) -> None:
    edit(clinic.kit("edge-0") / "site.yaml", **fields)
    assert problem in refusal(clinic.kit("edge-0"))


def test_settings_reach_every_site(tmp_path: Path) -> None:
    config = small(1)
    deploy = config.deploy.model_copy(update={"deadline": 7.0})
    folder = FederationFolder.init(tmp_path / "clinic", config.model_copy(update={"deploy": deploy}))
    for name in folder.config.sites():
        assert read_settings(SiteConfig, folder.kit(name) / "site.yaml").deploy == deploy
    assert read_settings(FederationConfig, folder.path / "federation.yaml") == folder.config


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"deploy": {"min_clients": 2}}, "deploy.min_clients: an edge has only 1 clients"),
        ({"deploy": {"min_edges": 3}}, "deploy.min_edges: there are only 2 edges"),
        ({"experiment": {"task": {"num_edges": 2, "clients_per_edge": 2}}}, "clients_per_edge [1, 2]"),
        ({"experiment": {}}, "experiment.task: give num_edges 2"),
        ({"edges": []}, "edges: [] is not allowed"),
        ({"name": "a/b"}, "name: 'a/b' is no name for a federation"),
        ({"name": "hospice"}, "the authority is that of 'clinic'"),
    ],
)
def test_a_federation_file_that_cannot_run(clinic: FederationFolder, change: dict[str, object], problem: str) -> None:
    edit(clinic.path / "federation.yaml", **change)
    with pytest.raises(DeployError, match=problem.replace("[", r"\[")) as caught:
        FederationFolder.load(clinic.path)
    assert str(clinic.path / "federation.yaml") in str(caught.value)


def test_init_makes_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: FederationFolder, *_: object, **__: object) -> None:
        raise OutputError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(FederationFolder, "renew", full)
        with pytest.raises(OutputError, match="the disk is full"):
            make(tmp_path / "clinic", 1)
    assert not list((tmp_path / "clinic").iterdir())
    make(tmp_path / "clinic", 1)  # an empty folder will do
    with pytest.raises(DeployError, match="it exists and is not empty"):
        make(tmp_path / "clinic", 1)


def test_renewed_kits_are_new_and_say_what_federation_yaml_says(clinic: FederationFolder) -> None:
    old = {name: Kit.load(clinic.kit(name)) for name in clinic.config.sites()}
    tree = clinic.config.model_dump()
    tree["edges"][0]["address"] = "edge.example.org:8443"
    edit(clinic.path / "federation.yaml", edges=tree["edges"])
    renewed = FederationFolder.load(clinic.path)
    assert renewed.renew(["edge-0-client-0"], days=5) == ["edge-0-client-0"]
    kit = Kit.load(clinic.kit("edge-0-client-0"))
    assert kit.site.parent_address == "edge.example.org:8443"
    assert kit.identity.expires < old["cloud"].identity.expires
    assert kit.key != old["edge-0-client-0"].key
    assert Kit.load(clinic.kit("cloud")) == old["cloud"]
    assert renewed.renew() == list(clinic.config.sites())
    assert Kit.load(clinic.kit("cloud")).key != old["cloud"].key


def test_a_revoked_site_comes_back_only_by_name(clinic: FederationFolder) -> None:
    clinic.revoke("edge-1")
    assert "edge-1" not in clinic.renew()
    assert "edge-1 was revoked" in refusal(clinic.kit("edge-1"))
    clinic.renew(["edge-1"])
    Kit.load(clinic.kit("edge-1"))


def test_an_edge_takes_a_newer_list_and_no_older_or_forged_one(clinic: FederationFolder, tmp_path: Path) -> None:
    edge, serial = Kit.load(clinic.kit("edge-0")), Kit.load(clinic.kit("edge-0-client-0")).identity.serial
    first = edge.list_file.read_bytes()
    kept = shutil.copytree(edge.folder, tmp_path / "far away")  # a machine that the new list has not reached
    clinic.revoke("edge-0-client-0")
    far = Kit.load(kept)
    revoked = Revoked(credentials_of(kept, far.site))
    assert serial not in far.revoked().serials
    assert revoked.take(clinic.authority.list_file.read_bytes())
    assert serial in far.revoked().serials
    assert not revoked.take(clinic.authority.list_file.read_bytes())
    assert not revoked.take(first)
    forger = make(tmp_path / "forger", 1)
    for _ in range(3):
        forger.revoke("edge-0-client-0")
    with pytest.raises(DeployError, match="did not sign it"):
        revoked.take(forger.authority.list_file.read_bytes())
    assert serial in far.revoked().serials


def test_a_list_that_arrives_replaces_no_newer_one_that_was_copied_meanwhile(tmp_path: Path) -> None:
    clinic = make(tmp_path / "clinic", 2)
    edge, clients = Kit.load(clinic.kit("edge-0")), [f"edge-0-client-{n}" for n in range(2)]
    revoked, lists = Revoked(credentials_of(edge.folder, edge.site)), list[bytes]()
    for name in clients:
        clinic.authority.revoke(name)
        lists.append(clinic.authority.list_file.read_bytes())
    edge.list_file.write_bytes(lists[1])  # and the list is not looked at before the cloud passes on the other
    assert not revoked.take(lists[0])
    assert edge.list_file.read_bytes() == lists[1]
    assert all(Kit.load(clinic.kit(name)).identity in revoked for name in clients)


def test_a_kit_s_key_shows_in_no_text(clinic: FederationFolder) -> None:
    kit = Kit.load(clinic.kit("cloud"))
    pair = clinic.authority.issue({"cloud": "cloud"})["cloud"]
    for shown in (repr(kit), str(kit), f"{pair}", f"{[pair]}"):
        assert "PRIVATE" not in shown
        assert kit.key.decode().splitlines()[1] not in shown


@pytest.mark.parametrize(
    "module", first(2, ["transports.grpc", "pki.kits", "settings", "pki.authority", "roles.client"])
)
def test_nothing_here_needs_torch(module: str) -> None:
    """A process that only waits stays small. The package itself is left out: what it imports is its own matter."""
    folder = str(Path(fedbac.__file__).parent)
    code = (
        f"import sys, types; package = types.ModuleType('fedbac'); package.__path__ = [{folder!r}]; "
        f"sys.modules['fedbac'] = package; import fedbac.deploy.{module}; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_edge_that_cannot_store_a_list_says_so_and_obeys_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clinic = make(tmp_path / "clinic", 1)
    kit, client = Kit.load(clinic.kit("edge-0")), Kit.load(clinic.kit("edge-0-client-0"))
    before = kit.list_file.read_bytes()
    clinic.authority.revoke("edge-0-client-0")
    newer = clinic.authority.list_file.read_bytes()

    def read_only(path: Path, *_: object, **__: object) -> None:
        raise OutputError(f"{path}: it cannot be written (Read-only file system)")

    monkeypatch.setattr("fedbac.deploy.pki.credentials.write_whole", read_only)
    edge, revoked = Edge(kit.site, tmp_path / "state"), Revoked(credentials_of(kit.folder, kit.site))
    edge.children = MemoryChildren({})
    monkeypatch.setattr(edge.children, "turn_away", revoked.take)
    decode(edge.answer(encode("revoked", {"list": newer.decode()}, {}), threading.Event()), ("ready",))
    assert client.identity in revoked
    assert kit.list_file.read_bytes() == before
    assert "Read-only file system); the new list of revoked certificates holds until this site stops" in caplog.text
    monkeypatch.undo()  # now it can, and the cloud passes the list on whenever a link begins
    assert revoked.take(newer)
    assert kit.list_file.read_bytes() == newer
    assert not revoked.take(newer)


def test_a_list_that_was_passed_on_holds_beside_that_of_the_file(tmp_path: Path) -> None:
    clinic = make(tmp_path / "clinic", 2)
    kit, first, second = (Kit.load(clinic.kit(name)) for name in ("edge-0", "edge-0-client-0", "edge-0-client-1"))
    clinic.authority.revoke("edge-0-client-0")
    credentials = Credentials(kit.folder / "site.key", kit.folder / "site.crt", kit.folder / "ca.crt", kit.list_file)
    revoked = Revoked(credentials)
    assert first.identity not in revoked
    revoked.take(clinic.authority.list_file.read_bytes())
    assert first.identity in revoked
    assert second.identity not in revoked


def test_every_edge_is_handed_the_list_whenever_it_comes(tmp_path: Path) -> None:
    clinic, told = make(tmp_path / "clinic", 1, 1), list[str]()
    kit = Kit.load(clinic.kit("cloud"))
    cloud = Cloud(kit, run_folder(kit, None), ELSEWHERE)

    def heard(name: str) -> Answer:
        def answer(payload: bytes, gone: threading.Event) -> bytes:
            told.append(name)
            return sent("ready")

        return answer

    def after_a_round() -> list[str]:
        told.clear()
        cloud._pass_list_on()
        return sorted(told)

    links = MemoryChildren({name: heard(name) for name in ("edge-0", "edge-1")})
    cloud._children = Counted(links)
    links.lost = {"edge-1"}
    assert after_a_round() == ["edge-0"]
    links.lost = set()
    assert after_a_round() == ["edge-1"]
    assert after_a_round() == []
    cloud._shake_hands("edge-0", hello("edge-0"))  # started again, maybe from an old copy of its kit
    assert after_a_round() == ["edge-0"]
    clinic.revoke("edge-0-client-0")
    assert after_a_round() == ["edge-0", "edge-1"]
    kit.list_file.write_bytes(b"\xff\x00")  # a wrong file; the edges, and the log, say so
    assert after_a_round() == ["edge-0", "edge-1"]
