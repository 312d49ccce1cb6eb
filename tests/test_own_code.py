"""Networks and data that are named: files, packages and their entry points, the same in Python and on the command."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedbac
from fedbac import data, packages
from fedbac.errors import ConfigError, DataNotFoundError, RunFolderError
from fedbac.models import KINDS
from fedbac.runs.stopping import Stop
from fedbac.runs.store import RunFolder
from tests.covering import first
from tests.test_cli import Shell

CODE = """
from dataclasses import dataclass
import numpy as np
from torch import nn
from beside import WIDTH


@dataclass
class Sizes:
    hidden: "int" = WIDTH


class Net(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*shape, Sizes().hidden), nn.ReLU(), nn.Linear(WIDTH, num_classes))

    def forward(self, x):
        return self.layers(x)


def fixed():
    return nn.Linear(3, 4)


def strange(width):
    return nn.Linear(3, width)


def load():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (3 * np.eye(4)[y][:, :3] + rng.normal(size=(400, 3))).astype(np.float32)
    return {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:], "y_test": y[300:]}


def few():
    return {"x_train": load()["x_train"], "labels": load()["y_train"]}
"""
ENTRIES = "[fedbac.networks]\ntheir-net = their_code:Net\n[fedbac.datasets]\ntheir-data = their_code:load\n"
SMALL = [
    "--set",
    "task.partition.min_edge_test=5",
    "--set",
    "task.num_edges=3",
    "--set",
    "task.clients_per_edge=2",
    "--rounds",
    "2",
    "--device",
    "cpu",
]
SETTINGS = {"task.num_edges": 3, "task.clients_per_edge": 2, "task.partition.min_edge_test": 5}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have the file in the working folder, nothing allowed, and afterwards all as before."""
    (tmp_path / "nets.py").write_text(CODE)
    (tmp_path / "beside.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(packages.VARIABLE, "")
    monkeypatch.setattr(packages, "_imported", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("beside", "their_code"):
        sys.modules.pop(name, None)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


def run(name: str, **options: object) -> fedbac.Run:
    options = {"rounds": 2, "settings": SETTINGS, "device": "cpu", "workers": 1, "progress": False} | options
    return fedbac.run(name, **options)  # type: ignore[arg-type]


def test_a_file_and_the_same_objects_give_the_same_numbers(here: Path) -> None:
    named = run("fed-bac", network="nets.py:Net", dataset="nets.py:load")
    code = packages.imported("nets.py:Net", "network")
    arrays = packages.imported("nets.py:load", "dataset")()
    handed = run("fed-bac", network=code, dataset=fedbac.Dataset.from_arrays("mine", *arrays.values()))
    np.savez(here / "mine.npz", **arrays)
    in_file = run("fed-bac", network=lambda shape, num_classes: code(shape, num_classes), dataset="mine.npz")
    accuracies = {tuple(record["accuracy"] for record in one.records) for one in (named, handed, in_file)}
    assert len(accuracies) == 1
    assert in_file.config["experiment"]["task"]["dataset"] == "mine.npz"


@pytest.mark.parametrize(
    ("x_train", "problem"),
    [
        ("np.ma.masked_less(np.random.rand(9, 3), 0.5)", "x_train is masked in places"),
        ("[np.zeros((8, 8)), np.zeros((9, 9))]", "x_train is no array .*images of one size"),
    ],
)
def test_strange_arrays_of_a_function_are_named(here: Path, x_train: str, problem: str) -> None:
    rest = "'y_train': np.zeros(9, int), 'x_test': np.zeros((9, 3)), 'y_test': np.zeros(9, int)"
    (here / "odd.py").write_text(f"import numpy as np\ndef load():\n    return {{'x_train': {x_train}, {rest}}}\n")
    with pytest.raises(fedbac.Error, match=f"odd.py:load cannot be used: {problem}"):
        run("hierfavg", dataset="odd.py:load")


def test_worker_processes_have_the_code_of_a_file(here: Path) -> None:
    one = run("hierfavg", network="nets.py:Net", dataset="nets.py:load", trainer="torch")
    two = run("hierfavg", network="nets.py:Net", dataset="nets.py:load", trainer="torch", workers=2)
    assert [record["accuracy"] for record in one.records] == [record["accuracy"] for record in two.records]


@pytest.mark.full
def test_processes_of_a_sweep_have_the_code_of_a_file(here: Path) -> None:
    one = run("hierfavg", network="nets.py:Net", dataset="nets.py:load", trainer="torch")
    several = fedbac.sweep(
        "hierfavg", network="nets.py:Net", dataset="nets.py:load", rounds=2, settings=SETTINGS, out="sweep", jobs=2,
        device="cpu", trainer="torch", seed=[0, 1], progress=False,
    )  # fmt: skip
    assert [record["accuracy"] for record in one.records] == [record["accuracy"] for record in several[0].records]


def test_commands_take_names_and_a_resume_wants_the_same_file(here: Path, shell: Shell) -> None:
    np.savez(here / "mine.npz", **packages.imported("nets.py:load", "dataset")())
    shell("run", "hierfavg", "--network", "nets.py:Net", "--data", "mine.npz", *SMALL)
    folder = here / "runs" / "hierfavg-mine-seed0"
    assert RunFolder(folder).finished()
    os.environ[packages.VARIABLE] = ""  # as a new process would have it
    refused = "task.network: nets.py:Net is code of the file nets.py, which is not allowed here; if you trust it, start"
    assert refused in " ".join(shell("resume", str(folder), code=2).split())
    assert "the same bits" in shell("verify", str(folder), "--allow", "nets.py")
    (here / "nets.py").write_text(CODE + "\n# another\n")
    said = " ".join(shell("resume", str(folder), "--allow", "nets.py", code=2).split())
    assert "the configuration has changed since the run began (code.nets.py:" in said
    with pytest.raises(RunFolderError, match=r"code\.nets\.py"):
        fedbac.resume(folder, network="nets.py:Net")
    shell("compare", "hierfavg", "fedavg", "--network", "mlp", "--data", "mine.npz", "--out", "both", *SMALL)
    both = fedbac.load("both")
    assert [(one.name, one.config["experiment"]["task"]["network"]["kind"]) for one in both] == [
        ("hierfavg", "mlp"),
        ("fedavg", "mlp"),
    ]


def test_the_command_that_resumes_a_stopped_run_allows_its_code(
    here: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stop, "__init__", lambda stop: setattr(stop, "wanted", True))
    own = ["--network", "nets.py:Net", "--data", "nets.py:load"]
    said = " ".join(shell("run", "hierfavg", *own, "--out", "a", *SMALL, code=130).split())
    assert "To resume: fedbac resume a --allow nets.py, or the same command" in said


def test_the_command_writes_a_model_that_ones_own_class_loads(here: Path, shell: Shell) -> None:
    shell("run", "hierfavg", "--network", "nets.py:Net", "--data", "nets.py:load", "--out", "runs/mine", *SMALL)
    os.environ[packages.VARIABLE] = ""
    wanted = ["model", "runs/mine", "--edge", "2", "--format", "safetensors", "--out", "edge2.safetensors"]
    assert "--allow nets.py" in shell(*wanted, code=2)
    said = shell(*wanted, "--allow", "nets.py")
    assert "Written: edge2.safetensors, the model of edge 2 after round 2, unsigned: only kits sign models" in said
    mine, x = packages.imported("nets.py:Net", "network")((3,), 4), torch.randn(5, 3)
    mine.load_state_dict(load_file("edge2.safetensors"))
    assert torch.allclose(mine(x), fedbac.load("runs/mine").model(edge=2)(x), rtol=0, atol=1e-6)
    assert sorted(path.name for path in here.glob("edge2*")) == ["edge2.safetensors"], "no card is beside it"


@pytest.mark.parametrize(("form", "written"), [("pt2", "model.pt2"), ("peft", "model.peft/adapter_config.json")])
def test_the_command_writes_models_in_other_forms(form: str, written: str, here: Path, shell: Shell) -> None:
    settings = SETTINGS | {"method.personalization": "adapters", "method.personalization.target": ["*"]}
    run("hierfavg", network="nets.py:Net", dataset="nets.py:load", settings=settings, out="runs/mine", rounds=1)
    shell("model", "runs/mine", "--edge", "1", "--format", form, "--allow", "nets.py")
    assert (here / written).is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/mine", "--edge", "3"], "edge=3: there are edges 0 to 2; name one of them"),
        (["runs/mine"], "edge= (--edge) is not given; there are edges 0 to 2"),
        (["runs/mine", "--edge", "0", "--out", "a.onnx"], "--out: a.onnx must end with .pt2"),
        (["runs/mine", "--edge", "0", "--format", "peft"], "no low-rank products, so nothing for peft"),
        (
            ["runs/mine", "--verify", "a.pt2"],
            "--verify: runs/mine is a run folder, and only models of a site's kit have",
        ),
        (
            ["runs/mine", "--edge", "0", "--from", "x"],
            "--from: runs/mine is a run folder, and only models of a site's kit have",
        ),
        (["runs", "--edge", "0"], "runs: it is no run folder (no config.yaml) and no kit (no site.yaml); name one of"),
        (["runs/ditto", "--edge", "0"], "every client has a model of its own; give client=0 to 5 (--client), and no"),
        (["runs/begun", "--edge", "0"], "no checkpoint to take a model from (none was saved"),
        (["runs/begun", "--edge", "0"], "play it: fedbac resume runs/begun"),
        (["runs/handed", "--edge", "0"], "data of this run were given in Python; give them again there with dataset="),
        (["runs/built", "--edge", "0"], "network of your own; pass it again in Python with network="),
    ],
)
def test_models_that_no_command_can_write(words: list[str], said: str, here: Path, shell: Shell) -> None:
    name = Path(words[0]).name
    inputs: dict[str, object] = {"network": "nets.py:Net", "dataset": "nets.py:load"}
    handed: dict[str, dict[str, object]] = {
        "handed": {
            "dataset": fedbac.Dataset.from_arrays("mine", *packages.imported("nets.py:load", "data")().values())
        },
        "built": {"network": lambda: nn.Linear(3, 4)},
    }
    method, out = "ditto" if name == "ditto" else "hierfavg", words[0] if name != "runs" else "runs/mine"
    run(method, out=out, rounds=1, **inputs | handed.get(name, {}))
    if name == "begun":
        for file in ("rounds.jsonl", "summary.json"):
            (here / out / file).unlink()
        RunFolder(out).drop_checkpoints()
    assert said in " ".join(shell("model", *words, "--allow", "nets.py", code=2).split())


def test_comparisons_name_folders_alike(here: Path, shell: Shell) -> None:
    np.savez(here / "mine.npz", **packages.imported("nets.py:load", "dataset")())
    seeds = ["--seed", "0", "--seed", "1"]
    shell("compare", "hierfavg", "--data", "mine.npz", "--network", "mlp", "--out", "typed", *seeds, *SMALL)
    fedbac.compare(
        ["hierfavg"], dataset="mine.npz", network="mlp", seed=[0, 1], out="called", rounds=2, settings=SETTINGS,
        device="cpu", progress=False,
    )  # fmt: skip
    names = [{path.name for path in (here / folder).iterdir() if path.is_dir()} for folder in ("typed", "called")]
    assert names[0] == names[1] == {"hierfavg-seed0", "hierfavg-seed1"}


def test_what_packages_announce_is_found_by_its_name(here: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "nets.py").rename(here / "their_code.py")
    info = here / "their_code-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-code\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(here)
    shell("run", "hierfavg", "--network", "their-net", "--data", "their-data", "--out", "run", *SMALL)
    experiment = fedbac.load("run").config["experiment"]
    assert experiment["task"]["network"]["name"] == "their_code:Net"
    os.environ[packages.VARIABLE] = ""
    assert "hierfavg" in shell("resume", "run")  # it was installed to be used, so nobody need allow it again
    assert "their-data" in shell("data", "list")
    with pytest.raises(ConfigError, match="unknown kind 'theirnet'; did you mean 'their-net'"):
        fedbac.configure("hierfavg", settings=["task.network=theirnet"])


def test_a_file_of_settings_runs_no_code(here: Path, shell: Shell) -> None:
    (here / "mine.yaml").write_text(shell("show", "hierfavg", "--network", "nets.py:fixed", "--data", "nets.py:load"))
    os.environ[packages.VARIABLE] = ""
    assert "task.dataset: nets.py:load is code of the file nets.py, which is not allowed" in " ".join(
        shell("run", "mine.yaml", *SMALL, code=2).split()
    )


@pytest.mark.parametrize(
    ("network", "dataset", "said"),
    [
        ("missing.py:Net", "nets.py:load", r"there is no file missing.py in .*; correct it"),
        ("nets.py:Nut", "nets.py:load", r"nets.py:Nut is not there \(nets.py has no Nut\)"),
        ("nets.py", "nets.py:load", r"task.network: unknown kind 'nets.py'; .* name one of yours as .*file.py:Net"),
        ("custom", "nets.py:load", r"task.network: 'custom' stands for a network that was handed over in Python"),
        ("nets.py:Sizes", "nets.py:load", r"nets.py:Sizes\(\) failed: .*must return a new nn.Module, not Sizes"),
        ("nets.py:np", "nets.py:load", r"nets.py:np is no class or function that nets.py itself defines"),
        ("nets.py:strange", "nets.py:load", r"strange takes width; it must take no arguments, or the shape"),
        ("resnet", "nets.py:load", r"resnet needs images .* has shape \[3\]"),
        ("lstm", "nets.py:load", r"lstm reads int64 tokens \[steps\], .* is numbers of shape \[3\]"),
        ("mlp", "missing.npz", r"task.dataset: there is no file missing.npz in "),
        ("mlp", "nets.py:few", r"it lacks y_train, x_test, y_test, and has x_train \[300, 3\], labels \[300\]; give"),
        ("mlp", "nosuch", r"unknown data set .* or give yours as mine.npz, or as a function that reads it"),
    ],
)
def test_mistakes_name_the_field_and_the_fix(network: str, dataset: str, said: str) -> None:
    with pytest.raises((ConfigError, DataNotFoundError), match=said):
        run("hierfavg", network=network, dataset=dataset)


def test_words_of_other_programs_are_answered(shell: Shell) -> None:
    for words, said in (
        (
            ["run", "ifca-edges", "--lr", "0.1"],
            "--lr: there is no such option; write --set task.training.learning_rate=VALUE",
        ),
        (["run", "ifca-edges", "hierfavg"], "fedbac run plays one method; for several write fedbac compare"),
        (["run", "ifca-edges", "--seed", "0,1"], "--seed 0,1: write fedbac compare METHOD --seed 0 --seed 1"),
        (["compare", "ifca-edges", "--seed=0,1"], "--seed 0,1: write --seed 0 --seed 1"),
        (
            ["run", "ifca-edges", "--set", "learning_rate=1"],
            "did you mean task.training.learning_rate or method.learning_rate",
        ),
        (
            ["run", "ifca-edges", "--data", "./nosuch"],
            "there is no such folder; name one that is there, or give yours as",
        ),
    ):
        assert said in " ".join(shell(*words, code=2).split())


ONE_EACH: dict[str, object] = {
    "task.num_edges": 2, "task.clients_per_edge": 1, "task.partition.dirichlet_server": 100.0,
    "task.partition.min_edge_test": 5,
}  # fmt: skip


def planted(kind: str) -> fedbac.Dataset:
    """Return examples whose class stands at a random place: a bright patch, or a token among others."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 240)
    if kind in ("lstm", "transformer"):
        x = rng.integers(2, 6, size=(240, 6))
        x[np.arange(240), rng.integers(0, 6, 240)] = y
    else:
        x = rng.normal(0, 0.3, size=(240, 1, 16, 16)).astype(np.float32)
        x[:, 0, 4:12, 4:12] += np.where(y == 0, -1, 1)[:, None, None]
    return fedbac.Dataset.from_arrays("planted", x[:160], y[:160], x[160:], y[160:])


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.full if kind == "resnet" else ())
        for kind in KINDS
        if kind != "smollm2"  # which is not small
    ],
)
def test_every_network_at_hand_learns(kind: str) -> None:
    torch.manual_seed(0)
    training = {"epochs": 4, "batch_size": 16, "learning_rate": 0.005, "optimizer": {"kind": "adamw"}}
    settings = ONE_EACH | {f"task.training.{name}": value for name, value in training.items()}
    found = run("hierfavg", network=kind, dataset=planted(kind), settings=settings)
    assert found.records[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("kind", first(1, ["lstm", "transformer"]))
def test_sequences_are_foretold(kind: str) -> None:
    """Of a row that counts up, modulo 5, the next number follows from the last; nothing after it may be looked at."""
    x = (np.arange(8) + np.arange(100)[:, None]) % 5
    rows = fedbac.Dataset.from_arrays("rows", x[:80], (x[:80] + 1) % 5, x[80:], (x[80:] + 1) % 5)
    training = {"epochs": 5, "batch_size": 8, "learning_rate": 0.003, "optimizer": {"kind": "adamw"}}
    settings = ONE_EACH | {"task.loss": "next_token"} | {f"task.training.{k}": value for k, value in training.items()}
    found = run("hierfavg", network=kind, dataset=rows, rounds=4, settings=settings)
    assert found.records[-1]["accuracy"] > 0.9
    network = found.model(edge=0, dataset=rows)
    changed = torch.from_numpy(x[:1].copy())
    changed[:, -1] = (changed[:, -1] + 1) % 5
    before = network(torch.from_numpy(x[:1].copy()))[:, :-1]
    torch.testing.assert_close(network(changed)[:, :-1], before)


def test_named_data_are_looked_for_in_the_folder_too(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    np.savez(elsewhere / "mine.npz", **packages.imported("nets.py:load", "dataset")())
    assert len(data.load("mine.npz", elsewhere).y_train) == 300
