"""A process's place in an NVFlare job: what others call here, and the ways to the others."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedbac.deploy import log
from fedbac.deploy.pki.authority import read
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.transports.base import Answer, Refusal, replied, sendable
from fedbac.errors import visible

OK, FAILED = 0, 1
END = b"\0"
"""Between the certificate of whoever says hello and the hello; a PEM holds none."""
FIRST = 60.0
"""Seconds that a role has until it can say hello: it reads its data first."""

Reply = tuple[int, bytes]
"""A status and what was said, or what may be told of why nothing was."""


class Post:
    """Where a parent's calls arrive, and where a parent finds the proxies of its children.

    To its own site it is the parent, as GrpcParent is over gRPC: links are NVFlare's, and so is dialling again.
    """

    _hello: Callable[[], bytes]
    _welcomed: Callable[[bytes], None]
    _answer: Answer

    def __init__(
        self, name: str, parent: str | None, limit: int, proxies: Mapping[str, Any], certificate: Path
    ) -> None:
        self.name, self.limit, self.proxies = name, limit, dict(proxies)
        self.called = threading.Event()
        """Set once all sites of the job can be called: the first that is called knows it by that."""
        self._parent, self._certificate = parent, certificate
        self._serving = threading.Event()
        self._broken: str | None = None
        self._busy = threading.Lock()
        self._number: int | None = None
        self._gone = threading.Event()

    def serve(
        self, hello: Callable[[], bytes], welcomed: Callable[[bytes], None], answer: Answer, stop: threading.Event
    ) -> None:
        """Answer the parent's requests, one at a time, until ``stop`` is set."""
        self._hello, self._welcomed, self._answer = hello, welcomed, answer
        self._serving.set()
        stop.wait()
        self._gone.set()

    def fail(self, error: BaseException) -> None:
        """Note that the role has ended with an error, so that the parent is told."""
        failure = SiteError.of(error)
        log.error("%s has ended: %s", self.name, failure)
        self._broken = failure.public
        self._serving.set()

    def hello(self, caller: str) -> Reply:
        """Say hello, once the role can."""
        self.called.set()
        return self._reply(caller, lambda: read(self._certificate) + END + self._hello())

    def welcome(self, caller: str, said: bytes) -> Reply:
        """Take the parent's welcome."""

        def take() -> bytes:
            self._welcomed(said)
            return b""

        return self._reply(caller, take)

    def ask(self, caller: str, number: int, request: bytes) -> Reply:
        """Answer a request; one at a time."""

        def answer() -> bytes:
            if not isinstance(request, bytes) or len(request) > self.limit:
                raise SiteError(Failure.LONG_REQUEST, self.limit)
            if not self._busy.acquire(blocking=False):
                raise SiteError(Failure.BUSY)
            try:
                gone = self._gone = threading.Event()
                self._number = number
                found = self._answer(request, gone)
            finally:
                self._busy.release()
            return sendable(found, gone, self.limit)

        return self._reply(caller, answer)

    def cancel(self, caller: str, number: int) -> None:
        """Note that nobody waits for the answer to a request."""
        if caller == self._parent and number == self._number:
            self._gone.set()

    def ping(self, caller: str) -> Reply:
        """Give a sign of life."""
        return self._reply(caller, lambda: b"")

    def _reply(self, caller: str, work: Callable[[], bytes]) -> Reply:
        if caller != self._parent:
            log.warning("refused a call by %s, which is not the parent of %s", visible(caller), self.name)
            return FAILED, f"{self.name} answers only to its parent".encode()
        if not self._serving.wait(FIRST):
            return FAILED, f"{self.name} is not ready yet".encode()
        if self._broken is not None:
            return FAILED, self._broken.encode()
        good, said = replied(work)
        return OK if good else FAILED, said


HERE: list[Post] = []
"""The post of this process, once there is one."""


def here() -> Post:
    """Return the post of this process."""
    if not HERE:
        raise Refusal(
            "deploy.transport is nvflare: NVFlare runs the sites; start them by fedbac cloud, edge and client"
        )
    return HERE[0]
