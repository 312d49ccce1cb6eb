"""A genuine child that breaks the rules: its link ends, the others go on, and its parent's memory stays bounded."""

import gzip
import logging
from collections.abc import Callable

import grpc
import pytest

from fedbac.deploy.transports.frames import CHUNK, HEADER, LARGEST_FRAME, Assembler, Kind, Packet, framed
from fedbac.deploy.transports.grpc.common import LONGEST_FAILURE
from tests.deploy.links import (
    FIRST,
    LIMIT,
    PATIENCE,
    QUICK,
    SECOND,
    Hostile,
    Identities,
    child,
    edge,
    eventually,
)


class Peak:
    """The most that an assembler ever held, and the largest frame that it ever saw."""

    held = 0
    frame = 0


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    found = Peak()
    take = Assembler.take

    def noting(self: Assembler, frame: bytes) -> Packet | None:
        found.frame = max(found.frame, len(frame))
        try:
            return take(self, frame)
        finally:
            found.held = max(found.held, self.held)

    monkeypatch.setattr(Assembler, "take", noting)
    return found


def frame(kind: int, number: int, total: int, chunk: bytes = b"") -> bytes:
    return HEADER.pack(kind, number, total) + chunk


CRIMES: dict[str, tuple[Callable[[int], list[bytes]], str]] = {
    "too long": (
        lambda number: [frame(Kind.ANSWER, number, LIMIT + 1, bytes(CHUNK))] * 1000,
        f"sent an ANSWER of {LIMIT + 1:,} bytes, where {LIMIT:,} are allowed",
    ),
    "far too long": (
        lambda number: [frame(Kind.ANSWER, number, 2**64 - 1, bytes(CHUNK))] * 1000,
        f"sent an ANSWER of {2**64 - 1:,} bytes, where {LIMIT:,} are allowed",
    ),
    "wrong number": (
        lambda number: [*framed(Kind.ANSWER, number ^ 1, b"")],
        "sent an ANSWER to no request that it has",
    ),
    "failure of another": (
        lambda number: [*framed(Kind.FAILED, 0, b"")],
        "sent a FAILED to no request that it has",
    ),
    "endless failure": (
        lambda number: [*framed(Kind.FAILED, number, bytes(LONGEST_FAILURE + 1))],
        "sent a FAILED of 1,601 bytes, where 1,600 are allowed",
    ),
    "unknown kind": (lambda number: [frame(77, number, 0)], "sent a frame of kind 77, which it may not send"),
    "a parent's kind": (
        lambda number: [*framed(Kind.REQUEST, number, b"")],
        "sent a frame of kind 3, which it may not send",
    ),
    "second hello": (lambda number: [*framed(Kind.HELLO, 0, b"hello")], "sent a second HELLO"),
    "flood": (lambda number: [*framed(Kind.PING, 0, b"")] * 10_000, "sent a flood of frames"),
    "crumbs": (
        lambda number: [frame(Kind.ANSWER, number, 100, b"x")] * 100,
        "sent a chunk of 1 bytes, where 100 were due",
    ),
    "empty": (lambda number: [b""], "sent a frame of 0 bytes"),
    "two at a time": (
        lambda number: [frame(Kind.ANSWER, number, LIMIT, bytes(CHUNK)), *framed(Kind.FAILED, number, b"x")],
        "sent a FAILED inside another message",
    ),
    "a large frame": (lambda number: [bytes(4 * CHUNK)], "lost its link"),
}


@pytest.mark.parametrize("crime", CRIMES)
def test_whoever_breaks_a_rule_loses_the_link_and_nobody_else_does(
    crime: str, identities: Identities, caplog: pytest.LogCaptureFixture, peak: Peak
) -> None:
    frames, says = CRIMES[crime]
    caplog.set_level(logging.DEBUG, logger="fedbac")
    with (
        edge(identities) as parent,
        child(identities.of(SECOND), parent.address, SECOND),
        Hostile(identities.of(FIRST), parent.address, FIRST) as hostile,
    ):
        hostile.joins()
        parent.wait_for(FIRST, SECOND)
        hostile.on_request(lambda number: hostile.send(*frames(number)))
        answers, reasons = parent.children.call({FIRST: b"", SECOND: b"fine"}, PATIENCE)
        assert answers == {SECOND: b"fine"}
        assert reasons == {FIRST: says}
        assert parent.children.present() == {SECOND}
        assert f"{FIRST} {says}" in caplog.messages
        assert parent.greeted.count((SECOND, b"hello")) == 1
    assert peak.held <= CHUNK
    assert peak.frame <= LARGEST_FRAME
    assert all(record.exc_info is None for record in caplog.records)


def test_an_answer_is_taken_once(identities: Identities) -> None:
    """The same again ends the link, whether before or after the next request."""
    with edge(identities) as parent, Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
        hostile.joins()
        parent.wait_for(FIRST)
        hostile.on_request(lambda number: hostile.send(*[*framed(Kind.ANSWER, number, b"answer")] * 2))
        assert parent.children.call({FIRST: b""}, PATIENCE) == ({FIRST: b"answer"}, {})
        eventually(lambda: not parent.children.present())
        assert hostile.end().details() == f"{FIRST} sent an ANSWER to no request that it has"


def test_a_channel_closed_in_the_midst_of_an_answer_is_a_reason_at_once(identities: Identities) -> None:
    with edge(identities) as parent, Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
        hostile.joins()
        parent.wait_for(FIRST)

        def act(number: int) -> None:
            hostile.send(frame(Kind.ANSWER, number, LIMIT, bytes(CHUNK)))
            hostile.close()

        hostile.on_request(act)
        assert parent.children.call({FIRST: b""}, 10 * PATIENCE) == ({}, {FIRST: "lost its link"})


def test_half_a_message_and_then_silence(identities: Identities, peak: Peak) -> None:
    with (
        edge(identities, heartbeat=QUICK) as parent,
        Hostile(identities.of(FIRST), parent.address, FIRST) as hostile,
    ):
        hostile.joins()
        hostile.on_request(lambda number: hostile.send(frame(Kind.ANSWER, number, LIMIT, bytes(CHUNK))))
        _, reasons = parent.children.call({FIRST: b""}, 10 * PATIENCE)
        assert reasons[FIRST].startswith("gave no sign of life for ")
    assert peak.held == CHUNK


def test_half_a_message_and_then_signs_of_life_only(identities: Identities, peak: Peak) -> None:
    """Past the deadline the child is one that is busy, which costs what it has sent and nothing more."""
    with edge(identities) as parent, Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
        hostile.joins()
        parent.wait_for(FIRST)
        ping = next(framed(Kind.PING, 0, b""))
        hostile.on_request(lambda number: hostile.send(frame(Kind.ANSWER, number, LIMIT, bytes(CHUNK)), *[ping] * 5))
        assert parent.children.call({FIRST: b""}, 0.5)[1] == {FIRST: "gave no answer within 0.5 s"}
        assert parent.children.call({FIRST: b""}, 0.5)[1] == {FIRST: "is still busy with an earlier request"}
    assert peak.held == CHUNK


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (framed(Kind.PING, 0, b""), "sent a PING before its HELLO"),
        (framed(Kind.ANSWER, 0, b""), "sent an ANSWER before its HELLO"),
        (iter([frame(Kind.HELLO, 0, LIMIT, bytes(CHUNK))]), f"sent a HELLO of {LIMIT:,} bytes, where 65,536"),
    ],
)
def test_a_link_begins_with_a_hello(
    first: list[bytes], says: str, identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    with edge(identities) as parent, Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
        hostile.send(*first)
        hostile.end()
        assert any(f"{FIRST} {says}" in message for message in caplog.messages)
        assert parent.greeted == []


def test_a_small_frame_does_not_unfold_into_a_large_one(identities: Identities, peak: Peak) -> None:
    """A thousand times as much fits into what gRPC may compress; it is not unfolded, so it is no frame."""
    bomb = bytes(100 * CHUNK)
    assert len(gzip.compress(bomb)) < CHUNK
    with (
        edge(identities) as parent,
        Hostile(identities.of(FIRST), parent.address, FIRST, compression=grpc.Compression.Gzip) as hostile,
    ):
        hostile.send(bomb)
        assert "sent a frame of kind 31, which" in hostile.end().details()  # with which gzip begins
        assert parent.greeted == []
    assert peak.frame <= LARGEST_FRAME


def test_whoever_dials_without_end_is_put_off(identities: Identities) -> None:
    with edge(identities) as parent, child(identities.of(SECOND), parent.address, SECOND):
        parent.wait_for(SECOND)

        def dial() -> str:
            with Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
                hostile.send(b"")
                return str(hostile.end().details())

        eventually(lambda: dial() == "'edge-0-client-0' dials too often")
        assert parent.children.call({SECOND: b"fine"}, PATIENCE) == ({SECOND: b"fine"}, {})
        assert parent.children.present() == {SECOND}
        assert [name for name, _ in parent.greeted] == [SECOND]
