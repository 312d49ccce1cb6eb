"""A bad link: passes bytes on between a child and its parent, slowly or not at all."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE = 16 * 1024


class Proxy:
    """Listens at ``address`` and passes everything on to a port of this machine."""

    def __init__(self, to: int, rate: float | None = None) -> None:
        self._to = to
        self._rate = rate
        """Bytes a second, each way."""
        self.heard = bytearray()
        """All that was passed on, both ways."""
        self._passing = threading.Event()
        self._passing.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._mended = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Let nothing through; connections stay."""
        self._passing.clear()

    def release(self) -> None:
        """Let through what was held."""
        self._passing.set()

    def cut(self) -> None:
        """End all connections, and refuse new ones until mended."""
        with self._lock:
            self._mended = False
            self._end()

    def mend(self) -> None:
        """Take connections again."""
        self._mended = True

    def close(self) -> None:
        """End everything."""
        self._closed = True
        self._passing.set()
        self._listener.close()
        with self._lock:
            self._end()

    def _end(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._mended or self._closed:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                if self._rate is not None:
                    time.sleep(len(piece) / self._rate)
                self._passing.wait()
                self.heard += piece
                sink.sendall(piece)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(to: int, rate: float | None = None) -> Iterator[Proxy]:
    """Yield a link to a port."""
    made = Proxy(to, rate)
    try:
        yield made
    finally:
        made.close()
