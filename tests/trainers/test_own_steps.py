"""Steps that a scheme takes itself: SGD, written as such, is what the naive trainer does, whoever else is there."""

import logging
import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from fedbac import Runtime, configure
from fedbac.config.training import AdamW
from fedbac.core import trees
from fedbac.core.parts import LocalSteps, Params, Parts
from fedbac.core.requests import Evaluate, Trained
from fedbac.engines.adjusting import adjusted
from fedbac.errors import ConfigError, PolicyError
from fedbac.local import LoopTrainer, NativeTrainer, PoolTrainer, make_trainer
from fedbac.personalization import AdaptiveStart, HeadsTogether, Interpolated, MoreauEnvelope, Shared, TwoHeads
from tests.support import NO_GPU, NO_KERNEL, deal, distance, federate, order
from tests.trainers.reference import DATA, OPTIONS, check, make, requests, setting, starts, with_momentum
from tests.trainers.test_shifts import shifted

PATHS = ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)]
every_path = pytest.mark.parametrize("path", PATHS)


class Stepped(Shared):
    """The network for all, by steps of its own."""

    kind: Literal["stepped"] = "stepped"  # type: ignore[assignment]

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        return {"global": local.descend("global", now_C["global"], local.gradient(now_C["global"]))}


class Anchored(Stepped):
    """And pulled to where it began."""

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        now, received = now_C["global"], received_C["global"]
        pulled = {n: slope + 0.7 * (now[n] - received[n]) for n, slope in local.gradient(now).items()}
        return {"global": local.descend("global", now, pulled)}


@pytest.mark.covering
@every_path
@pytest.mark.parametrize("option", [*OPTIONS, "adamw", "statistics", "shift", "momentum"])
def test_sgd_by_hand_is_sgd(path: str, option: str) -> None:
    options: dict[str, Any] = {"adamw": {"optimizer": AdamW(epsilon=1e-3)}, "momentum": {"momentum_state": "persist"}}
    federation = setting(None, **options.get(option, OPTIONS.get(option, {})))
    asked = requests(federation, Shared())
    if option == "statistics":
        asked = [replace(request, keep=frozenset({"square", "epochs"})) for request in asked]
    if option == "shift":
        asked = shifted(asked, "global")
    if option == "momentum":
        asked = [with_momentum(request, None, federation) for request in asked]
    results = make(path, federation, Stepped()).train(asked)
    for trained, request in zip(results, asked, strict=True):
        check(trained, federation, Shared(), request)
        assert (trained.square_C is not None) == (trained.epoch_CE is not None) == (option == "statistics")
    if option == "momentum":
        again = [with_momentum(r, trained.momentum, federation) for r, trained in zip(asked, results, strict=True)]
        for trained, request in zip(make(path, federation, Stepped()).train(again), again, strict=True):
            check(trained, federation, Shared(), request)


@every_path
def test_a_step_knows_where_clients_began(path: str) -> None:
    federation = setting(None)
    asked = requests(federation, Shared())
    for trained, request in zip(make(path, federation, Anchored()).train(asked), asked, strict=True):
        check(trained, federation, Shared(proximal=0.7), request)


class Drawing(nn.Module):
    """A network with dropout."""

    def __init__(self) -> None:
        super().__init__()
        shape = DATA.x_train.shape[1:]
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


SCHEMES = [
    Interpolated(),
    MoreauEnvelope(inner_steps=2),
    AdaptiveStart(owner="client", first_passes=3),
    HeadsTogether(owner="client"),
]


@pytest.mark.full
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.kind)
def test_on_a_cpu_no_bit_of_a_client_depends_on_the_others(scheme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on the process that trains it, though the network draws."""
    monkeypatch.setattr("fedbac.local.pool.START_SECONDS", 0)
    federation = setting(None, user=Drawing, clip_norm=0.5)
    parts, clients = starts(federation, scheme)[0], (0, 1, 2, 3, 4, 5)
    parts = {part: {n: value + 0.1 * (part == "global") for n, value in p.items()} for part, p in parts.items()}
    given = federation.network, scheme, federation.examples
    loop, pool = adjusted(LoopTrainer(*given), scheme), adjusted(PoolTrainer(*given, workers=2), scheme)
    (together,) = loop.train([order(clients, parts)])
    try:
        (spread,) = pool.train([order(clients, parts)])
    finally:
        pool.close()
    alone = [loop.train([order((client,), parts)])[0] for client in clients]
    assert distance(together.parts_C, spread.parts_C) == 0
    for row, one in enumerate(alone):
        mine = {part: {n: v[row : row + 1] for n, v in params.items()} for part, params in together.parts_C.items()}
        assert distance(mine, one.parts_C) == 0
        assert one.loss_C[0] == together.loss_C[row]


@every_path
def test_what_stands_beside_adds_its_logits_and_draws_alike(path: str) -> None:
    """Beside itself, a network with dropout says what it does with its last layer doubled."""
    federation, last = setting(None, user=Drawing), ("layers.4.weight", "layers.4.bias")
    made: Any = make(path, federation, Stepped())
    (request, *_) = requests(federation, Shared())
    network = trees.to(trees.select(request.bank["global"], request.row_C["global"]), made.device)
    doubled = {name: value * (2 if name in last else 1) for name, value in network.items()}

    def slopes(at: Params, beside: Params | None) -> tuple[Params, torch.Tensor]:
        local = made.own.before(request)
        next(local.batches())
        return local.gradient(at, last, beside), local.loss_C

    for found, expected in zip(slopes(network, network), slopes(doubled, None), strict=True):
        torch.testing.assert_close(found, expected)
    assert set(slopes(network, network)[0]) == set(last)


def test_steps_know_what_their_clients_hold() -> None:
    federation = setting(None)
    made: Any = make("vmap", federation, Stepped())
    local = made.own.before(order((2, 0), starts(federation, Shared())[0]))
    expected = [np.bincount(DATA.y_train[federation.shards.train[c]], minlength=DATA.num_classes) for c in (2, 0)]
    np.testing.assert_array_equal(local.count_CK, expected)


@every_path
def test_who_holds_nothing_keeps_what_it_received(path: str) -> None:
    scheme, shards = Interpolated(), deal(DATA, [[0, 7], [12]])
    federation = federate(DATA, shards, training=setting(None).examples.training)
    parts = starts(federation, scheme)[0]
    (trained,) = make(path, federation, scheme).train([order((0, 1, 2), parts)])
    assert trained.loss_C[0] == 0
    for part, params in parts.items():
        for name, value in params.items():
            found = trained.parts_C[part][name].cpu()
            assert torch.equal(found[0], value)
            assert not torch.equal(found[1], value) or part == "alpha"


@NO_KERNEL
def test_torch_trains_and_the_kernel_evaluates_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    federation = setting(None)
    given = federation.network, Interpolated(), federation.examples
    with caplog.at_level(logging.INFO, "fedbac"):
        made: Any = make_trainer(*given, Runtime(device="cpu", workers=1))
    assert isinstance(made.learner, LoopTrainer)
    assert isinstance(made.judge, NativeTrainer)
    assert made.path == "torch-loop-own-steps"
    assert "'interpolated' takes steps of its own" in caplog.text
    parts = {part: params for part, params in starts(federation, Interpolated())[0].items() if part != "alpha"}
    bank = {part: {name: value[None] for name, value in params.items()} for part, params in parts.items()}
    asked = Evaluate(bank, {part: np.zeros(1, dtype=np.int64) for part in bank}, "train", (1, 2))
    (found,), (expected,) = made.evaluate([asked]), LoopTrainer(*given).evaluate([asked])
    np.testing.assert_allclose(found.loss_VG, expected.loss_VG, rtol=1e-5)
    with pytest.raises(ConfigError, match=r"runtime\.trainer: .*'interpolated' takes steps of its own; use torch or"):
        make_trainer(*given, Runtime(device="cpu", trainer="native"))
    made.close()


def normal() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(DATA.x_train.shape[1:])), 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize("scheme", [Interpolated(), AdaptiveStart()], ids=lambda scheme: scheme.kind)
def test_batch_normalization_is_refused_with_a_sentence(scheme: Any) -> None:
    federation = setting(None, user=normal)
    with pytest.raises(ConfigError, match=r"takes gradients itself, which one with buffers .* use group normalization"):
        adjusted(make_trainer(federation.network, scheme, federation.examples, Runtime(workers=1)), scheme).train(
            [order((0, 1), starts(federation, scheme)[0])]
        )


def test_where_heads_cannot_learn_together_it_is_said_how_they_can() -> None:
    federation, named = setting(None, user=normal), "method.personalization={kind: two_heads, owner: client}"
    with pytest.raises(ConfigError, match=f"heads can only learn in turn; use {re.escape(named)}, or group norm"):
        starts(federation, HeadsTogether(owner="client"))
    instead = configure("fedrod", settings=[named]).method.personalization
    assert isinstance(instead, TwoHeads)
    assert instead.owner == "client"
    starts(federation, instead)


class Astray(Stepped):
    """Returns a network that nobody knows."""

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        return {"other": now_C["global"]}


def test_in_a_run_a_wrong_step_is_a_sentence() -> None:
    federation = setting(None)

    def wrong() -> list[Trained]:
        return make("loop", federation, Astray()).train(requests(federation, Shared()))

    with pytest.raises(PolicyError, match=r"'stepped': step\(\) returns other, but its parts are global"):
        wrong()
