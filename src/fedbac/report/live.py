"""The page as a server: on this machine only, for any number of readers, and never writing anything.

It answers two addresses, the page and its events, below a path that nobody can guess: other users of the machine reach
the port too. No path of a request is ever looked up on the disk.
"""

import asyncio
import json
import logging
import socket
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
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
from fedbac.report.beside import END_SECONDS
from fedbac.report.following import TITLE, Find, Follower
from fedbac.report.page import page, policy
from fedbac.runs.store import RunFolder, runs_in

log = logging.getLogger("fedbac")

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

    def __init__(self, find: Find, listening: socket.socket, path: str) -> None:
        self.follower = Follower(find)
        self.socket, self.path = listening, path
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "ws": "none"}
        config = uvicorn.Config(self.app(), http=Bounded, lifespan="on", timeout_graceful_shutdown=END_SECONDS, **quiet)
        self.server = uvicorn.Server(config)

    def serve(self) -> None:
        """Serve until a signal, or another thread, ends it."""
        self.server.run(sockets=[self.socket])

    def end(self) -> None:
        """Let ``serve`` return once all readers have seen the last state."""
        self.follower.refresh()
        self.server.should_exit = True

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


def _headers() -> dict[str, str]:
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def following(folders: Sequence[Path]) -> Find:
    """Return what finds the runs in folders, now or later."""

    def runs_now(folder: Path) -> list[RunFolder]:
        try:
            return runs_in(folder)
        except ConfigError:  # it is gone, for instance to be replaced
            return []

    return lambda: [place for folder in folders for place in runs_now(folder)]


def main(number: str, folder: str) -> None:
    """Serve, on a socket that is handed over, until the command that started this ends."""
    server = Live(following([Path(folder)]), socket.socket(fileno=int(number)), sys.stdin.readline().strip())

    def last() -> None:
        sys.stdin.read()
        server.end()

    threading.Thread(target=last, daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
