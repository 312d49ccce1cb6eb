"""A parent keeps what its children send on the disk: same bits, and memory for one update whatever their number."""

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage
from fedbac.deploy import spool
from fedbac.deploy.protocol.wire import WireError, decode, encode
from fedbac.deploy.spool import SMALL, Spool
from fedbac.deploy.transports.frames import Assembler, Kind, framed
from tests.covering import first
from tests.deploy.in_memory import MemoryChildren
from tests.deploy.links import FIRST, PATIENCE, Identities, child, edge
from tests.deploy.small import begun, compared, small

LONG = SMALL + 5


def spooled(payload: bytes, folder: Path | None = None) -> Spool:
    found = Spool(folder)
    found.add(memoryview(payload))
    return found


def test_a_long_message_is_put_on_the_disk_as_it_arrives(tmp_path: Path) -> None:
    payload = os.urandom(LONG)
    inbox = Assembler({Kind.ANSWER: LONG}, lambda kind, number: None, tmp_path)
    held, packet = set(), None
    for frame in framed(Kind.ANSWER, 1, payload):
        packet = inbox.take(frame)
        held.add(inbox.held)
    assert held == {0}
    assert packet is not None
    assert isinstance(packet.payload, Spool)
    assert bytes(packet.payload) == payload
    assert (len(packet.payload), packet.payload[:8], packet.payload[LONG - 3 :]) == (LONG, payload[:8], payload[-3:])
    assert not list(tmp_path.iterdir())  # a process that is killed leaves nothing
    (short,) = framed(Kind.ANSWER, 2, b"short")
    assert inbox.take(short) == (Kind.ANSWER, 2, b"short")


def test_what_is_on_the_disk_is_read_like_bytes() -> None:
    tensors = {"a/b": torch.randn(3, 5), "c": torch.arange(7), "none": torch.zeros(0, 2)}
    data = encode("update", {"x": 1}, tensors)
    one, other = decode(data, ("update",)), decode(spooled(data), ("update",))
    assert (one.kind, one.head, list(one.tensors)) == (other.kind, other.head, list(other.tensors))
    assert all(torch.equal(value, other.tensors[path]) for path, value in one.tensors.items())
    for wrong in (data[:-1], data + b"x", data[:5], data[:30] + b"\xff" + data[31:]):
        with pytest.raises(WireError):
            decode(spooled(wrong), ("update",))


class OnDisk(MemoryChildren):
    """Children whose every answer is on the disk."""

    def call(self, messages: Mapping[str, bytes], deadline: float, limit: int = 0) -> Any:
        answers, reasons = super().call(messages, deadline)
        return {name: spooled(answer) for name, answer in answers.items()}, reasons


@pytest.mark.parametrize("method", first(1, ["fed-bac", "cfl", "ditto", "fedavg"]))
def test_a_few_columns_at_a_time_from_the_disk_are_the_same_bits(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a parent that averages, no more than a few columns of all clients are in memory at once."""
    whole, widths = small(method).simulated().records, set[int]()
    add = EdgeAverage.add

    def noted(average: EdgeAverage, parts_C: Any, loss_C: Any) -> None:
        widths.update(trees.rows(params).shape[1] for params in parts_C.values())
        add(average, parts_C, loss_C)

    monkeypatch.setattr(trees, "COLUMNS", 64)
    simulated = small(method).simulated()
    monkeypatch.setattr(EdgeAverage, "add", noted)
    federation = small(method).federation(tmp_path)
    federation.cloud = OnDisk(federation.cloud.answers)
    for one in federation.edges.values():
        one.children = OnDisk(federation.children(one.site.name).answers)
    records = federation.run().records
    assert compared(records) == compared(simulated.records) == compared(whole)
    assert 64 <= max(widths) < 128


PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from fedbac.core.requests import Average, Train, Trained
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.roles.clients import Clients
from fedbac.deploy.spool import Spool
from tests.deploy.small import begun

folder, mib = Path(sys.argv[1]), 2**20
federation, enrolled = begun(folder, "hierfavg", "task.network.hidden=[30000]")
charter = enrolled.charter
bank = charter.without(charter.template, "client")
size = sum(value.nbytes for params in bank.values() for value in params.values())
assert size > 6 * mib, size
answer = sent("update", trained=Trained(bank, np.ones(1)))

class Reach:
    def ask(self, messages):
        found = {}
        for client in messages:
            found[client] = Spool(folder)
            found[client].add(memoryview(answer))
        return found, {}

def peak(count):
    clients = Clients(charter, Reach(), folder)
    rows = {part: np.zeros(count, dtype=np.int64) for part in bank}
    # The same client many times over stands for many; places count, names do not.
    train = Train(tuple(range(count)), bank, rows, 1, 0, 0.1)
    found = clients.average(Average(train, np.ones(count, dtype=np.int64)))
    assert found.healthy_C.all()
    assert all(torch.allclose(value, bank[part][name]) for part in bank for name, value in found.bank[part].items())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

few, many = peak(2), peak(5)
print((many - few) / size)
"""


@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_children(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        # What is freed goes back to the system at once, instead of staying with the allocator for a while.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 0.5, "three more children; to hold all of them would take 3"


@pytest.mark.parametrize("step", first(1, ["write", "open"]))
def test_a_full_disk_has_the_round_played_again(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", min_edges=2)
    expected = compared(small("hierfavg").simulated().records)
    full, place = [True], (spool, "TemporaryFile") if step == "open" else (Spool, "add")
    done = getattr(*place)

    def tried(*arguments: Any, **more: Any) -> Any:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return done(*arguments, **more)

    def waited(text: str) -> None:
        full[0] = "again" not in text

    monkeypatch.setattr(place[0], place[1], tried)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    federation.waited = waited
    assert compared(federation.run(enrolled=enrolled).records) == expected
    assert not full[0]


def test_a_full_disk_costs_the_link_of_whose_answer_has_no_room(
    identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(spool: Spool, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        edge(identities, limit=2 * LONG, folder=tmp_path) as parent,
        child(identities.of(FIRST), parent.address, FIRST, lambda *asked: bytes(LONG), limit=2 * LONG),
    ):
        parent.wait_for(FIRST)
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "add", add)
            found, reasons = parent.children.call({FIRST: b"?"}, PATIENCE, 2 * LONG)
        assert not found
        assert "the disk is full" in reasons[FIRST]
        parent.wait_for(FIRST)
        found, reasons = parent.children.call({FIRST: b"?"}, PATIENCE, 2 * LONG)
        assert (bytes(found[FIRST]), reasons) == (bytes(LONG), {})
