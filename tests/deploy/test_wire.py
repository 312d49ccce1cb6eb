"""Messages as bytes, and receivers that believe nothing: whatever comes is taken or refused, never more."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.deploy.protocol.heads import KINDS, LENGTH, MOST_HEAD, PROTOCOL
from fedbac.deploy.protocol.messages import MESSAGES
from fedbac.deploy.protocol.wire import WireError, decode, encode
from tests.covering import first
from tests.deploy.fuzzing import Bench, Liars, bench
from tests.deploy.small import small

BATCH = 100


@pytest.fixture(scope="module")
def receivers() -> Iterator[Bench]:
    with bench() as found:
        yield found


def test_every_receiver_takes_what_it_was_sent(receivers: Bench) -> None:
    assert {receivers.outcome(target, target.data) for target in receivers.targets} == {"taken"}
    read = {target.name.split(": ")[1] for target in receivers.targets}
    assert read == {
        "enroll at a client", "begin at a client", "fit at a client", "evaluate at a client", "model at a client",
        "enroll at an edge", "begin at an edge", "train at an edge", "measure at an edge", "relay at an edge",
        "facts at an edge", "model at an edge", "answer to fit", "answer to evaluate",
        "facts at the cloud", "answer to train", "answer to measure", "relayed at the cloud",
    }  # fmt: skip


@pytest.mark.parametrize("seeds", first(1, [range(2), range(2, 100)]))
def test_a_mutated_message_is_taken_or_refused(seeds: range, receivers: Bench) -> None:
    for seed in seeds:
        outcomes = receivers.try_mutants(BATCH, seed)
        assert sum(outcomes.values()) == BATCH
        assert any(name.endswith("refused") for name in outcomes)


@pytest.mark.parametrize("method", first(1, ["fed-bac", "ditto", "cfl", "oort", "phe-fl-kd", "fedavg", "abad"]))
def test_a_run_goes_on_among_liars(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of all answers, of clients and of edges, are mutated; the run ends, and its records hold only numbers."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    federation = small(method, rounds=3).federation(tmp_path)
    federation.most_said = 10_000
    enrolled = federation.enrol()
    liars = Liars(0.3, seed=7)
    federation.cloud = liars.among(federation.cloud)
    for edge in federation.edges.values():
        edge.children = liars.among(edge.children)
    run = federation.run(enrolled=enrolled)
    assert liars.lies > 10
    assert len(run.records) == 3
    json.dumps(run.records, allow_nan=False)


def with_header(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(LENGTH, "little") + header + body


def with_head(text: str) -> bytes:
    return with_header(json.dumps({"__metadata__": {"fedbac": text}}).encode())


HUGE = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}
LONG = 300_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        with_header(b"[" * LONG),
        with_header(b'{"a":' * (LONG // 5) + b"0" + b"}" * (LONG // 5)),
        with_head("[" * LONG),
        with_head('{"protocol":1,"kind":"update","order":[],"head":{"x":' + "9" * LONG + "}}"),
        with_header(json.dumps({"x": HUGE, "__metadata__": {"fedbac": "{}"}}).encode()),
        with_header(b'{"__metadata__":{"fedbac":"{}"},' + b'"x":{},' * (LONG // 7) + b'"y":{}}'),
        with_head('{"protocol":1,"kind":"update","order":[' + "[]," * (LONG // 3) + '[]],"head":{}}'),
        encode("update", {"x": ["y"] * (LONG // 5)}, {}),
        encode("update", {}, {"x": torch.zeros(LONG // 4)}),
    ],
)
def test_decoding_takes_a_small_multiple_of_a_message(data: bytes) -> None:
    tracemalloc.start()
    try:
        decode(data, ("update",))
    except WireError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 40 * len(data) + 2**18


def test_a_head_is_limited_before_it_is_read() -> None:
    with pytest.raises(WireError, match="says too much of itself"):
        decode(encode("update", {"x": "y" * MOST_HEAD}, {}), ("update",))


def test_what_is_said_arrives_as_it_was() -> None:
    weight = torch.arange(6, dtype=torch.float32).view(2, 3)
    tensors: dict[str, Any] = {
        "z": weight,
        "a": weight,
        "view": weight[1],
        "none": torch.zeros(0, 4),
        "count": np.array(3),
    }
    message = decode(encode("update", {"list": [1, None, "ä"]}, tensors), ("update", "evaluation"))
    assert message.head == {"list": [1, None, "ä"]}
    assert list(message.tensors) == list(tensors)  # the order counts: networks are added up in it
    for name, value in tensors.items():
        assert np.array_equal(message.tensors[name].numpy(), np.asarray(value))


def said(**changes: Any) -> bytes:
    whole = {"protocol": PROTOCOL, "kind": "update", "order": [], "head": {}} | changes
    return with_head(json.dumps(whole))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (said(protocol=2), "protocol 2, and this is 1; update the older site"),
        (said(kind="train"), "kind 'train', and update was expected"),
        (said(kind=["update"]), "was expected"),
        (said(head=[]), "was expected"),
        (said(order=["x"]), "does not name its tensors"),
        (said(order=[[]]), "does not name its tensors"),
        (said(order=5), "does not name its tensors"),
        (with_head("{}"), "no head that can be read"),
        (with_head('{"head": NaN}'), "no head that can be read"),
        (with_header(b"\xff\xfe\x00"), "no head that can be read"),
        (with_header(b"[]"), "too many tensors"),
        (encode("update", {}, {"x": torch.zeros(3)})[:-1], "tensors cannot be read"),
    ],
)
def test_a_message_that_is_none_is_refused_in_words(data: bytes, match: str) -> None:
    with pytest.raises(WireError, match=match):
        decode(data, ("update",))


def test_a_tensor_named_by_a_number_is_refused() -> None:
    data = encode("update", {}, {"1": torch.zeros(1)})
    outer = json.loads(data[LENGTH : LENGTH + int.from_bytes(data[:LENGTH], "little")])
    inner = json.loads(outer["__metadata__"]["fedbac"]) | {"order": [1]}
    outer["__metadata__"]["fedbac"] = json.dumps(inner)
    with pytest.raises(WireError, match="does not name its tensors"):
        decode(with_header(json.dumps(outer).encode(), data[-4:]), ("update",))


def test_every_kind_of_message_is_declared() -> None:
    assert {*KINDS, "release"} == set(MESSAGES), "a release is kept in a file, and its update is what is sent"
