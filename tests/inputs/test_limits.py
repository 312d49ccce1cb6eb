"""Sizes end where memory or a kernel's number types do, and names are plain."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import fedbac
from fedbac import engines, models
from fedbac.aggregation import Bucketing, NearestNeighbours, OneVoice
from fedbac.clustering import Fixed
from fedbac.config.columns import (
    AGGREGATION,
    CLUSTERING,
    LINKS,
    PERSONALIZATION,
    SELECTION,
    SHARING,
    STEP,
    TOPOLOGY,
    Links,
)
from fedbac.config.experiment import Runtime, Task
from fedbac.core.codecs import EightBits, TopK
from fedbac.core.liars import Liars
from fedbac.core.requests import Trainer
from fedbac.core.settings import Settings
from fedbac.data import Augment, Noise, Partition, toy
from fedbac.engines import simulator
from fedbac.errors import ConfigError, NotEnoughMemoryError
from fedbac.federation import assemble
from fedbac.local import VmapTrainer
from fedbac.personalization import Shared
from fedbac.runs.configure import Inputs
from fedbac.runs.folders import shortened
from fedbac.runs.store import RunFolder
from fedbac.runs.sweep import grid
from fedbac.steps import Adam
from tests.support import federate, play

CHOICES = (TOPOLOGY, CLUSTERING, SELECTION, SHARING, PERSONALIZATION, AGGREGATION, STEP, LINKS)
BUILTIN = [cls for choice in CHOICES for cls in choice.builtin]
GROUPS = [Task, fedbac.Training, fedbac.Measurement, fedbac.Evaluation, fedbac.Experiment, Runtime]
GROUPS += [Partition, Noise, Augment, Liars, NearestNeighbours, Bucketing, OneVoice]
GROUPS += [models.LeNet5, models.Perceptron, *BUILTIN]


def _numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_numeric(part) for part in get_args(annotation))


@pytest.mark.parametrize("cls", GROUPS, ids=lambda cls: cls.__name__)
def test_no_number_is_without_limit(cls: type[Settings]) -> None:
    """Also of settings that are to come: 10^40 is none of them, and neither is infinity."""
    for name, field in cls.model_fields.items():
        if not _numeric(field.annotation):
            continue
        for value in (10**40, -(10**40), math.inf, math.nan, 1e300, [10**40], [10**40] * 4):
            with pytest.raises(ValidationError):
                cls.model_validate({name: value})


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("task.num_edges=1000000000", "less than or equal to 10000"),
        ("task.clients_per_edge=1000000", "12,000,000 clients; there may be 1,000,000"),
        ("task.training.batch_size=18446744073709551617", "less than or equal to 1000000"),
        ("task.augment={crop_padding: 1000}", "less than or equal to 127"),
        ("task.training.learning_rate=1e300", "less than or equal to"),
        ("seed=9223372036854775808", "less than 9223372036854775808"),
        ("task.network.width=1000", "less than or equal to 100"),
        ("method.name=/tmp/x", "no plain name"),
        ("method.name=..", "no plain name"),
        ("method.name='a\tb'", "no plain name"),
        ('method.name="\\0"', "no plain name"),
        ('method.name="\\e[31m"', "'\\x1b[31m' is no plain name"),
        ("method.name='[/bold]'", "no plain name"),
        (f"method.name={'a' * 256}", "at most 100 characters"),
        ("task.dataset=../x", "no plain name"),
    ],
)
def test_a_value_past_its_limit_is_refused_with_the_limit(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fedbac.configure("fed-bac", "demo", settings=[setting])
    assert said in str(caught.value)
    assert setting.partition("=")[0].rpartition(".")[2] in str(caught.value)


def test_names_of_every_day_are_plain() -> None:
    for name in ("fed-bac", "ifca-edges, K = M", "my method (2)", "Größe α=0.5", "x_1+y@2"):
        assert fedbac.Method(name=name).name == name


def test_python_s_arguments_are_held_to_the_same() -> None:
    wrong: dict[str, Any] = {"rounds": 10**9, "seed": -1, "workers": 10**6, "memory_gib": 1e300, "method": []}
    for name, value in wrong.items():
        with pytest.raises(ConfigError):
            fedbac.run(**{"method": "fed-bac", "task": "demo", name: value})
    with pytest.raises(ConfigError, match="no plain name"):
        fedbac.Dataset.from_arrays("../x", np.zeros((2, 4), np.float32), np.arange(2), np.zeros((2, 4)), np.arange(2))


@pytest.mark.parametrize(
    ("method", "clients", "said"),
    [
        ("fed-bac", 1, "pair of an edge and a cluster, 9,000,000 here; there may be 4,000,000: use fewer edges or"),
        (
            "ifca",
            300,
            "pair of a client and a cluster, 4,500,000 here; there may be 4,000,000: use fewer clien",
        ),
        ("cfl-edges", 1, "'cosine_splits' compares the updates of every pair of edges, 9,000,000 here"),
        ("cfl", 300, "every pair of clients, 810,000,000,000 here; .* use at most 2,000 clients, or"),
        ("pfedgraph-edges", 1, "method.sharing 'similar' compares the updates of every pair of edges, 9,000,000 here"),
        ("hierfavg", 300, None),
    ],
)
def test_pairs_of_which_a_policy_keeps_numbers_are_limited(method: str, clients: int, said: str | None) -> None:
    settings = ["task.num_edges=3000", f"task.clients_per_edge={clients}"]
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        fedbac.configure(method, "demo", settings=settings)


def test_a_network_is_measured_before_it_is_made() -> None:
    settings = ["task.network={kind: mlp, hidden: [100000, 100000]}", "task.partition.min_edge_test=1"]
    with pytest.raises(ConfigError, match=r"it has 10,0\d\d,\d{3},\d{3} weights"):
        fedbac.run("hierfavg", "demo", dataset=toy(), settings=settings)


@pytest.mark.parametrize(("method", "fits"), [("hierfavg", True), ("ditto", False), ("fed-bac", False)])
def test_networks_that_do_not_fit_are_refused_before_they_are_made(
    method: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "free_memory", lambda device: 5 * 4 * (64 * 32 + 32 + 32 * 10 + 10))
    monkeypatch.setattr("fedbac.runs.replay.start", lambda *_: pytest.fail("they were made") if not fits else 1 / 0)
    settings = ["task.network={kind: mlp}", "task.partition.min_edge_test=1", "task.partition.min_client_samples=1"]
    settings += ["task.num_edges=8", "task.clients_per_edge=2"]
    with pytest.raises(ZeroDivisionError if fits else NotEnoughMemoryError):
        fedbac.run(method, "demo", dataset=toy(), settings=settings)


class Scaled(nn.Sequential):
    """A network with statistics, a counter, and a buffer that is in no state_dict."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        self.register_buffer("scale", torch.ones(3), persistent=False)


COMPRESSED = Links(client_up=TopK(), client_down=EightBits(), cloud_up=TopK(), cloud_down=EightBits())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hierfavg", {}),
        ("ditto", {"links": COMPRESSED}),
        ("fed-bac", {"links": COMPRESSED}),
        ("ifca", {"clustering": Fixed(num_clusters=None)}),  # as many clusters as clients
        ("scaffold", {}),  # parts of no network
        ("fed-bac", {"step": Adam()}),
    ],
)
def test_room_is_asked_for_what_a_run_keeps_between_rounds(name: str, changes: dict[str, Any]) -> None:
    data, shards, _ = fedbac.data.planted_groups(3, 2, 2, train=12, validation=2, test=12)
    training = fedbac.Training(epochs=1, batch_size=6, momentum_state="persist")
    method = fedbac.method(name, fedbac.task("demo")).model_copy(update=changes)
    played = play(method, data, shards, training=training, num_rounds=1, user=Scaled)
    kept = [played.end.parts, *played.end.momentum_M, *(p for memory in played.end.links_M for p in memory.values())]
    kept += played.end.steps.values()
    values = [value for parts in kept for params in (parts or {}).values() for value in params.values()]
    assert simulator.kept_bytes(played.experiment, played.federation) == sum(value.nbytes for value in values)


def test_who_compresses_links_is_told_that_they_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "free_memory", lambda device: 0)
    for setting, said in (
        (["method.links.client_up=top_k"], r"method.links \(client_up\).*or no method.links$"),
        ([], "$"),
    ):
        settings = ["task.network={kind: mlp}", "task.partition.min_edge_test=1", *setting]
        with pytest.raises(NotEnoughMemoryError, match=said) as caught:
            fedbac.run("hierfavg", "demo", dataset=toy(), settings=settings)
        assert ("links" in str(caught.value)) == bool(setting)


def test_room_is_asked_for_what_an_aggregation_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients that an edge selects, and what they changed; the mean holds nobody."""
    data, shards, _ = fedbac.data.planted_groups(3, 4, 2, train=12, validation=2, test=12)
    one = 4 * (8 * 32 + 32 + 32 * data.num_classes + data.num_classes)
    for rule, held in (("mean", 0), ("median", 2 * 3 * 2 * one)):
        settings = ["task.network={kind: mlp}", f"method.aggregation={rule}", "method.selection.fraction=0.5"]
        experiment = fedbac.configure("hierfavg", "demo", settings=settings, inputs=Inputs(data, shards))
        federation = assemble(experiment, dataset=data, shards=shards)
        assert simulator.held_bytes(experiment, federation) == held
        monkeypatch.setattr(simulator, "free_memory", lambda device: one + 1)
        with pytest.raises(NotEnoughMemoryError, match=r"or method\.aggregation=mean") if held else nullcontext():
            simulator.check_room(experiment, federation)


def test_a_batch_has_room_for_what_clients_hold_not_for_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    training = fedbac.Training(batch_size=1_000_000, epochs=1)
    data, shards, _ = fedbac.data.planted_groups(2, 2, 2, train=10, validation=2, test=12)
    federation = federate(data, shards, training=training)
    assert federation.examples.batch_room == 1024

    def vmapped(*words: Any) -> Trainer:
        return VmapTrainer(federation.network, Shared(), federation.examples, torch.device("cpu"))

    monkeypatch.setattr(engines, "make_trainer", vmapped)
    settings = ["task.training.batch_size=1000000", "task.network={kind: mlp}"]
    done = fedbac.run("hierfavg", "demo", rounds=1, dataset=data, shards=shards, settings=settings)
    assert done.records[0]["failed"] == []


def test_folders_have_names_that_file_systems_take(tmp_path: Path) -> None:
    assert shortened("a" * 200) == "a" * 200
    first, second = shortened("é" * 300 + "1"), shortened("é" * 300 + "2")
    assert first != second
    assert len(first.encode()) <= 200
    long = "task.targets=[" + ", ".join(f"0.{n}" for n in range(100, 190)) + "]"
    (point,) = grid(["ifca-edges"], "demo", [], [f"'{long}'"], [0], None, [], tmp_path)
    point.folder.path.mkdir()
    for name in ("a\0b", "a" * 256):
        with pytest.raises(ConfigError, match="a folder's name"):
            RunFolder(tmp_path / name)


def test_a_sweep_has_a_number_of_runs_that_ends(tmp_path: Path) -> None:
    axes = [f"{path}={','.join(map(str, range(1, 102)))}" for path in ("task.rounds", "task.training.epochs")]
    with pytest.raises(ConfigError, match="10,201 runs; a sweep has at most 10,000"):
        grid(["ifca-edges"], "demo", axes, [], [0], None, [], tmp_path)
    with pytest.raises(ConfigError, match="close its quotes"):
        grid(["ifca-edges"], "demo", [], ["task.rounds='1"], [0], None, [], tmp_path)
