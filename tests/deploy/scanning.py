"""Raw connections to a parent's port, in bursts, while its certificate is renewed again and again."""

import json
import socket
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

from tests.deploy.links import EDGE, LIMIT, PATIENCE, Identities, child, program

BURST = 20
"""Connections at once: one after the other they do no harm."""
PARENT = f"""
    import json
    children = GrpcChildren("127.0.0.1:0", credentials, names, lambda *said: b"", heartbeat=5, limit={LIMIT})
    print(children.port, flush=True)
    for line in sys.stdin:  # names, all of which must be there to be asked
        asked = json.loads(line)
        while not children.present() >= set(asked):
            threading.Event().wait(0.01)
        print(json.dumps(sorted(children.call(dict.fromkeys(asked, b"?"), {PATIENCE})[0])), flush=True)
    children.close()
    print("closed", flush=True)
"""
JUNK = (b"", b"", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), b"\xff" * 300)
"""The fourth is the beginning of a TLS handshake."""


class Scanned:
    """A parent in a process of its own, so that its crash is not ours."""

    def __init__(self, process: subprocess.Popen[str], identities: Identities) -> None:
        self.process, self.identities = process, identities
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.address = f"127.0.0.1:{self.port}"

    def ask(self, names: Collection[str]) -> list[str]:
        """Wait until children are there, and ask them; return who answered, which is nobody where the parent died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(sorted(names)) + "\n")
            self.process.stdin.flush()
        return list(json.loads(self.process.stdout.readline() or "[]"))

    def scan(self, count: int, rng: Random, renewals: int) -> int:
        """Make raw connections; renew the certificate now and then. Return how many got in."""
        moments = set(rng.sample(range(0, count, BURST), renewals))
        found = 0
        for number in range(0, count, BURST):
            if self.process.poll() is not None:
                break
            if number in moments:
                self.identities.issue({EDGE: "edge"})
            found += self._burst(min(BURST, count - number), rng)
        return found

    def _burst(self, count: int, rng: Random) -> int:
        sockets = [socket.socket() for _ in range(count)]
        for one in sockets:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", self.port))
        found = 0
        for one in sockets:
            with one, suppress(OSError):
                one.settimeout(PATIENCE)
                one.getpeername()
                found += 1
                one.sendall(rng.choice(JUNK))
        return found

    def end(self) -> int:
        """Have the parent close; return its exit status, which is negative after a crash."""
        with suppress(BrokenPipeError):
            self.process.communicate(timeout=PATIENCE)
        return self.process.wait(PATIENCE)


@contextmanager
def scanned(identities: Identities, names: Collection[str]) -> Iterator[Scanned]:
    """Yield a parent that listens for these children."""
    with program(
        PARENT, errors=subprocess.DEVNULL, credentials=identities.of(EDGE), names=sorted(names)
    ) as process:  # gRPC logs every junk connection
        yield Scanned(process, identities)


def complaint(folder: Path, num_children: int, connections: int, renewals: int, seed: int) -> str | None:
    """Start a parent, have its children join, scan its port, and ask them all and a new one; say what went wrong."""
    identities = Identities(folder)
    names = [f"edge-0-client-{number}" for number in range(num_children + 1)]
    identities.issue(dict.fromkeys(names, "client"))
    *first, late = names
    with scanned(identities, names) as parent, ExitStack() as stack:
        stops = [stack.enter_context(child(identities.of(name), parent.address, name)) for name in first]
        before = parent.ask(first)
        found = parent.scan(connections, Random(seed), renewals)
        during = parent.ask(first)
        stops.append(stack.enter_context(child(identities.of(late), parent.address, late)))
        after = parent.ask(names)
        for stop in stops:  # all before the first is waited for
            stop.set()
        stack.close()
        status = parent.end()
    if (status, before, during, after) == (0, sorted(first), sorted(first), sorted(names)) and found > connections / 2:
        return None
    return (
        f"exit status {status}; of {num_children} children {len(before)} answered, after {found} raw connections "
        f"{len(during)}, and with a new one {len(after)}"
    )
