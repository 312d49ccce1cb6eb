"""The page as a server: on this machine only, for any number of readers, and never writing anything.

It answers two addresses, the page and its events, below a path that nobody can guess: other users of the machine reach
the port too. No path of a request is ever looked up on the disk.
"""

import asyncio
import json
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedbac.errors import ConfigError
from fedbac.report.following import TITLE, Find, Follower
from fedbac.report.page import page, policy

log = logging.getLogger("fedbac")

HOST = "127.0.0.1"
NAMES = ["127.0.0.1", "localhost"]
"""As whom the server may be addressed: a page of somebody else's, under a name that leads here, learns nothing."""
LOOK_SECONDS = 0.5
STREAM_SECONDS = 0.1
"""How often a stream looks whether there is something to send, or the server is to end."""
KEEP_ALIVE = 15 / STREAM_SECONDS
MOST_CONNECTIONS = 100
"""At a time; of more, the oldest goes that has asked for nothing. Each takes a file handle, which runs need too."""
ASK_SECONDS = 10
"""What a connection may take to ask for something."""
END_SECONDS = 2
"""What a reader that does not listen may delay the end."""


class Bounded(H11Protocol):
    """A connection to the server, one of a limited number: whoever opens many and asks nothing keeps nobody out."""

    opened = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for a new connection, and give it some time to ask."""
        super().connection_made(transport)
        self.opened = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            silent = [other for other in self.connections if isinstance(other, Bounded) and other.cycle is None]
            min(silent, key=lambda other: other.opened).leave()  # the new one is among them
        self.loop.call_later(ASK_SECONDS, self.leave)

    def leave(self) -> None:
        """Close a connection that has asked for nothing."""
        if self.cycle is None:
            self.connections.discard(self)
            self.transport.abort()


class Live:
    """A server of one page about runs that may be running."""

    def __init__(self, find: Find, port: int | None = None) -> None:
        self.follower = Follower(find)
        self.socket = _listen(port)
        self.path = f"/{secrets.token_urlsafe(16)}/"
        quiet: dict[str, Any] = {
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "ws": "none",
            "http": Bounded,
        }
        config = uvicorn.Config(self.app(), lifespan="on", timeout_graceful_shutdown=END_SECONDS, **quiet)
        self.server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.socket.getsockname()[1]}{self.path}"

    def serve(self) -> None:
        """Serve until a signal, or another thread, ends it."""
        self.server.run(sockets=[self.socket])

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Serve in a thread of this process; at the end all readers have seen the last state."""
        thread = threading.Thread(target=self.serve, name="live page", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.follower.refresh()
            self.server.should_exit = True
            thread.join(timeout=2 * END_SECONDS)

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[Route(self.path, self._page), Route(f"{self.path}events", self._events)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=NAMES, www_redirect=False)],
            lifespan=self._looking,
        )

    @asynccontextmanager
    async def _looking(self, app: Starlette) -> AsyncIterator[None]:
        async def look() -> None:
            try:
                while True:
                    await asyncio.sleep(LOOK_SECONDS)
                    await asyncio.to_thread(self.follower.refresh)
            except Exception:  # nobody waits for this task, and a page that stands still must not pass for a live one
                log.exception("The live page no longer follows the runs; start it again.")

        task = asyncio.create_task(look())
        try:
            yield
        finally:
            task.cancel()

    async def _page(self, request: Request) -> Response:
        shown = self.follower.shown
        return HTMLResponse(page(TITLE, shown.parts, shown.document, live=True), headers=_headers())

    async def _events(self, request: Request) -> Response:
        seen = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return StreamingResponse(self._stream(seen), media_type="text/event-stream", headers=_headers())

    async def _stream(self, seen: str) -> AsyncIterator[str]:
        quiet = 0
        while True:
            ending = self.server.should_exit  # before the last look at what there is to send
            shown = self.follower.shown
            if shown.version != seen:
                seen, quiet = shown.version, 0
                text = json.dumps({"parts": shown.parts, "document": shown.document}, allow_nan=False)
                yield f"id: {seen}\ndata: {text}\n\n"
            elif quiet >= KEEP_ALIVE:
                quiet = 0
                yield ": still here\n\n"  # so that a reader who has gone is noticed
            if ending:
                return
            quiet += 1
            await asyncio.sleep(STREAM_SECONDS)


def _listen(port: int | None) -> socket.socket:
    """Take a port of this machine, any free one if none is asked for."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port or 0))
        listening.listen()  # from now on a reader waits instead of being turned away
    except OSError as error:
        listening.close()
        raise ConfigError(f"--port {port}: it cannot be used ({error.strerror}); choose another one") from error
    return listening


def _headers() -> dict[str, str]:
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
