"""Each promise of a personalization scheme and of a topology can be broken, and is then named."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from fedbac import Additive, Flat, Hierarchical, Part, Personal, PersonalHead, Phase, Pull
from fedbac.contracts import check_personalization, check_topology
from fedbac.core.parts import Apply, Parts, Scope
from fedbac.core.settings import Settings
from tests.schemes import Branched


def told(check: Callable[[Any], None], scheme: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check(scheme)
    return str(caught.value)


def changed(cls: type, **members: Any) -> Any:
    """Return a scheme that differs from one of ours in these verbs or fields."""
    hints = {name: ClassVar[Any] for name in members if name in ("parts", "terms", "edge_rounds", "tiers")}
    return type(cls.__name__, (cls,), {"__module__": __name__, "__annotations__": hints, **members})()


def phases(*which: Phase) -> dict[str, Any]:
    return {"phases": lambda self: which}


def start(change: Callable[[Parts], Parts]) -> dict[str, Any]:
    return {"init": lambda self, build, owners: change(Additive().init(build, owners))}


BOTH = ("global", "cluster")
SHARED_ROWS = {"cluster": lambda p: {n: v[:1].expand(3, *v.shape[1:]) for n, v in p["cluster"].items()}}
SCHEMES: dict[str, tuple[dict[str, Any], str]] = {
    "no parts": ({"parts": {}}, "parts must hold at least one Part"),
    "a scope as a part": ({"parts": {"global": "cloud"}}, "parts must hold a Part as 'global', not a str"),
    "an unknown owner": (
        {"parts": {**Additive.parts, "global": Part("planet", "global")}},  # type: ignore[arg-type]
        "part 'global' must belong to one of cloud, cluster, country, region, edge, client, not to 'planet'",
    ),
    "layers that nobody holds": (
        {"parts": {**Additive.parts, "global": Part("cloud", "global", slice(1, None))}},
        "must hold every layer of network 'global' exactly once; this network has 4 layers",
    ),
    "a network that is no name": (
        {"parts": {**Additive.parts, "global": Part("cloud", ("global", "global"))}},
        "part 'global' must name its network, or a tuple of different ones, not ('global', 'global')",
    ),
    "layers that two hold": (
        {"parts": {**Additive.parts, "more": Part("edge", "global", slice(0, 1))}},
        "must hold every layer of network 'global' exactly once",
    ),
    "unknown terms": ({"terms": ("global", "local")}, "terms must name some of the networks global, cluster, not"),
    "no terms and no prediction": ({"terms": None}, "terms is None, so it must have predict(apply, x)"),
    "terms and a prediction": ({"predict": lambda s, apply, x: x}, "so its predict() is never called"),
    "a part that is missing": (
        start(lambda p: {"global": p["global"]}),
        "init() must return the parts global",
    ),
    "one row for all": (
        start(lambda p: p | {"cluster": {n: v[:1] for n, v in p["cluster"].items()}}),
        "init() must return 1.weight of part 'cluster' as a tensor with a row for each owner (cluster), of whom there "
        "are 3, not a tensor of shape (1, 6, 16)",
    ),
    "rows of one memory": (
        start(lambda p: p | {"cluster": SHARED_ROWS["cluster"](p)}),
        "init() must give every row its own memory",
    ),
    "parts of one memory": (
        start(lambda p: p | {"global": {n: v[:1] for n, v in p["cluster"].items()}}),
        "shares it with 1.weight of part 'global'",
    ),
    "other weights": (
        start(lambda p: p | {"global": {f"x.{n}": v for n, v in p["global"].items()}}),
        "init() must return the weights 1.weight",
    ),
    "other shapes": (
        start(lambda p: p | {"global": {n: v[..., :1] for n, v in p["global"].items()}}),
        "init() must return 1.weight of part 'global' as (1, 6, 16), not (1, 6, 1)",
    ),
    "weights that are not finite": (
        start(lambda p: p | {"global": {n: v / 0 for n, v in p["global"].items()}}),
        "init() must return finite weights",
    ),
    "chance of its own": (
        start(lambda p: p | {"global": {n: v + torch.rand(v.shape) for n, v in p["global"].items()}}),
        "init() must start the same every time, from build alone",
    ),
    "no phase": (phases(), "phases() must return a tuple of at least one Phase"),
    "a list of phases": ({"phases": lambda s: [Phase(BOTH)]}, "phases() must return a tuple of at least one Phase"),
    "an unknown part": (phases(Phase(("head",))), "phase 0 of phases() must move some of the parts global, cluster"),
    "a part twice": (phases(Phase(("global", "global"))), "moves a part twice"),
    "unknown terms of a phase": (phases(Phase(BOTH, terms=("local",))), "its terms must name some of the networks"),
    "what cannot learn": (
        phases(Phase(("global",)), Phase(("cluster",), terms=("global",))),
        "phase 1 of phases() moves 'cluster', but its network 'cluster' is not summed, so it cannot learn",
    ),
    "no epoch": (phases(Phase(BOTH, epochs=0)), "must train for at least 1 epoch"),
    "a pull on what does not move": (
        phases(Phase(("global",), pull={"cluster": Pull(1.0)})),
        "pulls 'cluster', which it does not move",
    ),
    "a negative window": (phases(Phase(BOTH), Phase(BOTH, last=-1)), "last must be a number of rounds, not -1"),
    "rounds without a phase": (
        phases(Phase(BOTH, last=3), Phase(BOTH, until_last=4)),
        "no phase of phases() runs in a round with 3 more to come",
    ),
    "numbers that nothing changes": (
        {"parts": {**Additive.parts, "share": Part("edge", ())}},
        "part 'share' belongs to no network, so nothing changes it; name its network, or write before() and after()",
    ),
    "a twin that is not there": (
        {"parts": {**Additive.parts, "global": Part("cloud", "global", returns_as="x")}},
        "part 'global' cannot return as 'x', which is none of its parts",
    ),
    "a push": (phases(Phase(BOTH, pull={"global": Pull(-1.0)})), "pushes 'global' away with strength -1.0"),
    "a pull to nowhere": (phases(Phase(BOTH, pull={"global": Pull(1.0, to="x")})), "pulls 'global' to 'x', but its"),
    "a strength as a pull": (
        phases(Phase(BOTH, pull={"global": 0.1})),  # type: ignore[dict-item]
        "must pull 'global' by a Pull, not a float",
    ),
}


@pytest.mark.parametrize(("members", "message"), SCHEMES.values(), ids=SCHEMES)
def test_schemes(members: dict[str, Any], message: str) -> None:
    said = told(check_personalization, changed(Additive, **members))
    assert said.startswith("method.personalization 'additive': ")
    assert message in said


def test_layers_are_pulled_to_the_same_layers_only() -> None:
    pulled = Phase(("body", "head"), pull={"head": Pull(1.0, to="body")})
    assert "pulls 'head' to 'body', which holds other layers" in told(
        check_personalization, changed(PersonalHead, phases=lambda self: (pulled,))
    )
    check_personalization(Personal(owner="edge"))  # whose two networks are alike


def test_networks_that_share_a_part_are_summed_only_while_it_keeps_still() -> None:
    check_personalization(Branched())
    check_personalization(Branched(in_turns=True))
    together = changed(Branched, phases=lambda self: (Phase(moves=("body", "personal")),))
    assert told(check_personalization, together) == (
        "method.personalization 'branched': phase 0 of phases() sums the networks generic and personal, which share "
        "part 'body', so it must not move that part; sum one of them, or leave the part out of moves"
    )
    apart = {**Branched.parts, "third": Part("cloud", "third")}
    alone = changed(Branched, parts=apart, phases=lambda self: (Phase(moves=("body",), terms=("third",)),))
    assert "moves 'body', but its networks generic, personal are not summed" in told(check_personalization, alone)


class Contrast(Settings):
    """A scheme of the user's that is no plain sum: ŷ = h(x) − 2 f(x)."""

    kind: Literal["contrast"] = "contrast"
    parts: ClassVar[Mapping[str, Part]] = Additive.parts
    terms: ClassVar[None] = None

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        return Additive().init(build, owners)

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        return apply("global", x) - 2 * apply("cluster", x)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("global", "cluster")),)


def test_a_prediction_of_ones_own_applies_known_networks_and_returns_logits() -> None:
    check_personalization(Contrast())
    unknown = changed(Contrast, predict=lambda self, apply, x: apply("head", x))
    assert "predict() applies 'head', but its networks are global, cluster" in told(check_personalization, unknown)
    single = changed(Contrast, predict=lambda self, apply, x: apply("global", x)[:, 0])
    assert "predict() must return a row of logits for each example" in told(check_personalization, single)


def test_a_network_of_ones_own_may_have_other_layers() -> None:
    def linear() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    check_personalization(Additive(), linear)
    with pytest.raises(
        AssertionError,
        match=r"^method.personalization 'personal_head': part 'body' would have no layers.* only 1 that are not frozen",
    ):
        check_personalization(PersonalHead(head_layers=2), linear)
    stacked = Additive().init(lambda index: linear(), {"cloud": 1, "cluster": 2})["cluster"]
    assert sum(value.numel() for value in stacked.values()) == 2 * 51


TOPOLOGIES: dict[str, tuple[dict[str, Any], str]] = {
    "an edge that is left out": ({"sites": lambda s, n: ((0,), (1,))}, "every edge from 0 to 5 exactly once"),
    "an edge twice": ({"sites": lambda s, n: (tuple(range(n)), (0,))}, "every edge from 0 to 5 exactly once"),
    "an empty site": ({"sites": lambda s, n: (tuple(range(n)), ())}, "none without any"),
    "a list": ({"sites": lambda s, n: [[0]]}, "sites() must return a tuple"),
    "no rounds": ({"edge_rounds": 0}, "edge_rounds must be at least 1"),
    "one tier": ({"tiers": 1}, "tiers must be 2 or 3"),
    "two tiers of many sites": ({"tiers": 2}, "tiers is 2, so the only site is the cloud itself"),
}


@pytest.mark.parametrize(("members", "message"), TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_topologies(members: dict[str, Any], message: str) -> None:
    said = told(check_topology, changed(Hierarchical, **members))
    assert said.startswith("method.topology 'hierarchical': ")
    assert message in said
    check_topology(Flat())
