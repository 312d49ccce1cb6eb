"""Each promise of a transform can be broken, and is then named with the transform and the verb."""

from typing import Any, Literal

import numpy as np
import pytest
import torch

import fedbac
from fedbac import LINKS, Clip, Codec, ConfigError, EightBits, GaussianNoise, Links, Method, PolicyError, Settings, TopK
from fedbac.contracts import check
from fedbac.contracts.tensors import check_transform
from fedbac.core.codecs import Transform
from fedbac.data import planted_groups
from tests.contracts.test_broken_policies import changed, told
from tests.support import play

GENERATOR = np.random.default_rng(0)
BROKEN: dict[str, tuple[Any, str]] = {
    "another shape": (
        changed(Clip, alter=lambda s, c, b, r: c[None]),
        "alter() must return a change of the same shape",
    ),
    "not finite": (changed(Clip, alter=lambda s, c, b, r: c / 0), "alter() must return finite numbers"),
    "its own chance": (
        changed(GaussianNoise, alter=lambda s, c, b, r: c + float(GENERATOR.random())),
        "alter() answered differently to the same change and stream",
    ),
    "longer than it says": (changed(Clip, alter=lambda s, c, b, r: c), "bound() says 1.0, but alter() returned a long"),
    "in place": (changed(Clip, alter=lambda s, c, b, r: c.mul_(0.5)), "alter() wrote to change in place"),
    "another layout": (
        changed(TopK, layout=lambda s, n: {"values": (torch.float32, n)}),
        "pack() of 2 numbers must return what layout() says",
    ),
    "another price": (changed(EightBits, num_bytes=lambda s, n: n), "num_bytes(1) must be 5"),
    "one row by another": (
        changed(EightBits, pack=lambda s, c, r: EightBits().pack(c / c.abs().max().clamp(min=1), r)),
        "pack() must pack every row for itself",
    ),
    "a trusting receiver": (changed(EightBits, fault=lambda s, p, n: None), "that are not finite of a piece 'step'"),
    "places that are not there": (
        changed(TopK, fault=lambda s, p, n: None if p["values"].abs().max() < 1e9 else "too large"),
        "unpack() of a piece 'places' that fault() let pass raised",
    ),
    "a suspicious receiver": (changed(TopK, fault=lambda s, p, n: "no"), "fault() found fault with what pack() return"),
}


@pytest.mark.parametrize(("transform", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_named(transform: Any, said: str) -> None:
    message = told(check_transform, transform)
    assert message.startswith(f"method.links {transform.kind!r}: ")
    assert said in message


class Stochastic(Codec):
    """Send the sign of every entry or nothing, by chance in proportion to its size: right on average."""

    kind: Literal["stochastic"] = "stochastic"

    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        return {"signs": (torch.int8, numbers), "largest": (torch.float32, 1)}

    def pack(self, change_N: torch.Tensor, streams: Any) -> dict[str, torch.Tensor]:
        largest_N = change_N.abs().amax(1, keepdim=True)
        drawn_N = [streams(row).random(change_N.shape[1]) for row in range(len(change_N))]
        sent_N = torch.from_numpy(np.stack(drawn_N)) * largest_N < change_N.abs()
        return {"signs": (change_N.sign() * sent_N).to(torch.int8), "largest": largest_N}

    def unpack(self, packed: dict[str, torch.Tensor], numbers: int) -> torch.Tensor:
        return packed["signs"] * packed["largest"]

    def fault(self, packed: dict[str, torch.Tensor], numbers: int) -> str | None:
        good = packed["signs"].abs().max() <= 1 and (packed["signs"] >= -1).all() and packed["largest"].isfinite().all()
        return None if good else "signs must be from -1 to 1, and the largest finite"


class Raises(fedbac.Alteration):
    """Fails in a run."""

    kind: Literal["raises"] = "raises"

    def alter(self, change: Any, bound: Any, rng: Any) -> Any:
        raise ValueError("no")


class Shorter(Raises):
    """Answers wrongly in a run."""

    kind: Literal["shorter"] = "shorter"  # type: ignore[assignment]

    def alter(self, change: Any, bound: Any, rng: Any) -> Any:
        return change[:1]


DATA, SHARDS, _ = planted_groups(2, 3, 2, train=12, validation=2, test=15)


def test_a_codec_of_the_users_that_draws_is_registered_checked_and_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINKS, "kinds", dict(LINKS.kinds))
    with pytest.raises(ConfigError, match="unknown kind 'stochastic'"):
        fedbac.configure("hierfavg", "demo", settings=["method.links.client_up=stochastic"])
    LINKS.register(Stochastic)
    check(Stochastic())
    settings = ["method.links.client_up=[clip, top_k, stochastic]"]
    links = fedbac.configure("hierfavg", "demo", settings=settings).method.links
    assert links.client_up == (Clip(), TopK(), Stochastic())
    method = Method(name="mine", links=links)
    whole, again, cut = (play(method, DATA, SHARDS, memory_gib=memory) for memory in (None, None, 1e-6))
    for name, value in whole.end.parts["global"].items():
        assert torch.equal(value, again.end.parts["global"][name])
        assert torch.equal(value, cut.end.parts["global"][name])


class NoCodec(Settings):
    kind: Literal["no_codec"] = "no_codec"


class Neither(Transform):
    kind: Literal["neither"] = "neither"


class HalfACodec(Codec):
    kind: Literal["half"] = "half"

    def layout(self, numbers: int) -> dict[str, tuple[torch.dtype, int]]:
        return {"values": (torch.float32, numbers)}


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(ConfigError, match="register: NoCodec does not derive from Transform"):
        LINKS.register(NoCodec)
    with pytest.raises(ConfigError, match="register: HalfACodec lacks fault, pack, unpack, which Transform asks for"):
        LINKS.register(HalfACodec)
    with pytest.raises(ValueError, match="'neither' is neither an Alteration nor a Codec; derive it from one of them"):
        Links(client_up=Neither())


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Raises(), r"^method.links 'raises': alter\(\) failed in round 1 on client_up: ValueError: no \(test_broken"),
        (Shorter(), r"^method.links 'shorter': alter\(\) must return a change of the same shape$"),
    ],
)
def test_a_transform_that_fails_in_a_run_is_named(transform: Any, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        play(Method(name="mine", links=Links(client_up=transform)), DATA, SHARDS, num_rounds=1)
