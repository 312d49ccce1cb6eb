"""Clients in one batch of a frozen network come back with what each learns alone, whatever else is in the batch."""

import logging
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbac import Adapters, Dataset, Perceptron, Runtime
from fedbac.config.training import AdamW, Training
from fedbac.core.parts import extension
from fedbac.core.requests import Evaluate, Teachers
from fedbac.data import Shards, toy
from fedbac.federation import Federation
from fedbac.local import BatchedTrainer, Examples, LoopTrainer, VmapTrainer, batched, make_trainer
from fedbac.local.batched import BatchedStack
from fedbac.local.vmapped import Stack
from fedbac.losses import NextToken
from fedbac.models import builder, weights
from fedbac.networks import Transformer
from tests.support import deal, federate, order

WORDS, STEPS = 11, 6
SIZES = [[1, 7, 13], [8, 3]]
TRAINING = Training(epochs=2, batch_size=4, learning_rate=0.05, clip_norm=0.5)


class Halved(nn.Module):
    """A language model that says what its last layer sees."""

    def __init__(self) -> None:
        super().__init__()
        whole: Any = Transformer(width=8, layers=2, heads=2).build((STEPS,), WORDS, WORDS, True)
        self.read, self.core, self.tell = whole.read, whole.core, whole.tell

    def features(self, x: Tensor) -> Tensor:
        return self.core(self.read(x))  # type: ignore[no-any-return]

    def head(self, features: Tensor) -> Tensor:
        return self.tell(features)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Mixing(Halved):
    """One that looks at other examples of the batch."""

    def head(self, features: Tensor) -> Tensor:
        return super().head(features - features.mean(0))


class TimeFirst(Halved):
    """One that puts its steps before the examples."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(x)

    def head(self, features: Tensor) -> Tensor:
        return super().head(features.transpose(0, 1)).transpose(0, 1)


def federation(scheme: Any, network: Any = Halved, training: Training = TRAINING) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (60, STEPS))
    y = np.where(rng.random((60, STEPS)) < 0.1, -100, rng.integers(0, WORDS, (60, STEPS)))
    data = Dataset.from_arrays("words", x[:40], y[:40], x[40:], y[40:], WORDS)
    shards: Shards = deal(data, SIZES)
    build = builder(
        Transformer(), network, (STEPS,), WORDS, 0, data.largest_token, steps=(STEPS,), extend=extension(scheme)
    )
    examples = Examples(data, shards, training, None, 0, None, NextToken())
    return Federation(dataset=data, shards=shards, sites=(), examples=examples, build=build)


def trained(trainer: Any, scheme: Any, made: Federation) -> Any:
    parts = scheme.init(made.build, {"cloud": 1, "cluster": 2, "edge": 2, "client": 5})
    generator = torch.Generator().manual_seed(0)
    starts = [
        {
            part: {n: v[0] + 0.1 * torch.randn(v.shape[1:], generator=generator) for n, v in params.items()}
            for part, params in parts.items()
        }
        for _ in range(2)
    ]
    return trainer.train([order((0, 1, 2), starts[0], rate=0.05), order((3, 4), starts[1], rate=0.02)])


@pytest.mark.covering
@pytest.mark.parametrize("chunks", [False, True], ids=["whole", "in chunks"])
@pytest.mark.parametrize(
    "scheme",
    [
        Adapters(owners=("cloud", "cluster"), rank=3),
        Adapters(owners=("cloud",), target=("core.*.ask", "core.*.narrow"), train="b", rank=2),
        Adapters(owners=("cluster",), target=("core.*",), whole={"client": ("tell.*",)}),
    ],
    ids=["all layers", "some layers, A frozen", "a whole head"],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_all_in_one_batch_learn_what_each_learns_alone(
    scheme: Any, optimizer: str, chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunks:
        monkeypatch.setattr(batched, "LOGITS", 3 * WORDS * STEPS)
    training = TRAINING if optimizer == "sgd" else TRAINING.model_copy(update={"optimizer": AdamW(epsilon=1e-3)})
    learn_the_same(scheme, training, torch.device("cpu"))


def learn_the_same(scheme: Any, training: Training, device: torch.device) -> None:
    made = federation(scheme, training=training)
    together = BatchedTrainer(made.network, scheme, made.examples, device)
    assert together.halves
    alone = LoopTrainer(made.network, scheme, made.examples)
    for ours, theirs in zip(trained(together, scheme, made), trained(alone, scheme, made), strict=True):
        np.testing.assert_allclose(ours.loss_C, theirs.loss_C, rtol=1e-5)
        for part, params in theirs.parts_C.items():
            for name, value in params.items():
                torch.testing.assert_close(ours.parts_C[part][name].cpu(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_replayed_on_a_gpu_are_those_of_clients_alone(
    optimizer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And where a network cannot be captured, the run says so and learns the same."""
    training = TRAINING if optimizer == "sgd" else TRAINING.model_copy(update={"optimizer": AdamW(epsilon=1e-3)})
    captures, capture = [0], BatchedStack._capture

    def counting(self: BatchedStack, work: Any) -> Any:
        captures[0] += 1
        return capture(self, work)

    monkeypatch.setattr(BatchedStack, "_capture", counting)
    learn_the_same(Adapters(owners=("cloud", "cluster"), rank=3), training, torch.device("cuda"))
    assert captures[0] > 0
    read = BatchedStack._losses

    def reading(self: BatchedStack, *args: Any) -> Any:
        found = read(self, *args)
        assert found[0].sum().item() > 0  # no captured kernel can be waited for
        return found

    monkeypatch.setattr(BatchedStack, "_losses", reading)
    learn_the_same(Adapters(owners=("cloud", "cluster"), rank=3), training, torch.device("cuda"))
    assert "no CUDA graphs of this network's steps" in caplog.text


def test_where_memory_runs_out_it_is_said_and_graphs_are_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever trains takes fewer clients at once."""

    def full(self: Stack, *args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    scheme = Adapters(owners=("cloud",), rank=3)
    made = federation(scheme)
    trainer = BatchedTrainer(made.network, scheme, made.examples, torch.device("cpu"))
    trained(trainer, scheme, made)
    assert isinstance(trainer.stack, BatchedStack)
    monkeypatch.setattr(Stack, "advance", full)
    monkeypatch.setattr(trainer.stack, "device", SimpleNamespace(type="cuda"))
    with pytest.raises(torch.OutOfMemoryError):
        trainer.stack.advance(0, trainer.stages[0], 1, 1)
    assert trainer.stack.captured


def test_a_step_whose_trial_fails_begins_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = Adapters(owners=("cloud",), rank=3)
    made = federation(scheme)
    trainer = BatchedTrainer(made.network, scheme, made.examples, torch.device("cpu"))
    trained(trainer, scheme, made)
    stack = trainer.stack
    assert stack is not None
    for name in ("Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    before = deepcopy([stack.step, stack.loss_sum, stack.parts])

    def half() -> None:
        stack.step += 1
        stack.loss_sum += 1
        next(iter(next(iter(stack.parts.values())).values())).add_(1)
        raise RuntimeError("not here")

    with pytest.raises(RuntimeError, match="not here"):
        stack._capture(half)
    torch.testing.assert_close([stack.step, stack.loss_sum, stack.parts], before, rtol=0, atol=0)


def test_models_are_measured_as_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "LOGITS", 5 * WORDS * STEPS)
    scheme = Adapters(owners=("cloud", "client"), rank=2)
    made = federation(scheme)
    parts = scheme.init(made.build, {"cloud": 1, "client": 3})
    parts = {part: {n: v + torch.randn(v.shape) for n, v in params.items()} for part, params in parts.items()}
    row_V = {"cloud": np.zeros(3, dtype=np.int64), "client": np.arange(3)}
    device = torch.device("cpu")
    for request in (Evaluate(parts, row_V, "train", (4, 1)), Evaluate(parts, row_V, "train", (4, 1, 2), paired=True)):
        found, wanted = (
            one.evaluate([request])[0]
            for one in (
                BatchedTrainer(made.network, scheme, made.examples, device),
                LoopTrainer(made.network, scheme, made.examples),
            )
        )
        np.testing.assert_allclose(found.loss_VG, wanted.loss_VG, rtol=1e-5)
        np.testing.assert_allclose(found.accuracy_VG, wanted.accuracy_VG, rtol=1e-6)


@pytest.mark.parametrize("network", [Mixing, TimeFirst])
def test_a_network_that_takes_examples_together_trains_them_one_after_another_and_the_run_says_why(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scheme = Adapters(owners=("cloud",))
    made, runtime = federation(scheme, network), Runtime(device="cpu", workers=1)
    with caplog.at_level(logging.WARNING):
        assert isinstance(make_trainer(made.network, scheme, made.examples, runtime), LoopTrainer)
    assert "does not take the examples of a batch one by one" in caplog.text
    assert isinstance(make_trainer(federation(scheme).network, scheme, made.examples, runtime), BatchedTrainer)


def test_clients_that_have_teachers_learn_from_them_as_alone() -> None:
    scheme = Adapters(owners=("cluster",), taught=True, rank=2)
    data = toy(num_classes=4, train=50, test=30)
    made = federate(data, deal(data, SIZES), training=TRAINING)
    build = builder(Perceptron(hidden=(6,)), None, data.x_train.shape[1:], 4, 0, extend=scheme.extend)
    network, generator = build(0), torch.Generator().manual_seed(0)
    one = {n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in weights(network).items()}
    bank = {n: torch.randn((2, *v.shape), generator=generator) for n, v in one.items()}
    teachers = Teachers(bank, np.array([[0.5, 0.5], [0.0, 0.0], [0.0, 1.0]]), np.array([0.7, 0.0, 0.3]), 2.0)
    request = replace(order((0, 1, 2), {"cluster": one}), teachers=teachers)
    together = BatchedTrainer(network, scheme, made.examples, torch.device("cpu")).train([request])[0]
    alone = LoopTrainer(network, scheme, made.examples).train([request])[0]
    np.testing.assert_allclose(together.loss_C, alone.loss_C, rtol=1e-5)
    for name, value in alone.parts_C["cluster"].items():
        torch.testing.assert_close(together.parts_C["cluster"][name], value, rtol=1e-5, atol=1e-5)


def test_frozen_layers_meet_the_clients_of_a_stack_in_one_product() -> None:
    """Elsewhere too: where the trainer is another, frozen weights are not multiplied client by client."""
    scheme = Adapters(owners=("cloud",))
    made = federation(scheme)
    stacked = VmapTrainer(made.network, scheme, made.examples, torch.device("cpu"))
    alone = LoopTrainer(made.network, scheme, made.examples)
    for ours, theirs in zip(trained(stacked, scheme, made), trained(alone, scheme, made), strict=True):
        for part, params in theirs.parts_C.items():
            for name, value in params.items():
                torch.testing.assert_close(ours.parts_C[part][name], value, rtol=1e-5, atol=1e-5)
