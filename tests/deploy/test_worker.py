"""The process that trains for a client."""

import io
import os
import sys
import threading
from typing import Any

import pytest

from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.wire import encode
from fedbac.deploy.roles.client import FAILED, OK, Worker, receive, send
from fedbac.deploy.roles.worker import serve
from fedbac.errors import DeployError


class Echo:
    """Answers with what it is asked, or fails if that is how."""

    def answer(self, request: bytes) -> bytes:
        if request == b"known":
            raise DeployError("the fix is this")
        if request == b"unknown":
            raise ValueError("with a quotation of the data")
        return request


def _requests(*payloads: bytes) -> io.BytesIO:
    found = io.BytesIO()
    for payload in payloads:
        send(found, OK, payload)
    found.seek(0)
    return found


def test_requests_are_answered_in_turn_whatever_goes_wrong_with_one() -> None:
    out = io.BytesIO()
    holder: Any = Echo()
    serve(holder, _requests(b"one", b"known", b"unknown", b"two"), out)
    out.seek(0)
    assert receive(out) == (OK, b"")
    assert receive(out) == (OK, b"one")
    for _ in range(2):
        failed = receive(out)
        assert failed is not None
        assert failed[0] == FAILED
        assert SiteError.decoded(failed[1]).failure is Failure.UNNAMED
    assert receive(out) == (OK, b"two")
    assert receive(out) is None


@pytest.mark.parametrize("answered", [0, 1])
def test_work_for_a_client_that_was_killed_ends_quietly(answered: int, caplog: pytest.LogCaptureFixture) -> None:
    """Before it could say that it is there, or with an answer that nobody waits for any more."""
    reading, writing = os.pipe()
    out = os.fdopen(writing, "wb")
    if not answered:
        os.close(reading)

    class Killed(Echo):
        def answer(self, request: bytes) -> bytes:
            os.close(reading)
            return request

    holder: Any = Killed()
    serve(holder, _requests(b"one", b"two"), out)
    assert out.closed
    assert caplog.text == ""


NOTING = """
import sys
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.roles.client import OK, receive, send
heard = []
send(sys.stdout.buffer, OK, b"")
while (request := receive(sys.stdin.buffer)) is not None:
    heard.append(request[1])
    send(sys.stdout.buffer, OK, b"|".join(heard))
"""


def test_a_process_that_is_started_again_knows_the_run() -> None:
    """Else its parent would have to send everything twice, each time that a client was idle for a while."""
    begin, other = encode("begin", {}, {}), encode("fit", {}, {})
    worker = Worker({}, idle=1000.0)
    worker.command = [sys.executable, "-c", NOTING]
    nobody_left = threading.Event()
    try:
        assert worker.ask(other, nobody_left) == other
        worker.ask(begin, nobody_left)
        assert worker.process is not None
        worker.process.kill()
        worker.process.wait()
        assert worker.ask(other, nobody_left) == begin + b"|" + other
    finally:
        worker.close()
