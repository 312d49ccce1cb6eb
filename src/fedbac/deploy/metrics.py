"""What a site tells a monitor on its own machine: numbers at /metrics, as Prometheus reads them, and gRPC's health.

Counts, seconds and bytes only: no accuracy, no name of another site, nothing of the data. Imports no torch.
"""

import ipaddress
import math
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

from fedbac.deploy import log
from fedbac.deploy.protocol.heads import kind_of
from fedbac.deploy.transports.base import REFUSED, Answer, Reason
from fedbac.errors import ConfigError, DeployError, quoted
from fedbac.version import __version__

FAMILIES = {
    "fedbac_info": ("gauge", "The version of fedbac."),
    "fedbac_rounds_total": ("counter", "Rounds played at the cloud, or trained at an edge or a client."),
    "fedbac_round_seconds": ("summary", "Seconds of these rounds."),
    "fedbac_children": ("gauge", "Sites below this one: present, absent, or benched (there, but left out)."),
    "fedbac_linked": ("gauge", "Whether the link to the site above is alive."),
    "fedbac_bytes_total": ("counter", "Bytes of messages, by the other end of the link and the direction."),
    "fedbac_refusals_total": ("counter", "Connections and sites turned away, by reason."),
    "fedbac_certificate_days_left": ("gauge", "Days until the site's certificate expires."),
    "process_resident_memory_bytes": ("gauge", "Resident memory of the site and of the processes that it started."),
}
"""All that is told: by name, its type and what it means."""
TRAINING = {"train": "trained", "fit": "update"}
"""Requests that make a round, and answers that end it."""
READY = "fedbac"
"""The health service's name for whether a site takes part; that of the process has none."""
DAY = 86_400.0
MOST_READERS = 16
"""Connections to each port at once."""
LOOK = 0.5
"""Seconds between two looks at whether a site takes part."""

Samples = Mapping[str, float]


def sample(name: str, **labels: str) -> str:
    """Return what a number is of, as Prometheus reads it."""
    inside = ",".join(f'{label}="{said}"' for label, said in labels.items())
    return f"{name}{{{inside}}}" if inside else name


class Metrics:
    """The numbers of a process, which is one site."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._looks: list[Callable[[], Samples]] = []
        self.linked = False
        """Whether the site above has welcomed this one since it last dialled."""
        self.ready: Callable[[], bool] = lambda: self.linked
        """Whether the site takes part."""

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Count more of something."""
        with self._lock:
            self._counts[sample(name, **labels)] += amount

    def round(self, seconds: float) -> None:
        """Count a round."""
        self.add("fedbac_rounds_total")
        self.add("fedbac_round_seconds_sum", seconds)
        self.add("fedbac_round_seconds_count")

    def moved(self, link: str, sent: int, received: int) -> None:
        """Count bytes of messages."""
        self.add("fedbac_bytes_total", sent, link=link, direction="sent")
        self.add("fedbac_bytes_total", received, link=link, direction="received")

    def look(self, read: Callable[[], Samples]) -> None:
        """Have something read whenever somebody asks."""
        self._looks.append(read)

    def watch_children(self, expected: int, present: Callable[[], Sized], benched: Callable[[], int]) -> None:
        """Tell how many of the sites below are there."""

        def read() -> Samples:
            here, out = len(present()), benched()
            states = {"present": here - min(out, here), "absent": max(expected - here, 0), "benched": out}
            return {sample("fedbac_children", state=state): count for state, count in states.items()}

        self.look(read)

    def parent(
        self, name: str, hello: Callable[[], bytes], welcomed: Callable[[bytes], None], answer: Answer
    ) -> dict[str, Any]:
        """Return how to serve the site above, with everything counted."""

        def dialling() -> bytes:
            self.linked = False
            return hello()

        def taken(said: bytes) -> None:
            welcomed(said)
            self.linked = True

        def answering(request: bytes, gone: threading.Event) -> bytes:
            began, said = time.perf_counter(), b""
            try:
                said = answer(request, gone)
            finally:
                self.moved(name, len(said), len(request))
            if TRAINING.get(kind_of(request)) == kind_of(said):
                self.round(time.perf_counter() - began)
            return said

        self.look(lambda: {sample("fedbac_linked"): self.linked})
        return {"hello": dialling, "welcomed": taken, "answer": answering}

    def text(self) -> str:
        """Return all numbers as Prometheus reads them."""
        with self._lock:
            found = dict(self._counts)
        found[sample("fedbac_info", version=__version__)] = 1
        found |= {sample("fedbac_refusals_total", reason=reason): REFUSED.counts[reason] for reason in get_args(Reason)}
        for read in self._looks:
            found |= read()
        lines = []
        for family, (kind, meaning) in FAMILIES.items():
            names = (f"{family}_sum", f"{family}_count") if kind == "summary" else (family,)
            mine = [f"{key} {value:.15g}" for key, value in found.items() if key.partition("{")[0] in names]
            if mine:
                lines += [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}", *mine]
        return "\n".join(lines) + "\n"


METRICS = Metrics()


def check_loopback(option: str, address: str) -> tuple[str, int]:
    """Return host and port; one that others can reach is refused, since nobody is asked who reads."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return "127.0.0.1" if host == "localhost" else host, int(port)
    raise ConfigError(
        f"{option}: {quoted(address)} can be reached by other machines, and is not encrypted; give an address of this "
        "machine alone, as 127.0.0.1:9100"
    )


@contextmanager
def monitored(metrics: str | None, health: str | None, certificate: Path) -> Iterator[None]:
    """Serve what a monitor asks for, at the addresses that are given."""
    with ExitStack() as stack:
        if metrics is not None:
            METRICS.look(_memory)
            METRICS.look(lambda: _days_left(certificate))
            stack.enter_context(_serving_metrics(*check_loopback("--metrics", metrics)))
        if health is not None:
            check_loopback("--health", health)
            stack.enter_context(_serving_health(health))
        yield


class _Page(BaseHTTPRequestHandler):
    """Answers GET /metrics."""

    timeout = 5.0

    def do_GET(self) -> None:
        """Send the numbers."""
        found = self.path.partition("?")[0] == "/metrics"
        body = (METRICS.text() if found else "see /metrics\n").encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: a monitor asks every few seconds."""


class _Server(ThreadingHTTPServer):
    """Serves few at once, and lets others go: the site itself needs threads and files."""

    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.Semaphore(MOST_READERS)
        super().__init__((host, port), _Page)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave out of the log that somebody did not wait for the numbers."""
        log.debug("metrics", exc_info=True)


@contextmanager
def _serving_metrics(host: str, port: int) -> Iterator[None]:
    try:
        server = _Server(host, port)
    except OSError as error:
        raise DeployError(
            f"--metrics: cannot listen at {host}:{port} ({error.strerror}); choose another port"
        ) from error
    threading.Thread(target=server.serve_forever, name="fedbac-metrics", daemon=True).start()
    log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _serving_health(address: str) -> Iterator[None]:
    try:
        import grpc
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    except ModuleNotFoundError as error:
        raise ConfigError(f"--health: {error.name} is missing; pip install 'fedbac[deploy]'") from error

    status = health_pb2.HealthCheckResponse.ServingStatus
    servicer, over = health.HealthServicer(), threading.Event()
    pool = ThreadPoolExecutor(4, thread_name_prefix="fedbac-health")
    options = [("grpc.so_reuseport", 0), ("grpc.max_allowed_incoming_connections", MOST_READERS)]
    server = grpc.server(pool, options=options, maximum_concurrent_rpcs=MOST_READERS)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise DeployError(f"--health: cannot listen at {address}; choose another port") from error

    def watch() -> None:
        while True:
            servicer.set(READY, status.SERVING if METRICS.ready() else status.NOT_SERVING)
            if over.wait(LOOK):
                return

    watching = threading.Thread(target=watch, name="fedbac-ready", daemon=True)
    watching.start()
    server.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        servicer.enter_graceful_shutdown()
        server.stop(0).wait()


def _memory() -> Samples:
    import psutil

    this, rss = psutil.Process(), 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # one may end meanwhile
            rss += process.memory_info().rss
    return {sample("process_resident_memory_bytes"): rss}


def _days_left(certificate: Path) -> Samples:
    from fedbac.deploy.pki.authority import read, read_identity

    try:
        left = (read_identity(read(certificate), str(certificate)).expires.timestamp() - time.time()) / DAY
    except DeployError:  # a new kit is being copied
        left = math.nan
    return {sample("fedbac_certificate_days_left"): left}
