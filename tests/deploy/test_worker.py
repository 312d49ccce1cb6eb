"""The process that trains for a client."""

import io
import os
from typing import Any

import pytest

from fedbac.deploy.pipes import FAILED, OK, receive, send
from fedbac.deploy.worker import serve
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
    shop: Any = Echo()
    serve(shop, _requests(b"one", b"known", b"unknown", b"two"), out)
    out.seek(0)
    assert receive(out) == (OK, b"one")
    assert receive(out) == (FAILED, b"the fix is this")
    assert receive(out) == (FAILED, b"the client failed (ValueError); its log says why")
    assert receive(out) == (OK, b"two")
    assert receive(out) is None


def test_work_for_a_client_that_was_killed_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    shop: Any = Echo()
    out = os.fdopen(writing, "wb")
    serve(shop, _requests(b"one", b"two"), out)
    assert out.closed
    assert caplog.text == ""
