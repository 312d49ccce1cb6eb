"""Links over gRPC on loopback: whoever answers is heard, whoever is lost is a reason, whoever comes back is found."""

import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from fedbac.deploy.transports.base import Answered, Refusal
from fedbac.deploy.transports.grpc.common import LARGEST_HELLO, ticks
from fedbac.deploy.transports.grpc.parent import GrpcParent
from fedbac.errors import DeployError
from tests.deploy.links import (
    CHILDREN,
    EDGE,
    FIRST,
    LIMIT,
    PATIENCE,
    QUICK,
    SECOND,
    THIRD,
    Identities,
    child,
    child_process,
    echo,
    edge,
    eventually,
    program,
)

MEBIBYTE = 1024 * 1024


def no_traceback(caplog: pytest.LogCaptureFixture) -> bool:
    return all(record.exc_info is None for record in caplog.records if record.levelno > logging.DEBUG)


def test_children_answer_in_parallel(identities: Identities) -> None:
    """Each waits until all have their request, so one after the other would never end."""
    everybody = threading.Barrier(len(CHILDREN), timeout=PATIENCE)

    def answer(request: bytes, gone: threading.Event) -> bytes:
        everybody.wait()
        return request.upper()

    with edge(identities) as parent, ExitStack() as stack:
        for name in CHILDREN:
            stack.enter_context(child(identities.of(name), parent.address, name, answer))
        parent.wait_for(*CHILDREN)
        answers, reasons = parent.children.call({name: name.encode() for name in CHILDREN}, PATIENCE)
    assert answers == {name: name.upper().encode() for name in CHILDREN}
    assert reasons == {}


def test_hello_and_welcome_reach_the_other_side(identities: Identities) -> None:
    welcomes: list[bytes] = []
    with (
        edge(identities, lambda name, hello: f"{name} said ".encode() + hello) as parent,
        child(identities.of(FIRST), parent.address, FIRST, welcomed=welcomes.append),
    ):
        eventually(lambda: welcomes)
        assert parent.children.present() == {FIRST}
        assert set(parent.children.seen()) == {FIRST}
        assert parent.children.call({}, 1) == ({}, {})
    assert parent.greeted == [(FIRST, b"hello")]
    assert welcomes == [b"edge-0-client-0 said hello"]
    assert parent.children.present() == frozenset()
    assert parent.children.seen()[FIRST] >= 0


def test_a_large_message_travels_both_ways(identities: Identities) -> None:
    message = os.urandom(MEBIBYTE) * 20
    most = len(message)
    with edge(identities, limit=most) as parent, child(identities.of(FIRST), parent.address, FIRST, limit=most):
        parent.wait_for(FIRST)
        answers, reasons = parent.children.call({FIRST: message}, PATIENCE, most)
    assert reasons == {}
    assert answers[FIRST] == message


def test_an_answer_longer_than_its_request_allows_ends_the_link(identities: Identities) -> None:
    """However much other messages may have: three children must not make their parent hold three of the longest."""
    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST):
        parent.wait_for(FIRST)
        assert parent.children.call({FIRST: bytes(1000)}, PATIENCE, 1000)[1] == {}
        reasons = parent.children.call({FIRST: bytes(1001)}, PATIENCE, 1000)[1]
        assert reasons == {FIRST: "sent an ANSWER of 1,001 bytes, where 1,000 are allowed"}
        parent.wait_for(FIRST)
        assert parent.children.call({FIRST: bytes(1001)}, PATIENCE)[1] == {}


def test_what_is_too_large_is_a_reason_and_not_sent(identities: Identities) -> None:
    with (
        edge(identities, limit=1000) as parent,
        child(identities.of(FIRST), parent.address, FIRST, limit=1000),
        child(identities.of(SECOND), parent.address, SECOND, lambda request, gone: bytes(1001), limit=1000),
    ):
        parent.wait_for(FIRST, SECOND)
        answers, reasons = parent.children.call({FIRST: bytes(1001), SECOND: b""}, PATIENCE)
        assert reasons == {
            FIRST: "was not sent 1,001 bytes; 1,000 are allowed",
            SECOND: "failed: the answer has 1,001 bytes; 1,000 are allowed (deploy.max_message_mib)",
        }
        assert parent.children.call({FIRST: bytes(1000)}, PATIENCE) == ({FIRST: bytes(1000)}, {})
    assert answers == {}


def test_a_hello_that_is_too_large_is_an_error_of_the_child(identities: Identities) -> None:
    parent = GrpcParent("127.0.0.1:1", EDGE, FIRST, identities.of(FIRST), heartbeat=1, limit=10 * LARGEST_HELLO)
    with pytest.raises(DeployError, match="the hello has 65,537 bytes; 65,536 are allowed"):
        parent.serve(lambda: bytes(LARGEST_HELLO + 1), lambda welcome: None, echo, threading.Event())


def test_who_is_not_there_is_a_reason_at_once(identities: Identities) -> None:
    with edge(identities) as parent:
        assert parent.children.call({FIRST: b"", "nobody": b""}, PATIENCE) == (
            {},
            {FIRST: "is not there", "nobody": "is not there"},
        )


def test_a_killed_child_is_a_reason_at_once_and_comes_back(identities: Identities) -> None:
    with edge(identities) as parent, child(identities.of(SECOND), parent.address, SECOND):
        with child_process(identities.of(FIRST), parent.address, FIRST) as process:
            parent.wait_for(FIRST, SECOND)
            killing = threading.Timer(0.1, process.kill)
            killing.start()
            answers, reasons = parent.children.call({FIRST: b"wait", SECOND: b"hi"}, 10 * PATIENCE)
        assert answers == {SECOND: b"hi"}
        assert reasons == {FIRST: "lost its link"}
        with child(identities.of(FIRST), parent.address, FIRST):
            parent.wait_for(FIRST)
            assert parent.children.call({FIRST: b"again"}, PATIENCE) == ({FIRST: b"again"}, {})


def test_a_stopped_child_is_a_reason_after_three_heartbeats_and_comes_back(identities: Identities) -> None:
    with (
        edge(identities, heartbeat=QUICK) as parent,
        child_process(identities.of(FIRST), parent.address, FIRST, QUICK) as process,
    ):
        parent.wait_for(FIRST)
        process.send_signal(signal.SIGSTOP)
        # More than a stopped process takes, so that the link cannot end in the ordinary way either.
        answers, reasons = parent.children.call({FIRST: bytes(LIMIT)}, 10 * PATIENCE)
        assert answers == {}
        # By our own signs of life, or on a very busy machine by those of HTTP/2.
        assert reasons[FIRST].startswith("gave no sign of life for ") or reasons[FIRST] == "lost its link"
        assert parent.children.present() == frozenset()
        assert parent.children.seen()[FIRST] > 3 * QUICK
        process.send_signal(signal.SIGCONT)
        parent.wait_for(FIRST)


def test_a_child_that_passes_the_deadline_is_told_and_asked_again(identities: Identities) -> None:
    told = threading.Event()

    def answer(request: bytes, gone: threading.Event) -> bytes:
        if request == b"slow":
            assert gone.wait(PATIENCE)
            told.set()
        return request

    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST, answer):
        parent.wait_for(FIRST)
        assert parent.children.call({FIRST: b"slow"}, 0.2) == ({}, {FIRST: "gave no answer within 0.2 s"})
        assert parent.children.call({FIRST: b"quick"}, PATIENCE) == ({FIRST: b"quick"}, {})
        assert told.is_set()
        assert parent.greeted == [(FIRST, b"hello")]  # the link was kept


def test_a_child_that_goes_on_past_the_deadline_is_busy(identities: Identities) -> None:
    """Its late answer is nobody's: it must not pass for the answer to the next request."""
    release = threading.Event()

    def answer(request: bytes, gone: threading.Event) -> bytes:
        if request == b"stubborn":
            release.wait(PATIENCE)
        return request

    with (
        edge(identities, heartbeat=1) as parent,
        child(identities.of(FIRST), parent.address, FIRST, answer, heartbeat=1),
    ):
        parent.wait_for(FIRST)
        parent.children.call({FIRST: b"stubborn"}, 0.1)
        assert parent.children.call({FIRST: b"next"}, PATIENCE)[1] == {FIRST: "is still busy with an earlier request"}
        release.set()
        eventually(lambda: parent.children.call({FIRST: b"next"}, PATIENCE) == ({FIRST: b"next"}, {}))


@pytest.mark.full
def test_a_request_that_cannot_be_sent_in_time_ends_the_link(identities: Identities) -> None:
    """Its rest would stand in the way of the next one."""
    with (
        edge(identities, heartbeat=60) as parent,
        child_process(identities.of(FIRST), parent.address, FIRST, 60) as process,
    ):
        parent.wait_for(FIRST)
        process.send_signal(signal.SIGSTOP)
        _, reasons = parent.children.call({FIRST: bytes(LIMIT)}, 0.2)
        assert reasons == {FIRST: "gave no answer within 0.2 s"}
        assert parent.children.present() == frozenset()
        process.send_signal(signal.SIGCONT)
        parent.wait_for(FIRST)


def test_a_refused_hello_reaches_the_child(identities: Identities, caplog: pytest.LogCaptureFixture) -> None:
    def greet(name: str, hello: bytes) -> bytes:
        if name == FIRST:
            raise Refusal("your version is too old; upgrade it")
        raise KeyError("a mistake of ours")

    welcomes: list[bytes] = []
    with (
        edge(identities, greet) as parent,
        child(identities.of(FIRST), parent.address, FIRST, welcomed=welcomes.append),
        child(identities.of(SECOND), parent.address, SECOND, welcomed=welcomes.append),
    ):
        eventually(
            lambda: (
                {
                    f"edge-0: {FIRST} was refused: your version is too old; upgrade it",
                    f"edge-0: {SECOND} was refused: this site could not answer the hello; its log says why",
                }
                <= set(caplog.messages)
            )
        )
        assert parent.children.present() == frozenset()
    assert welcomes == []
    assert no_traceback(caplog)


def test_a_welcome_that_is_too_large_is_logged_at_the_parent(
    identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        edge(identities, lambda name, hello: bytes(1001), limit=1000) as parent,
        child(identities.of(FIRST), parent.address, FIRST, limit=1000),
    ):
        eventually(lambda: any("the welcome has 1,001 bytes; 1,000 are allowed" in said for said in caplog.messages))
        assert parent.children.present() == frozenset()


def test_a_child_may_turn_down_the_welcome(identities: Identities, caplog: pytest.LogCaptureFixture) -> None:
    def welcomed(welcome: bytes) -> None:
        raise Refusal("the parent's version is too old")

    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST, welcomed=welcomed):
        eventually(lambda: "edge-0-client-0 lost its link" in caplog.messages)
        eventually(lambda: "edge-0: its welcome was turned down: the parent's version is too old" in caplog.messages)


def test_a_newer_link_takes_the_place_of_an_older(identities: Identities, caplog: pytest.LogCaptureFixture) -> None:
    with (
        edge(identities) as parent,
        child(identities.of(FIRST), parent.address, FIRST, lambda request, gone: b"older"),
    ):
        parent.wait_for(FIRST)
        with child(identities.of(FIRST), parent.address, FIRST, lambda request, gone: b"newer"):
            eventually(lambda: len(parent.greeted) == 2)
            parent.wait_for(FIRST)
            assert parent.children.call({FIRST: b""}, PATIENCE) == ({FIRST: b"newer"}, {})
            twice = f"{FIRST} dialled again; if this goes on, its kit is in use twice"
            eventually(lambda: f"edge-0: {twice}" in caplog.messages)


def test_a_parent_that_comes_back_is_found_again(identities: Identities) -> None:
    with ExitStack() as first:
        parent = first.enter_context(edge(identities))
        with child(identities.of(FIRST), parent.address, FIRST):
            parent.wait_for(FIRST)
            first.close()
            with edge(identities, port=parent.children.port) as again:
                again.wait_for(FIRST)
                assert again.children.call({FIRST: b"still?"}, PATIENCE) == ({FIRST: b"still?"}, {})


PARENT = f"""
    greet = lambda name, hello: b""
    children = GrpcChildren("127.0.0.1:0", credentials, [{FIRST!r}], greet, heartbeat={QUICK}, limit=99)
    print(children.port, flush=True)
    while True:
        if children.present():
            children.call({{{FIRST!r}: b"request"}}, 1000)
"""


@pytest.mark.full
def test_a_frozen_parent_is_noticed_and_found_again(identities: Identities) -> None:
    """Whoever works for it learns that nobody waits; after its sleep the parent does not take all others for dead."""
    asked: list[threading.Event] = []

    def answer(request: bytes, gone: threading.Event) -> bytes:
        asked.append(gone)
        gone.wait(PATIENCE)
        return b""

    with program(PARENT, credentials=identities.of(EDGE)) as process:
        assert process.stdout
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        with child(identities.of(FIRST), address, FIRST, answer, heartbeat=QUICK):
            eventually(lambda: asked)
            process.send_signal(signal.SIGSTOP)
            eventually(asked[-1].is_set)
            count = len(asked)
            process.send_signal(signal.SIGCONT)
            eventually(lambda: len(asked) > count)


def test_own_sleep_is_nobody_s_silence() -> None:
    stop = threading.Event()
    slept = []
    for asleep in ticks(stop, heartbeat=0.1):
        slept.append(asleep)
        if len(slept) == 1:
            time.sleep(0.3)
        else:
            stop.set()
    assert slept[1] > 0.2


def test_a_child_stops_at_once_where_nobody_answers(identities: Identities) -> None:
    """A listener that never says a word, and a port where nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        addresses = [f"127.0.0.1:{silent.getsockname()[1]}", "127.0.0.1:1"]
        for address in addresses:
            before = time.monotonic()
            with child(identities.of(FIRST), address, FIRST):
                time.sleep(0.2)
            assert time.monotonic() - before < PATIENCE / 3  # less than an attempt to connect takes


def test_a_port_in_use_is_one_sentence(identities: Identities) -> None:
    with (
        edge(identities) as parent,
        pytest.raises(DeployError, match=r"cannot listen at 127\.0\.0\.1:\d+; is the port in use"),
        edge(identities, port=parent.children.port),
    ):
        pass


@pytest.mark.full
def test_no_thread_is_left(identities: Identities) -> None:
    """Not by a child that was lost, one that is stopped in the midst of a message, nor by those at work."""
    before = set(threading.enumerate())
    with edge(identities, heartbeat=QUICK) as parent:
        at_work = threading.Event()

        def answer(request: bytes, gone: threading.Event) -> bytes:
            at_work.set()
            gone.wait(PATIENCE)
            return b""

        with (
            child_process(identities.of(FIRST), parent.address, FIRST, QUICK) as stopped,
            child_process(identities.of(SECOND), parent.address, SECOND, QUICK) as killed,
            child(identities.of(THIRD), parent.address, THIRD, answer),
        ):
            parent.wait_for(FIRST, SECOND, THIRD)
            stopped.send_signal(signal.SIGSTOP)
            killed.kill()
            parent.children.call({FIRST: bytes(LIMIT), THIRD: b""}, 0.2)
            assert at_work.wait(PATIENCE)
            parent.children.close()
    eventually(lambda: set(threading.enumerate()) <= before, str(threading.enumerate()))


def test_many_calls_at_once_get_each_its_own_answer(identities: Identities) -> None:
    with edge(identities) as parent, ExitStack() as stack:
        for name in (FIRST, SECOND):
            stack.enter_context(child(identities.of(name), parent.address, name))
        parent.wait_for(FIRST, SECOND)

        def ask(name: str) -> list[Answered[str]]:
            return [parent.children.call({name: f"{name} {turn}".encode()}, PATIENCE) for turn in range(50)]

        with ThreadPoolExecutor(2) as pool:
            found = dict(zip((FIRST, SECOND), pool.map(ask, (FIRST, SECOND)), strict=True))
    for name, calls in found.items():
        assert calls == [({name: f"{name} {turn}".encode()}, {}) for turn in range(50)]
