"""The models of a run predict as the evaluation says they do, are exported, and come back from a folder."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import fedbac
from fedbac import METHODS, PERSONALIZATION, CheckpointError, ConfigError, Dataset
from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.federation import assemble
from fedbac.runs.models import Predictor
from fedbac.runs.store import RunFolder
from tests.support import Regular
from tests.unit.tiny import tiny_run, tiny_task

SCHEMES = {
    "hierfavg": "shared",
    "fedavg": "shared",
    "ifca-edges": "per_cluster",
    "ifca": "per_cluster",
    "phe-fl": "per_cluster",
    "fed-bac": "additive",
    "fedbac-plus": "additive",
    "ditto": "personal",
    "ditto-edges": "personal",
    "apfl": "interpolated",
    "apfl-edges": "interpolated",
    "fedrep": "personal_head",
    "fedrep-edges": "personal_head",
    "fedbabu-edges": "late_head",
    "fedrod-edges": "two_heads",
    "fedala-edges": "adaptive_start",
    "scaffold": "control_variates",
    "feddyn": "dynamic_pull",
    "mtgc": "group_corrections",
    "pfedme": "moreau_envelope",
    "pfedgraph-edges": "directed",
}
SCHEMES_AGAIN = {"phe-fl", "fedbac-plus", "ditto-edges", "apfl-edges", "fedrep-edges"}
"""Other methods of a scheme."""


FIVE: dict[str, Any] = {"num_edges": 5, "clients_per_edge": 3}


def images(seed: int = 0) -> Dataset:
    """Return images, which are normalized; of every class some are brighter."""
    rng = np.random.default_rng(seed)
    y_train, y_test = rng.integers(0, 4, 600), rng.integers(0, 4, 150)
    x = [(rng.integers(0, 120, (len(y), 1, 8, 8)) + 30 * y[:, None, None, None]) for y in (y_train, y_test)]
    return Dataset.from_arrays("images", x[0].astype(np.uint8), y_train, x[1].astype(np.uint8), y_test)


def correct(model: nn.Module, data: Dataset, rows: Any) -> int:
    with torch.no_grad():
        said = model(torch.from_numpy(data.x_test[rows])).argmax(1)
    return int((said == torch.from_numpy(data.y_test[rows])).sum())


def accuracies(run: fedbac.Run, data: Dataset) -> list[float]:
    """Return what the models get right of the test data of every edge, raw as they are in the data set."""
    experiment = parse(Experiment, run.config["experiment"])
    federation = assemble(experiment, dataset=data, network=None)
    shards, shares = federation.shards, federation.examples.client_test
    found = []
    for edge, test in enumerate(shards.test):
        if run.models.own:
            with pytest.raises(ConfigError, match=r"own; give client=0 to 14 \(--client\), and no edge"):
                run.model()
            with pytest.raises(ConfigError, match="every client has a model of its own; give client="):
                run.model(edge=edge)
            right = sum(correct(run.model(client=client), data, shares[client]) for client in shards.clients[edge])
        else:
            right = correct(run.model(edge=edge), data, test)
        found.append(right / len(test))
    return found


def test_every_scheme_has_its_preset() -> None:
    others = set(PERSONALIZATION.kinds) - {"adapters", "heads_together"}  # of a network of the user's; no preset's
    assert {METHODS[name](fedbac.task("demo")).personalization.kind for name in SCHEMES} == others
    assert set(SCHEMES.values()) == others


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name in SCHEMES_AGAIN else ()) for name in SCHEMES],
)
def test_models_are_as_right_as_the_last_record_says(name: str) -> None:
    data = images()
    run = tiny_run(name, task=tiny_task(rounds=2, **FIVE), dataset=data)
    assert accuracies(run, data) == pytest.approx(run.records[-1]["accuracy_per_edge"], abs=1e-12)


@pytest.mark.parametrize("point", ["pre_reassign", "post_reassign"])
def test_models_are_those_of_the_clusters_by_which_edges_were_judged(point: str) -> None:
    data = images()
    run = tiny_run(
        "fed-bac",
        "method.clustering.period=1",
        f"evaluation.point={point}",
        task=tiny_task(rounds=1, **FIVE),
        dataset=data,
    )
    record = run.records[-1]
    assert record["assignment"] != record["assignment_next"], "else both points are one"
    assert accuracies(run, data) == pytest.approx(record["accuracy_per_edge"], abs=1e-12)


def test_a_model_comes_back_from_a_finished_folder(tmp_path: Path) -> None:
    run = fedbac.run(
        "fed-bac",
        "demo",
        rounds=1,
        out=tmp_path,
        device="cpu",
        settings={"task.network": "mlp", "task.training.epochs": 1},
    )
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 1, 28, 28)).astype(np.uint8))
    loaded = fedbac.load(tmp_path).model(edge=0)
    assert torch.equal(loaded(x), run.model(edge=0)(x))
    assert not loaded.training
    other = run.model(edge=1)
    assert not torch.equal(other(x), loaded(x))
    other.load_state_dict(loaded.state_dict())
    assert torch.equal(other(x), loaded(x))
    run.models.parts.clear()  # what is in memory is not what a loaded run has
    assert fedbac.load(tmp_path).model(client=3)(x).shape == (5, 10)


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    data = images()
    own = fedbac.run(
        "hierfavg", tiny_task(rounds=1), dataset=data, network=lambda: Regular(), out=tmp_path, workers=1, device="cpu"
    )
    loaded = fedbac.load(tmp_path)
    with pytest.raises(ConfigError, match=r"were given in Python; give them again there with dataset="):
        loaded.model(edge=0)
    with pytest.raises(ConfigError, match=r"network of your own; pass it again in Python with network="):
        loaded.model(edge=0, dataset=data)
    with pytest.raises(fedbac.RunFolderError, match=r"data\.sha256"):
        loaded.model(edge=0, dataset=images(seed=1), network=lambda: Regular())
    found = loaded.model(edge=0, dataset=data, network=lambda: Regular())
    x = torch.from_numpy(data.x_test)
    assert torch.equal(found(x), own.model(edge=0)(x))
    RunFolder(tmp_path).drop_checkpoints()
    with pytest.raises(
        CheckpointError, match=r"no checkpoint to take a model from .*; play it: fedbac run .* --out NEW"
    ):
        fedbac.load(tmp_path).model(edge=0, dataset=data, network=lambda: Regular())


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({}, "model: edge= (--edge) is not given; there are edges 0 to 1"),
        ({"edge": 5}, "edge=5: there are edges 0 to 1"),
        ({"client": -1}, "client=-1: there are clients 0 to"),
        ({"edge": 0, "client": 0}, "not both"),
    ],
)
def test_whose_model_must_be_said(chosen: dict[str, Any], message: str) -> None:
    run = tiny_run("hierfavg", task=tiny_task(rounds=1))
    with pytest.raises(ConfigError, match=re.escape(message)):
        run.model(**chosen)


@pytest.fixture(scope="module")
def exported() -> fedbac.Run:
    return tiny_run("fed-bac", task=tiny_task(rounds=1), dataset=images())


def normalization(file: Path) -> tuple[Tensor, Tensor]:
    """Return mean and std as the metadata of a file have them."""
    with safe_open(file, "pt") as opened:
        said = json.loads(opened.metadata()["normalization"])
    return torch.tensor(said["mean"]).view(-1, 1, 1), torch.tensor(said["std"]).view(-1, 1, 1)


@pytest.mark.parametrize(("name", "whose"), [("ifca-edges", {"edge": 3}), ("fedrep", {"client": 2})])
def test_ones_own_class_loads_the_weights_and_says_what_the_model_says(
    name: str, whose: dict[str, Any], tmp_path: Path
) -> None:
    data = images()
    run = tiny_run(name, task=tiny_task(rounds=1, **FIVE), dataset=data, network=lambda: Regular())
    file, mine, x = run.save_model(tmp_path / "edge3.safetensors", **whose), Regular(), torch.from_numpy(data.x_test)
    mine.load_state_dict(load_file(file))
    mean, std = normalization(file)
    with torch.no_grad():
        found, expected = mine((x.float() / 255 - mean) / std), run.model(**whose)(x)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    assert {run.save_model(file, **whose).read_bytes() for _ in range(9)} == {file.read_bytes()}, "one order of keys"


def test_weights_of_several_networks_have_a_prefix_each(exported: fedbac.Run, tmp_path: Path) -> None:
    file, model = exported.save_model(tmp_path / "edge.safetensors", edge=1), exported.model(edge=1)
    assert load_file(file).keys() == model.state_dict().keys()
    assert {name.partition(".")[0] for name in load_file(file)} == {"global_network", "cluster_network", "mean", "std"}
    for found, expected in zip(normalization(file), (model.mean, model.std), strict=True):
        assert expected is not None
        assert torch.equal(found, expected)


class Branching(nn.Module):
    """What it does depends on the data, which no exported program could hold."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found if x.sum() > 0 else 2 * found


@pytest.mark.full
def test_a_network_that_cannot_be_exported_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run = tiny_run("hierfavg", task=tiny_task(rounds=1), network=Branching)
    with pytest.raises(ConfigError, match=r"^network: torch\.export cannot follow it \(.*\), .*as \.safetensors$"):
        run.save_model(tmp_path / "edge.pt2", edge=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_model_is_saved_as_weights_and_as_a_program(exported: fedbac.Run, tmp_path: Path) -> None:
    model = exported.model(edge=1)
    weights = load_file(exported.save_model(tmp_path / "edge.safetensors", edge=1))
    fresh = exported.model(edge=0)
    fresh.load_state_dict(weights)
    x = torch.from_numpy(images().x_test)
    assert torch.equal(fresh(x), model(x))
    program = torch.export.load(exported.save_model(tmp_path / "edge.pt2", edge=1)).module()
    assert torch.allclose(program(x), model(x), atol=1e-6)
    with pytest.raises(ConfigError, match=r"\.safetensors, \.pt2, \.onnx"):
        exported.save_model(tmp_path / "edge.pickle", edge=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edge.pt2", "edge.safetensors"]


def test_a_model_is_saved_for_other_runtimes(exported: fedbac.Run, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    evaluator = pytest.importorskip("onnx.reference")
    file = exported.save_model(tmp_path / "edge.onnx", edge=1)
    onnx.checker.check_model(str(file))
    x = images().x_test
    (found,) = evaluator.ReferenceEvaluator(str(file)).run(None, {"examples": x})
    expected = exported.model(edge=1)(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)


def test_a_scheme_of_ones_own_may_name_its_networks_as_it_likes() -> None:
    names = {"items": nn.Linear(2, 2), "a.b": nn.Linear(2, 2)}

    class Odd:
        kind = "odd"
        terms = ("items", "a.b")

    model = Predictor(Odd(), names, None)  # type: ignore[arg-type]
    x = torch.ones(3, 2, dtype=torch.float64)
    assert torch.equal(model(x), names["items"](x.float()) + names["a.b"](x.float()))
    assert set(model.state_dict()) == {f"{name}_network.{w}" for name in ("items", "a_b") for w in ("weight", "bias")}


def test_floats_are_used_as_they_are() -> None:
    pixels = images()
    data = Dataset.from_arrays("floats", pixels.x_train / 60, pixels.y_train, pixels.x_test / 60, pixels.y_test)
    run = tiny_run("hierfavg", task=tiny_task(rounds=2), dataset=data)
    assert not dict(run.model(edge=0).named_buffers())
    assert accuracies(run, data) == pytest.approx(run.records[-1]["accuracy_per_edge"], abs=1e-12)
