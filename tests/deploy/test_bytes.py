"""What passes the links is what the ledger says, but for the heads of messages."""

from pathlib import Path

import pytest

from fedbac import Perceptron
from fedbac.core.links import Ledger
from fedbac.data import toy
from fedbac.deploy.protocol.wire import encode
from fedbac.deploy.transports.base import Counted
from fedbac.federation import assemble
from fedbac.runs.configure import Inputs, configure
from tests.covering import first
from tests.deploy.in_memory import MemoryChildren, MemoryFederation, cut
from tests.unit.tiny import tiny_task

HEAD = 3000
"""Bytes that a message may have beside the networks in it: its JSON, and numbers such as rows and losses.

A network here has 19,240.
"""


def test_messages_are_counted_by_kind() -> None:
    def answer(message: bytes, gone: object) -> bytes:
        return b"\0" * 1000 if message == lesson else encode("update", {"kind": "fit"}, {})

    lesson, other = encode("fit", {}, {}), encode("begin", {}, {})
    children = MemoryChildren(dict.fromkeys(("a", "b", "c"), answer))
    counted = Counted(children)
    children.lost = {"c"}
    counted.call({"a": lesson, "b": other, "c": lesson}, 1.0)
    learned = len(encode("update", {"kind": "fit"}, {}))
    assert counted.traffic() == {
        "fit": [1, len(lesson)],
        "begin": [1, len(other)],
        "other": [1, 1000],
        "update": [1, learned],
    }
    assert counted.present() == {"a", "b"}


@pytest.mark.parametrize("frozen", [(), ("1.weight",)], ids=["all learns", "a frozen layer"])
@pytest.mark.parametrize("method", first(1, ["fed-bac", "hierfavg", "ditto-edges"]))
def test_links_carry_what_the_ledger_counts(method: str, frozen: tuple[str, ...], tmp_path: Path) -> None:
    """The numbers that messages carry for training are those of the ledger, on both tiers and both ways."""
    dataset = toy()
    inputs = Inputs(dataset=dataset)
    experiment = configure(method, tiny_task(network=Perceptron(hidden=(64,)), frozen=frozen), inputs=inputs)
    whole = assemble(experiment, dataset=dataset)
    federation = MemoryFederation(experiment, tmp_path, cut(dataset, whole.shards))
    cloud = federation.cloud = Counted(federation.cloud)  # type: ignore[assignment]
    edges = []
    for edge in federation.edges.values():
        edge.children = links = Counted(edge.clients)
        edges.append(links)
    records = federation.run().records
    ledger = Ledger()
    for record in records:
        for tier, directions in record["bytes"].items():
            for direction, purposes in directions.items():
                for purpose, count in purposes.items():
                    ledger.add(tier, direction, purpose, count)
    for tier, down, up, parents in (("client", "fit", "update", edges), ("cloud", "train", "trained", [cloud])):
        traffic = {
            kind: [sum(counts) for counts in zip(*(parent.traffic()[kind] for parent in parents), strict=True)]
            for kind in (down, up)
        }
        for direction, kind in (("down", down), ("up", up)):
            messages, size = traffic[kind]
            assert messages == traffic[up][0]  # nothing is said twice
            counted = ledger.entries[tier, direction, "train"]  # type: ignore[index]
            assert counted > 0
            assert 0 <= size - counted <= HEAD * messages, (tier, direction, size, counted, traffic)
