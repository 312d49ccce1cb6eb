"""A child's end: dials its parent, answers it, and dials again."""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from fedbac.deploy import log
from fedbac.deploy.pki.credentials import Credentials
from fedbac.deploy.transports.base import MISSED, Answer, Refusal, replied, sendable
from fedbac.deploy.transports.frames import Assembler, FrameError, Kind, Outbox, Packet
from fedbac.deploy.transports.grpc.common import (
    LARGEST_HELLO,
    LET_GO,
    METHOD,
    SITE,
    options,
    shown,
    signs_budget,
    ticks,
)
from fedbac.errors import DeployError

SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two attempts to reach the parent; each pause is twice the one before."""
LONGEST_DIAL = 10.0
"""Seconds that a connection may take to its first sign of life, however short the heartbeat is."""
NOBODY_LISTENS = "Connection refused"
"""What gRPC says, among more, of an address where no program listens."""
REFUSED = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION}


class Uplink:
    """One connection to the parent, from dialling to its end."""

    def __init__(
        self, channel: Any, name: str, hello: bytes, *, heartbeat: float, limit: int, stop: threading.Event
    ) -> None:
        self._channel = channel
        self._heartbeat = heartbeat
        self._stop = stop
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[Packet | None] = queue.SimpleQueue()
        self._welcomed = False
        self._request: int | None = None
        """Number of the request that was not replied to yet."""
        self.gone = threading.Event()
        """Set when nobody waits for the reply to that request."""
        self._heard = time.monotonic()
        self._patience = max(LONGEST_DIAL, MISSED * heartbeat)
        self._over = threading.Event()
        self.answered = False
        """Whether the parent has sent anything."""
        self.reason = ""
        self.refused = False
        self.let_go = False
        """Whether the parent ended the link because it stops."""
        self._signs = signs_budget(heartbeat)
        self._inbox = Assembler({Kind.PING: 0, Kind.CANCEL: 0, Kind.WELCOME: limit, Kind.REQUEST: limit}, self._admit)
        self._outbox = Outbox(heartbeat)
        self._outbox.put(Kind.HELLO, payload=hello)
        self._frames = channel.stream_stream(METHOD)(self._outbox, metadata=((SITE, name),))
        self._threads = [
            threading.Thread(target=work, name=f"fedbac-{name}-{work.__name__.strip('_')}", daemon=True)
            for work in (self._read, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def next(self) -> Packet | None:
        """Wait for a welcome or a request; return None when the link has ended."""
        return self._arrived.get()

    def reply(self, kind: Kind, number: int, payload: bytes) -> None:
        """Reply to the request."""
        with self._lock:
            self._request = None
        self._outbox.put(kind, number, payload)

    def end(self, reason: str, refused: bool = False) -> None:
        """End the link; the first reason counts."""
        with self._lock:
            if self._over.is_set():
                return
            self.reason, self.refused = reason, refused
            self._over.set()
            self.gone.set()
        self._outbox.close()
        self._arrived.put(None)
        self._frames.cancel()

    def close(self) -> None:
        """End the link and everything that worked for it."""
        self.end("this site is closing")
        self._channel.close()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        reason, refused = "the link was lost", False
        try:
            for frame in self._frames:
                self.answered = True
                self._heard, self._patience = time.monotonic(), MISSED * self._heartbeat
                message = self._inbox.take(frame)
                if message is None or message.kind is Kind.PING:
                    continue
                if message.kind is Kind.CANCEL:
                    with self._lock:
                        if message.number == self._request:
                            self.gone.set()
                else:
                    self._arrived.put(message)
        except FrameError as error:
            reason = f"it sent {error}"
        except grpc.RpcError as error:
            reason, refused = shown(error.details() or reason), error.code() in REFUSED
            self.let_go = error.code() is LET_GO
        finally:
            self.end(reason, refused)

    def _watch(self) -> None:
        for asleep in ticks(self._over, self._heartbeat):
            self._heard += asleep
            silent = time.monotonic() - self._heard
            if self._stop.is_set():
                self.end("this site is closing")
            elif silent > self._patience:
                self.end(f"no sign of life for {silent:.1f} s")

    def _admit(self, kind: Kind, number: int) -> None:
        if kind in {Kind.PING, Kind.CANCEL}:
            if not self._signs.spend():
                raise FrameError("a flood of frames")
        elif kind is Kind.WELCOME:
            if self._welcomed:
                raise FrameError("a second WELCOME")
            self._welcomed = True
        else:
            with self._lock:
                if not self._welcomed or self._request is not None:
                    raise FrameError("a REQUEST out of turn")
                if not self._over.is_set():
                    self._request, self.gone = number, threading.Event()


class GrpcParent:
    """The parent over gRPC.

    ``name`` is this site's, ``parent`` the one that the parent's certificate must have; ``limit`` is the bytes of the
    longest message, either way. The credentials are read each time it dials, so renewed ones need no restart.
    """

    def __init__(
        self, address: str, parent: str, name: str, credentials: Credentials, *, heartbeat: float, limit: int
    ) -> None:
        self._address, self._parent, self._name = address, parent, name
        self._credentials = credentials
        self._heartbeat, self._limit = heartbeat, limit
        self._noted = ""

    def serve(
        self, hello: Callable[[], bytes], welcomed: Callable[[bytes], None], answer: Answer, stop: threading.Event
    ) -> None:
        """Answer the parent's requests, one at a time, until ``stop`` is set.

        Dials, says hello, is welcomed and answers; when the link is lost it dials again. An exception of ``answer`` is
        logged here, and the parent is told what ``SiteError`` lets it be told. A refusal, by the parent or by
        ``welcomed``, is logged and tried again later, since an operator may mend its cause.
        """
        pause = SHORTEST_PAUSE
        while not stop.is_set():
            try:
                proof = self._credentials.read()
            except DeployError as error:  # a renewed kit may be on its way
                self._note(str(error))
                stop.wait(LONGEST_PAUSE)
                continue
            link = self._dial(proof, hello(), stop)
            try:
                lasted = self._keep(link, welcomed, answer)
            finally:
                link.close()
            if stop.is_set():
                return
            self._note(*self._explained(link))
            log.debug("the link to %s ended with: %s", self._parent, link.reason)
            if link.refused:
                pause = LONGEST_PAUSE
            elif lasted > MISSED * self._heartbeat:
                pause = SHORTEST_PAUSE
            stop.wait(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _dial(self, proof: tuple[bytes, bytes, bytes], hello: bytes, stop: threading.Event) -> Uplink:
        if len(hello) > (most := min(self._limit, LARGEST_HELLO)):
            raise DeployError(f"the hello has {len(hello):,} bytes; {most:,} are allowed")
        key, certificate, authority = proof
        channel = grpc.secure_channel(
            self._address,
            grpc.ssl_channel_credentials(authority, key, certificate),
            options=[
                *options(self._heartbeat),
                ("grpc.ssl_target_name_override", self._credentials.name_of(self._parent)),
                ("grpc.use_local_subchannel_pool", 1),  # or a new attempt would wait as long as those before it
                ("grpc.enable_retries", 0),
            ],
        )
        return Uplink(channel, self._name, hello, heartbeat=self._heartbeat, limit=self._limit, stop=stop)

    def _keep(self, link: Uplink, welcomed: Callable[[bytes], None], answer: Answer) -> float:
        """Do what the parent asks for until the link ends; return how many seconds it lasted after the welcome."""
        since = None
        while (message := link.next()) is not None:
            if message.kind is Kind.REQUEST:
                link.reply(*self._reply(message, answer, link.gone))
                continue
            try:
                welcomed(bytes(message.payload))
            except Refusal as refusal:
                link.end(f"its welcome was turned down: {shown(str(refusal))}", refused=True)
            else:
                since = time.monotonic()
                self._note(f"welcomed by {self._parent}", logging.INFO)
        return 0.0 if since is None else time.monotonic() - since

    def _reply(self, request: Packet, answer: Answer, gone: threading.Event) -> tuple[Kind, int, bytes]:
        good, said = replied(lambda: sendable(answer(bytes(request.payload), gone), gone, self._limit))
        return Kind.ANSWER if good else Kind.FAILED, request.number, said

    def _explained(self, link: Uplink) -> tuple[str, int]:
        """Return why a link ended, and how much that matters: a parent that stops, or is not up yet, is no trouble."""
        if link.refused:
            return f"{self._parent}: {link.reason}", logging.WARNING
        if link.let_go:
            return f"{self._parent} has stopped", logging.INFO
        if link.answered:
            return f"the link to {self._parent} has ended: {link.reason}", logging.WARNING
        if NOBODY_LISTENS in link.reason:
            return f"waiting for {self._parent}, which does not listen at {self._address} yet", logging.INFO
        return (
            f"{self._parent} cannot be reached at {self._address}: {link.reason} "
            f"(if it runs, see there whether it takes the certificate of {self._name})"
        ), logging.WARNING

    def _note(self, text: str, level: int = logging.WARNING) -> None:
        """Log what is new: an attempt that fails like the one before is none."""
        if text != self._noted:
            log.log(level, "%s", text)
            self._noted = text
