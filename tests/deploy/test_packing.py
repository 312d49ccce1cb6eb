"""Links that compress: messages are as small as the ledger says, and a receiver believes no packed tensor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac import Perceptron
from fedbac.core.codecs import Both, Chain, Codec, EightBits, Senders, Sent, TopK, passed
from fedbac.core.links import DIRECTIONS, OUTER
from fedbac.core.parts import Parts
from fedbac.deploy.protocol.messages import MESSAGES, read_train_request
from fedbac.deploy.protocol.packing import ForgottenError, Shelf, pack, stamp, unpacked
from fedbac.deploy.protocol.wire import ROOM, Message, WireError, decode, encode
from fedbac.deploy.roles.calls import FORGOTTEN, STRANGER
from fedbac.runs.play import finish
from tests.deploy.in_memory import MemoryChildren, MemoryFederation
from tests.deploy.small import small
from tests.support import without

KINDS = {
    ("client", "down"): "fit",
    ("client", "up"): "update",
    ("cloud", "down"): "train",
    ("cloud", "up"): "trained",
}
HALF = TopK(keep=0.5)
TWICE = Both(first=HALF, second=EightBits())
CODECS: list[Codec] = [TopK(keep=0.3), TopK(keep=1.0), EightBits(), TWICE]
EVERYWHERE = ("client_up", "client_down", "cloud_up", "cloud_down")


class Weighed(MemoryChildren):
    """Children whose messages are weighed by kind; those that nobody worked on are left out."""

    def __init__(self, children: MemoryChildren) -> None:
        super().__init__(children.answers)
        self.bytes: dict[str, int] = {}
        self.count: dict[str, int] = {}
        self.forgotten = 0

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        answers, reasons = super().call(messages, deadline, limit)
        for name, answer in answers.items():
            self.forgotten += answer == FORGOTTEN
            if answer in (STRANGER, FORGOTTEN):
                continue
            for data in (messages[name], answer):
                kind = decode(data, MESSAGES).kind
                self.bytes[kind] = self.bytes.get(kind, 0) + len(data)
                self.count[kind] = self.count.get(kind, 0) + 1
        return answers, reasons


def weigh(federation: MemoryFederation) -> list[Weighed]:
    """Weigh what passes all links: the cloud's first."""
    cloud = Weighed(federation.cloud)
    federation.cloud = cloud
    links = [cloud]
    for edge in federation.edges.values():
        assert isinstance(edge.children, MemoryChildren)
        edge.children = weighed = Weighed(edge.children)
        links.append(weighed)
    return links


@pytest.mark.parametrize(
    ("up", "down"),
    [
        pytest.param("top_k", "top_k", marks=pytest.mark.full),
        pytest.param("eight_bits", "eight_bits", marks=pytest.mark.full),
        ("[clip, {kind: noise, multiplier: 0.01}, top_k, eight_bits]", "[top_k, eight_bits]"),
        pytest.param("[clip, {kind: noise, multiplier: 0.01}]", "null", marks=pytest.mark.full),
    ],
)
def test_links_carry_what_the_ledger_counts(up: str, down: str, tmp_path: Path) -> None:
    """Every link has its transforms, in both directions; the numbers are the simulator's."""
    settings = [f"method.links.{link}={up if 'up' in link else down}" for link in EVERYWHERE]
    tiny = small("hierfavg", *settings, network=Perceptron(hidden=(192,)))
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    links = weigh(federation)
    records = federation.run(enrolled=enrolled).records
    assert without(records) == without(tiny.simulated().records)
    assert sum(link.forgotten for link in links) == 0
    for tier in OUTER:
        for direction in DIRECTIONS:
            name = KINDS[tier, direction]
            ledger = sum(record["bytes"][tier][direction]["train"] for record in records)
            carried = sum(link.bytes.get(name, 0) for link in links)
            assert ledger > 0
            assert 1 <= carried / ledger < 1.05, (tier, direction, carried, ledger)


def test_who_does_not_have_what_changed_is_sent_all_of_it(tmp_path: Path) -> None:
    """Clients that are not chosen in every round, and sites that were started again, have other networks."""
    settings = [f"method.links.{link}.kind=top_k" for link in EVERYWHERE]
    tiny = small("fed-bac", *settings)
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    links = weigh(federation)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    next(playing)
    before = [link.forgotten for link in links]
    for holder in federation.shops.values():
        holder.__dict__.pop("shelf", None)
    for edge in federation.edges.values():
        assert edge.handler is not None
        edge.handler.shelf.last.clear()
    records = finish(playing).records
    assert [link.forgotten > count for link, count in zip(links, before, strict=True)] == [True] * len(links)
    assert without(records) == without(tiny.simulated().records)


def test_an_edge_that_lost_its_memory_sends_clients_all_that_it_was_sent(tmp_path: Path) -> None:
    tiny = small("hierfavg", "method.links.client_down.kind=top_k", "method.links.client_down.keep=0.01", rounds=2)
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    playing = federation.play(enrolled=enrolled)
    next(playing)
    heard: list[tuple[Parts, Parts]] = []
    for name, edge in federation.edges.items():
        for path in (tmp_path / "state" / name / enrolled.charter.run).iterdir():
            path.unlink()
        assert edge.handler is not None
        clients = edge.handler.clients

        def noted(request: Any, average: Any = clients.average) -> Any:
            heard.append((request.train.bank, request.broadcast.had))
            return average(request)

        clients.average = noted  # type: ignore[method-assign]
    next(playing)
    assert len(heard) == 2
    for bank, had in heard:
        assert all(torch.equal(bank["global"][name], value) for name, value in had["global"].items())
        assert not torch.equal(bank["global"]["1.weight"], enrolled.charter.first["global"]["1.weight"])


# ------------------------------------------------------------------------------------------------- packing


def stacks(seed: int, rows: int = 2) -> Parts:
    rng = torch.Generator().manual_seed(seed)
    shapes = {"weight": (4, 5), "bias": (3,), "one": ()}
    made = {name: torch.randn(rows, *shape, generator=rng) for name, shape in shapes.items()}
    return {"global": made | {"steps": torch.arange(rows)}}


def sent(codec: Codec, value: Parts, start: Parts) -> tuple[Parts, dict[str, dict[str, Sent]]]:
    left = {name: torch.zeros_like(one) for name, one in start["global"].items()}
    arrived, _, changes = passed(Chain((), codec), value, start, {"global": left}, Senders(0, "client_up", 1, 0, (0,)))
    return arrived, changes


def message(tensors: Mapping[str, Any], **head: Any) -> Message:
    return decode(encode("update", head, tensors), ("update",))


def packed_out(bank: Parts, changes: Mapping[str, Mapping[str, Sent]]) -> dict[str, Any]:
    tensors = {f"bank/{part}/{name}": value for part, params in bank.items() for name, value in params.items()}
    pack(tensors, "bank", changes)
    return tensors


def unpacked_bank(tensors: Mapping[str, Any], codec: Codec, had: Parts) -> dict[str, Any]:
    whole = unpacked(message(tensors), "bank", codec, had)
    assert not whole.under("packed")
    return whole.under("bank/global")


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_packed_arrives_to_the_bit(codec: Codec) -> None:
    value, start = stacks(0), stacks(1)
    arrived, changes = sent(codec, value, start)
    tensors = packed_out(arrived, changes)
    assert "bank/global/steps" in tensors  # whole numbers are not packed
    assert "bank/global/weight" not in tensors
    assert sum(t.numel() * t.element_size() for path, t in tensors.items() if path.startswith("packed/")) == sum(
        2 * codec.num_bytes(numbers) for numbers in (20, 3, 1)
    )
    found = unpacked_bank(tensors, codec, start)
    assert {name: one.tolist() for name, one in found.items()} == {
        name: one.tolist() for name, one in arrived["global"].items()
    }


def test_a_broken_weight_is_sent_as_it_is() -> None:
    value, start = stacks(0), stacks(1)
    value["global"]["weight"][1, 0, 0] = float("nan")
    arrived, changes = sent(TopK(keep=0.3), value, start)
    tensors = packed_out(arrived, changes)
    assert "bank/global/weight" in tensors
    found = unpacked_bank(tensors, TopK(keep=0.3), start)
    assert torch.equal(torch.isnan(found["weight"]), torch.isnan(value["global"]["weight"]))
    assert torch.equal(found["weight"][0], arrived["global"]["weight"][0])


@pytest.mark.parametrize(
    ("codec", "piece", "change", "match"),
    [
        (HALF, "values", lambda t: t[:-1], "packed weights are"),
        (HALF, "values", lambda t: torch.cat([t, t]), "packed weights are"),
        (HALF, "values", lambda t: t[None], "packed weights are"),
        (HALF, "values", lambda t: t.double(), "packed weights are"),
        (HALF, "places", lambda t: None, "packed weights are"),
        (HALF, "levels", lambda t: torch.zeros(3), "packed weights are"),
        (HALF, "values", lambda t: t / 0, "not finite"),
        (HALF, "places", lambda t: t + 100, "different numbers below"),
        (HALF, "places", lambda t: -1 - t, "different numbers below"),
        (HALF, "places", lambda t: t * 0, "different numbers below"),
        (EightBits(), "levels", lambda t: t * 0 - 128, "from -127 to 127"),
        (EightBits(), "step", lambda t: t * float("nan"), "not below zero"),
        (EightBits(), "step", lambda t: t * float("inf"), "not below zero"),
        (EightBits(), "step", lambda t: -t, "not below zero"),
        (EightBits(), "step", lambda t: t.to(torch.int32), "packed weights are"),
        (EightBits(), "step", lambda t: t * 0 + 3e38, "not below zero"),
        (TWICE, "values", lambda t: torch.zeros(11), "packed weights are"),
        (TWICE, "values.levels", lambda t: t[:-1], "packed weights are"),
        (TWICE, "values.levels", lambda t: t * 0 - 128, "from -127 to 127"),
        (TWICE, "values.step", lambda t: t * float("nan"), "not below zero"),
        (TWICE, "values.step", lambda t: None, "packed weights are"),
        (TWICE, "places", lambda t: t * 0, "different numbers below"),
    ],
)
def test_a_packed_tensor_that_cannot_be_is_refused(codec: Codec, piece: str, change: Any, match: str) -> None:
    start = stacks(1)
    arrived, changes = sent(codec, stacks(0), start)
    tensors = packed_out(arrived, changes)
    path = f"packed/{piece}"
    tensors = tensors | {path: change(tensors.get(path))}
    good = {path: value for path, value in tensors.items() if value is not None}
    with pytest.raises(WireError, match=match):
        unpacked_bank(good, codec, start)


def test_changes_are_to_networks_that_are_there() -> None:
    first, last = stacks(0), stacks(1, rows=1)
    shelf = Shelf(lambda: first)
    shelf.put(last)
    known = [stamp(first["global"], 1), stamp(last["global"], 0)]
    found = shelf.find({"global": known}, first)["global"]
    assert torch.equal(found["weight"], torch.cat([first["global"]["weight"][1:], last["global"]["weight"]]))
    shelf.put(stacks(2, rows=1))
    with pytest.raises(ForgottenError):
        shelf.find({"global": known}, first)
    wrong: tuple[dict[str, list[str]], ...] = ({"other": known}, {"global": []}, {"global": known * 2})
    for had in wrong:
        with pytest.raises(WireError, match="had is"):
            shelf.find(had, first)
    with pytest.raises(WireError, match="had is"):
        shelf.find({"global": known}, ["other"])


@pytest.mark.parametrize("had", [None, [], {"global": "x"}, {"global": [None]}, {"global": [{}]}, {"global": {}}])
def test_networks_that_changed_are_named_by_text(had: Any, tmp_path: Path) -> None:
    federation = small("hierfavg", "method.links.cloud_down.kind=top_k", rounds=1).federation(tmp_path)
    enrolled = federation.enrol()
    order = message({}, charter=enrolled.charter.id, had=had)
    with pytest.raises(WireError, match="had"):
        read_train_request(order, enrolled.charter, enrolled.charter.sites[0], Shelf(lambda: enrolled.charter.first))
