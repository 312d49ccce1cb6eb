"""What secret sums cost an edge and its clients, beside the plain sum.

    python benchmarks/secret.py [--clients 10 100 1000] [--weights 44426] [--lost 0 0.3] [--measured 20] [--out FOLDER]

Every client of an edge takes part, in this process and without a network, with random numbers instead of changes: as
many as the weights of LeNet-5 here. A share ``--lost`` of them vanishes before its masked numbers. Seconds are those of
the processor, so that other work on the machine does not count: of the edge all of its own work, of a client the median
of ``--measured`` of them; the others do the same, but do not check signatures, and of more than 200 clients skip their
masks. Bytes are those of the messages' contents, without heads. Memory is what the edge holds at once: the sum and
the numbers of one client, and of secret sums all keys and all sealed shares. Writes one file for each number of
clients.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.core.secret import Words
from fedbac.deploy.pki import authority
from fedbac.deploy.secret.collector import Collector
from fedbac.deploy.secret.member import Member

OUT = Path(__file__).parents[1] / "results" / "secret"
THRESHOLD, NUMBERS, WORK = 3, 2, b"work"
MASKED = 200
"""Clients up to which all of them mask their numbers, and the sum is checked. Of more, those that are not measured skip
it, as it takes the edge as long to add up, and take off masks of, whatever numbers there are."""
CERTIFICATE_BYTES = 470
"""Of a client, by the federation's own authority."""


class Signing:
    """Signs with a key like those of sites. The certificate is not checked here: that is one more signature each."""

    certificate = bytes(CERTIFICATE_BYTES)

    def __init__(self) -> None:
        self.key = authority.new_key()
        self.timed = True

    def sign(self, content: bytes) -> bytes:
        """Return a signature."""
        return authority.sign(self.key, content)

    def check(self, place: int, certificate: bytes, content: bytes, signature: bytes) -> None:
        """Check a signature twice, as that of the certificate too would be."""
        if self.timed:
            for _ in range(2):
                self.key.public_key().verify(signature, content, *authority._scheme(self.key))


class Sampled(Member):
    """A member that may skip its masks."""

    def skip(self, sharers: Collection[int]) -> None:
        """Go on as if the numbers had been masked."""
        self.mask(Words.zeros(0, 0), sharers, WORK)


class Clock:
    """Seconds of the processor, by who spent them."""

    def __init__(self) -> None:
        self.seconds: dict[Any, float] = defaultdict(float)

    @contextmanager
    def of(self, who: Any) -> Iterator[None]:
        """Count what is done."""
        began = time.process_time()
        yield
        self.seconds[who] += time.process_time() - began


def plain(clients: int, weights: int) -> dict[str, float]:
    """Return what the edge does for a plain weighted sum of float32, a client at a time."""
    rng, total, seconds = np.random.default_rng(0), np.zeros(weights), 0.0
    for _ in range(clients):
        change = rng.standard_normal(weights, dtype=np.float32)
        began = time.process_time()
        total += 7 * change.astype(np.float64)
        seconds += time.process_time() - began
    held = total.nbytes + change.nbytes
    return {
        "edge_seconds": seconds,
        "client_bytes_up": 4 * weights + 8,
        "client_bytes_down": 0,
        "mib": held / 2**20,
    }


def secret(clients: int, weights: int, lost: float, measured: int) -> dict[str, float]:
    """Play one sum."""
    masked = clients <= MASKED
    rng, clock, signing = np.random.default_rng(1), Clock(), Signing()
    places, context = range(1, clients + 1), sha256(b"benchmark").digest()
    timed = set(rng.choice(places, min(measured, clients), replace=False).tolist())
    gone = set(rng.choice([p for p in places if p not in timed] or [0], int(lost * clients), replace=False).tolist())
    members = {place: Sampled(context, place, THRESHOLD, signing) for place in places}
    edge, up, down = Collector(context, places, THRESHOLD), defaultdict[int, int](int), defaultdict[int, int](int)
    keys = {}
    for place, one in members.items():
        with clock.of(place):
            keys[place] = one.keys()
        up[place] += len(keys[place])
    with clock.of("edge"):
        rosters = edge.rosters(keys)
    sealed = {}
    for place, one in members.items():
        down[place] += sum(map(len, rosters[place].values()))
        signing.timed = place in timed
        with clock.of(place):
            mine = one.shares(edge.ring, rosters[place])
        sealed[place] = b"".join(mine[other] for other in sorted(mine))
        up[place] += len(sealed[place])
    with clock.of("edge"):
        sharers = edge.sharers(sealed)
    expected = Words.zeros(weights, NUMBERS)
    for place in (place for place in places if place not in gone):
        words = Words(rng.integers(0, 2**32, weights, dtype=np.uint32), np.ones(NUMBERS, dtype=np.uint64))
        expected.add(words)
        with clock.of(place):
            if masked or place in timed:
                members[place].mask(words, sharers[place], WORK)
            else:
                members[place].skip(sharers[place])
            message = words.encoded()
        up[place] += len(message)
        with clock.of("edge"):
            edge.add(place, Words.decoded(message, weights, NUMBERS))
    with clock.of("edge"):
        left = edge.survivors()
    proofs = {}
    for place in left:
        with clock.of(place):
            mine = members[place].confirm(left)
        proofs[place] = b"".join(mine[other] for other in sorted(mine))
        up[place] += len(proofs[place])
    with clock.of("edge"):
        reveals = edge.reveals(proofs)
    revealed = {}
    for place, (told, shares) in reveals.items():
        down[place] += sum(map(len, told.values())) + sum(map(len, shares.values()))
        with clock.of(place):
            revealed[place] = members[place].reveal(told, shares)
        up[place] += len(revealed[place])
    with clock.of("edge"):
        total = edge.opened(revealed, lambda: WORK)
    held = sum(sum(map(len, each.values())) for each in (keys, sealed, proofs)) + 2 * len(message)
    if masked and not (
        np.array_equal(total.network, expected.network) and np.array_equal(total.numbers, expected.numbers)
    ):
        raise SystemExit("the sum is wrong")
    alive = sorted(timed - gone)
    return {
        "edge_seconds": clock.seconds["edge"],
        "client_seconds": statistics.median(clock.seconds[place] for place in alive),
        "client_bytes_up": statistics.median(up[place] for place in alive),
        "client_bytes_down": statistics.median(down[place] for place in alive),
        "mib": held / 2**20,
    }


def main() -> None:
    """Write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--weights", type=int, default=44_426)
    parser.add_argument("--lost", type=float, nargs="+", default=[0.0, 0.3])
    parser.add_argument("--measured", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    for clients in words.clients:
        found: dict[str, Any] = {"clients": clients, "weights": words.weights, "plain": plain(clients, words.weights)}
        for lost in words.lost:
            found[f"lost_{lost:g}"] = secret(clients, words.weights, lost, words.measured if clients > 20 else 5)
            print(clients, lost, found[f"lost_{lost:g}"], flush=True)
        (words.out / f"{clients}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
