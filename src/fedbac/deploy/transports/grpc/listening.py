"""The port at which a parent listens, with the certificate that is in its files now."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from fedbac.deploy import log
from fedbac.deploy.pki.credentials import Credentials
from fedbac.errors import DeployError

TRIES, PAUSE = 50, 0.02
"""How often the port that a server has just left is asked for, before it is once at each look; seconds in between."""
CONNECTIONS = 4096
"""Connections that a port takes at once, at least: many may be of strangers, who have ten seconds to prove themselves.
Each costs some 25 kB until then."""
OTHER_FILES = 256
"""Files that a process must be able to open beside its connections."""


def room_for(connections: int) -> int:
    """Have the system let this process open so many connections and files beside them; return how many it does."""
    try:
        import resource  # not on Windows
    except ImportError:
        return connections
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):  # a system may have a limit below the one that it tells
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return min(connections, max(soft - OTHER_FILES, soft // 2))


class Listener:
    """One port, and gRPC servers at it, one after the other: each has the certificate of its time.

    gRPC also takes a certificate while a server listens, but connections that arrive at that moment crash it. So a
    server keeps the one that it began with. When the files change it stops listening, and the next one takes the port;
    links that are there stay with the server that took them until they end.
    """

    def __init__(self, address: str, credentials: Credentials, make: Callable[[], Any]) -> None:
        """``make`` returns a server that listens nowhere yet."""
        self._address, self._credentials, self._make = address, credentials, make
        self._proof = credentials.read_matching()
        self._server: Any = make()
        self._leaving: list[tuple[Any, threading.Event]] = []
        """Servers that only keep the links that they have, and what is set when these have ended."""
        self._listens = False
        self._noted = ""
        self.port = self._bind()
        self._address = f"{address.rpartition(':')[0]}:{self.port}"

    def renew(self, stop: threading.Event) -> None:
        """Listen with what is in the files, if that is new; what cannot be used is logged once and changes nothing."""
        trouble, refused, tries = "", "", 1
        try:
            if self._credentials.read() != self._proof:
                self._proof = self._credentials.read_matching()
                self._replace()
                tries = TRIES
        except DeployError as error:
            trouble = f"{error}; what was read before stays in use"
        while not self._listens and tries and not stop.is_set():
            try:
                self._bind()
            except DeployError as error:
                refused, tries = f"{error}; trying on", tries - 1
                stop.wait(PAUSE)
        if not self._listens:
            trouble = refused
        if trouble and trouble != self._noted:
            log.error("%s", trouble)
        self._noted = trouble

    def close(self, grace: float) -> None:
        """Stop listening, and end after ``grace`` seconds what has not ended by itself."""
        servers = [*(server for server, _ in self._leaving), *([self._server] if self._listens else [])]
        for over in [server.stop(grace) for server in servers]:
            over.wait()

    def _replace(self) -> None:
        """Have the server that listens do so no more, and make another; the old one's links live on."""
        if self._listens:
            self._leaving = [(server, over) for server, over in self._leaving if not over.is_set()]
            self._leaving.append((self._server, self._server.stop(threading.TIMEOUT_MAX)))
            self._server, self._listens = self._make(), False

    def _bind(self) -> int:
        key, certificate, authority = self._proof
        proof = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        try:
            port: int = self._server.add_secure_port(self._address, proof)
        except RuntimeError as error:
            raise DeployError(
                f"listen: cannot listen at {self._address}; is the port in use, or the host another's?"
            ) from error
        self._server.start()
        self._listens = True
        return port
