"""What a site tells a monitor on its own machine."""

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from fedbac.deploy import metrics
from fedbac.deploy.metrics import FAMILIES, MOST_READERS, Metrics, check_loopback, monitored
from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import encode
from fedbac.deploy.transports.base import Counted, Refusals
from fedbac.deploy.trial import free_ports
from fedbac.errors import ConfigError, DeployError
from tests.deploy.folders import make
from tests.deploy.in_memory import MemoryChildren
from tests.deploy.links import eventually
from tests.test_cli import Shell

NEVER = threading.Event()


@pytest.fixture(autouse=True)
def refused(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    """A process is one site, but tests are many."""
    own = Refusals()
    monkeypatch.setattr(metrics, "METRICS", Metrics())
    monkeypatch.setattr(metrics, "REFUSED", own)
    return own


def read(text: str) -> dict[str, float]:
    """Return all numbers as Prometheus reads them, by name and labels; and see that each is one of those declared."""
    found = {}
    for family in text_string_to_metric_families(text):
        declared = family.name + "_total" * (family.type == "counter")
        assert (family.type, family.documentation) == FAMILIES[declared]
        for one in family.samples:
            found[" ".join([one.name, *one.labels.values()])] = one.value
    return found


def test_what_is_counted_is_told(refused: Refusals) -> None:
    site = metrics.METRICS
    answers = {b"question": b"four", sent("begin", charter="{}", known={}): sent("ready")}
    said = site.parent("cloud", lambda: b"hello", lambda said: None, lambda request, gone: answers[request])
    assert read(site.text())["fedbac_linked"] == 0
    assert said["hello"]() == b"hello"
    said["welcomed"](b"welcome")
    assert read(site.text())["fedbac_linked"] == 1
    assert said["answer"](b"question", NEVER) == b"four"
    with pytest.raises(KeyError):
        said["answer"](b"unknown", NEVER)
    site.round(2.0)
    site.round(0.5)
    site.watch_children(5, lambda: frozenset("abc"), lambda: 1)
    refused.note("192.0.2.1:4", "revoked", "it is revoked")
    found = read(site.text())
    assert found["fedbac_bytes_total cloud received"] == len(b"question") + len(b"unknown")
    assert found["fedbac_bytes_total cloud sent"] == 4
    assert (found["fedbac_rounds_total"], found["fedbac_round_seconds_sum"]) == (2, 2.5)
    assert found["fedbac_round_seconds_count"] == 2
    assert [found[f"fedbac_children {state}"] for state in ("present", "absent", "benched")] == [2, 2, 1]
    assert (found["fedbac_refusals_total revoked"], found["fedbac_refusals_total version"]) == (1, 0)
    said["hello"]()  # the link was lost, and it dials again
    assert read(site.text())["fedbac_linked"] == 0
    assert "192.0.2.1" not in site.text()


@pytest.mark.parametrize(
    ("kind", "reply", "counts"), [("fit", "update", 1), ("fit", "stranger", 0), ("train", "trained", 1)]
)
def test_a_round_counts_when_it_was_trained(kind: str, reply: str, counts: int) -> None:
    def said(kind: str) -> bytes:
        return encode(kind, {}, {})

    answer = metrics.METRICS.parent("edge", bytes, lambda said: None, lambda request, gone: said(reply))["answer"]
    answer(said(kind), NEVER)
    assert read(metrics.METRICS.text()).get("fedbac_rounds_total", 0) == counts


def test_bytes_to_children_are_counted() -> None:
    children = MemoryChildren({"edge-0": lambda message, gone: b"answer"})
    moved: list[tuple[int, int]] = []
    Counted(children, lambda *how_many: moved.append(how_many)).call({"edge-0": b"to it", "edge-1": b"nobody"}, 1.0)
    assert moved == [(5, 6)]


@pytest.fixture
def fedbac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "192.0.2.1:9100", "[::]:9100", "example.org:9100"])
@pytest.mark.parametrize("option", ["--metrics", "--health"])
def test_only_this_machine_may_ask(option: str, address: str, fedbac: Shell, tmp_path: Path) -> None:
    folder = make(tmp_path / "clinic", 1)
    said = fedbac("cloud", str(folder.kit("cloud")), option, address, code=2)
    assert f"error: {option}: '{address}' can be reached by other machines" in said
    with pytest.raises(ConfigError, match=r"as 127\.0\.0\.1:9100"):
        check_loopback(option, address)
    assert [check_loopback(option, f"{host}:1") for host in ("127.0.0.2", "[::1]", "localhost")] == [
        ("127.0.0.2", 1),
        ("::1", 1),
        ("127.0.0.1", 1),
    ]


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for where in ({"metrics": address, "health": None}, {"metrics": None, "health": address}):
            (option,) = (f"--{name}" for name, value in where.items() if value)
            with (
                pytest.raises(DeployError, match=f"{option}: cannot listen at {address}"),
                monitored(**where, certificate=tmp_path),
            ):
                pass


def ended(connection: socket.socket) -> bool:
    """Say one more letter; return whether the other end has closed."""
    connection.setblocking(False)
    try:
        connection.send(b"a")
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def has_ended(connections: list[socket.socket], count: int) -> bool:
    return sum(map(ended, connections)) >= count


def test_whoever_opens_many_connections_takes_few_files_of_the_site(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Any user of the machine can; and without files the site could keep no message and no round."""
    first, second = free_ports(2)
    with monitored(f"127.0.0.1:{first}", f"127.0.0.1:{second}", tmp_path / "site.crt"), ExitStack() as stack:
        for port in (first, second):
            address = ("127.0.0.1", port)
            held = [stack.enter_context(socket.create_connection(address)) for _ in range(MOST_READERS + 20)]
            held[0].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            eventually(partial(has_ended, held, 20))
        stack.close()

        def told() -> bool:
            with suppress(OSError):
                return b"fedbac_info" in urllib.request.urlopen(f"http://127.0.0.1:{first}/metrics").read()
            return False

        eventually(told)
    assert "Traceback" not in capfd.readouterr().err


def test_metrics_and_health_are_served_until_the_site_ends(tmp_path: Path) -> None:
    folder: FederationFolder = make(tmp_path / "clinic", 1)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    certificate = folder.kit("cloud") / "site.crt"
    channel = grpc.insecure_channel(second)
    health = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.ServingStatus

    def status(service: str) -> int:
        return int(health.Check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True, timeout=30).status)

    with monitored(first, second, certificate):
        found = read(urllib.request.urlopen(f"http://{first}/metrics").read().decode())
        assert 89 < found["fedbac_certificate_days_left"] <= 90
        assert found["process_resident_memory_bytes"] > 2**20
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{first}/")
        certificate.rename(tmp_path / "elsewhere")  # as while a kit is copied
        assert read(metrics.METRICS.text())["fedbac_certificate_days_left"] != 0
        assert status("") == serving.SERVING
        news = health.Watch(health_pb2.HealthCheckRequest(service="fedbac"), timeout=30)
        assert next(news).status == serving.NOT_SERVING
        metrics.METRICS.linked = True
        assert next(news).status == serving.SERVING
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{first}/metrics")
    with pytest.raises(grpc.RpcError):
        health.Check(health_pb2.HealthCheckRequest(), timeout=1)
    channel.close()
