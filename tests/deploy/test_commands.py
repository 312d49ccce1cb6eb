"""The commands of sites, as a person types them; and the pages and containers that name them."""

import datetime as dt
import json
import re
import shlex
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
import yaml

from fedbac.cli.deploying import described
from fedbac.cli.main import app
from fedbac.config.experiment import Runtime
from fedbac.deploy.local_data import read_local
from fedbac.deploy.pki.kits import FederationFolder, Kit
from fedbac.deploy.roles.client import run_client
from fedbac.deploy.roles.cloud import Cloud
from fedbac.deploy.roles.edge import run_edge
from fedbac.deploy.roles.edges import Remote
from fedbac.deploy.roles.status import read_status
from fedbac.deploy.transports.base import Counted
from fedbac.deploy.trial import Trial
from fedbac.errors import DeployError, OutputError
from fedbac.runs.store import RunFolder
from tests.deploy.folders import make, small
from tests.deploy.in_memory import MemoryChildren
from tests.test_cli import SMALL, Shell

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("deploy", "deploy-data", "deploy-keys", "deploy-operations", "threat-model")
]
NOW = 1_000_000.0
CLOUD_STATUS: dict[str, Any] = {
    "site": "cloud",
    "doing": "playing",
    "method": "fed-bac",
    "round": 3,
    "rounds": 9,
    "accuracy": 0.5,
    "expected": ["edge-0", "edge-1", "edge-2"],
    "edges": {"edge-0": {"present": True, "seen": NOW}, "edge-1": {"present": False, "seen": NOW - 150}},
    "clients": {"edge-0": ["edge-0-client-1"], "edge-1": ["edge-1-client-0"]},
    "at": NOW,
}


@pytest.fixture
def fedbac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.fixture
def clinic(tmp_path: Path) -> FederationFolder:
    return make(tmp_path / "clinic", 2)


def refused(fedbac: Shell, *words: str) -> str:
    """Return the one line that a command ends with."""
    said = fedbac(*words, code=2)
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


def found(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, and its arguments."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    return command, words


def parse(words: list[str]) -> None:
    """Have the command line read a command without running it; what it does not know is an error."""
    command, arguments = found(words)
    command.make_context(command.name, arguments)


def test_status_in_words() -> None:
    assert described(CLOUD_STATUS, NOW + 1) == [
        "cloud: playing",
        "fed-bac: round 3 of 9, accuracy 50.00 %",
        "  edge-0: here, with edge-0-client-1",
        "  edge-1: last seen 2 min ago",  # with which clients, nobody knows any more
        "  edge-2: never seen",
    ]
    serving = {"site": "edge-0", "doing": "serving", "clients": [], "at": NOW}
    assert described(serving, NOW) == ["edge-0: serving", "  clients here: none"]
    unfit = {"unfit": {"edge-0-client-0": "edge-0-client-0: its data are not those with which the run began"}}
    assert described(serving | unfit, NOW)[2] == f"  left out until it rejoins: {unfit['unfit']['edge-0-client-0']}"


@pytest.mark.parametrize(
    ("doing", "later", "first"),
    [
        ("playing", 30, "cloud: not running, last heard 30 s ago"),
        ("finished", 1, "cloud: finished; the run has ended"),
    ],
)
def test_nobody_is_said_to_be_where_no_cloud_is(doing: str, later: float, first: str) -> None:
    lines = described(CLOUD_STATUS | {"doing": doing}, NOW + later)
    assert lines[0] == first
    assert lines[2] == f"  edge-0: last seen {later:.0f} s ago"


def test_status_of_a_site_that_never_ran(fedbac: Shell, clinic: FederationFolder) -> None:
    assert "there is no status; name the kit of the cloud" in refused(fedbac, "status", str(clinic.kit("cloud")))
    assert "there is no such kit" in refused(fedbac, "status", "nowhere")


def test_status_of_a_site_that_keeps_its_state_elsewhere(fedbac: Shell, clinic: FederationFolder) -> None:
    (clinic.path / "state").mkdir()
    (clinic.path / "state" / "status.json").write_text(json.dumps(CLOUD_STATUS))
    assert read_status(clinic.kit("cloud"), clinic.path / "state") == CLOUD_STATUS
    assert "round 3 of 9" in fedbac("status", str(clinic.kit("cloud")), "--state", str(clinic.path / "state"))


def test_a_kit_of_another_role_names_its_command(fedbac: Shell, clinic: FederationFolder) -> None:
    kit = clinic.kit("edge-0")
    for command in (["cloud", str(kit)], ["client", str(kit), "--data", "mine.npz"]):
        assert f"this is the kit of edge-0; start it with: fedbac edge {kit}" in refused(fedbac, *command)


def test_an_address_without_a_port_is_refused(fedbac: Shell, clinic: FederationFolder) -> None:
    """It would be dialled at a port that nobody named."""
    for option in ("--listen", "--parent"):
        said = refused(fedbac, "edge", str(clinic.kit("edge-0")), option, "fl.example.org")
        assert f"{option}: 'fl.example.org' is no address; write it as host:port" in said


def test_an_expired_kit_says_what_to_do(fedbac: Shell, clinic: FederationFolder) -> None:
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=91)
    pair = clinic.authority.issue({"edge-0": "edge"}, 90, begin)["edge-0"]
    (clinic.kit("edge-0") / "site.key").write_bytes(pair.key)
    (clinic.kit("edge-0") / "site.crt").write_bytes(pair.certificate)
    said = refused(fedbac, "edge", str(clinic.kit("edge-0")))
    assert "the certificate expired on" in said
    assert "have it renewed (fedbac federation renew), and install it or copy the new kit" in said


@pytest.mark.parametrize("command", [["cloud", "KIT"], ["edge", "KIT"], ["client", "KIT", "--data", "x.npz"], ["try"]])
def test_without_the_extra_a_sentence_says_what_to_install(
    fedbac: Shell, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fedbac.deploy.pki.kits", None)
    words = ["federation", "try", "clinic"] if command == ["try"] else command
    assert "pip install 'fedbac[deploy]'" in refused(fedbac, *words)


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"--data: there is no file .*mine\.npz"):
        read_local(str(tmp_path / "mine.npz"))


def test_the_run_of_a_federation_is_resumed_by_its_cloud(fedbac: Shell, tmp_path: Path) -> None:
    fedbac("run", "hierfavg", "--rounds", "1", "--out", "run", *SMALL)
    config = tmp_path / "run" / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["runtime"]["engine"] = "federation"
    config.write_text(before := yaml.safe_dump(tree))
    for engine in ([], ["--engine", "simulator"]):
        said = refused(fedbac, "resume", "run", *engine)
        assert said.endswith("start its cloud, which plays and resumes it: fedbac cloud KIT\n")
        assert "--out" not in said
        assert config.read_text() == before


def test_an_engine_that_only_a_cloud_has_leaves_no_folder(fedbac: Shell, tmp_path: Path) -> None:
    said = refused(fedbac, "run", "hierfavg", "--out", "run", "--engine", "federation", *SMALL)
    assert "start its cloud, which plays and resumes it: fedbac cloud KIT" in said
    assert not (tmp_path / "run").exists()


def test_whoever_waited_says_that_waiting_is_over(tmp_path: Path) -> None:
    """Else the status tells of waiting while the round is played."""
    said: list[str] = []
    remote = Remote.__new__(Remote)
    remote.waiting, remote.stopped = said.append, lambda: False
    missing = iter(["waiting for edge-0", None])
    remote.wait(lambda: next(missing))
    assert said == ["waiting for edge-0", "enough are there; going on"]
    remote.wait(lambda: None)
    assert len(said) == 2


@pytest.mark.parametrize("role", ["cloud", "edge"])
def test_a_site_that_cannot_write_its_status_stops_listening(
    role: str, fedbac: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Listening(MemoryChildren):
        def close(self) -> None:
            closed.append(role)

    fedbac("federation", "init", "hospital", "--edges", "1", "--clients", "1", "--keys")
    folder = FederationFolder.load(tmp_path / "hospital")
    state = tmp_path / "state"
    state.write_text("no folder")
    monkeypatch.setattr(f"fedbac.deploy.roles.{role}.children_of", lambda *given: Counted(Listening({})))
    cloud = Cloud(Kit.load(folder.kit("cloud")), RunFolder(tmp_path / "run"), Runtime(), state=state)
    edge = Kit.load(folder.kit("edge-0"))
    begin: dict[str, Callable[[], object]] = {
        "cloud": lambda: next(cloud.play()),
        "edge": lambda: run_edge(edge, None, threading.Event(), Runtime(), state=state),
    }
    with pytest.raises(OutputError):
        begin[role]()
    assert closed == [role]


def test_waiting_for_the_first_round_is_no_trouble(
    fedbac: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedbac")
    fedbac("federation", "init", "hospital", "--edges", "1", "--clients", "1", "--keys")
    kit = Kit.load(FederationFolder.load(tmp_path / "hospital").kit("cloud"))
    cloud = Cloud(kit, RunFolder(tmp_path / "run"), Runtime())
    monkeypatch.setattr("fedbac.deploy.roles.cloud.children_of", lambda *given: Counted(MemoryChildren({})))
    monkeypatch.setattr("time.sleep", lambda seconds: setattr(cloud.stop, "wanted", True))
    with pytest.raises(DeployError, match="stopped before the first round"):
        next(cloud.play())
    assert [(record.levelname, record.message) for record in caplog.records] == [("INFO", "waiting for edge-0")]


def test_a_client_that_begins_leaves_its_name_to_the_log(
    clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every line begins with it."""
    caplog.set_level("INFO", logger="fedbac")
    for name in ("Worker", "serve_parent"):
        monkeypatch.setattr(f"fedbac.deploy.roles.client.{name}", MagicMock())
    run_client(Kit.load(clinic.kit("edge-0-client-0")), "mine.npz", threading.Event())
    assert caplog.messages == ["its data can be read; dialling edge-0 at 127.0.0.1:8444"]


def test_sites_of_a_trial_write_into_its_folder_only(tmp_path: Path) -> None:
    """Else the real cloud would have the status of a trial."""
    trial = Trial(tmp_path / "kits", tmp_path / "data", tmp_path / "try", small(2).sites())
    for name in trial.sites:
        words = trial.command(name)
        assert words[words.index("--state") + 1] == str(tmp_path / "try" / "state" / name)


def test_a_second_trial_begins_with_empty_logs(tmp_path: Path) -> None:
    """What is shown of the cloud is its log, so an older one would be shown again."""
    trial = Trial(tmp_path, tmp_path, tmp_path, {})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "cloud.log").write_text("round 1: accuracy 10.00 %\n")
    with trial.running():
        assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_commands_of_the_pages_are_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    typed = [line for line in lines if line.startswith("fedbac ")]
    typed += [line.partition("/bin/")[2] for line in lines if line.startswith("ExecStart=")]
    for line in typed:
        parse(shlex.split(line, comments=True)[1:])
    for line in re.findall(r"`fedbac ([a-z][^`]*)`", text):  # in a sentence it may stand without its arguments
        found(line.split())


def containers() -> dict[str, Any]:
    """Return the services of the compose file."""
    tree = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text(encoding="utf-8"))
    assert set(tree["volumes"]) == set(tree["services"])
    services: dict[str, Any] = tree["services"]
    return services


def test_the_compose_file_has_every_site_of_the_demo() -> None:
    sites, services = small(2, 2).sites(), containers()
    assert list(services) == list(sites)
    for name, service in services.items():
        site, command = sites[name], service["command"]
        assert command[0] == site.role
        parse(command)
        assert (f"{site.parent}:8443" in command) == (site.parent is not None)
        mounts = dict(reversed(volume.rsplit(":ro", 1)[0].rsplit(":", 1)) for volume in service["volumes"])
        folder = "${FEDERATION:-../hospital}"
        assert mounts["/kit"] == f"{folder}/kits/{name}"
        assert mounts["/state"] == name
        assert mounts.get("/data") == (None if site.role == "cloud" else f"{folder}/try/data/{name}")
        assert all(volume.endswith(":ro") for volume in service["volumes"] if not volume.endswith(":/state"))


def test_the_dockerfile_takes_files_that_exist_and_no_others() -> None:
    text = (ROOT / "containers" / "Dockerfile").read_text(encoding="utf-8")
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)]
    files = {file for words in copied for file in words}
    assert {file for file in files if not (ROOT / file).exists()} == set()
    ignored = (ROOT / "containers" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == files
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["fedbac"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "[deploy]" in text
    assert "deploy" in project["optional-dependencies"]
    assert f"TORCH := {re.findall(r'torch==[0-9.]+', text)[0]}" in (ROOT / "Makefile").read_text(encoding="utf-8")
