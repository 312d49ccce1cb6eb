"""Tokens, whole numbers that an embedding reads, go through training, evaluation, checkpoints and models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedbac
from fedbac import ConfigError, Dataset
from fedbac.local import VmapTrainer
from tests.support import deal, play, prepare, without
from tests.unit.tiny import tiny_task

WORDS = 20


class Reader(nn.Module):
    """Classifies a sentence by the mean of its words."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert not x.is_floating_point()
        logits: Tensor = self.out(self.words(x).mean(1))
        return logits


def sentences(kind: Any = np.int64) -> Dataset:
    """Return sentences of seven words, some of which tell the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 360)
    x = rng.integers(0, WORDS, (360, 7))
    x[:, :3] = 5 * y[:, None]
    return Dataset.from_arrays("words", x[:300].astype(kind), y[:300], x[300:].astype(kind), y[300:])


TINY: dict[str, Any] = {"task": tiny_task(rounds=2), "network": Reader, "device": "cpu"}


def test_tokens_are_learned_and_a_resume_is_exact(tmp_path: Path) -> None:
    data = sentences()
    whole = fedbac.run("fed-bac", dataset=data, **TINY, workers=1)
    with fedbac.play("fed-bac", dataset=data, **TINY, workers=1, out=tmp_path) as playing:
        next(playing)
    resumed = fedbac.resume(tmp_path, dataset=data, network=Reader)
    assert without(resumed.records) == without(whole.records)
    x = torch.from_numpy(data.x_test)
    assert torch.equal(resumed.model(edge=1)(x), whole.model(edge=1)(x))
    longer = fedbac.run("hierfavg", dataset=data, **TINY, workers=1, rounds=12)
    assert longer.records[-1]["accuracy"] > 0.5


def test_trainers_of_many_clients_at_once_read_tokens_too() -> None:
    data = sentences()
    method, shards = fedbac.Method(name="mine"), deal(data, [[40, 50], [60, 40]])
    options: dict[str, Any] = {"user": Reader, "num_rounds": 2}
    _, federation = prepare(method, data, shards, **options)
    device = torch.device("cpu")
    stacked = VmapTrainer(federation.network, method.personalization, federation.examples, device)
    left, right = (play(method, data, shards, trainer, **options) for trainer in (stacked, None))
    assert [r["loss"] for r in left.records] == pytest.approx([r["loss"] for r in right.records], rel=1e-5)


def test_other_whole_numbers_become_tokens() -> None:
    assert sentences(np.int16).x_train.dtype == np.int64
    assert sentences(np.uint32).fingerprint == sentences().fingerprint


def test_networks_that_cannot_read_tokens_are_refused_before_training() -> None:
    data = sentences()
    with pytest.raises(ConfigError, match=r"mlp reads numbers, but the examples are tokens .*use lstm or transformer"):
        fedbac.run("hierfavg", tiny_task(), dataset=data)
    with pytest.raises(ConfigError, match=r"cannot read the token 19 .*its embedding needs more rows"):
        fedbac.run("hierfavg", tiny_task(), dataset=data, network=lambda: Reader(words=10))
    with pytest.raises(ConfigError, match=r"tokens run from -1 to 18; they must be 0 to"):
        Dataset.from_arrays("words", data.x_train - 1, data.y_train, data.x_test, data.y_test)


def test_numbers_are_labels_of_another_loss() -> None:
    data = sentences()
    with pytest.raises(ConfigError, match=r"a label is float32 \(1,\) in y_train but int64 \(\) in y_test"):
        Dataset.from_arrays("prices", data.x_train, data.y_train * 1.5, data.x_test, data.y_test)
    pairs: Any = [(np.zeros(3, np.float32), 2.5)]
    prices = Dataset.from_torch("prices", pairs, pairs)
    assert prices.labels == "numbers"
    with pytest.raises(ConfigError, match="use squared_error"):
        fedbac.run("hierfavg", dataset=prices, rounds=1)
