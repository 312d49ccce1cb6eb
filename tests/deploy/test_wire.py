"""Messages as bytes, and receivers that believe nothing: whatever comes is taken or refused, never more."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.deploy.wire import LENGTH, MOST_HEAD, PROTOCOL, WireError, checked_bank, checked_parts, decode, encode
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
        "enroll at a client", "begin at a client", "lesson at a client", "question at a client",
        "enroll at an edge", "begin at an edge", "train at an edge", "measure at an edge", "relay at an edge",
        "facts at an edge", "answer to a lesson", "answer to a question",
        "facts at the cloud", "answer to train", "answer to measure", "relayed at the cloud",
    }  # fmt: skip


@pytest.mark.parametrize("seeds", first(1, [range(10), range(10, 100)]))
def test_a_mutated_message_is_taken_or_refused(seeds: range, receivers: Bench) -> None:
    for seed in seeds:
        outcomes = receivers.try_mutants(BATCH, seed)
        assert sum(outcomes.values()) == BATCH
        assert any(name.endswith("refused") for name in outcomes)


@pytest.mark.parametrize("method", first(2, ["fed-bac", "ditto", "cfl-clients", "oort", "phe-fl-kd", "fedavg", "abad"]))
def test_a_run_goes_on_among_liars(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of all answers, of clients and of edges, are mutated; the run ends, and its records hold only numbers."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    federation = small(method, rounds=6).federation(tmp_path)
    federation.most_said = 10_000
    enrolled = federation.enrol()
    liars = Liars(0.3, seed=7)
    federation.cloud = liars.among(federation.cloud)
    for edge in federation.edges.values():
        edge.children = liars.among(edge.children)
    run = federation.run(enrolled=enrolled)
    assert liars.told > 10
    assert len(run.records) == 6
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
        with_head('{"protocol":1,"kind":"learned","order":[],"head":{"x":' + "9" * LONG + "}}"),
        with_header(json.dumps({"x": HUGE, "__metadata__": {"fedbac": "{}"}}).encode()),
        with_header(b'{"__metadata__":{"fedbac":"{}"},' + b'"x":{},' * (LONG // 7) + b'"y":{}}'),
        with_head('{"protocol":1,"kind":"learned","order":[' + "[]," * (LONG // 3) + '[]],"head":{}}'),
        encode("learned", {"x": ["y"] * (LONG // 5)}, {}),
        encode("learned", {}, {"x": torch.zeros(LONG // 4)}),
    ],
)
def test_decoding_takes_a_small_multiple_of_a_message(data: bytes) -> None:
    tracemalloc.start()
    try:
        decode(data, ("learned",))
    except WireError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 40 * len(data) + 2**18


def test_a_head_is_limited_before_it_is_read() -> None:
    with pytest.raises(WireError, match="says too much of itself"):
        decode(encode("learned", {"x": "y" * MOST_HEAD}, {}), ("learned",))


def test_what_is_said_arrives_as_it_was() -> None:
    weight = torch.arange(6, dtype=torch.float32).view(2, 3)
    tensors: dict[str, Any] = {
        "z": weight,
        "a": weight,
        "view": weight[1],
        "none": torch.zeros(0, 4),
        "count": np.array(3),
    }
    message = decode(encode("learned", {"list": [1, None, "ä"]}, tensors), ("learned", "findings"))
    assert message.head == {"list": [1, None, "ä"]}
    assert list(message.tensors) == list(tensors)  # the order counts: networks are added up in it
    for name, value in tensors.items():
        assert np.array_equal(message.tensors[name].numpy(), np.asarray(value))


def said(**changes: Any) -> bytes:
    whole = {"protocol": PROTOCOL, "kind": "learned", "order": [], "head": {}} | changes
    return with_head(json.dumps(whole))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (said(protocol=2), "protocol 2, and this is 1; update the older site"),
        (said(kind="train"), "kind 'train', and learned was expected"),
        (said(kind=["learned"]), "was expected"),
        (said(head=[]), "was expected"),
        (said(order=["x"]), "does not name its tensors"),
        (said(order=[[]]), "does not name its tensors"),
        (said(order=5), "does not name its tensors"),
        (with_head("{}"), "no head that can be read"),
        (with_head('{"head": NaN}'), "no head that can be read"),
        (with_header(b"\xff\xfe\x00"), "no head that can be read"),
        (with_header(b"[]"), "too many tensors"),
        (encode("learned", {}, {"x": torch.zeros(3)})[:-1], "tensors cannot be read"),
    ],
)
def test_a_message_that_is_none_is_refused_in_words(data: bytes, match: str) -> None:
    with pytest.raises(WireError, match=match):
        decode(data, ("learned",))


def test_a_tensor_named_by_a_number_is_refused() -> None:
    data = encode("learned", {}, {"1": torch.zeros(1)})
    outer = json.loads(data[LENGTH : LENGTH + int.from_bytes(data[:LENGTH], "little")])
    inner = json.loads(outer["__metadata__"]["fedbac"]) | {"order": [1]}
    outer["__metadata__"]["fedbac"] = json.dumps(inner)
    with pytest.raises(WireError, match="does not name its tensors"):
        decode(with_header(json.dumps(outer).encode(), data[-4:]), ("learned",))


def test_plain_values_are_of_their_type() -> None:
    head = '{"whole": 3, "flag": true, "endless": 1e999, "list": [0, 2], "twice": [1, 1], "text": "x"}'
    data = with_head(f'{{"protocol":1,"kind":"learned","order":[],"head":{head}}}')
    message = decode(data, ("learned",))
    assert (message.whole("whole", 3), message.value("flag", bool), message.wholes("list", {0, 1, 2})) == (
        3,
        True,
        (0, 2),
    )
    for refused in (
        lambda: message.whole("whole", 2),
        lambda: message.whole("flag", 2),
        lambda: message.whole("text", 2),
        lambda: message.value("missing", str),
        lambda: message.value("endless", float),
        lambda: message.wholes("list", {0, 1}),
        lambda: message.wholes("twice", {0, 1}),
        lambda: message.array("missing", np.float64, ()),
    ):
        with pytest.raises(WireError, match="learned: "):
            refused()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_an_array_of_another_type_is_refused(dtype: torch.dtype) -> None:
    message = decode(encode("learned", {}, {"loss": torch.zeros(1).to(dtype)}), ("learned",))
    with pytest.raises(WireError, match="learned: loss is"):
        message.array("loss", np.float64, (1,))


def test_networks_must_be_like_those_that_were_sent() -> None:
    like = {"global": {"weight": torch.zeros(1, 2, 3), "bias": torch.zeros(1, 2)}}
    good = {"bias": torch.ones(2, 2), "weight": torch.ones(2, 2, 3)}
    assert list(checked_parts({"global": good}, like, 2, "x")["global"]) == ["weight", "bias"]
    assert list(checked_bank({"global": good}, like, "x")["global"]) == ["weight", "bias"]
    bad: list[dict[str, Any]] = [
        {},
        {"global": {}},
        {"local": good},
        {"global": good | {"more": torch.ones(2)}},
        {"global": {"weight": good["weight"]}},
        {"global": good | {"bias": torch.ones(2, 3)}},
        {"global": good | {"bias": torch.ones(1, 2)}},
        {"global": good | {"bias": torch.tensor(1.0)}},
        {"global": good | {"bias": torch.ones(2, 2, dtype=torch.float64)}},
    ]
    for parts in bad:
        with pytest.raises(WireError, match=r"^x: "):
            checked_parts(parts, like, 2, "x")
        if parts:
            with pytest.raises(WireError, match=r"^x: "):
                checked_bank(parts, like, "x")
