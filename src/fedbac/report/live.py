"""The page as a server: on this machine only, for any number of readers, and never writing anything.

It answers two addresses, the page and its events; no path of a request is ever looked up on the disk.
"""

import asyncio
import json
import logging
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
END_SECONDS = 2
"""What a reader that does not listen may delay the end."""


class Live:
    """A server of one page about runs that may be running."""

    def __init__(self, find: Find, port: int | None = None) -> None:
        self.follower = Follower(find)
        self.socket = _listen(port)
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "ws": "none"}
        config = uvicorn.Config(self.app(), lifespan="on", timeout_graceful_shutdown=END_SECONDS, **quiet)
        self.server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.socket.getsockname()[1]}/"

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
            routes=[Route("/", self._page), Route("/events", self._events)],
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
