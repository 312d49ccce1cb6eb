"""Parents and children on loopback, with certificates of an authority of their own."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from fedbac.deploy.pki.authority import Authority
from fedbac.deploy.pki.credentials import Credentials
from fedbac.deploy.protocol.wire import ROOM
from fedbac.deploy.settings import Role
from fedbac.deploy.transports.base import Answer
from fedbac.deploy.transports.frames import HEADER, Kind, framed
from fedbac.deploy.transports.grpc import GrpcChildren, GrpcParent
from fedbac.deploy.transports.grpc.common import METHOD, SITE

HEARTBEAT = 2.0
"""Long enough that a busy machine makes nobody silent."""
QUICK = 0.3
"""For tests in which somebody falls silent."""
LIMIT = ROOM
EDGE = "edge-0"
CHILDREN = tuple(f"edge-0-client-{number}" for number in range(4))
FIRST, SECOND, THIRD = CHILDREN[:3]
STRANGER = "edge-1-client-0"
"""Of the same federation, but of another edge."""
PATIENCE = 30.0
"""Seconds after which a test gives up; never what decides one that passes."""


class Identities:
    """Credentials by the names of sites, in a folder."""

    def __init__(self, folder: Path, authority: Authority | None = None, **how: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = authority or Authority.create(folder / "authority", "hospital")
        roles: dict[str, Role] = {EDGE: "edge", **dict.fromkeys((*CHILDREN, STRANGER), "client")}
        self.issue(roles, **how)

    def issue(self, roles: dict[str, Role], **how: Any) -> None:
        for name, pair in self.authority.issue(roles, **how).items():
            (self.folder / f"{name}.key").write_bytes(pair.key)
            (self.folder / f"{name}.crt").write_bytes(pair.certificate)

    def of(self, name: str) -> Credentials:
        folder, authority = self.folder, self.authority.folder
        return Credentials(
            folder / f"{name}.key", folder / f"{name}.crt", authority / "ca.crt", authority / "revoked.crl"
        )


def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what or "it never happened"
        time.sleep(0.01)


@dataclass
class Edge:
    """A parent that notes whom it greeted."""

    children: GrpcChildren
    greeted: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.children.port}"

    def wait_for(self, *names: str) -> None:
        eventually(lambda: self.children.present() >= set(names), f"{names} never joined")


@contextmanager
def edge(
    identities: Identities,
    greet: Callable[[str, bytes], bytes] = lambda name, hello: b"welcome",
    *,
    port: int = 0,
    heartbeat: float = HEARTBEAT,
    limit: int = LIMIT,
    folder: Path | None = None,
) -> Iterator[Edge]:
    """Yield a parent that listens."""
    greeted: list[tuple[str, bytes]] = []

    def noting(name: str, hello: bytes) -> bytes:
        greeted.append((name, hello))
        return greet(name, hello)

    children = GrpcChildren(
        f"127.0.0.1:{port}",
        identities.of(EDGE),
        CHILDREN,
        noting,
        heartbeat=heartbeat,
        limit=limit,
        folder=folder,
    )
    try:
        yield Edge(children, greeted)
    finally:
        children.close()


def echo(request: bytes, gone: threading.Event) -> bytes:
    return request


@contextmanager
def child(
    credentials: Credentials,
    address: str,
    name: str,
    answer: Answer = echo,
    *,
    welcomed: Callable[[bytes], None] = lambda welcome: None,
    heartbeat: float = HEARTBEAT,
    limit: int = LIMIT,
) -> Iterator[threading.Event]:
    """Serve in a thread; yield the event that stops it."""
    parent = GrpcParent(address, EDGE, name, credentials, heartbeat=heartbeat, limit=limit)
    stop = threading.Event()
    thread = threading.Thread(target=parent.serve, args=(lambda: b"hello", welcomed, answer, stop))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


PROGRAM = """
    import sys, threading, types
    bare = types.ModuleType("fedbac")  # without what its __init__ imports, which takes seconds
    bare.__path__ = [{source!r}]
    sys.modules["fedbac"] = bare
    from pathlib import Path
    from fedbac.deploy.pki.credentials import Credentials
    from fedbac.deploy.transports.grpc import GrpcChildren, GrpcParent
"""


@contextmanager
def program(body: str, *, errors: Any = subprocess.PIPE, **values: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program with the transport imported and ``values`` as its variables; it is killed at the end."""
    source = str(Path(sys.modules["fedbac"].__path__[0]))
    lines = [textwrap.dedent(PROGRAM).format(source=source)]
    lines += [f"{name} = {value!r}" for name, value in values.items()]
    lines.append(textwrap.dedent(body))
    code = "\n".join(lines).replace("PosixPath(", "Path(")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def child_process(
    credentials: Credentials, address: str, name: str, heartbeat: float = HEARTBEAT
) -> Iterator[subprocess.Popen[str]]:
    """Run a child that answers with what it is asked, unless that is to wait, in a process of its own."""
    body = f"""
        def answer(request, gone):
            if request == b"wait":
                gone.wait()
            return request
        GrpcParent(address, {EDGE!r}, name, credentials, heartbeat=heartbeat, limit={LIMIT}).serve(
            lambda: b"hello", lambda welcome: None, answer, threading.Event())
    """
    with program(body, credentials=credentials, address=address, name=name, heartbeat=heartbeat) as process:
        yield process


class Hostile:
    """A child that sends whatever it likes: by its credentials, those that gRPC is told, or without TLS."""

    def __init__(self, proof: Any, address: str, name: str | None, **call: Any) -> None:
        if isinstance(proof, Credentials):
            key, certificate, authority = proof.read()
            proof = grpc.ssl_channel_credentials(authority, key, certificate)
        options = [("grpc.ssl_target_name_override", EDGE), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = (
            grpc.secure_channel(address, proof, options) if proof else grpc.insecure_channel(address, options[1:])
        )
        self._waiting: list[bytes] = []
        self._changed = threading.Condition()
        self._closed = False
        self._frames = self._channel.stream_stream(METHOD)(
            self._pending(), metadata=((SITE, name),) if name else (), **call
        )

    def __enter__(self) -> "Hostile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._channel.close()

    def _pending(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                frame = self._waiting.pop(0)
            yield frame

    def send(self, *frames: bytes) -> None:
        with self._changed:
            self._waiting += frames
            self._changed.notify_all()

    def say(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        self.send(*framed(kind, number, payload))

    def receive(self, kind: Kind) -> bytes:
        """Return the next frame of a kind."""
        found: bytes = next(frame for frame in self._frames if frame[0] == kind)
        return found

    def joins(self) -> "Hostile":
        self.say(Kind.HELLO, payload=b"hello")
        self.receive(Kind.WELCOME)
        return self

    def on_request(self, act: Callable[[int], None]) -> None:
        """Do something with the number of the next request, when it comes."""
        threading.Thread(target=lambda: act(HEADER.unpack_from(self.receive(Kind.REQUEST))[1])).start()

    def end(self) -> grpc.RpcError:
        """Wait for the parent to end the link; return how it did."""
        try:
            for _ in self._frames:
                pass
        except grpc.RpcError as error:
            return error
        raise AssertionError("the link ended without a status")
