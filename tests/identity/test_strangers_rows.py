"""FedAdam and SCAFFOLD as a stranger writes them, with what ``docs/aggregation.md`` and ``docs/schemes.md`` name."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

import fedbac
from fedbac import ControlVariates, Flat, Method, Part, Phase, Random, models
from fedbac.contracts import check
from fedbac.steps import Adam
from tests.support import PLAIN_SGD, deal, distance, play
from tests.trainers.reference import DATA

SHARDS = deal(DATA, [[1, 7, 13], [8, 3], [10]])


class MyAdam(fedbac.Settings):
    """m ← 0.9 m + 0.1 Δ, v ← 0.99 v + 0.01 Δ², w ← w + η m / (√v + τ)."""

    kind: Literal["my_adam"] = "my_adam"
    active: ClassVar[bool] = True

    def init(self, row_KD: Tensor) -> Mapping[str, Tensor]:
        return {"m": torch.zeros_like(row_KD), "v": torch.full_like(row_KD, 1e-6)}

    def step(
        self, before_KD: Tensor, combined_KD: Tensor, memory: Mapping[str, Tensor], share_K: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        change = combined_KD - before_KD
        m, v = 0.9 * memory["m"] + 0.1 * change, 0.99 * memory["v"] + 0.01 * change**2
        return before_KD + 0.01 * m / (v.sqrt() + 1e-3), {"m": m, "v": v}


class MyScaffold(fedbac.Settings):
    """Gradients are shifted by c − c_i; c_i⁺ = c_i − c + (x − y) / Kη."""

    kind: Literal["my_scaffold"] = "my_scaffold"
    parts: ClassVar[Mapping[str, Part]] = {
        "model": Part("cloud", "network"),
        "c": Part("cloud", ()),
        "c_i": Part("client", ()),
    }
    terms: ClassVar[tuple[str, ...]] = ("network",)

    def init(self, build: Any, owners: Mapping[Any, int]) -> Any:
        begin = models.weights(build(0))
        return {
            "model": {name: value[None] for name, value in begin.items()},
            "c": {name: torch.zeros_like(value)[None] for name, value in begin.items()},
            "c_i": {name: torch.zeros(owners["client"], *value.shape) for name, value in begin.items()},
        }

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("model",)),)

    def before(self, received_C: Any, run: Any) -> fedbac.Start:
        c, c_i = received_C["c"], received_C["c_i"]
        return fedbac.Start(shift={"model": {name: c[name] - c_i[name] for name in c}})

    def after(self, received_C: Any, started_C: Any, trained_C: Any, run: Any) -> Any:
        c, new, travel = received_C["c"], {}, torch.as_tensor(run.travel_FC[0], dtype=torch.float32)
        for name, old in received_C["c_i"].items():
            away = started_C["model"][name] - trained_C["model"][name]
            way = travel.to(old.device).reshape(-1, *[1] * (old.dim() - 1))
            new[name] = old - c[name] + torch.where(way > 0, away / way, 0.0)
        return {
            "c_i": new,
            "c": {name: c[name] + run.share * (new[name] - received_C["c_i"][name]) for name in c},
        }


def same(mine: Method, ours: Method, parts: Mapping[str, str]) -> None:
    one, other = (play(method, DATA, SHARDS, training=PLAIN_SGD, num_rounds=4) for method in (mine, ours))
    for part, their in parts.items():
        assert distance({"": one.end.parts[part]}, {"": other.end.parts[their]}) < 1e-6
    assert [record["bytes"] for record in one.records] == [record["bytes"] for record in other.records]


def test_fedadam() -> None:
    check(MyAdam())
    same(Method(name="mine", step=MyAdam()), Method(name="ours", step=Adam(learning_rate=0.01)), {"global": "global"})


def test_scaffold() -> None:
    check(MyScaffold())
    half: dict[str, Any] = {"topology": Flat(), "selection": Random(fraction=0.5)}
    mine = Method(name="mine", personalization=MyScaffold(), **half)
    ours = Method(name="ours", personalization=ControlVariates(), **half)
    same(mine, ours, {"model": "global", "c": "control", "c_i": "own"})
