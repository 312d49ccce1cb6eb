"""Schemes with parts of one's own that are, in a special case, another method (the rows of D.2), and what they cost."""

from typing import Any, Literal

import pytest
import torch

from fedbac.clustering import Fixed
from fedbac.config.experiment import Evaluation, Method, Training
from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Personalization, Phase
from fedbac.data import planted_groups
from fedbac.personalization import (
    AdaptiveStart,
    ControlVariates,
    DynamicPull,
    GroupCorrections,
    HeadsTogether,
    Interpolated,
    LateHead,
    MoreauEnvelope,
    PerCluster,
    Personal,
    PersonalHead,
    Shared,
    TwoHeads,
)
from fedbac.selection import Random, Thompson
from tests.covering import first
from tests.support import Played, deal, distance, play

DATA, _, _groups = planted_groups(6, 3, 2, train=12, validation=4, test=15)
UNEVEN = deal(DATA, [[1, 30], [7, 12, 3], [20]], test=[30, 30, 30])
RICH = Training(epochs=2, batch_size=5, learning_rate=0.1, learning_rate_decay=0.9, weight_decay=0.01, clip_norm=0.5)
OWNERS = pytest.mark.parametrize("owner", ["client", "edge"])


def run(scheme: Personalization | None = None, **options: Any) -> Played:
    method: dict[str, Any] = {key: options.pop(key) for key in ("clustering", "selection") if key in options}
    method |= {} if scheme is None else {"personalization": scheme}
    return play(Method(name="m", **method), DATA, UNEVEN, training=RICH, **options)


@pytest.fixture(scope="module")
def hierfavg() -> Played:
    return run()


def whole(*parts: Params) -> Parts:
    """Return a network put together from stacks of layers, under a neutral name."""
    return {"network": {name: value for stack in parts for name, value in stack.items()}}


def judged(played: Played) -> list[list[float]]:
    return [record["accuracy_per_edge"] for record in played.records]


# ------------------------------------------------------------------------------------------------ interpolated


@pytest.mark.covering
@OWNERS
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_network_for_all_is_hierfavgs_whatever_alpha(
    owner: str, alpha: float, adaptive: bool, hierfavg: Played
) -> None:
    played = run(Interpolated.model_validate({"owner": owner, "alpha": alpha, "adaptive": adaptive}))
    assert distance(whole(played.end.parts["global"]), whole(hierfavg.end.parts["global"])) < 1e-6


@pytest.mark.parametrize("owner", first(1, ["client", "edge"]))
def test_without_anything_of_ones_own_it_predicts_as_hierfavg(owner: str, hierfavg: Played) -> None:
    """With the newest network for all, not with the one that clients trained from."""
    played = run(Interpolated.model_validate({"owner": owner, "alpha": 0.0, "adaptive": False}))
    assert judged(played) == [pytest.approx(edges, abs=1e-12) for edges in judged(hierfavg)]


def test_the_blend_is_what_is_measured_wherever_a_model_is() -> None:
    """By a selection policy that asks its edge, and in the reports of edges before the cloud averages them."""
    without = Interpolated(owner="edge", alpha=0.0, adaptive=False)
    options: dict[str, Any] = {
        "selection": Thompson(warmup=0, reward_split="test", fraction=0.5),
        "evaluation": Evaluation(point="edge_model"),
    }
    left, right = run(without, **options, num_rounds=5), run(**options, num_rounds=5)
    assert judged(left) == judged(right)
    assert [r["selected"] for r in left.records] == [r["selected"] for r in right.records]


@pytest.mark.parametrize("owner", first(1, ["client", "edge"]))
def test_with_nothing_but_ones_own_it_is_local_training(owner: str) -> None:
    alone = run(Interpolated.model_validate({"owner": owner, "alpha": 1.0, "adaptive": False}))
    local = run(Personal.model_validate({"owner": owner, "strength": 0.0}))
    assert distance(whole(alone.end.parts["personal"]), whole(local.end.parts["personal"])) < 1e-5
    assert judged(alone) == judged(local)


def test_alpha_learns_within_its_bounds() -> None:
    states = run(Interpolated(alpha=0.5, alpha_rate=1.0), num_rounds=4).states
    alphas = [state.parts["alpha"]["alpha"].tolist() for state in states]
    assert alphas[0] == [0.5] * 6
    assert len(set(alphas[1])) == 1, "it moves before the networks are apart, by the pull alone"
    assert len(set(alphas[2])) == 6, "no two clients agree"
    assert all(0 <= alpha <= 1 for state in alphas for alpha in state)


@pytest.mark.full
def test_where_clients_disagree_alpha_turns_to_ones_own() -> None:
    """Half of the edges call classes by other names: one network for all cannot serve them."""
    scheme, (data, shards, _) = Interpolated(owner="edge"), planted_groups(4, 2, 2, train=20, test=15)
    played, shared = (
        play(method, data, shards, training=RICH.model_copy(update={"epochs": 3}), num_rounds=4)
        for method in (Method(name="m", personalization=scheme), Method(name="h"))
    )
    assert float(played.end.parts["alpha"]["alpha"].mean()) > 0.55
    assert played.accuracy > shared.accuracy + 0.2


def test_alpha_can_leave_zero() -> None:
    """There the blend is the network for all, and its gradient tells which way one's own lies."""
    scheme, local = Interpolated(alpha=0.0, alpha_rate=5.0), run(Personal(strength=0))
    parts = scheme.init(local.federation.build, {"cloud": 1, "client": 6}) | {"personal": local.end.parts["personal"]}
    assert float(run(scheme, parts=parts, num_rounds=1).end.parts["alpha"]["alpha"].max()) > 0


def test_who_never_trained_predicts_with_the_network_for_all() -> None:
    played = run(Interpolated(), selection=Random(fraction=0.5), num_rounds=1)
    trained = {client for edge in played.records[0]["selected"] for client in edge}
    blend = Interpolated().blended(played.end.parts)["personal"]
    for client in range(6):
        own = {name: value[client : client + 1] for name, value in blend.items()}
        assert (distance(whole(own), whole(played.end.parts["global"])) < 1e-7) == (client not in trained)


# -------------------------------------------------------------------------------------------- Moreau envelope


@OWNERS
def test_networks_that_are_held_tight_are_the_network_for_all(owner: str) -> None:
    """With η_θ·λ = 1 and K = 1, θ is w − η_θ·∇L(w), so that w ← w − η·∇L(w): HierFAVG by plain gradient descent."""
    bare = RICH.model_copy(update={"momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "batch_size": 100})
    scheme = MoreauEnvelope.model_validate({"owner": owner, "strength": 10, "inner_rate": 0.1, "inner_steps": 1})
    tight, plain = (play(Method(name="m", personalization=s), DATA, UNEVEN, training=bare) for s in (scheme, Shared()))
    assert distance(whole(tight.end.parts["global"]), whole(plain.end.parts["global"])) < 1e-6
    assert distance(whole(plain.end.parts["global"]), whole(plain.states[0].parts["global"])) > 0.01


def test_the_mixture_of_the_server_goes_as_far_beyond_the_mean() -> None:
    once, twice = (run(MoreauEnvelope(mixing=mixing), num_rounds=1) for mixing in (1.0, 2.0))
    start = once.states[0].parts["global"]
    beyond = {name: 2 * value - start[name] for name, value in once.end.parts["global"].items()}
    assert distance(whole(twice.end.parts["global"]), whole(beyond)) < 1e-6
    assert distance(whole(twice.end.parts["personal"]), whole(once.end.parts["personal"])) == 0


# ---------------------------------------------------------------------------------------------- adaptive start


@OWNERS
def test_a_start_that_never_adapts_is_hierfavg(owner: str, hierfavg: Played) -> None:
    """Exactly for clients; a mean of ones over an edge may round them."""
    played = run(AdaptiveStart.model_validate({"owner": owner, "mix_rate": 0.0}))
    far = distance(whole(played.end.parts["global"]), whole(hierfavg.end.parts["global"]))
    assert far == 0 if owner == "client" else far < 1e-5
    assert judged(played) == [pytest.approx(edges, abs=1e-12) for edges in judged(hierfavg)]


def test_a_start_adapts_in_the_top_layers_alone() -> None:
    played = run(AdaptiveStart(owner="client", mix_rate=5.0))
    for mix in played.end.parts["mix"].values():
        assert ((mix >= 0) & (mix <= 1)).all()
        assert (mix < 1).any()
    blend = AdaptiveStart(owner="client").blended(played.end.parts)["personal"]
    top = set(played.end.parts["mix"])
    for name, value in played.end.parts["global"].items():
        assert torch.equal(blend[name], value.expand_as(blend[name])) == (name not in top)
    assert top == {"3.weight", "3.bias"}


# ------------------------------------------------------------------------------------------------- body and heads


@OWNERS
@pytest.mark.parametrize(("scheme", "close"), [(TwoHeads, 0.0), (HeadsTogether, 1e-6)])
def test_body_and_generic_head_are_hierfavg_where_the_loss_is_plain(
    scheme: type[TwoHeads | HeadsTogether], close: float, owner: str, hierfavg: Played
) -> None:
    """Clipped by the norm of both together, as the network of all is."""
    played = run(scheme.model_validate({"owner": owner, "balanced": False}))
    generic = whole(played.end.parts["body"], played.end.parts["generic"])
    assert distance(generic, whole(hierfavg.end.parts["global"])) <= close
    assert judged(played) != judged(hierfavg)


def test_balancing_changes_nothing_where_classes_are_balanced() -> None:
    evenly = [[i for i in range(len(DATA.y_train)) if DATA.y_train[i] == k][:12] for k in range(DATA.num_classes)]
    shards = deal(DATA, [[len(evenly) * 2] * 2] * 3, test=[30, 30, 30])
    train = tuple(torch.tensor([rows[2 * c : 2 * c + 2] for rows in evenly]).flatten().numpy() for c in range(6))
    shards = type(shards)(train, shards.validation, shards.test, shards.clients)
    plain, balanced = (
        play(Method(name="m", personalization=TwoHeads(balanced=balanced)), DATA, shards, training=RICH)
        for balanced in (False, True)
    )
    assert distance(plain.end.parts, balanced.end.parts) < 1e-5


class HeadAlone(PersonalHead):
    """Only the head learns, on a body that keeps still."""

    kind: Literal["head_alone"] = "head_alone"  # type: ignore[assignment]

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("head",), epochs=self.head_epochs),)


@pytest.mark.parametrize("owner", ["client", "edge"])
def test_heads_that_come_first_learn_on_a_body_that_keeps_still(owner: str) -> None:
    options = {"owner": owner, "head_epochs": 3}
    first = run(PersonalHead.model_validate({**options, "order": "head_first", "body_epochs": 1}), num_rounds=1)
    alone = run(HeadAlone.model_validate(options), num_rounds=1)
    assert distance(whole(first.end.parts["head"]), whole(alone.end.parts["head"])) == 0
    assert distance(whole(first.end.parts["body"]), whole(first.states[0].parts["body"])) > 1e-3


def test_a_head_that_is_never_late_is_a_network_of_ones_own(hierfavg: Played) -> None:
    """Local training with a cluster for each edge, and HierFAVG with one for all."""
    alone, local = run(LateHead(last=3), clustering=Fixed()), run(PerCluster(), clustering=Fixed())
    assert distance(whole(*alone.end.parts.values()), whole(local.end.parts["cluster"])) == 0
    together = run(LateHead(last=3))
    assert distance(whole(*together.end.parts.values()), whole(hierfavg.end.parts["global"])) == 0


def test_a_late_head_keeps_its_bits_and_does_not_travel_until_it_learns() -> None:
    played = run(LateHead(last=1), clustering=Fixed(), num_rounds=3)
    heads = [{"head": state.parts["head"]} for state in played.states]
    assert distance(heads[0], heads[2]) == 0
    assert distance(heads[2], heads[3]) > 1e-3
    size = {part: sum(v[0].numel() for v in stack.values()) for part, stack in played.end.parts.items()}
    for record, numbers in zip(played.records, [size["body"], size["body"], sum(size.values())], strict=True):
        for tier, receivers in (("client", 6), ("cloud", 3)):
            for direction in ("down", "up"):
                assert record["bytes"][tier][direction]["train"] == 4 * receivers * numbers


# ------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("scheme", "clients", "cloud"),
    [
        (Interpolated(), "w", "w"),
        (Interpolated(owner="edge"), "w + w + 1", "w"),
        (Interpolated(owner="edge", adaptive=False), "w + w", "w"),
        (MoreauEnvelope(), "w", "w"),
        (MoreauEnvelope(owner="edge"), "w + w", "w"),
        (AdaptiveStart(owner="client"), "w", "w"),
        (AdaptiveStart(owner="edge"), "w + h", "w"),
        (ControlVariates(), "w + w", "w + w"),
        (GroupCorrections(), "w + w + w", "w + w"),
        (DynamicPull(), "w", "w"),
        (TwoHeads(owner="client"), "w", "w"),
        (TwoHeads(owner="edge"), "w + h", "w"),
        (HeadsTogether(owner="edge"), "w + h", "w"),
        (PersonalHead(owner="client", order="head_first"), "w - h", "w - h"),
        (PersonalHead(owner="edge", order="head_first"), "w", "w - h"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind}-{getattr(value, 'owner', '')}",
)
def test_what_is_ones_own_does_not_travel(scheme: Any, clients: str, cloud: str) -> None:
    """In numbers that every client, and every edge, sends up; w is a network and h its last layer."""
    played = run(scheme, num_rounds=1)
    network = trees.take(run(num_rounds=1).end.parts["global"], 0)
    held = {"w": list(network), "h": ["3.weight", "3.bias"]}
    sizes = {letter: sum(network[name].numel() for name in names) for letter, names in held.items()}
    sent = played.records[0]["bytes"]
    assert sent["client"]["up"]["train"] == 4 * 6 * eval(clients, sizes)
    assert sent["cloud"]["up"]["train"] == 4 * 3 * eval(cloud, sizes)
    if isinstance(scheme, ControlVariates | GroupCorrections):  # others have seen their networks from the start
        assert sent["client"]["down"]["train"] == sent["client"]["up"]["train"]
        assert sent["cloud"]["down"]["train"] == sent["cloud"]["up"]["train"]


@pytest.mark.parametrize(
    "scheme",
    first(1, [Interpolated(), MoreauEnvelope(), AdaptiveStart(owner="client"), HeadsTogether(owner="client")]),
)
def test_a_client_that_is_not_selected_keeps_what_is_its_own(scheme: Personalization) -> None:
    played = run(scheme, selection=Random(fraction=0.5), num_rounds=4)
    seen: set[int] = set()
    for t, record in enumerate(played.records):
        chosen = {client for edge in record["selected"] for client in edge}
        for part in (part for part, spec in scheme.parts.items() if spec.scope == "client" and spec.follows is None):
            for client in range(6):
                before, after = (trees.take(played.states[i].parts[part], client) for i in (t, t + 1))
                if client not in chosen:
                    assert distance(whole(before), whole(after)) == 0
        seen |= chosen
    assert len(seen) > 3
