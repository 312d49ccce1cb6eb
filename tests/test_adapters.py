"""Adapters on a frozen network: what is trained, who owns it, what passes a link, and what a mean makes of it."""

import json
import re
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

import fedbac
from fedbac import Adapters, ConfigError, Method
from fedbac.config.columns import CHOSEN
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params
from fedbac.lowrank import LowRank, adapt, merged
from fedbac.models import Perceptron, builder, weights
from tests.covering import first
from tests.unit.tiny import tiny_data, tiny_run, tiny_task

NETWORK = Perceptron(hidden=(6,))
BYTES = 4 * 2 * (64 + 6 + 6 + 10)
"""Of adapters of rank 2 on the two layers of that network, for 64 pixels and ten classes."""


def run(**personalization: Any) -> fedbac.Run:
    clusters = 2 if "cluster" in Adapters(**personalization).parts else 1
    method = Method(
        name="adapters",
        clustering={"kind": "fixed", "num_clusters": clusters},
        personalization=Adapters(**personalization),
    )
    return tiny_run(method, task=tiny_task(network=NETWORK))


def shaken(scheme: Adapters) -> tuple[nn.Module, Params]:
    """Return a network of a scheme, and weights for it of which none is zero."""
    network = builder(NETWORK, None, (64,), 10, 0, extend=scheme.extend)(0)
    generator = torch.Generator().manual_seed(0)
    return network, {n: v + torch.randn(v.shape, generator=generator) for n, v in weights(network).items()}


def change(network: nn.Module, params: Params) -> list[Tensor]:
    """Return by how much the products of all owners change the weight of every layer, as anybody would write it."""
    found = []
    for name, layer in network.named_modules():
        if isinstance(layer, LowRank):
            values = dict(layer.named_parameters()) | {
                n.removeprefix(f"{name}."): v for n, v in params.items() if n.startswith(f"{name}.")
            }
            slots = [n.removesuffix(".b") for n in values if n.endswith(".b")]
            found.append(sum((values[f"{s}.b"] @ values[f"{s}.a"] for s in slots), start=torch.zeros(())) * layer.scale)
    return found


def test_a_layer_is_the_frozen_one_and_the_sum_of_all_owners_products() -> None:
    scheme = Adapters(owners=("cloud", "cluster", "client"), rank=3, alpha=6)
    network, params = shaken(scheme)
    base = builder(NETWORK, None, (64,), 10, 0)(0)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(network(x), base(x)), "before training nothing is added"
    got = functional_call(network, params, (x,))
    with torch.no_grad():
        for layer, more in zip(
            [m for m in base.modules() if isinstance(m, nn.Linear)], change(network, params), strict=True
        ):
            layer.weight += more
    torch.testing.assert_close(got, base(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("train", ["b", "both"])
def test_the_mean_of_products_is_the_product_of_means_if_a_is_frozen_and_only_then(train: Any) -> None:
    scheme = Adapters(owners=("cloud",), train=train)
    network, one = shaken(scheme)
    other = {name: value.flip(0) for name, value in one.items()}
    mean = trees.weighted_mean(trees.stack([one, other]), np.array([1.0, 3.0]))
    for together, first_, second in zip(*(change(network, p) for p in (mean, one, other)), strict=True):
        assert torch.allclose(together, (first_ + 3 * second) / 4, atol=1e-4) == (train == "b")


@pytest.mark.parametrize(
    ("owners", "up"),
    [(("cloud",), 1), (("cluster",), 1), (("cloud", "cluster"), 2), (("edge",), 1), (("client",), 0),
     (("cloud", "cluster", "edge", "client"), 3)],
)  # fmt: skip
def test_links_count_the_adapters_that_pass_them_and_nothing_of_the_frozen_network(
    owners: tuple[Any, ...], up: int
) -> None:
    played = run(owners=owners, rank=2)
    for record in played.records:
        selected = sum(len(clients) for clients in record["selected"])
        assert record["bytes"]["client"]["up"]["train"] == selected * up * BYTES


def test_with_a_frozen_only_b_passes() -> None:
    (record, *_) = run(owners=("cloud",), rank=2, train="b").records
    selected = sum(len(clients) for clients in record["selected"])
    assert record["bytes"]["client"]["up"]["train"] == selected * 4 * 2 * (6 + 10)


@pytest.mark.parametrize(
    ("whole", "same"),
    [
        ({"cloud": ("*",)}, "shared"),
        ({"cluster": ("*",)}, "per_cluster"),
        ({"cloud": ("1.*",), "edge": ("3.*",)}, "personal_head"),
    ],
)
def test_whole_weights_of_owners_are_the_schemes_that_have_them_as_parts(whole: Any, same: str) -> None:
    """Without low-rank products nothing is left but who owns which weights."""
    clusters = 2 if same == "per_cluster" else 1
    clustering = {"kind": "lowest_loss" if clusters > 1 else "fixed", "num_clusters": clusters}
    runs = [
        tiny_run(Method(name="x", clustering=clustering, personalization=one), task=tiny_task(network=NETWORK))
        for one in ({"kind": "adapters", "owners": (), "whole": whole}, same)
    ]
    ours, theirs = (run.model(edge=1).state_dict() for run in runs)
    for mine, wanted in zip(ours.values(), theirs.values(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


COLUMNS = ("clustering", "sharing", "aggregation", "selection", "step", "client_up")
KINDS = [[f"{column}={kind}" for kind in [*CHOSEN[column]][::-1] if kind != "dynamic"] for column in COLUMNS]
"""All but the step that belongs to another scheme."""
POLICIES = [policy for row in zip_longest(*KINDS) for policy in row if policy is not None]
"""One of each column, and then the others."""
TWO = ("method.clustering.num_clusters=2",)
TAUGHT = ("method.personalization.owners=[cluster]", "method.personalization.taught=true")
BESIDES: dict[str, tuple[str, ...]] = {
    "clustering=lowest_loss": (*TWO, "method.clustering.start_labels=round_robin"),
    "clustering=kmeans": TWO,
    "sharing=distill": TAUGHT,
    "sharing=distill_adaptive": TAUGHT,
    "client_up=noise": ("method.links.client_up=[{kind: clip, norm: 1}, {kind: noise, multiplier: 0.1}]",),
}


@pytest.mark.parametrize("policy", first(len(COLUMNS), POLICIES))
def test_adapters_learn_under_every_policy_and_the_network_stays_what_it_was(policy: str) -> None:
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    link = policy.startswith("client_up")
    settings = (f"method.{'links.' * link}{policy}", *BESIDES.get(policy, ()))
    played = tiny_run("fed-bac", "method.personalization=adapters", "method.personalization.rank=2", *settings,
                      network=base)  # fmt: skip
    state = {name.partition("_network.")[2]: value for name, value in played.model(edge=0).state_dict().items()}
    for name, value in base.state_dict().items():
        assert torch.equal(state[name], value)
    assert all(value.count_nonzero() for name, value in state.items() if ".adapter_" in name), (
        "some owner learned nothing"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("method.sharing=distill",), "one whole network per cluster .* 'adapters' has not"),
        (
            ("method.personalization.owners=[cluster, client]", "method.clustering=linucb"),
            "there is none of a cluster to measure",
        ),
    ],
)
def test_policies_that_need_whole_networks_of_clusters_are_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_run("fed-bac", "method.personalization=adapters", *settings)


def test_a_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dataset": tiny_data(), "rounds": 3, "device": "cpu", "workers": 1,
        "settings": {"method.personalization": {"kind": "adapters", "rank": 2}},
    }  # fmt: skip
    whole = fedbac.run("fed-bac", tiny_task(network=NETWORK), **options)
    with fedbac.play("fed-bac", tiny_task(network=NETWORK), **options, out=tmp_path / "run") as playing:
        next(iter(playing))
    resumed = fedbac.resume(tmp_path / "run", dataset=tiny_data())
    for name, value in whole.model(edge=1).state_dict().items():
        assert torch.equal(value, resumed.model(edge=1).state_dict()[name])


class Pretrained(nn.Module):
    """A body with batch normalization whose statistics somebody gathered, a constant, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10)
        self.norm.running_mean = torch.arange(6.0)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(torch.relu(self.norm(self.body(x.flatten(1))))) * self.scale
        return logits


def test_statistics_and_constants_of_a_frozen_network_stay_as_they_are() -> None:
    user = Pretrained()
    before = {name: value.clone() for name, value in user.state_dict().items()}
    scheme = Adapters(owners=("cloud",), target=("body",), whole={"client": ("head.*",)})
    method = Method(name="x", clustering={"kind": "fixed", "num_clusters": 1}, personalization=scheme)
    played = tiny_run(method, network=user)
    state = played.model(client=3).state_dict()
    for name, value in before.items():
        mine = next(found for key, found in state.items() if key.endswith(f".{name}"))
        assert torch.equal(mine, value) == (not name.startswith("head")), name
        assert torch.equal(user.state_dict()[name], value), "the user's own network is not touched"
    assert all(value.requires_grad for value in user.parameters())


class Backbone(nn.Module):
    """A convolutional network, as if somebody had trained it on other images, and a head."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(4), nn.SiLU())
        self.block = nn.Sequential(second, nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(32, 10)
        self.stem(torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(7)))  # gathers statistics

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.block(self.stem(x)))  # type: ignore[no-any-return]


def test_heads_of_clients_learn_on_a_frozen_convolutional_body_in_one_batch(tmp_path: Path) -> None:
    method = Method(name="x", clustering={"kind": "fixed", "num_clusters": 1},
                    personalization=Adapters(owners=(), whole={"client": ("head.*",)}))  # fmt: skip
    played = tiny_run(method, network=Backbone(), task=tiny_task(rounds=4))
    assert played.computed_by(1)["trainer"] == "torch-batched-cpu"
    losses = [record["loss"] for record in played.records]
    assert losses == sorted(losses, reverse=True)
    own, given = played.model(client=3).merged(), Backbone().state_dict()
    for name, value in own.state_dict().items():
        assert torch.equal(value, given[name]) == (not name.startswith("head")), name
    (record, *_) = played.records
    assert not record["bytes"]["client"]["up"]["train"]


def test_a_model_is_saved_as_the_users_own_network_with_all_that_was_learned_in_its_weights(tmp_path: Path) -> None:
    scheme = Adapters(owners=("cloud", "client"), target=("body",), whole={"client": ("head.*",)})
    method = Method(name="x", clustering={"kind": "fixed", "num_clusters": 1}, personalization=scheme)
    played = tiny_run(method, network=Pretrained())
    model, fresh = played.model(client=3), Pretrained()
    fresh.load_state_dict(load_file(played.save_model(tmp_path / "m.safetensors", client=3)))
    x = torch.from_numpy(tiny_data().x_test)
    assert model.mean is not None
    assert model.std is not None
    for own in (fresh.eval(), model.merged()):
        torch.testing.assert_close(own((x.float() / 255 - model.mean) / model.std), model(x), rtol=1e-5, atol=1e-5)
    assert {type(module) for module in model.merged().modules()} == {Pretrained, nn.Linear, nn.BatchNorm1d}
    with pytest.raises(ConfigError, match=r"head\.weight is trained as a whole .*; save it as \.safetensors"):
        played.save_model(tmp_path / "m.peft", client=3)


def test_products_of_all_owners_are_saved_as_one_for_peft(tmp_path: Path) -> None:
    played = run(owners=("cloud", "edge", "client"), rank=2, alpha=5)
    folder = played.save_model(tmp_path / "mine.peft", client=3)
    settings, saved = (
        json.loads((folder / "adapter_config.json").read_text()),
        load_file(folder / "adapter_model.safetensors"),
    )
    assert (settings["r"], settings["lora_alpha"]) == (6, 15)
    base = builder(NETWORK, None, (64,), 10, 0)(0)
    for name, value in played.model(client=3).merged().named_parameters():
        path, _, kind = name.rpartition(".")
        a, b = (saved.get(f"base_model.model.{path}.lora_{half}.weight") for half in "AB")
        wanted = base.get_parameter(name)
        if kind == "weight" and re.fullmatch(settings["target_modules"], path):
            assert a is not None
            assert b is not None
            wanted = wanted + settings["lora_alpha"] / settings["r"] * b @ a
            assert b.count_nonzero()
        torch.testing.assert_close(value, wanted)


def test_without_products_there_is_nothing_for_peft(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no low-rank products"):
        tiny_run("hierfavg").save_model(tmp_path / "mine.peft", edge=0)


@pytest.mark.parametrize("tracks", [True, False])
def test_batch_normalization_trains_again_once_all_is_merged(tracks: bool) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=tracks))
    again: Any = merged(adapt(network, ["*"], ["cloud"], 2, 4.0, True, ())).train()
    assert type(again[1]) is nn.BatchNorm1d
    assert again[1].training


class Tied(nn.Module):
    """A network that uses a weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.second(self.first(x.flatten(1))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("target", ["first", "head"])
def test_into_a_weight_that_is_used_twice_nothing_is_merged(target: str, tmp_path: Path) -> None:
    settings = ("personalization=adapters", "personalization.owners=[cloud]", f"personalization.target=[{target}]")
    played = tiny_run("hierfavg", *[f"method.{one}" for one in settings], task=tiny_task(rounds=1), network=Tied())
    if target == "head":
        Tied().load_state_dict(load_file(played.save_model(tmp_path / "m.safetensors", edge=0)))
        return
    with pytest.raises(ConfigError, match=r"first has adapters and shares its weight with second\.weight"):
        played.model(edge=0).merged()


def test_one_network_holds_every_weight_in_exactly_one_part() -> None:
    scheme = Adapters(owners=("cloud", "client"), whole={"edge": ("3.weight",)})
    network, params = shaken(scheme)
    held = Anatomy(scheme, network).weights
    assert sorted(name for names in held.values() for name in names) == sorted(params)
    assert held["edge"] == ("3.weight",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": ("q_proj",)}, r"target: 'q_proj' matches none of the linear layers .*: 1, 3"),
        ({"whole": {"client": ("head.*",)}}, r"whole: 'head\.\*' matches none of the weights .*: 1\.weight"),
        ({"owners": ()}, "nothing is trained"),
        ({"owners": ("cloud", "cloud")}, "give each once"),
        ({"owners": ("cloud",), "whole": {"cloud": ("1.*",), "edge": ("1.weight",)}}, "exactly once"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words_that_name_it(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedbac.run(
            "hierfavg", tiny_task(network=NETWORK), dataset=tiny_data(), rounds=1,
            settings={"method.personalization": {"kind": "adapters", "owners": ("cloud",)} | settings},
        )  # fmt: skip


class Hub(nn.Module):
    """What models of transformers are like: they return logits among other things."""

    __module__ = "transformers.models.made_up"
    config = SimpleNamespace(use_cache=True)

    def __init__(self) -> None:
        super().__init__()
        self.read, self.tell = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, input_ids: Tensor) -> Any:
        """Return an object with logits."""
        return SimpleNamespace(logits=self.tell(self.read(input_ids)), past_key_values=None)


def test_a_model_of_transformers_is_a_network_as_it_is() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (200, 5)), rng.integers(0, 9, (200, 5))
    data = fedbac.Dataset.from_arrays("made up", x, y, x[:60], y[:60])
    task = tiny_task(rounds=1, loss={"kind": "next_token"})
    played = tiny_run("hierfavg", "method.personalization=adapters", "method.personalization.owners=[cloud]",
                      task=task, dataset=data, network=Hub)  # fmt: skip
    assert played.model(edge=0)(torch.from_numpy(x[:2])).shape == (2, 5, 9)
