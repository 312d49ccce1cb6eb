"""What both ends of a link share."""

import threading
import time
from collections.abc import Iterator

import grpc

from fedbac.deploy.transports.base import MISSED
from fedbac.deploy.transports.frames import LARGEST_FRAME, Budget
from fedbac.errors import visible

SERVICE, NAME = "fedbac.Link", "Join"
METHOD = f"/{SERVICE}/{NAME}"
SITE = "fedbac-site"
"""Metadata: who the dialling site says it is; the parent compares it with the certificate."""
LONGEST_LINE = 400
"""Characters of what a peer says that are logged or sent on."""
LONGEST_FAILURE = 4 * LONGEST_LINE
"""Bytes of a FAILED message, which is such a line in UTF-8."""
LARGEST_HELLO = 64 * 1024
LET_GO = grpc.StatusCode.ABORTED
"""By this a parent that stops ends links; gRPC itself never does."""

Option = tuple[str, int | str]


def options(heartbeat: float) -> list[Option]:
    """Return the settings of gRPC that both ends use."""
    milliseconds = max(100, int(1000 * heartbeat))
    return [
        ("grpc.max_receive_message_length", LARGEST_FRAME),
        ("grpc.max_send_message_length", LARGEST_FRAME),
        ("grpc.max_metadata_size", 4096),
        ("grpc.absolute_max_metadata_size", 8192),
        ("grpc.per_message_decompression", 0),  # a small frame must not unfold into a large one
        ("grpc.per_message_compression", 0),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", MISSED * milliseconds),  # after our own signs, which say more
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", milliseconds // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", milliseconds // 2),
    ]


def signs_budget(heartbeat: float) -> Budget:
    """Return how many signs of life are believed: one per heartbeat is due, a stall lets some arrive together."""
    return Budget(burst=20, per_second=max(4, 4 / heartbeat))


def ticks(stop: threading.Event, heartbeat: float) -> Iterator[float]:
    """Yield several times per heartbeat until ``stop``; each time the seconds that this process itself was asleep.

    A process that was frozen has heard nothing for a while, for which its peers are not to blame.
    """
    interval = min(heartbeat / 4, 0.25)
    before = time.monotonic()
    while not stop.wait(interval):
        now = time.monotonic()
        asleep = now - before - interval
        yield asleep if asleep > heartbeat else 0.0
        before = now


def shown(text: str) -> str:
    """Return the first line of what a peer or a library says, cut short, with nothing in it that moves a cursor."""
    line = visible(next(iter(text.strip().splitlines()), "")[: LONGEST_LINE + 1])
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"
