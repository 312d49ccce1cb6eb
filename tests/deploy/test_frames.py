"""Frames: what is cut is put together again, and whoever breaks a rule is found out by the first wrong frame."""

import threading

import pytest

from fedbac.deploy.transports.frames import CHUNK, HEADER, Assembler, Budget, FrameError, Kind, Outbox, Packet, framed

LIMIT = 3 * CHUNK


class Receiver:
    """An assembler that notes what it was asked to admit."""

    def __init__(self) -> None:
        self.asked: list[tuple[Kind, int]] = []
        limits = {Kind.PING: 0, Kind.ANSWER: LIMIT, Kind.FAILED: 10}
        self.assembler = Assembler(limits, lambda kind, number: self.asked.append((kind, number)))

    def take(self, *frames: bytes) -> list[Packet]:
        return [message for frame in frames if (message := self.assembler.take(frame)) is not None]


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, LIMIT])
def test_a_message_arrives_as_it_was_sent(length: int) -> None:
    payload = bytes(index % 251 for index in range(length))
    receiver = Receiver()
    assert receiver.take(*framed(Kind.ANSWER, 2**64 - 1, payload)) == [Packet(Kind.ANSWER, 2**64 - 1, payload)]
    assert receiver.asked == [(Kind.ANSWER, 2**64 - 1)]
    assert receiver.assembler.held == 0


def test_signs_of_life_may_come_between_the_frames_of_a_message() -> None:
    first, second = framed(Kind.ANSWER, 7, bytes(CHUNK + 5))
    (ping,) = framed(Kind.PING, 0, b"")
    found = Receiver().take(first, ping, second)
    assert [message.kind for message in found] == [Kind.PING, Kind.ANSWER]
    assert len(found[1].payload) == CHUNK + 5


def frame(kind: int, number: int, total: int, chunk: bytes = b"") -> bytes:
    return HEADER.pack(kind, number, total) + chunk


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([b""], "a frame of 0 bytes"),
        ([b"\x04" * (HEADER.size - 1)], "a frame of 16 bytes"),
        ([frame(Kind.ANSWER, 1, LIMIT, bytes(CHUNK + 1))], "a frame of"),
        ([frame(99, 1, 1, b"x")], "kind 99"),
        ([frame(Kind.REQUEST, 1, 1, b"x")], "kind 3, which it may not send"),
        ([frame(Kind.ANSWER, 1, LIMIT + 1, bytes(CHUNK))], "an ANSWER of 786,433 bytes"),
        ([frame(Kind.ANSWER, 1, 2**64 - 1, bytes(CHUNK))], "18,446,744,073,709,551,615"),
        ([frame(Kind.FAILED, 1, 11, bytes(11))], "a FAILED of 11 bytes"),
        ([frame(Kind.PING, 0, 0, b"x")], "a PING with content"),
        ([frame(Kind.PING, 0, 1)], "a PING with content"),
        ([frame(Kind.ANSWER, 1, 5, b"1234")], "a chunk of 4 bytes, where 5"),
        ([frame(Kind.ANSWER, 1, 5, b"123456")], "a chunk of 6 bytes, where 5"),
        ([frame(Kind.ANSWER, 1, 5)], "a chunk of 0 bytes, where 5"),
        ([frame(Kind.ANSWER, 1, CHUNK + 1, bytes(CHUNK)), frame(Kind.ANSWER, 1, CHUNK + 1)], "a chunk of 0 bytes"),
        ([frame(Kind.ANSWER, 1, CHUNK + 1, bytes(CHUNK)), frame(Kind.ANSWER, 2, CHUNK + 1, b"x")], "inside another"),
        ([frame(Kind.ANSWER, 1, CHUNK + 1, bytes(CHUNK)), frame(Kind.ANSWER, 1, CHUNK + 2, b"x")], "inside another"),
        ([frame(Kind.ANSWER, 1, CHUNK + 1, bytes(CHUNK)), frame(Kind.FAILED, 1, 1, b"x")], "inside another"),
    ],
)
def test_a_broken_rule_is_found_by_the_first_wrong_frame(frames: list[bytes], says: str) -> None:
    receiver = Receiver()
    receiver.take(*frames[:-1])
    held = receiver.assembler.held
    with pytest.raises(FrameError, match=says):
        receiver.take(frames[-1])
    assert receiver.assembler.held == held


def test_a_message_that_nobody_expects_is_refused_before_anything_is_kept() -> None:
    def admit(kind: Kind, number: int) -> None:
        raise FrameError("unexpected")

    assembler = Assembler({Kind.ANSWER: LIMIT}, admit)
    with pytest.raises(FrameError, match="unexpected"):
        assembler.take(next(framed(Kind.ANSWER, 1, bytes(LIMIT))))
    assert assembler.held == 0


def test_an_outbox_sends_in_order_then_signs_of_life_and_ends_when_closed() -> None:
    outbox = Outbox(heartbeat=0.01)
    assert outbox.empty
    outbox.put(Kind.REQUEST, 5, bytes(CHUNK + 1))
    outbox.put(Kind.CANCEL, 5)
    assert not outbox.empty
    kinds = [Kind(next(outbox)[0]) for _ in range(5)]
    assert kinds == [Kind.REQUEST, Kind.REQUEST, Kind.CANCEL, Kind.PING, Kind.PING]
    assert outbox.empty
    outbox.put(Kind.REQUEST, 6, b"never sent")
    outbox.close()
    outbox.put(Kind.REQUEST, 7, b"nor this")
    assert list(outbox) == []


def test_a_sign_of_life_is_sent_only_when_nothing_else_is() -> None:
    """One after each message would look like a flood."""
    outbox = Outbox(heartbeat=60)
    outbox.put(Kind.REQUEST, 5, b"first")
    next(outbox)
    threading.Timer(0.05, outbox.put, (Kind.REQUEST, 6, b"second")).start()
    assert next(outbox) == next(framed(Kind.REQUEST, 6, b"second"))


def test_an_outbox_copies_no_message_before_it_is_sent() -> None:
    """Eight children that are sent the same gigabyte must not cost eight."""
    outbox = Outbox(heartbeat=1)
    message = bytearray(2 * CHUNK)
    outbox.put(Kind.REQUEST, 1, message)  # type: ignore[arg-type]  # bytes cannot show it
    next(outbox)
    message[CHUNK] = 9
    assert next(outbox)[HEADER.size] == 9


def test_a_budget_is_a_burst_and_then_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("fedbac.deploy.transports.frames.time.monotonic", lambda: now)
    budget = Budget(burst=3, per_second=2)
    assert [budget.spend() for _ in range(5)] == [True, True, True, False, False]
    now += 1
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    now += 100
    assert [budget.spend() for _ in range(4)] == [True, True, True, False]
