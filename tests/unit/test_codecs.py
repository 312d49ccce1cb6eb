"""Transforms of links: what is sent and what is left add up, bytes fall, and nothing else changes."""

from typing import Any

import numpy as np
import pytest
import torch

import fedbac
from fedbac.clustering import LowestLoss
from fedbac.config.columns import Links
from fedbac.config.experiment import Method
from fedbac.config.explain import parse
from fedbac.core.codecs import Both, Chain, Clip, Codec, EightBits, GaussianNoise, Senders, TopK, Transform, passed
from fedbac.core.links import BYTES_PER_NUMBER, TIERS, Link, Tier
from fedbac.core.parts import Parts
from fedbac.core.rng import Rng, stream
from fedbac.core.state import flatten
from fedbac.data import planted_groups
from fedbac.errors import ConfigError
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.runs.configure import configure
from fedbac.selection import Random
from fedbac.topology import Hierarchical
from tests.covering import first
from tests.support import distance, play, without
from tests.unit.tiny import tiny_run

DATA, SHARDS, _ = planted_groups(3, 4, 2, train=12, validation=2, test=15)
CODECS = [TopK(keep=0.3), TopK(keep=0.001), EightBits(), Both(first=TopK(keep=0.3), second=EightBits())]
EVERYWHERE = ("client_up", "client_down", "cloud_up", "cloud_down")
SENDERS = Senders(7, "client_up", round=3, edge_round=1, numbers=(4, 0, 9))


def networks(seed: int) -> Parts:
    rng = torch.Generator().manual_seed(seed)
    shapes = {"weight": (4, 5), "bias": (4,)}
    return {part: {name: torch.randn(3, *s, generator=rng) for name, s in shapes.items()} for part in ("b", "a")}


def unused(row: int) -> Rng:
    raise AssertionError("these codecs leave nothing to chance")


def encoded(codec: Codec, change_N: torch.Tensor) -> torch.Tensor:
    """Return what arrives of changes of one tensor."""
    flat_N = change_N.reshape(len(change_N), -1)
    return codec.unpack(codec.pack(flat_N, unused), flat_N.shape[1]).view_as(change_N)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_sent_and_what_is_left_add_up(codec: Codec) -> None:
    value, start, left = networks(0), networks(1), networks(2)
    arrived, after, _ = passed(Chain((), codec), value, start, left, SENDERS)
    for part, name in (("a", "weight"), ("a", "bias"), ("b", "weight"), ("b", "bias")):
        sent = arrived[part][name] - start[part][name]
        whole = value[part][name] - start[part][name] + left[part][name]
        torch.testing.assert_close(sent + after[part][name], whole)


def test_the_largest_are_sent_and_at_least_one() -> None:
    change = torch.tensor([[0.1, -3.0, 0.2, 2.0], [1.0, 0.5, 0.0, -0.4]])
    assert encoded(TopK(keep=0.5), change).tolist() == [[0.0, -3.0, 0.0, 2.0], [1.0, 0.5, 0.0, 0.0]]
    assert (encoded(TopK(keep=0.01), change) != 0).sum(1).tolist() == [1, 1]
    assert (TopK(keep=0.5).num_bytes(4), TopK(keep=1.0).num_bytes(4)) == (2 * 8, 4 * 4)


def test_eight_bits_are_off_by_at_most_half_a_step() -> None:
    change = networks(3)["a"]["weight"]
    step = change.reshape(3, -1).abs().amax(1) / 127
    assert ((encoded(EightBits(), change) - change).reshape(3, -1).abs().amax(1) <= step / 2 + 1e-7).all()
    assert encoded(EightBits(), torch.zeros(1, 3)).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("codec", [*CODECS, TopK(keep=1.0)], ids=str)
@pytest.mark.parametrize("numbers", [1, 2, 7, 100])
def test_bytes_are_those_of_what_is_packed(codec: Codec, numbers: int) -> None:
    change = torch.randn(3, numbers, generator=torch.Generator().manual_seed(numbers))
    packed = codec.pack(change, unused)
    assert {name: (value.dtype, value.shape[1]) for name, value in packed.items()} == codec.layout(numbers)
    assert sum(value[0].numel() * value.element_size() for value in packed.values()) == codec.num_bytes(numbers)
    assert codec.fault(packed, numbers) is None
    assert torch.equal(codec.unpack(packed, numbers), encoded(codec, change))


def test_the_smallest_of_all_numbers_fit_into_eight_bits() -> None:
    """190 times the smallest number is not 127 times any number: the nearest step is that number itself."""
    smallest = torch.tensor(1, dtype=torch.int32).view(torch.float32)
    packed = EightBits().pack(torch.stack([190 * smallest, -190 * smallest])[None], unused)
    assert packed["levels"].tolist() == [[127, -127]]


def test_a_broken_row_arrives_broken_and_leaves_what_was_left() -> None:
    value, start, left = networks(0), networks(1), networks(2)
    value["a"]["weight"][1, 0] = float("nan")
    arrived, after, _ = passed(Chain((), TopK(keep=0.3)), value, start, left, SENDERS)
    assert torch.equal(arrived["a"]["weight"][1].isnan(), value["a"]["weight"][1].isnan())
    assert torch.equal(after["a"]["weight"][1], left["a"]["weight"][1])
    assert torch.isfinite(arrived["a"]["weight"][[0, 2]]).all()


def test_a_broken_sender_whose_change_is_altered_lets_nothing_out() -> None:
    """As it is, it would leave uncut; but its receiver must see that it is broken."""
    value, start, left = networks(0), networks(1), networks(2)
    value["a"]["weight"][1, 0] = float("inf")
    for codec in (None, TopK(keep=0.3)):
        arrived, after, _ = passed(Chain((Clip(norm=0.1),), codec), value, start, left, SENDERS)
        for part in arrived:
            for name, found in arrived[part].items():
                assert found[1].isnan().all()
                assert found[[0, 2]].isfinite().all()
                assert codec is None or torch.equal(after[part][name][1], left[part][name][1])


@pytest.mark.parametrize("name", first(2, EVERYWHERE))
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
    codec, bank = TopK(keep=0.1), {"global": networks(0)["a"]}
    link = Link(tier, Shared(), chains=Links(**dict.fromkeys([f"{one}_down" for one in TIERS], codec)).chains)
    link.send("down", "train", bank)
    link.send("down", "evaluate", bank)
    each = {"train": codec.num_bytes(20) + codec.num_bytes(4), "evaluate": BYTES_PER_NUMBER * (20 + 4)}
    assert link.traffic.entries == {(tier, "down", purpose): 3 * num_bytes for purpose, num_bytes in each.items()}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"personalization": Additive(), "clustering": LowestLoss(num_clusters=2, period=1, threshold=1.0)},
            marks=pytest.mark.full,
        ),
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


# -------------------------------------------------------------------------------------------------- chains


def rows(parts: Parts, row: int) -> np.ndarray[Any, Any]:
    """Return all that one sender sends, in the order of names."""
    values = [value for _, params in sorted(parts.items()) for _, value in sorted(params.items())]
    return np.concatenate([value[row].numpy().reshape(-1) for value in values])


def by_hand(change: np.ndarray[Any, Any], sender: int, norm: float, multiplier: float) -> np.ndarray[Any, Any]:
    """Return a change that was clipped and has its noise, in NumPy."""
    length = np.sqrt(np.square(change.astype(np.float64)).sum())
    cut = change * np.float32(min(1.0, norm / length))
    rng = stream(SENDERS.seed, "client_up", SENDERS.round, SENDERS.edge_round, sender)
    return cut + np.float32(multiplier * norm) * rng.standard_normal(change.size, dtype=np.float32)


@pytest.mark.parametrize("norm", [0.5, 1e3], ids=["longer", "shorter"])
@pytest.mark.parametrize("multiplier", [0.0, 0.7])
def test_clip_and_noise_are_those_of_a_loop(norm: float, multiplier: float) -> None:
    """One norm over both parts; noise from the sender's own stream."""
    value, start = networks(0), networks(1)
    chain = Chain((Clip(norm=norm), GaussianNoise(multiplier=multiplier)))
    arrived, left, sent = passed(chain, value, start, {}, SENDERS)
    assert left == sent == {}
    for row, sender in enumerate(SENDERS.numbers):
        altered = by_hand(rows(value, row) - rows(start, row), sender, norm, multiplier)
        np.testing.assert_allclose(rows(arrived, row) - rows(start, row), altered, rtol=1e-5, atol=1e-5 * norm)
        if multiplier == 0:
            assert np.linalg.norm(rows(arrived, row) - rows(start, row)) <= norm * (1 + 1e-5)


def test_noise_has_its_deviation_and_another_draw_at_every_address() -> None:
    zeros = {"a": {"w": torch.zeros(1, 100_000)}}
    chain = Chain((Clip(norm=0.5), GaussianNoise(multiplier=3.0)))
    drawn = []
    for changed in ({}, {"seed": 8}, {"link": "cloud_up"}, {"round": 4}, {"edge_round": 0}, {"numbers": (5,)}):
        senders = SENDERS._replace(**{"numbers": (4,)} | changed)
        drawn.append(passed(chain, zeros, zeros, {}, senders).arrived["a"]["w"][0])
        assert torch.equal(drawn[-1], passed(chain, zeros, zeros, {}, senders).arrived["a"]["w"][0])
    deviations = torch.stack(drawn).std(1)
    assert deviations.sub(1.5).abs().max() < 0.02
    correlations = torch.corrcoef(torch.stack(drawn))
    assert correlations.sub(torch.eye(len(drawn))).abs().max() < 0.02


def test_what_is_fed_back_is_what_a_codec_left_and_nothing_that_was_cut() -> None:
    """change → clip → noise → + left → pack → left."""
    value, start, left = networks(0), networks(1), networks(2)
    alterations = (Clip(norm=0.5), GaussianNoise(multiplier=0.1))
    codec = Both(first=TopK(keep=0.3), second=EightBits())
    altered = passed(Chain(alterations), value, start, {}, SENDERS).arrived
    arrived, after, _ = passed(Chain(alterations, codec), value, start, left, SENDERS)
    for part in value:
        for name in value[part]:
            want = altered[part][name] - start[part][name] + left[part][name]
            sent = arrived[part][name] - start[part][name]
            torch.testing.assert_close(sent + after[part][name], want)
            torch.testing.assert_close(sent, encoded(codec, want), rtol=1e-4, atol=1e-5)


def test_senders_are_altered_alike_together_and_alone() -> None:
    value, start, left = networks(0), networks(1), networks(2)
    chain = Chain.of((Clip(norm=0.5), GaussianNoise(), TopK(keep=0.3), EightBits()))
    together = passed(chain, value, start, left, SENDERS)
    for row, sender in enumerate(SENDERS.numbers):
        one, begun, before = (
            {part: {name: v[row : row + 1] for name, v in params.items()} for part, params in parts.items()}
            for parts in (value, start, left)
        )
        alone = passed(chain, one, begun, before, SENDERS._replace(numbers=(sender,)))
        for part in value:
            for name in value[part]:
                assert torch.equal(alone.arrived[part][name][0], together.arrived[part][name][row])
                assert torch.equal(alone.left[part][name][0], together.left[part][name][row])


def test_one_sender_of_many_rows_has_one_norm() -> None:
    """An edge that holds networks of several clusters."""
    value, start = networks(0), networks(1)
    arrived = passed(Chain((Clip(norm=0.5),)), value, start, {}, SENDERS._replace(numbers=(1,))).arrived
    change = np.concatenate([rows(arrived, row) - rows(start, row) for row in range(3)])
    assert np.linalg.norm(change) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(("keep", "numbers"), [(0.1, 1), (0.1, 100), (0.5, 7), (1.0, 5)])
def test_the_values_of_the_largest_entries_are_rounded_and_their_places_stay(keep: float, numbers: int) -> None:
    both, change = Both(first=TopK(keep=keep), second=EightBits()), torch.linspace(-1, 2, numbers)[None]
    packed = both.pack(change, unused)
    count = TopK(keep=keep).count(numbers)
    assert both.num_bytes(numbers) == count * (1 + 4 * (count < numbers)) + 4
    assert {name: (value.dtype, value.shape[1]) for name, value in packed.items()} == both.layout(numbers)
    kept, found = encoded(TopK(keep=keep), change), both.unpack(packed, numbers)
    assert torch.equal(found != 0, kept.abs() > change.abs().max() / 254)
    assert (found - kept).abs().max() <= change.abs().max() / 254 + 1e-7


@pytest.mark.parametrize(
    ("transforms", "said"),
    [
        ((GaussianNoise(),), "'noise' is a multiple of a norm; put one before it, such as {kind: clip, norm: 1.0}"),
        ((GaussianNoise(), Clip()), "'noise' is a multiple of a norm"),
        ((TopK(), Clip()), "'clip' comes after 'top_k', which packs the change; put it before"),
        ((Clip(), EightBits(), GaussianNoise()), "'noise' comes after 'eight_bits', which packs the change"),
        ((EightBits(), TopK()), "'top_k' comes after 'eight_bits', which leaves nothing to pack; put it before"),
        ((TopK(keep=0.5), TopK(keep=0.1)), "'top_k' is there twice; leave one of them out"),
        ((Clip(norm=2), Clip(norm=1)), "'clip' is there twice"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(transforms: tuple[Transform, ...], said: str) -> None:
    for name in EVERYWHERE:
        with pytest.raises(ConfigError) as caught:
            parse(Links, {name: [one.model_dump() for one in transforms]}, "method.links")
        assert str(caught.value).startswith(f"method.links.{name}: {said}")


def test_what_a_sender_contributes_is_altered_on_its_way_up_only() -> None:
    for name in ("client_down", "cloud_down"):
        with pytest.raises(ConfigError, match=rf"^method.links.{name}: 'clip' .*; use it on client_up or cloud_up$"):
            parse(Links, {name: ["clip", "top_k"]}, "method.links")
    settings = ["method.links.cloud_up=clip"]
    with pytest.raises(ConfigError, match=r"^method.links.cloud_up .* for method.clustering .*links.client_up$"):
        configure("cfl", "demo", settings=settings)
    assert configure("cfl-edges", "demo", settings=settings).method.links.cloud_up == (Clip(),)


def test_one_transform_is_written_as_before_and_many_as_a_list() -> None:
    chain = (Clip(norm=2.0), TopK(keep=0.2), EightBits())
    links = Links(client_up=chain, cloud_up=TopK(), cloud_down="eight_bits", client_down=[])
    assert links.model_dump(mode="json") == {
        "client_up": [{"kind": "clip", "norm": 2.0}, {"kind": "top_k", "keep": 0.2}, {"kind": "eight_bits"}],
        "client_down": None,
        **dict.fromkeys(["region_up", "region_down", "country_up", "country_down"]),
        "cloud_up": {"kind": "top_k", "keep": 0.1},
        "cloud_down": {"kind": "eight_bits"},
    }
    assert Links.model_validate_json(links.model_dump_json()) == links
    assert links == Links(client_up=chain, cloud_up=(TopK(),), cloud_down=(EightBits(),))


def test_a_chain_is_a_setting_like_any_other() -> None:
    path = "method.links.client_up"
    for value in ("[{kind: clip, norm: 2}, noise, top_k]", [{"kind": "clip", "norm": 2}, "noise", TopK()]):
        settings: Any = [f"{path}={value}"] if isinstance(value, str) else {path: value}
        links = configure("hierfavg", "demo", settings=settings).method.links
        assert links.client_up == (Clip(norm=2.0), GaussianNoise(), TopK())
    with pytest.raises(ConfigError, match=r"'client_up' is a list; give all of it$"):
        configure(
            "hierfavg", "demo", settings=["method.links.client_up=[clip, top_k]", "method.links.client_up.keep=1"]
        )


CHAIN = (Clip(norm=0.5), GaussianNoise(multiplier=0.02), TopK(keep=0.3), EightBits())


@pytest.mark.parametrize("transforms", first(1, [CHAIN, CHAIN[:2]]), ids=["packed", "as it is"])
def test_chunks_of_clients_change_no_bit(transforms: tuple[Transform, ...]) -> None:
    method = Method(
        name="noisy", personalization=Additive(), links=Links(client_up=transforms, cloud_up=transforms),
        clustering=LowestLoss(num_clusters=2, period=1), unit="client", topology=Hierarchical(edge_rounds=2),
    )  # fmt: skip
    whole, cut = (play(method, DATA, SHARDS, memory_gib=memory) for memory in (None, 1e-6))
    assert without(whole.records) == without(cut.records)
    left, right = flatten(whole.end), flatten(cut.end)
    assert all(torch.equal(left[path], right[path]) for path in left)
    assert any("links_M" in path for path in left) == (transforms is CHAIN), "without a codec nothing is remembered"


def test_noise_is_paid_for_by_its_codec() -> None:
    """A chain without one costs what no chain costs."""

    def spent(*transforms: Transform) -> Any:
        links = Links(client_up=transforms, cloud_up=transforms)
        return play(Method(name="x", links=links), DATA, SHARDS, num_rounds=1).records[0]["bytes"]

    assert spent(*CHAIN[:2]) == spent()
    assert spent(*CHAIN) == spent(*CHAIN[2:]) != spent()


def test_clips_that_cut_nothing_and_noise_of_nothing_change_nothing() -> None:
    plain = play(Method(name="plain"), DATA, SHARDS)
    links = Links(client_up=(Clip(norm=1e9), GaussianNoise(multiplier=0.0)), cloud_up=Clip(norm=1e9))
    clipped = play(Method(name="clipped", links=links), DATA, SHARDS)
    for key, value in plain.end.parts["global"].items():
        torch.testing.assert_close(clipped.end.parts["global"][key], value, rtol=1e-5, atol=1e-6)


def test_a_part_that_another_stands_for_arrives_as_that_one_does() -> None:
    """Clients return one network for both parts of FedALA: what passes no link itself must not arrive uncut."""
    method = fedbac.method("fedala-edges", fedbac.task("demo")).model_copy(
        update={"links": Links(client_up=Clip(norm=1e-6))}
    )
    played = play(method, DATA, SHARDS, num_rounds=1)
    before, after = (state.parts for state in (played.states[0], played.end))
    assert distance({"global": before["global"]}, {"global": after["global"]}) < 1e-5
