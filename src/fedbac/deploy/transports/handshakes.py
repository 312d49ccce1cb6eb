"""What gRPC says of connections that fail before a message is read, with the address: only its trace tells that.

gRPC writes to the process's stderr. So this end of it becomes a pipe, and its lines are read; all others pass. An entry
may quote a stranger, as the server name that it asked for, with lines and escapes of its own: so a header counts only
where a write began, and nothing passes of what gRPC says of TLS, which its trace tells too.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO
from urllib.parse import unquote

from fedbac.deploy.transports.base import REFUSED, Reason
from fedbac.errors import visible

LINE = re.compile(rb"[IWEF]\d{4} [\d:.]+ +\d+ (\S+):\d+\] ")
OURS = (b"handshaker.cc", b"channel_trace.h", b"trace.cc")
TLS = b"ssl_transport_security.cc"
PEER = re.compile(rb"grpc\.internal\.endpoint_peer_address=([^,}]+)")
LISTENING = b"grpc.server_handshake_timeout_ms="
"""Among the settings of whoever listens; others are our own attempts to dial."""
KNOWN: tuple[tuple[str, Reason, str], ...] = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "certificate", "it has no certificate"),
    ("certificate has expired", "certificate", "its certificate has expired"),
    ("CERTIFICATE_VERIFY_FAILED", "certificate", "its certificate is not of this federation"),
    ("SSL routines", "no_tls", "it does not speak TLS as expected"),
)
OVER = b"-"
"""What is kept of an entry of which more lines may follow, but nothing is wanted."""
LONGEST = 16_384
"""Bytes of a line that are looked at."""


class Explainer:
    """Reads what gRPC writes: passes on what is not about handshakes, and notes those that failed."""

    def __init__(self, passed: Callable[[bytes], object]) -> None:
        self.passed = passed
        self.entry = b""
        """What was read of an entry about handshakes, which may have several lines."""
        self.traced = False

    def take(self, line: bytes, first: bool = True) -> None:
        """Take the next line; whether it may be the ``first`` of an entry."""
        begins = LINE.match(line) if first else None
        if begins is None and self.entry:
            self.entry += line[:LONGEST] if self.entry != OVER else b""
        elif begins is None:
            self.passed(line)
        elif begins[1] in OURS:
            self.traced, self.entry = True, line[:LONGEST]
        elif self.traced and begins[1] == TLS:  # which the trace tells again, with the address
            self.entry = OVER
        else:
            self.entry = b""
            self.passed(line)
        if LISTENING in self.entry and (peer := PEER.search(self.entry)):
            error = self.entry.partition(b" error=")[2]
            if error and not error.startswith(b"OK"):
                explain(unquote(peer[1].decode(errors="replace")).partition(":")[2], error.decode(errors="replace"))
            self.entry = OVER


def explain(peer: str, error: str) -> None:
    """Note that a connection failed before it was secure."""
    first = error.splitlines()[0]
    text = visible((first.partition("OPENSSL_internal:")[2] or first).removesuffix(": OK"))[:200]
    for sign, reason, what in KNOWN:
        if sign in error:
            REFUSED.note(peer, reason, f"{what} ({text})")
            return
    REFUSED.note(peer, "no_tls", f"it broke off before it was known who it is ({text})")


@contextmanager
def explained() -> Iterator[None]:
    """Have failed handshakes noted in place of gRPC's own lines; must come before gRPC is imported."""
    if "grpc" in sys.modules or {"GRPC_TRACE", "GRPC_VERBOSITY"} & set(os.environ) or not _is_the_process_s(sys.stderr):
        yield
        return
    os.environ["GRPC_TRACE"] = "handshaker"
    ours, real = sys.stderr, os.dup(2)
    apart = getattr(os, "O_DIRECT", 0)  # on Linux a pipe can keep writes apart, and gRPC writes an entry at once
    reading, writing = os.pipe2(apart) if apart else os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(os.dup(real), "w", buffering=1, errors="backslashreplace")
    explainer = Explainer(lambda line: os.write(real, line))

    def read(source: BinaryIO) -> None:
        for said in iter(partial(os.read, reading, LONGEST), b"") if apart else source:
            for number, line in enumerate(said.splitlines(keepends=True)):
                with suppress(Exception):  # or gRPC would wait for ever at a full pipe
                    explainer.take(line, first=not number)

    thread = threading.Thread(target=read, args=(os.fdopen(reading, "rb"),), name="fedbac-handshakes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = ours
        os.dup2(real, 2)
        thread.join(1.0)  # a process that we started may still have the pipe


def _is_the_process_s(stream: object) -> bool:
    with suppress(AttributeError, OSError, ValueError):
        return bool(stream.fileno() == 2)  # type: ignore[attr-defined]
    return False
