"""A network, a loss, a metric and starting weights of the user's: the simulator's numbers, and refused in time."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedbac
from fedbac import packages
from fedbac.config.experiment import Experiment
from fedbac.data import Dataset, Shards
from fedbac.deploy.models import give
from fedbac.deploy.protocol.failures import SiteError
from fedbac.errors import ConfigError, DeployError
from fedbac.losses import IGNORED
from fedbac.packages import PackageError, allow, fingerprint, imported
from fedbac.rounds.record import by_clients
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from tests.covering import first
from tests.deploy.in_memory import CPU, cut, gathered
from tests.deploy.small import COUNTS, FIRST, Small, compared
from tests.test_cli import Shell
from tests.unit.tiny import tiny_task

NAME = "clinic_models"
CODE = """
from os import abort
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, x):
        return self.layers(x)


def pretrained():
    network = Tables()
    network.load_state_dict(load_file(Path(__file__).with_name("start.safetensors")))
    return network


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, x):
        return self.out(torch.tanh(self.embed(x)))


class Huber:
    labels = "numbers"

    def loss(self, output, y):
        return F.huber_loss(output, y, reduction="none").mean(-1)

    def right(self, output, y):
        return (1 - (output - y).abs().mean(-1) / 10).clamp(min=0)


class Nll(Huber):
    # of a Gaussian with a small deviation, which is negative
    def loss(self, output, y):
        return (output - y).square().mean(-1) - 1000


class Mean(Huber):
    def loss(self, output, y):
        return F.huber_loss(output, y)


class Unsaid(Huber):
    labels = "prices"


def narrow():
    return nn.Linear(6, 1)


def nothing():
    return 3


def failing():
    raise KeyError("DOE, JOHN")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the package is."""
    place = tmp_path_factory.mktemp("site-packages")
    (place / NAME).mkdir()
    (place / NAME / "__init__.py").write_text(CODE)
    generator = torch.Generator().manual_seed(3)
    shapes = {"layers.0.weight": (5, 6), "layers.0.bias": (5,), "layers.2.weight": (2, 5), "layers.2.bias": (2,)}
    start = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(start, place / NAME / "start.safetensors")
    return place


@pytest.fixture(autouse=True)
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the package installed, but not allowed."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(packages.VARIABLE, "")  # and what a test sets is undone
    monkeypatch.setattr(packages, "_imported", {})
    yield
    sys.modules.pop(NAME, None)


RNG = np.random.default_rng(5)
X = RNG.normal(size=(150, 6)).astype(np.float32)
SLOPE = RNG.normal(size=(6, 2)).astype(np.float32)
TEXT = RNG.integers(0, 7, size=(150, 9))  # the network knows two more tokens
NEXT = np.where(RNG.random((150, 8)) < 0.2, IGNORED, TEXT[:, 1:])
DATA: dict[str, Any] = {
    "numbers": (X, X @ SLOPE, 2),
    "large": (X, 1000 * X @ SLOPE, 2),
    "tokens": (TEXT[:, :-1], NEXT, 9),
    "classes": (X, (X[:, 0] > 0).astype(np.int64), 2),
}
SHARDS = Shards(
    train=tuple(np.array_split(np.arange(100), 10)[0:10:2]),
    validation=tuple(np.array_split(np.arange(100), 10)[1:10:2]),
    test=tuple(np.array_split(np.arange(50), 2)),
    clients=(range(2), range(2, 5)),
)


def own(method: str, kind: str, network: str, loss: str, *settings: str, rounds: int = 3) -> Small:
    """Return a run with the user's network or loss, as ``init`` would write it down."""
    x, y, outputs = DATA[kind]
    whole = Dataset.from_arrays(kind, x[:100], y[:100], x[100:], y[100:], outputs)
    named = {"task.network": network, "task.loss": loss}
    named |= {f"{field}.sha256": fingerprint(NAME) for field, value in list(named.items()) if ":" in value}
    settings = (*(f"{field}={value}" for field, value in named.items()), *settings)
    task = tiny_task(num_edges=2, clients_per_edge=COUNTS, rounds=rounds)
    experiment = configure(method, task, settings=settings, inputs=Inputs(dataset=whole))
    at = "clients" if by_clients(experiment.method) else "edge"
    shares = [share for test, count in zip(SHARDS.test, COUNTS, strict=True) for share in np.array_split(test, count)]
    sites = cut(whole, SHARDS, at, shares)
    return Small(experiment, sites, *gathered(kind, sites, COUNTS, outputs))


CASES = [
    ("hierfavg", "numbers", f"{NAME}:pretrained", f"{NAME}:Huber"),
    ("ifca-edges", "numbers", f"{NAME}:Tables", "squared_error", "method.clustering.num_clusters=2"),
    ("fed-bac", "tokens", f"{NAME}:Speaker", "next_token"),
    ("ditto", "numbers", f"{NAME}:Tables", f"{NAME}:Nll"),
    ("fedavg", "numbers", "mlp", "squared_error"),
    ("hierfavg", "large", "mlp", "squared_error", "task.training.learning_rate=1e-6"),
    ("fed-bac", "classes", f"{NAME}:Tables", "cross_entropy"),
]


@pytest.mark.parametrize("case", first(2, [CASES[0], CASES[2], CASES[1], *CASES[3:]]), ids=" ".join)
def test_a_federation_with_the_users_model_equals_the_simulator(case: tuple[str, ...], tmp_path: Path) -> None:
    _, kind, _, loss, *_ = case
    run = own(*case)
    federation = run.federation(tmp_path)
    played, simulated = federation.run(tmp_path / "run"), run.simulated()
    keeps = by_clients(run.experiment.method)  # then nobody has a whole model to test on all data
    for mine, expected in zip(compared(played.records), compared(simulated.records), strict=True):
        assert mine == expected | ({"accuracy_global": None} if keeps else {})
        assert not mine["failed"]  # as would be whoever tells a loss that cannot be
    assert (played.records[-1]["loss"] > 1e5) == (kind == "large")
    assert (played.records[-1]["loss"] < 0) == loss.endswith(":Nll")
    assert played.config["classes_per_edge"] == simulated.config["classes_per_edge"]
    x = torch.from_numpy(run.dataset.x_test[:7])
    found = give(federation.sites[FIRST], tmp_path / "state" / FIRST, None, None)
    assert torch.equal(found.model(x), simulated.models.of(*(None, 0) if keeps else (0, None))(x))
    assert torch.export.export(found.model, (torch.cat([found.example] * 2),))


def test_a_run_starts_with_the_weights_of_the_package(tmp_path: Path, folder: Path) -> None:
    from safetensors.torch import load_file

    charter = own("hierfavg", *CASES[0][1:]).federation(tmp_path).enrol().charter
    for name, value in load_file(folder / NAME / "start.safetensors").items():
        assert torch.equal(charter.first["global"][name][0], value)


# ---------------------------------------------------------------------------------------- refused in time


def test_no_site_imports_what_was_not_allowed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = own("hierfavg", *CASES[0][1:]).federation(tmp_path)
    monkeypatch.delenv(packages.VARIABLE)  # configure was told the name; sites are not
    sys.modules.pop(NAME, None)
    heard = {}
    for name, holder in federation.shops.items():
        with pytest.raises(SiteError) as caught:
            holder.answer(_enroll(federation.experiment))
        heard[name] = caught.value
    assert NAME not in sys.modules
    for error in heard.values():
        assert "not allowed here" in error.public
        assert NAME not in error.public  # what travels names no package
        assert f"start with --allow {NAME}, or with the variable FEDBAC_ALLOW={NAME}" in str(error)
    with pytest.raises(SiteError, match="not allowed here"):
        federation.edges["edge-0"].answer(_enroll(federation.experiment), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"task.loss: .* not allowed here"):
        federation.enrol()


def _enroll(experiment: Experiment) -> bytes:
    from fedbac.deploy.protocol.messages import sent

    return sent("enroll", experiment=experiment.model_dump(mode="json"), only=(), without=())


def test_the_cloud_waits_for_a_site_with_another_version_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = own("hierfavg", *CASES[0][1:]).federation(tmp_path)
    answer, other = federation.shops[FIRST].answer, "f" * 64

    def elsewhere(payload: bytes) -> bytes:
        with monkeypatch.context() as there:
            there.setattr(packages, "_imported", {NAME: other})
            return answer(payload)

    monkeypatch.setattr(federation.shops[FIRST], "answer", elsewhere)
    federation.waited = lambda text: monkeypatch.setattr(federation.shops[FIRST], "answer", answer)
    assert federation.enrol()
    (said,) = federation.said
    assert said.startswith(f"waiting for {FIRST} (")
    assert "edge-0-client-1" not in said  # which is only asked again
    assert f"begins with {'f' * 12}, that of the federation with {fingerprint(NAME)[:12]}; install the same" in said


def test_a_site_that_was_updated_during_a_run_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbac.deploy.protocol.messages import sent

    federation = own("hierfavg", *CASES[0][1:]).federation(tmp_path)
    charter = federation.enrol().charter
    begin = sent("begin", charter=charter.text, known=charter.known_to(FIRST))
    monkeypatch.setattr(packages, "_imported", {NAME: "f" * 64})
    with pytest.raises(
        SiteError,
        match=r"task.loss.sha256: .* hash [0-9a-f]+, but the one here has ffff.*; install the same at every site",
    ):
        federation.shops[FIRST].answer(begin)
    with pytest.raises(SiteError, match="is another one"):
        federation.edges["edge-0"].answer(
            sent("begin", charter=charter.text, known=charter.known_to("edge-0")),
            None,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("network", "loss", "message"),
    [
        (f"{NAME}:narrow", "squared_error", r"shape \[2, 2\] .* returns \[2, 1\]"),
        (f"{NAME}:Speaker", "squared_error", "it cannot read examples of shape"),
        (f"{NAME}:nothing", "squared_error", f"task.network: {NAME}:nothing.. failed: .* must return a new nn.Module"),
        (f"{NAME}:failing", "squared_error", f"task.network: {NAME}:failing.. failed: KeyError"),
        (f"{NAME}:abort", "squared_error", f"{NAME}:abort is no class or function that {NAME} itself defines"),
        (f"{NAME}:Missing", "squared_error", f"task.network: {NAME}:Missing is not there"),
        (
            f"{NAME}:Tables",
            f"{NAME}:Mean",
            r"task.loss: of two examples, .* return two numbers each, .* \[\] and \[2\]",
        ),
        (f"{NAME}:Tables", f"{NAME}:Unsaid", "needs labels = one of classes, numbers, tokens"),
        ("mlp", "next_token", "task.network: mlp predicts no tokens"),
    ],
)
def test_what_cannot_be_built_is_refused_before_the_first_round(
    network: str, loss: str, message: str, tmp_path: Path
) -> None:
    federation = own("hierfavg", "numbers", network, loss).federation(tmp_path)
    with pytest.raises(ConfigError, match=message):
        federation.enrol()


def test_labels_that_the_loss_does_not_learn_are_named(tmp_path: Path) -> None:
    federation = own("hierfavg", "numbers", f"{NAME}:Tables", "cross_entropy").federation(tmp_path)
    with pytest.raises(SiteError, match=r"task.loss cross_entropy learns classes, and y_train or y_test are numbers"):
        federation.shops[FIRST].answer(_enroll(federation.experiment))
    federation.most_said = 0
    with pytest.raises(DeployError, match="stopped"):
        federation.enrol()
    assert "waiting for edge-0 (" in federation.said[0]  # whose own test data have such labels
    assert "its labels are not what the federation learns" in federation.said[0]


def test_a_site_with_tokens_that_the_network_does_not_know_is_named(tmp_path: Path) -> None:
    run = own("hierfavg", *CASES[2][1:])
    run.sites[FIRST]["y_train"][0, 0] = 9
    federation = run.federation(tmp_path)
    with pytest.raises(SiteError, match="the network predicts 9 tokens, the labels are 10"):
        federation.shops[FIRST].answer(_enroll(federation.experiment))
    federation.most_said = 0
    with pytest.raises(DeployError, match="stopped"):
        federation.enrol()
    assert f"waiting for {FIRST} (" in federation.said[0]


# ------------------------------------------------------------------------------------------ by the commands

SIZES = ("--edges", "1", "--clients", "2", "--set", "task.partition.min_edge_test=5")
OWN = ("--set", f"task.network={NAME}:pretrained", "--set", f"task.loss={NAME}:Huber")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.mark.timeout(300)
@pytest.mark.full
def test_a_trial_over_grpc_gives_the_simulators_numbers_and_a_model(
    shell: Shell, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    x, y, _ = DATA["numbers"]
    np.savez("mine.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    said = shell("federation", "init", "hospital", "--method", "hierfavg", *SIZES, *OWN)
    hint = f"Every site installs the package {NAME} with the hash {fingerprint(NAME)}, and starts with --allow {NAME}"
    assert said.count(hint) == 1
    monkeypatch.delenv(packages.VARIABLE)
    assert "not allowed here" in shell("federation", "try", "hospital", "--data", "mine.npz", code=2)
    said = shell("federation", "try", "hospital", "--rounds", "2", "--data", "mine.npz", "--allow", NAME)
    assert f"Allowed here: {NAME}, with the hash {fingerprint(NAME)}" in said
    run = fedbac.load("hospital/try/run")
    sites = {path.name: dict(np.load(path / "data.npz")) for path in Path("hospital/try/data").iterdir()}
    inputs = Inputs(*gathered(run.config["experiment"]["task"]["dataset"], sites, (2,), 2))
    experiment = configure("hospital/try/federation/kits/cloud/experiment.yaml", rounds=2)
    simulated = finish(play(experiment, runtime=CPU, inputs=inputs))
    assert compared(run.records) == compared(simulated.records)

    kit, kept = "hospital/try/federation/kits/edge-0-client-1", "hospital/try/state/edge-0-client-1"
    monkeypatch.delenv(packages.VARIABLE)
    assert "not allowed here" in shell("model", kit, "--from", kept, code=2)
    shell("model", kit, "--from", kept, "--allow", f"{NAME}={fingerprint(NAME)[:16]}")
    model = torch.export.load("model.pt2").module()
    assert torch.equal(model(torch.from_numpy(x[:7])), simulated.models.of(0, None)(torch.from_numpy(x[:7])))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "task.network=nowhere:Net"], "there is no package nowhere here; install it"),
        (["--set", f"task.network={NAME}:failing"], f"task.network: {NAME}:failing() failed: KeyError"),
        (
            ["--set", f"task.network={NAME}:Tables", "--set", "task.frozen=[out.*]"],
            "'out.*' matches none of the weights",
        ),
        (["--set", "task.loss=next_token"], "task.network: lenet5 predicts no tokens"),
        (["--set", "task.network={kind: custom, name: Net}"], "'Net' was given in Python, so no site has it"),
        (["--set", "task.data_fraction=0.5"], "task.data_fraction: every client uses all its data"),
        (["--allow", "os.path"], "'os.path' is no package"),
        (["--allow", f"{NAME}=0123456789ab"], "look at what changed"),
    ],
)
def test_init_refuses_what_no_site_could_build(shell: Shell, words: list[str], message: str) -> None:
    assert message in shell("federation", "init", "hospital", *SIZES, *words, code=2).replace("\n", " ")
    assert not Path("hospital").exists()


def test_a_file_does_not_decide_what_is_imported(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.yaml").write_text(shell("show", "hierfavg", "--set", f"task.network={NAME}:Tables"))
    monkeypatch.delenv(packages.VARIABLE)
    sys.modules.pop(NAME, None)
    assert "not allowed here" in shell("federation", "init", "hospital", *SIZES, "--method", "mine.yaml", code=2)
    assert "not allowed here" in shell("run", "mine.yaml", "--rounds", "1", code=2)
    assert NAME not in sys.modules


def test_the_hash_is_of_all_files_but_compiled_and_hidden_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    place = tmp_path / "hashed_models"
    (place / "__pycache__").mkdir(parents=True)
    (place / "__init__.py").write_text("")
    before = fingerprint("hashed_models")
    for unseen in ("__pycache__/a.pyc", ".DS_Store", "fast.so"):
        (place / unseen).write_text("x")
        assert fingerprint("hashed_models") == before
    for seen in ("__init__.py", "nets.py", "start.safetensors"):
        (place / seen).write_text("x")
        assert fingerprint("hashed_models") != before
        before = fingerprint("hashed_models")
    assert "hashed_models" not in sys.modules
    (tmp_path / "one_file.py").write_text("x = 1")
    assert len(fingerprint("one_file")) == 64
    for missing in ("sys", "no_such_package"):
        with pytest.raises(PackageError, match="there is no package"):
            allow(missing)
        monkeypatch.delenv(packages.VARIABLE)


def test_python_takes_a_name_too_and_resumes_with_it(tmp_path: Path) -> None:
    x, y, _ = DATA["numbers"]
    data = Dataset.from_arrays("numbers", x[:100], y[:100], x[100:], y[100:])
    given: dict[str, Any] = {"dataset": data, "shards": SHARDS, "network": f"{NAME}:Tables", "progress": False}
    settings = {"task.loss": "squared_error"}
    run = fedbac.run("hierfavg", rounds=2, settings=settings, out=tmp_path / "run", **given)
    assert run.config["experiment"]["task"]["network"] == {"kind": "package", "name": f"{NAME}:Tables", "sha256": None}
    assert fedbac.resume(tmp_path / "run", **given).records == run.records


def test_the_hash_is_of_what_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package in two places it is the first that counts; and no name of a folder hides code."""
    parts = [tmp_path / name / "twoparts" for name in ("first", "second")]
    for part in parts:
        part.mkdir(parents=True)
        (part / "net.py").write_text("def mine(): pass\n")
        monkeypatch.syspath_prepend(part.parent)
    seen = [fingerprint("twoparts")]
    for part, file in ((parts[1], "net.py"), (parts[0], "__pycache__more/code.py")):
        (part / file).parent.mkdir(exist_ok=True)
        (part / file).write_text("def other(): pass\n")
        seen.append(fingerprint("twoparts"))
    assert len(set(seen)) == 3
    assert imported("twoparts.net:other", "task.network").__name__ == "other"


def test_code_behind_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports what is in a linked folder, which no hash of the package would cover."""
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("linked", "elsewhere", ".hidden"):
        (tmp_path / place).mkdir()
    (tmp_path / "linked" / "__init__.py").write_text("")
    (tmp_path / "linked" / ".git").symlink_to(tmp_path / ".hidden")
    fingerprint("linked")
    (tmp_path / "linked" / "nets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PackageError, match="linked/nets is a link; put the folder itself into the package"):
        fingerprint("linked")
