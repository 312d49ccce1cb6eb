"""A parent's end: listens, takes its children and no one else, and calls them."""

import datetime as dt
import logging
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc

from fedbac.deploy import log
from fedbac.deploy.pki.authority import Identity
from fedbac.deploy.pki.credentials import Credentials, Revoked
from fedbac.deploy.transports.base import MISSED, REFUSED, Call, Handshake, ParentLinks, Refusal
from fedbac.deploy.transports.frames import Assembler, Budget, FrameError, Kind, Outbox, Packet
from fedbac.deploy.transports.grpc.common import (
    LARGEST_HELLO,
    LET_GO,
    LONGEST_FAILURE,
    NAME,
    SERVICE,
    SITE,
    options,
    shown,
    signs_budget,
    ticks,
)
from fedbac.deploy.transports.grpc.listening import CONNECTIONS, Listener, room_for
from fedbac.errors import DeployError, quoted
from fedbac.files import why


class Connection:
    """One child that is connected. Its requests change under the lock of its GrpcChildren."""

    def __init__(
        self,
        identity: Identity,
        context: Any,
        lock: threading.Condition,
        *,
        heartbeat: float,
        limit: int,
        folder: Path | None,
    ) -> None:
        self.identity = identity
        self.name = identity.name
        self.context = context
        self._lock = lock
        self.outbox = Outbox(heartbeat)
        self.limits = {
            Kind.PING: 0,
            Kind.HELLO: min(limit, LARGEST_HELLO),
            Kind.ANSWER: limit,
            Kind.FAILED: LONGEST_FAILURE,
        }
        self.inbox = Assembler(self.limits, self._admit, folder)
        self.heard = time.monotonic()
        self.said_hello = False
        self.welcomed = False
        self.ended: float | None = None
        """When it was."""
        self.current: Call | None = None
        """The request that the child has; also after nobody waits for it, until the child says that it is free."""
        self.next: Call | None = None
        """The request that waits for the child to be free."""
        self._signs = signs_budget(heartbeat)

    def expired(self) -> bool:
        """Whether the time of the child's certificate is over."""
        return dt.datetime.now(dt.UTC) >= self.identity.expires

    def start(self, exchange: Call) -> None:
        """Send a request now, or as soon as the child is free."""
        if self.current is None:
            self.current, self.limits[Kind.ANSWER] = exchange, exchange.limit
            self.outbox.put(Kind.REQUEST, exchange.number, exchange.message)
            exchange.message = b""  # a child may keep its request long after the caller has given up
        else:
            self.next = exchange

    def free(self) -> None:
        """Note that the child has no request; send the one that waits."""
        self.current, waiting, self.next = None, self.next, None
        if waiting is not None and not waiting.done:
            self.start(waiting)

    def _admit(self, kind: Kind, number: int) -> None:
        if kind is Kind.HELLO:
            if self.said_hello:
                raise FrameError("a second HELLO")
            self.said_hello = True
        elif not self.said_hello:
            raise FrameError(f"{kind.one} before its HELLO")
        elif kind is Kind.PING:
            if not self._signs.spend():
                raise FrameError("a flood of frames")
        else:
            with self._lock:
                if self.current is None or self.current.number != number:
                    raise FrameError(f"{kind.one} to no request that it has")


class GrpcChildren(ParentLinks):
    """Children over gRPC; see the protocol Children.

    ``listen`` is host:port, with port 0 for any that is free; ``port`` tells which. ``limit`` is the bytes of the
    longest message, either way. Of each child at most one message is kept, on the disk where there is a ``folder``; so
    all of them together can make this process keep no more than their number times the limit.
    """

    def __init__(
        self,
        listen: str,
        credentials: Credentials,
        children: Collection[str],
        handshake: Handshake,
        *,
        heartbeat: float,
        limit: int,
        folder: Path | None = None,
    ) -> None:
        super().__init__(Revoked(credentials), handshake, heartbeat, limit)
        self._folder = folder
        self._children, self._credentials = frozenset(children), credentials
        self._links: dict[str, Connection] = {}
        self._lingering: list[tuple[Connection, threading.Thread]] = []
        self._heard: dict[str, float] = {}
        self._arrivals = {name: Budget(burst=20, per_second=2) for name in self._children}
        self._most = 2 * len(self._children) + 8  # who comes back may overlap with what is left of its old link
        self._connections = room_for(max(CONNECTIONS, 4 * self._most))
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="fedbac-link")
        self._listener = Listener(listen, credentials, self._server)
        self.port = self._listener.port
        self._watcher = threading.Thread(target=self._watch, name="fedbac-watch", daemon=True)
        self._watcher.start()

    def present(self) -> frozenset[str]:
        """Return the children whose link is alive and whose hello was taken."""
        with self._changed:
            return frozenset(name for name, link in self._links.items() if link.welcomed)

    def seen(self) -> dict[str, float]:
        """Return the seconds since the last sign of life, for everyone who was ever there."""
        with self._changed:
            heard = self._heard | {name: link.heard for name, link in self._links.items() if link.welcomed}
        now = time.monotonic()
        return {name: max(0.0, now - when) for name, when in heard.items()}

    def close(self) -> None:
        """End all links and stop listening."""
        self._closing.set()
        self._watcher.join()
        with self._changed:
            links = list(self._links.values())
        for link in links:
            self._end(link, "was let go, as this site stops", LET_GO)
        self._listener.close(min(1.0, self._heartbeat))
        self._pool.shutdown()
        for _, reader in self._lingering:
            reader.join()

    def _server(self) -> Any:
        """Return a server that listens nowhere yet."""
        return grpc.server(
            self._pool,
            handlers=[
                grpc.method_handlers_generic_handler(SERVICE, {NAME: grpc.stream_stream_rpc_method_handler(self._join)})
            ],
            options=[
                *options(self._heartbeat),
                ("grpc.so_reuseport", 0),  # a second process at the same port is an error, not a lottery
                ("grpc.max_concurrent_streams", 1),
                ("grpc.max_allowed_incoming_connections", self._connections),
                ("grpc.server_handshake_timeout_ms", 10_000),
                ("grpc.max_connection_idle_ms", 30_000),  # whoever was refused need not stay
            ],
            maximum_concurrent_rpcs=self._most,
        )

    def _start(self, name: str, call: Call, deadline: float) -> None:
        link = self._links.get(name)
        if link is None or not link.welcomed:
            call.reason = "is not there"
        elif link.next is not None:
            call.reason = "is busy with another request"
        else:
            link.start(call)

    def _waits(self, name: str, call: Call) -> bool:
        link = self._links.get(name)
        if link is None or link.next is not call:
            return False
        link.next = None
        return True

    def _abandon(self, name: str, call: Call) -> None:
        """Tell a child that nobody waits any more; one that has not even got the whole request starts afresh."""
        link = self._links[name]
        if link.outbox.empty:
            link.outbox.put(Kind.CANCEL, call.number)
        else:
            self._end(link, "did not take the whole request within its deadline")

    def _join(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Take a child's stream, or refuse it before a frame is read; runs in a thread of the pool."""
        try:
            link = self._admitted(context)
        except Exception as error:  # gRPC itself would tell the text of one to whoever dials
            closing = self._closing.is_set()
            if closing:
                log.info("%s came too late: %s", _address(context), error)
            else:
                REFUSED.note(
                    _address(context), error.reason if isinstance(error, Refusal) else "certificate", str(error)
                )
            context.set_code(LET_GO if closing else grpc.StatusCode.PERMISSION_DENIED)
            context.set_details(shown(str(error)) if isinstance(error, Refusal) else "the certificate cannot be used")
            return iter(())
        reader = threading.Thread(target=self._read, args=(link, frames), name=f"fedbac-{link.name}", daemon=True)
        with self._changed:
            self._lingering.append((link, reader))
            reader.start()
        return link.outbox

    def _admitted(self, context: Any) -> Connection:
        """Return the link of a child that may join; a newer one takes the place of an older."""
        proof, claimed = context.auth_context(), dict(context.invocation_metadata()).get(SITE)
        chain = b"".join((*proof["x509_pem_cert"], *proof.get("x509_pem_cert_chain", ())))
        identity = self._credentials.identify(claimed or "", chain, context.peer())
        name = identity.name
        if claimed != name:
            raise Refusal(f"the certificate of {quoted(name)} came under the name {quoted(claimed)}", "name")
        if name not in self._children:
            raise Refusal(f"{quoted(name)} is none of this site's children", "name")
        with self._changed:
            if self._closing.is_set():
                raise Refusal("this site is closing")
            self._revoked.refresh()
            if identity in self._revoked:
                raise Refusal(f"the certificate of {quoted(name)} is revoked", "revoked")
            if not self._arrivals[name].spend():
                raise Refusal(f"{quoted(name)} dials too often")
            if name in self._links:
                again = "dialled again; if this goes on, its kit is in use twice"
                self._end(self._links[name], again, grpc.StatusCode.FAILED_PRECONDITION)
            link = self._links[name] = Connection(
                identity, context, self._changed, heartbeat=self._heartbeat, limit=self._limit, folder=self._folder
            )
        return link

    def _read(self, link: Connection, frames: Iterator[bytes]) -> None:
        """Take what a child sends, until the link ends; runs in a thread of its own."""
        reason, code = "lost its link", grpc.StatusCode.UNAVAILABLE
        try:
            for frame in frames:
                link.heard = time.monotonic()
                message = link.inbox.take(frame)
                if message is not None:
                    self._handle(link, message)
        except FrameError as error:
            reason, code = f"sent {error}", grpc.StatusCode.INVALID_ARGUMENT
        except OSError as error:
            reason, code = f"sent what cannot be kept in {self._folder} ({why(error)})", grpc.StatusCode.UNAVAILABLE
        except Refusal as refusal:
            reason, code = f"was refused: {shown(str(refusal))}", grpc.StatusCode.FAILED_PRECONDITION
            REFUSED.note(f"{link.name} at {_address(link.context)}", refusal.reason, shown(str(refusal)))
        except grpc.RpcError:
            pass  # the network's way to say that the stream is over
        finally:
            self._end(link, reason, code)

    def _handle(self, link: Connection, message: Packet) -> None:
        if message.kind is Kind.HELLO:
            with self._handshaking:
                if link.ended is None:  # while it waited for its turn
                    self._welcome(link, bytes(message.payload))
            return
        if message.kind is Kind.PING:
            return
        with self._changed:
            exchange = link.current
            assert exchange is not None  # or the assembler had not admitted it
            if not exchange.done:
                if message.kind is Kind.ANSWER:
                    exchange.answer = message.payload
                else:
                    exchange.reason = f"failed: {shown(bytes(message.payload).decode(errors='replace'))}"
            link.free()
            self._changed.notify_all()

    def _welcome(self, link: Connection, hello: bytes) -> None:
        try:
            welcome = self._shake_hands(link.name, hello)
            if len(welcome) > self._limit:
                raise DeployError(f"the welcome has {len(welcome):,} bytes; {self._limit:,} are allowed")
        except Refusal:
            raise
        except Exception as error:
            why = shown(f"{type(error).__name__}: {error}")
            log.error("the hello of %s could not be answered: %s", link.name, why)
            log.debug("in full", exc_info=True)
            raise Refusal("this site could not answer the hello; its log says why") from error
        with self._changed:
            if link.ended is None:
                link.outbox.put(Kind.WELCOME, payload=welcome)
                link.welcomed = True
                log.info("%s has joined", link.name)

    def _end(self, link: Connection, reason: str, code: Any = grpc.StatusCode.UNAVAILABLE) -> None:
        """End a link, once; whoever waits for its child is told why."""
        with self._changed:
            if link.ended is not None:
                return
            link.ended = time.monotonic()
            if link.welcomed:
                self._heard[link.name] = link.heard
            if self._links.get(link.name) is link:
                del self._links[link.name]
            for exchange in (link.current, link.next):
                if exchange is not None and exchange.reason is None:
                    exchange.reason = reason
            if not reason.startswith("was refused"):  # which is logged with the address
                log.log(logging.INFO if self._closing.is_set() else logging.WARNING, "%s %s", link.name, reason)
            self._changed.notify_all()
        link.context.set_code(code)
        link.context.set_details(f"{link.name} {reason}")
        link.outbox.close()

    def _watch(self) -> None:
        """End the links of those that fell silent or are believed no longer; listen with a renewed certificate."""
        for asleep in ticks(self._closing, self._heartbeat):
            self._listener.renew(self._closing)
            with self._changed:
                self._revoked.refresh()
                now = time.monotonic()
                for link, reader in list(self._lingering):
                    link.heard += asleep
                    silent = now - link.heard
                    if link.ended is not None:
                        if not reader.is_alive():
                            self._lingering.remove((link, reader))
                        elif now - link.ended > self._heartbeat:  # it waits behind data that the child never takes
                            link.context.cancel()
                    elif link.identity in self._revoked:
                        self._end(link, "has a certificate that is revoked", grpc.StatusCode.PERMISSION_DENIED)
                    elif link.expired():
                        self._end(link, "has a certificate that has expired", grpc.StatusCode.PERMISSION_DENIED)
                    elif silent > MISSED * self._heartbeat:
                        self._end(link, f"gave no sign of life for {silent:.1f} s")


def _address(context: Any) -> str:
    """Return where a peer is, as 192.0.2.1:40404 or [2001:db8::1]:40404."""
    return unquote(str(context.peer())).partition(":")[2]
