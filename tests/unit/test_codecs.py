"""Compression of links: what is sent and what is left add up, bytes fall, and nothing else changes."""

from typing import Any

import numpy as np
import pytest
import torch

from fedbac.clustering import LowestLoss
from fedbac.config.experiment import Method
from fedbac.core.codecs import Codec, EightBits, Links, TopK, passed
from fedbac.core.links import BYTES_PER_NUMBER, TIERS, Link, Tier
from fedbac.core.state import flatten
from fedbac.data import planted_groups
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.selection import Random
from fedbac.topology import Hierarchical
from tests.support import play
from tests.unit.tiny import tiny_run

DATA, SHARDS, _ = planted_groups(3, 4, 2, train=12, validation=2, test=15)
CODECS = [TopK(keep=0.3), TopK(keep=0.001), EightBits()]
EVERYWHERE = ("client_up", "client_down", "cloud_up", "cloud_down")


def networks(seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(3, *shape, generator=rng) for name, shape in {"weight": (4, 5), "bias": (4,)}.items()}


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_sent_and_what_is_left_add_up(codec: Codec) -> None:
    value, start, left = networks(0), networks(1), networks(2)
    arrived, after, _ = passed(codec, value, start, left)
    for name in value:
        sent = arrived[name] - start[name]
        torch.testing.assert_close(sent + after[name], value[name] - start[name] + left[name])


def test_the_largest_are_sent_and_at_least_one() -> None:
    change = torch.tensor([[0.1, -3.0, 0.2, 2.0], [1.0, 0.5, 0.0, -0.4]])
    assert TopK(keep=0.5).encode(change).tolist() == [[0.0, -3.0, 0.0, 2.0], [1.0, 0.5, 0.0, 0.0]]
    assert (TopK(keep=0.01).encode(change) != 0).sum(1).tolist() == [1, 1]
    assert (TopK(keep=0.5).num_bytes(4), TopK(keep=1.0).num_bytes(4)) == (2 * 8, 4 * 4)


def test_eight_bits_are_off_by_at_most_half_a_step() -> None:
    change = networks(3)["weight"]
    step = change.reshape(3, -1).abs().amax(1) / 127
    assert ((EightBits().encode(change) - change).reshape(3, -1).abs().amax(1) <= step / 2 + 1e-7).all()
    assert EightBits().encode(torch.zeros(1, 3)).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("codec", [*CODECS, TopK(keep=1.0)], ids=str)
@pytest.mark.parametrize("numbers", [1, 2, 7, 100])
def test_bytes_are_those_of_what_is_packed(codec: Codec, numbers: int) -> None:
    change = torch.randn(3, numbers, generator=torch.Generator().manual_seed(numbers))
    packed = codec.pack(change)
    assert {name: (value.dtype, value.shape[1]) for name, value in packed.items()} == codec.layout(numbers)
    assert sum(value[0].numel() * value.element_size() for value in packed.values()) == codec.num_bytes(numbers)
    assert codec.fault(packed, numbers) is None
    assert torch.equal(codec.unpack(packed, numbers), codec.encode(change))


def test_the_smallest_of_all_numbers_fit_into_eight_bits() -> None:
    """190 times the smallest number is not 127 times any number: the nearest step is that number itself."""
    smallest = torch.tensor(1, dtype=torch.int32).view(torch.float32)
    packed = EightBits().pack(torch.stack([190 * smallest, -190 * smallest])[None])
    assert packed["levels"].tolist() == [[127, -127]]


def test_a_broken_row_arrives_broken_and_leaves_what_was_left() -> None:
    value, start, left = networks(0), networks(1), networks(2)
    value["weight"][1] = float("nan")
    arrived, after, _ = passed(TopK(keep=0.3), value, start, left)
    assert torch.isnan(arrived["weight"][1]).all()
    assert torch.equal(after["weight"][1], left["weight"][1])
    assert torch.isfinite(arrived["weight"][[0, 2]]).all()


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_link_that_leaves_nothing_out_changes_nothing(name: str) -> None:
    plain = play(Method(name="plain", selection=Random(fraction=0.5)), DATA, SHARDS)
    links = Links.model_validate({name: TopK(keep=1.0)})
    packed = play(Method(name="packed", selection=Random(fraction=0.5), links=links), DATA, SHARDS)
    for key, value in plain.end.parts["global"].items():
        torch.testing.assert_close(packed.end.parts["global"][key], value, rtol=1e-5, atol=1e-6)
    assert packed.records[-1]["bytes"] == plain.records[-1]["bytes"]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_bytes_of_a_link_fall_by_what_it_leaves_out(name: str) -> None:
    tier, _, direction = name.partition("_")
    plain = play(Method(name="plain"), DATA, SHARDS, num_rounds=1).records[0]["bytes"]
    links = Links.model_validate({name: TopK(keep=0.1)})
    packed = play(Method(name="packed", links=links), DATA, SHARDS, num_rounds=1).records[0]["bytes"]
    ratio = packed[tier][direction]["train"] / plain[tier][direction]["train"]
    assert 0.15 < ratio < 0.3  # a tenth of the values, each with its place; tiny tensors round up
    for other in {f"{t}_{d}" for t in ("client", "cloud") for d in ("up", "down")} - {name}:
        t, _, d = other.partition("_")
        assert packed[t][d] == plain[t][d]


@pytest.mark.parametrize("tier", TIERS)
def test_networks_that_are_only_measured_are_sent_whole(tier: Tier) -> None:
    """A codec compresses what is sent for training; its price is not that of the same networks sent to be measured."""
    codec, bank = TopK(keep=0.1), {"global": networks(0)}
    link = Link(tier, Shared(), codecs=Links(client_down=codec, cloud_down=codec))
    link.send("down", "train", bank)
    link.send("down", "evaluate", bank)
    each = {"train": codec.num_bytes(20) + codec.num_bytes(4), "evaluate": BYTES_PER_NUMBER * (20 + 4)}
    assert link.traffic.entries == {(tier, "down", purpose): 3 * num_bytes for purpose, num_bytes in each.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"personalization": Additive(), "clustering": LowestLoss(num_clusters=2, period=1, threshold=1.0)},
        {
            "personalization": PerCluster(cluster_init="distinct"),
            "clustering": LowestLoss(num_clusters=2, period=1, threshold=1.0),
            "unit": "client",
        },
        {"topology": Hierarchical(edge_rounds=2), "selection": Random(fraction=0.5)},
    ],
    ids=["edges move", "clients move", "two edge rounds"],
)
def test_every_link_compressed_still_learns_and_its_memory_keeps_its_shape(options: dict[str, Any]) -> None:
    links = Links(client_up=TopK(keep=0.2), client_down=TopK(keep=0.5), cloud_up=EightBits(), cloud_down=TopK(keep=0.5))
    played = play(Method(name="packed", links=links, **options), DATA, SHARDS, num_rounds=6)
    first, last = flatten(played.states[0]), flatten(played.end)
    assert {k: v.shape for k, v in first.items()} == {k: v.shape for k, v in last.items()}, "as a checkpoint needs it"
    assert all(np.isfinite(record["loss"]) for record in played.records)
    assert played.records[-1]["loss"] < played.records[0]["loss"]


def test_abad_that_leaves_nothing_out_and_averages_once_is_hierfavg() -> None:
    everything = {f"method.links.{link}.keep": 1.0 for link in ("client_up", "client_down", "cloud_up", "cloud_down")}
    settings = [f"{path}={value}" for path, value in (everything | {"method.topology.edge_rounds": 1}).items()]
    ours, plain = tiny_run("abad", *settings).records, tiny_run("hierfavg").records
    for mine, other in zip(ours, plain, strict=True):
        assert mine["accuracy_per_edge"] == pytest.approx(other["accuracy_per_edge"], abs=1e-6)
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
