"""Every site gives its model without data, network or a running process; and nobody can pass another one off as it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fedbac as library
from fedbac.config.experiment import Runtime
from fedbac.core.parts import measured_parts
from fedbac.deploy.models import Given, cloud_models, give
from fedbac.deploy.pki.cards import card_of, verify, write_card
from fedbac.deploy.pki.kits import FederationFolder, Kit
from fedbac.deploy.protocol.wire import WireError
from fedbac.deploy.roles.cloud import Cloud
from fedbac.deploy.roles.models import models_of_edge
from fedbac.deploy.transports.base import Counted
from fedbac.errors import Error
from fedbac.models import LeNet5
from fedbac.presets.methods import METHODS
from fedbac.presets.tasks import TASKS
from fedbac.runs.models import Models
from fedbac.runs.play import finish
from fedbac.runs.store import RunFolder
from tests.covering import first, presets
from tests.deploy.folders import make
from tests.deploy.in_memory import MemoryFederation
from tests.deploy.small import COUNTS, Small, small
from tests.test_cli import Shell

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENTS = [range(sum(COUNTS[:edge]), sum(COUNTS[: edge + 1])) for edge in range(len(COUNTS))]


def place(folder: Path, name: str) -> Path:
    return folder / "run" if name == "cloud" else folder / "state" / name


def given(federation: MemoryFederation, name: str, edge: int | None = None, client: int | None = None) -> Given:
    """Return the model that a site gives, from what is on its disk."""
    return give(federation.sites[name], place(federation.folder, name), edge, client)


def asked_for(name: str, own: bool) -> Iterator[dict[str, int]]:
    """Yield whose models a site may be asked for."""
    for edge, clients in enumerate(CLIENTS):
        if name in ("cloud", f"edge-{edge}"):
            yield from ({"client": client} for client in clients) if own else [{"edge": edge}]
        for within, client in enumerate(clients):
            if name == f"edge-{edge}-client-{within}":
                yield {"client": client}


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(Error) as caught:
        yield
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def logits(model: Models | Given, x: Tensor, **whose: int) -> Tensor:
    found = model.model if isinstance(model, Given) else model.of(whose.get("edge"), whose.get("client"))
    with torch.no_grad():
        said: Tensor = found(x)
    return said


@pytest.mark.parametrize("preset", presets("topology"))
def test_the_models_of_all_sites_are_the_simulators(preset: str, tmp_path: Path) -> None:
    policies = METHODS[preset](TASKS["demo"])
    few = ["method.selection.fraction=0.4"] * hasattr(policies.selection, "fraction")  # some are never selected
    few += ["method.clustering.num_clusters=2"] * ((getattr(policies.clustering, "num_clusters", 1) or 1) > 2)
    task: dict[str, Any] = {"network": LeNet5()} if policies.network else {}  # and images that its own can take
    tiny = small(preset, *few, rounds=2, **task)
    expected, federation = tiny.simulated().models, tiny.federation(tmp_path)
    federation.run(tmp_path / "run")
    scheme, x = tiny.experiment.method.personalization, torch.from_numpy(tiny.dataset.x_test)
    scopes = {scheme.parts[part].scope for part in measured_parts(scheme)}
    above = {"cloud": scopes & {"edge", "client"}, "edge": scopes & {"client"}, "client": set()}
    for name, site in federation.sites.items():
        for whose in asked_for(name, expected.own):
            if above[site.role]:
                owner = "client" if "client" in scopes else "edge"
                kit = [other for other, one in federation.sites.items() if one.role == owner][whose[owner]]
                with refused(f"of {kit} never leaves it; take the model from its own kit"):
                    given(federation, name, **whose)
                continue
            found = given(federation, name, **({} if site.role == "client" else whose))
            assert torch.equal(logits(found, x), logits(expected, x, **whose)), (name, whose)
            assert (found.said["round"], found.said["method"]) == (2, preset)
    if not above["cloud"]:
        whose = {"client": 3} if expected.own else {"edge": 1}
        loaded = library.load(tmp_path / "run").model(whose.get("edge"), client=whose.get("client"))
        assert torch.equal(loaded(x), logits(expected, x, **whose))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Small, MemoryFederation, FederationFolder]:
    """A run of a network per cluster beside everybody's, and kits for its sites."""
    folder = tmp_path_factory.mktemp("played")
    tiny = small("fed-bac", rounds=1)
    federation = tiny.federation(folder)
    federation.run(folder / "run")
    return tiny, federation, make(folder / "clinic", *COUNTS)


@pytest.fixture
def fedbac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


NAMES = ("cloud", "edge-1", "edge-1-client-0")


@pytest.mark.parametrize("name", first(1, NAMES))
def test_a_file_with_its_card_leaves_every_kit(name: str, fedbac: Shell, tmp_path: Path, played: Any) -> None:
    """And the lines of the page load it in plain torch."""
    tiny, federation, clinic = played
    kit, whose = str(clinic.kit(name)), ["--edge", "1"] if name == "cloud" else []
    said = fedbac("model", kit, *whose, "--from", str(place(federation.folder, name)))
    assert "after round 1; its card: model.pt2.json" in said
    model = "edge-1" if name == "cloud" else name
    for trusted in (kit, str(clinic.kit("edge-0-client-0") / "ca.crt")):
        said = fedbac("model", trusted, "--verify", "model.pt2")
        assert said.startswith(f"Genuine: the model of {model} after round 1 of 1 of fed-bac (run ")
        assert f"given by {name} of clinic" in said
    charter = federation.edges["edge-0"].handler.charter
    card = json.loads((tmp_path / "model.pt2.json").read_text())
    assert (card["run"], card["charter"], card["site"]) == (charter.run, charter.id, name)
    assert (card["fedbac"], card["torch"]) == (library.__version__, torch.__version__)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(lines.split("\n")) <= 5  # three lines, and what ruff puts between them
    names: dict[str, Any] = {"x": torch.from_numpy(tiny.dataset.x_test)}
    exec(lines, names)  # the page's own
    expected = logits(given(federation, name, 1 if name == "cloud" else None), names["x"])
    assert torch.allclose(names["logits"], expected, atol=1e-6)


def test_weights_are_those_of_the_model(fedbac: Shell, tmp_path: Path, played: Any) -> None:
    _, federation, clinic = played
    place_ = str(place(federation.folder, "edge-0"))
    fedbac("model", str(clinic.kit("edge-0")), "--format", "safetensors", "--out", "a.safetensors", "--from", place_)
    weights, expected = load_file(tmp_path / "a.safetensors"), given(federation, "edge-0").model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], value) for key, value in expected.items())
    assert "must end with .pt2" in fedbac("model", str(clinic.kit("edge-0")), "--out", "a.onnx", code=2)


def test_weights_of_one_network_have_its_own_names_and_a_card(fedbac: Shell, tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=1)
    federation, clinic = tiny.federation(tmp_path), make(tmp_path / "clinic", *COUNTS)
    run = federation.run(tmp_path / "run")
    kit, weights = str(clinic.kit("edge-1")), ["--format", "safetensors", "--from", str(place(tmp_path, "edge-1"))]
    fedbac("model", kit, *weights)
    assert load_file("model.safetensors").keys() == run.models.network.state_dict().keys()
    assert fedbac("model", kit, "--verify", "model.safetensors").startswith("Genuine: the model of edge-1 ")
    assert "--data: that is for run folders; leave it out for a kit" in fedbac("model", kit, "--data", ".", code=2)
    assert "--format peft: that is for run folders" in fedbac("model", kit, "--format", "peft", code=2)
    assert "signed; name the kit of its cloud: fedbac model KIT --from run" in fedbac("model", "run", code=2)


@pytest.fixture
def carded(fedbac: Shell, tmp_path: Path, played: Any) -> Path:
    """A model of edge-1 with its card."""
    _, federation, clinic = played
    out, kept = tmp_path / "model.safetensors", str(place(federation.folder, "edge-1"))
    fedbac("model", str(clinic.kit("edge-1")), "--format", "safetensors", "--out", str(out), "--from", kept)
    return out


def edited(**fields: Any) -> Callable[[Path, Any], None]:
    """Return what changes fields of a card."""

    def edit(model: Path, clinic: FederationFolder) -> None:
        card = card_of(model)
        card.write_text(json.dumps(json.loads(card.read_text()) | fields))

    return edit


def resigned(name: str, **fields: Any) -> Callable[[Path, Any], None]:
    """Return what has another genuine site sign a card that says something else."""

    def sign(model: Path, clinic: FederationFolder) -> None:
        card = json.loads(card_of(model).read_text())
        unsaid = ("sha256", "federation", "site", "written", "certificate", "signature")
        said = {key: value for key, value in card.items() if key not in unsaid}
        write_card(Kit.load(clinic.kit(name)), model, said | fields)

    return sign


def changed(change: Callable[[bytes], bytes], suffix: str = "") -> Callable[[Path, Any], None]:
    """Return what changes the bytes of a model, or of its card."""

    def edit(model: Path, clinic: FederationFolder) -> None:
        file = model.with_name(model.name + suffix)
        file.write_bytes(change(file.read_bytes()))

    return edit


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def of_another_federation(model: Path, clinic: FederationFolder) -> None:
    other = make(model.parent / "other", *COUNTS)
    resigned("edge-1")(model, other)


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (changed(lambda content: content[:-9]), "cut short or was changed"),
        (changed(flipped), "cut short or was changed"),
        (changed(lambda content: content[:-9], ".json"), "there is no card that can be read"),
        (changed(lambda content: b"[]", ".json"), "model.safetensors.json: "),
        (lambda model, clinic: model.with_name(f"{model.name}.json").unlink(), "there is no card that can be read"),
        (edited(round=2), "the card was changed after 'edge-1' signed it"),
        (edited(signature="AAAA"), "the card was changed after 'edge-1' signed it"),
        (edited(signature="no base 64"), "the card was changed after 'edge-1' signed it"),
        (edited(signature="ä"), "the card was changed after 'edge-1' signed it"),
        (edited(certificate="none"), "certificate of 'edge-1': it is no certificate"),
        (edited(more=1), "more: unknown field"),
        (resigned("edge-0"), "'edge-0' signed for 'edge-0' a model of 'edge-1'"),
        (resigned("edge-1-client-0"), "signed for 'edge-1-client-0' a model of 'edge-1'"),
        (resigned("edge-1", site="cloud"), "'edge-1' signed for 'cloud'"),
        (resigned("edge-1", written="2020-01-01T00:00:00+00:00"), "was not valid when the card was signed"),
        (of_another_federation, "certificate of 'edge-1': ca.crt did not sign it"),
    ],
)
def test_a_model_or_card_that_was_changed_is_refused(
    forge: Callable[[Path, FederationFolder], None], why: str, carded: Path, played: Any
) -> None:
    clinic = played[2]
    assert verify(carded, clinic.kit("cloud")).model == "edge-1"
    forge(carded, clinic)
    with refused(why):
        verify(carded, clinic.kit("cloud"))


def test_the_model_of_a_site_that_was_revoked_is_refused(carded: Path, tmp_path: Path) -> None:
    clinic = make(tmp_path / "other", *COUNTS)
    resigned("edge-1")(carded, clinic)
    assert verify(carded, clinic.kit("cloud")).site == "edge-1"
    clinic.revoke("edge-1")
    with refused("'edge-1' was revoked"):
        verify(carded, clinic.kit("cloud"))


@pytest.mark.parametrize(
    "change", first(1, [lambda content: content[:-9], flipped, lambda content: b"", lambda content: b"x" * 99])
)
def test_a_kept_model_that_is_damaged_is_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    federation = small("fed-bac", rounds=1).federation(tmp_path)
    federation.run()
    file = tmp_path / "state" / "edge-0" / "model"
    file.write_bytes(change(file.read_bytes()))
    with refused(f"{file}: it is damaged (", "start the cloud again"):
        given(federation, "edge-0")


def test_a_kit_without_a_finished_round_says_so(fedbac: Shell, tmp_path: Path) -> None:
    clinic = make(tmp_path / "clinic", *COUNTS)
    for name in ("edge-0", "edge-0-client-1"):
        said = fedbac("model", str(clinic.kit(name)), code=2)
        assert "no model has arrived here yet; the cloud hands models out" in said
    assert "no round of a run is finished here" in fedbac("model", str(clinic.kit("cloud")), "--edge", "0", code=2)
    assert not list(tmp_path.glob("model.*"))


def test_cards_of_all_sites_of_a_run_name_the_same_data_and_those_of_another_run_others(
    tmp_path: Path, played: Any
) -> None:
    other = small("hierfavg", rounds=1).federation(tmp_path)
    other.run(tmp_path / "run")
    runs = [
        {given(it, *whose).said["data"] for whose in (("cloud", 0), ("edge-0",), ("edge-1-client-0",))}
        for it in (played[1], other)
    ]
    assert [len(hashes) for hashes in runs] == [1, 1]
    assert runs[0] != runs[1]


def test_whose_model_a_site_has(tmp_path: Path) -> None:
    federation = small("ifca", rounds=1).federation(tmp_path)
    federation.run(tmp_path / "run")
    with refused("every client has a model of its own; give client=2 to 4"):
        given(federation, "edge-1")
    with refused("client=0: there are clients 2 to 4"):
        given(federation, "edge-1", client=0)
    with refused("edge-1-client-0 has no model but its own; leave out --edge and --client"):
        given(federation, "edge-1-client-0", edge=1)
    assert given(federation, "edge-1", client=4).said["model"] == "edge-1-client-2"
    (tmp_path / "run" / "charter.json").unlink()
    with refused("charter.json: the file is missing"):
        given(federation, "cloud", client=0)


def test_a_model_stays_whole_while_the_run_goes_on(tmp_path: Path) -> None:
    """What a client owned is kept with what it was sent then, however often it trains after it."""
    tiny = small("ditto", rounds=8, counts=(1, 1))
    federation, x = tiny.federation(tmp_path), torch.from_numpy(tiny.dataset.x_test)
    enrolled = federation.enrol()
    remote = federation.connect(enrolled)
    playing = federation.play(tmp_path / "run", enrolled, remote)
    next(playing)
    remote.hand_out(cloud_models(tmp_path / "run"))
    early = logits(given(federation, "edge-0-client-0"), x)
    run = finish(playing)
    assert given(federation, "edge-0-client-0").said["round"] == 1
    assert torch.equal(logits(given(federation, "edge-0-client-0"), x), early)
    remote.hand_out(run.models)
    assert given(federation, "edge-0-client-0").said["round"] == 8
    assert not torch.equal(logits(given(federation, "edge-0-client-0"), x), early)


def test_who_was_not_there_gets_its_model_when_the_cloud_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = small("fed-bac", rounds=3)
    clinic, federation = make(tmp_path / "clinic", *COUNTS), tiny.federation(tmp_path)
    kit = Kit.load(clinic.kit("cloud"))
    for name in ("children_of", "configure"):
        answer = Counted(federation.cloud) if name == "children_of" else tiny.experiment
        monkeypatch.setattr(f"fedbac.deploy.roles.cloud.{name}", lambda *given, answer=answer, **more: answer)
    runtime, run = Runtime(engine="federation", device="cpu"), RunFolder(tmp_path / "run")
    monkeypatch.setattr("fedbac.deploy.roles.cloud.SECONDS_APART", 0.0)
    monkeypatch.setattr("fedbac.deploy.roles.cloud.LINKS_BACK", 0)
    playing = Cloud(kit, run, runtime).play()
    next(playing)
    assert given(federation, "edge-1-client-1").said["round"] == 1  # as its time had come
    federation.children("edge-1").lost.add("edge-1-client-1")
    finish(playing)
    assert given(federation, "edge-1").said["round"] == 3
    assert given(federation, "edge-1-client-1").said["round"] == 1
    federation.children("edge-1").lost.clear()
    finish(Cloud(kit, run, runtime).play())
    assert given(federation, "edge-1-client-1").said["round"] == 3


def test_a_cloud_that_sends_a_model_of_others_is_not_believed(tmp_path: Path) -> None:
    """Rows and parts are checked as those of every message are; what was kept stays."""
    tiny = small("fedper-edges", rounds=1)
    federation = tiny.federation(tmp_path)
    run = federation.run()
    handler = federation.edges["edge-0"].handler
    assert handler is not None
    before = (tmp_path / "state" / "edge-0" / "model").read_bytes()
    one = models_of_edge(run.models, handler.charter, 1)
    with pytest.raises(WireError, match="a row of every part for each of 2 clients"):
        federation.edges["edge-0"].answer(one.message(handler.charter.id), threading.Event())
    own = one.with_own("edge", 1, {})
    with pytest.raises(WireError, match="head"):
        federation.edges["edge-0"].answer(own.message(handler.charter.id), threading.Event())
    assert (tmp_path / "state" / "edge-0" / "model").read_bytes() == before
