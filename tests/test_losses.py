"""Numbers and tokens: other losses than cross-entropy, by loops of their own, on every trainer that knows them."""

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedbac
from fedbac.core.requests import Evaluate, Train
from fedbac.data import Shards
from fedbac.errors import ConfigError
from fedbac.federation import Federation, assemble
from fedbac.local import LoopTrainer, VmapTrainer
from fedbac.losses import IGNORED, NextToken, SquaredError
from fedbac.personalization import Shared
from fedbac.runs.configure import Inputs, configure
from tests.support import distance

RNG = np.random.default_rng(5)
SLOPE = RNG.normal(size=(6, 2))
X = RNG.normal(size=(80, 6)).astype(np.float32)
NUMBERS = fedbac.Dataset.from_arrays("lines", X[:60], X[:60] @ SLOPE, X[60:], X[60:] @ SLOPE)
TEXT = RNG.integers(0, 7, size=(80, 9))
NEXT = np.where(RNG.random((80, 8)) < 0.2, IGNORED, TEXT[:, 1:])
TOKENS = fedbac.Dataset.from_arrays("text", TEXT[:60, :-1], NEXT[:60], TEXT[60:, :-1], NEXT[60:], num_classes=7)
SHARDS = Shards(
    train=tuple(np.array_split(np.arange(60), 4)),
    validation=tuple(np.zeros(0, dtype=np.int64) for _ in range(4)),
    test=tuple(np.array_split(np.arange(20), 2)),
    clients=(range(2), range(2, 4)),
)
SETTINGS: dict[str, Any] = {"task.training.epochs": 2, "task.training.batch_size": 8, "task.training.clip_norm": None}


class Speaker(nn.Module):
    """Predicts every next token from this one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of shape [batch, tokens, 7]."""
        logits: torch.Tensor = self.out(torch.tanh(self.embed(x)))
        return logits


CASES = [
    ("squared_error", NUMBERS, lambda: nn.Linear(6, 2)),
    ("next_token", TOKENS, Speaker),
]


def by_hand(kind: str, output: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, float]]:
    """Return the loss of every example, and how right it is, one after another."""
    found = []
    for z, wanted in zip(output, y, strict=True):
        if kind == "squared_error":
            found.append((((z - wanted) ** 2).sum() / len(z), float(max(abs(z - wanted)) <= 1.0)))
            continue
        places = [t for t in range(len(wanted)) if wanted[t] != IGNORED]
        losses = [torch.logsumexp(z[t], 0) - z[t, wanted[t]] for t in places]
        right = [float(z[t].argmax() == wanted[t]) for t in places]
        nothing = (z.sum() * 0, 0.0)
        found.append((torch.stack(losses).mean(), float(np.mean(right))) if places else nothing)
    return found


def setting(kind: str, dataset: fedbac.Dataset, network: Any) -> Federation:
    inputs = Inputs(dataset=dataset, shards=SHARDS, network=network)
    experiment = configure("hierfavg", settings=SETTINGS | {"task.loss": kind}, inputs=inputs)
    return assemble(experiment, dataset=dataset, shards=SHARDS, network=network)


@pytest.mark.parametrize(("kind", "dataset", "network"), CASES)
@pytest.mark.parametrize("path", ["loop", "vmap"])
def test_trainers_equal_a_plain_loop(path: str, kind: str, dataset: fedbac.Dataset, network: Any) -> None:
    federation = setting(kind, dataset, network)
    examples, template = federation.examples, federation.network
    trainer: Any = LoopTrainer(template, Shared(), examples)
    if path == "vmap":
        trainer = VmapTrainer(template, Shared(), examples, torch.device("cpu"))
    start = Shared().init(federation.build, {"cloud": 1})
    row_C = {"global": np.zeros(2, dtype=np.int64)}
    (trained,) = trainer.train([Train((1, 3), start, row_C, round=1, edge_round=0, learning_rate=0.1)])
    for place, client in enumerate((1, 3)):
        module = copy.deepcopy(template)
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
        seen = []
        for order in examples.visits(client, 1, 0, 2):
            for batch in (order[i : i + 8] for i in range(0, order.size, 8)):
                x, y = (torch.from_numpy(a[batch]) for a in (dataset.x_train, dataset.y_train))
                each = torch.stack([loss for loss, _ in by_hand(kind, module(x), y)])
                optimizer.zero_grad()
                each.mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                seen += each.tolist()
        mine = {name: value[place] for name, value in trained.parts_C["global"].items()}
        assert distance({"a": mine}, {"a": dict(module.state_dict())}) < 1e-5
        assert trained.loss_C[place] == pytest.approx(np.mean(seen), abs=1e-5)
    (measured,) = trainer.evaluate([Evaluate(start, {"global": np.zeros(1, dtype=np.int64)}, "test", (0, 1), "edge")])
    for edge, group in enumerate(SHARDS.test):
        x, y = (torch.from_numpy(a[group]) for a in (dataset.x_test, dataset.y_test))
        with torch.no_grad():
            told = by_hand(kind, template(x), y)
        assert measured.loss_VG[0, edge] == pytest.approx(np.mean([float(loss) for loss, _ in told]), abs=1e-5)
        assert measured.accuracy_VG[0, edge] == pytest.approx(np.mean([right for _, right in told]), abs=1e-6)


def test_a_line_is_learned_by_a_clustered_method_and_given_back_as_a_model() -> None:
    settings = SETTINGS | {"task.loss": "squared_error", "task.network.kind": "mlp", "task.network.hidden": []}
    settings |= {"task.training.learning_rate": 0.05, "task.loss": {"kind": "squared_error", "tolerance": 0.1}}
    settings |= {"method.clustering.num_clusters": 2}
    run = fedbac.run("ifca-edges", dataset=NUMBERS, shards=SHARDS, rounds=30, settings=settings)
    assert run.records[-1]["accuracy"] > 0.9 > run.records[0]["accuracy"]
    predicted = run.model(edge=0)(torch.from_numpy(NUMBERS.x_test)).detach().numpy()
    assert np.abs(predicted - NUMBERS.y_test).max() < 0.3


def test_data_without_classes_are_dealt_evenly_and_sampled() -> None:
    run = fedbac.run("hierfavg", dataset=NUMBERS, rounds=1, settings={
        "task.loss": "squared_error", "task.network.kind": "mlp", "task.num_edges": 2, "task.clients_per_edge": 2,
        "task.data_fraction": 0.5, "task.partition.min_edge_test": 2,
    })  # fmt: skip
    assert len(run.config["classes_per_edge"]) == 2


@pytest.mark.parametrize(
    ("dataset", "settings", "message"),
    [
        (NUMBERS, {}, "task.loss: cross_entropy cannot learn .* which are numbers; use squared_error"),
        (TOKENS, {"task.loss": "squared_error"}, "which are tokens; use next_token"),
        (
            NUMBERS,
            {"task.loss": "squared_error", "task.noise": {}, "task.network.kind": "mlp"},
            "task.noise: it changes classes, and the labels of 'lines' are numbers",
        ),
        (TOKENS, {"task.loss": "next_token", "task.network.kind": "mlp"}, "examples are tokens"),
    ],
)
def test_what_does_not_fit_together_is_refused(dataset: fedbac.Dataset, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedbac.run("hierfavg", dataset=dataset, shards=SHARDS, rounds=1, settings=settings)


def test_the_run_says_that_kernels_know_cross_entropy_only(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"task.loss": "squared_error", "task.num_edges": 2, "task.clients_per_edge": 2}
    x = RNG.integers(0, 256, size=(80, 1, 16, 16), dtype=np.uint8)
    images = fedbac.Dataset.from_arrays("scores", x[:60], X[:60, 0], x[60:], X[60:, 0])
    with caplog.at_level(logging.WARNING, "fedbac"):
        run = fedbac.run("hierfavg", dataset=images, shards=SHARDS, rounds=1, settings=settings)
    assert "task.loss 'squared_error' is not in our kernels; cross_entropy would be" in caplog.text
    assert run.config["trainer"].startswith("torch")


def test_losses_reduce_alike() -> None:
    for loss, output, y in (
        (SquaredError(), torch.randn(5, 3), torch.randn(5, 3)),
        (NextToken(), torch.randn(5, 4, 6), torch.randint(0, 6, (5, 4))),
    ):
        each = loss.loss(output, y, "none")
        assert each.shape == (5,)
        torch.testing.assert_close(loss.loss(output, y), each.mean())
        torch.testing.assert_close(loss.loss(output, y, "sum"), each.sum())
