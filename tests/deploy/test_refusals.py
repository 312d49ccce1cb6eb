"""Who is turned away is logged with its address and what is wrong with it, at both ends where it can be."""

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedbac.deploy.protocol.handshake import check_hello, hello, versions
from fedbac.deploy.transports import base, handshakes
from fedbac.deploy.transports.base import Refusal, Refusals
from fedbac.deploy.transports.grpc import GrpcParent
from fedbac.deploy.transports.grpc import children as grpc_children
from fedbac.deploy.transports.handshakes import Explainer
from fedbac.deploy.trial import free_ports
from tests.deploy.folders import make
from tests.deploy.links import EDGE, FIRST, Identities, edge, eventually
from tests.deploy.test_metrics import read


@pytest.fixture(autouse=True)
def refused(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    """Those of this test alone."""
    own = Refusals()
    for module in (base, handshakes, grpc_children):
        monkeypatch.setattr(module, "REFUSED", own)
    return own


def other(**changed: str) -> bytes:
    """Return the hello of a site with other versions."""
    return json.dumps(json.loads(hello(FIRST)) | {"versions": versions() | changed}).encode()


BREAKING = [{"fedbac": "0.0.9"}, {"protocol": "1"}, {"torch": "1.13.1"}, {"torch": "1.13.1", "Python": "3.99.0"}]


@pytest.mark.parametrize("changed", BREAKING)
def test_versions_that_may_compute_other_numbers_are_refused(changed: dict[str, str]) -> None:
    with pytest.raises(Refusal) as caught:
        check_hello(FIRST, other(**changed))
    theirs, ours = (
        ", ".join(f"{what} {of[what]}" for what in versions() if what in changed) for of in (changed, versions())
    )
    assert str(caught.value) == f"{FIRST} has {theirs}; its peer has {ours}; install the same versions at both"
    assert caught.value.reason == "version"


def test_other_differences_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    release = ".".join(versions()["torch"].split(".")[:2])
    check_hello(FIRST, other(torch=f"{release}.99+cu999", Python="3.99.0"))
    assert caplog.messages == [
        f"{FIRST} has torch {release}.99+cu999, Python 3.99.0; this site has torch {versions()['torch']}, "
        f"Python {versions()['Python']}"
    ]
    caplog.clear()
    check_hello(FIRST, hello(FIRST))
    assert caplog.messages == []


@pytest.mark.parametrize("said", [b"{}", b"[]", b"\xff", b'{"versions": 3}', b'{"versions": {"fedbac": ["x\\n"]}}'])
def test_first_words_that_say_no_versions_are_refused(said: bytes) -> None:
    with pytest.raises(Refusal, match="install the same version") as caught:
        check_hello(FIRST, said)
    assert "\n" not in str(caught.value)


def test_a_wrong_version_is_said_at_both_ends_with_the_address(
    identities: Identities, caplog: pytest.LogCaptureFixture, refused: Refusals
) -> None:
    def greet(name: str, said: bytes) -> bytes:
        check_hello(name, said)
        return b""

    stop = threading.Event()
    with edge(identities, greet) as parent:
        dialling = GrpcParent(parent.address, EDGE, FIRST, identities.of(FIRST), heartbeat=2, limit=10**6)
        serving = (lambda: other(fedbac="0.0.9"), lambda said: None, lambda request, gone: b"", stop)
        thread = threading.Thread(target=dialling.serve, args=serving)
        thread.start()
        try:
            what = f"{FIRST} has fedbac 0.0.9; its peer has fedbac {versions()['fedbac']}; install the same versions"
            eventually(lambda: any(f"{EDGE}: {FIRST} was refused: {what}" in said for said in caplog.messages))
            (line, *_) = (said for said in caplog.messages if said.startswith(f"{FIRST} at 127.0.0.1:"))
            assert f" was refused: {what}" in line
        finally:
            stop.set()
            thread.join()
    assert refused.counts["version"] >= 1


def test_a_flood_of_refusals_is_counted_but_not_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    many = Refusals(burst=3, per_second=1e-9)
    for port in range(50):
        many.note(f"192.0.2.1:{port}", "no_tls", "it does not speak TLS")
    assert many.counts == {"no_tls": 50}
    assert len(caplog.messages) == 3
    many._lines = type(many._lines)(1, 1e-9)
    many.note("192.0.2.1:99", "name", "it is unknown")
    assert caplog.messages[-1] == "192.0.2.1:99 was refused: it is unknown (47 more refusals were not logged)"


HEAD = b"I1118 09:03:51.342160   14458 "
ARGS = (
    b" shutdown=false index=2, args={endpoint=0x1, args={grpc.internal.endpoint_local_address=ipv6:%5B::1%5D:8443, "
    b"grpc.internal.endpoint_peer_address=ipv6:%5B2001:db8::1%5D:42768, grpc.server_handshake_timeout_ms=10000}}\n"
)
SSL = b"SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


def test_of_what_grpc_writes_only_failed_handshakes_are_taken(
    caplog: pytest.LogCaptureFixture, refused: Refusals
) -> None:
    passed: list[bytes] = []
    explainer = Explainer(passed.append)
    good = HEAD + b"handshaker.cc:155] CallNextHandshakerLocked: error=OK" + ARGS
    bad = HEAD + b"handshaker.cc:155] CallNextHandshakerLocked: error=UNKNOWN: Ssl handshake failed: " + SSL
    mine = bad + b"CERTIFICATE_VERIFY_FAILED: x" + ARGS.replace(b"grpc.server_handshake_timeout_ms=10000", b"")
    for line in (
        b"a line of somebody else\n",
        HEAD + b"posix.cc:1] something else\n",
        good,
        HEAD
        + b"ssl_transport_security.cc:2563] Handshake failed with error "
        + SSL
        + b"CERTIFICATE_VERIFY_FAILED: x\n",
        mine,  # this site dialled
        bad + b"CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK\n",
        b"=== Source Location Trace: ===\n",
        ARGS,
        HEAD + b"channel_trace.h:396] handshake manager 0x1: Failed with error\n",
        b"=== Source Location Trace: ===\n",
        bad + b"PEER_DID_NOT_RETURN_A_CERTIFICATE: \x1b[2J" + ARGS,
        HEAD + b"handshaker.cc:155] CallNextHandshakerLocked: error=UNAVAILABLE: Socket closed" + ARGS,
        HEAD + b"posix.cc:1] something else\n",
    ):
        explainer.take(line)
    explainer.take(HEAD + b"ssl_transport_security.cc:3238] No match found for server name: evil\n")
    explainer.take(HEAD + b"posix.cc:1] as a stranger wishes\n", first=False)
    explainer.take(bad + b"as a stranger wishes" + ARGS, first=False)
    assert passed == [b"a line of somebody else\n", *[HEAD + b"posix.cc:1] something else\n"] * 2]
    assert [message.partition(" was refused: ")[0] for message in caplog.messages] == ["[2001:db8::1]:42768"] * 3
    first, second, third = (message.partition(" was refused: ")[2] for message in caplog.messages)
    assert first == (
        "its certificate is not of this federation (CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate)"
    )
    assert second.startswith("it has no certificate (PEER_DID_NOT_RETURN_A_CERTIFICATE")
    assert "\x1b" not in second
    assert third.startswith("it broke off before it was known who it is (UNAVAILABLE: Socket closed")
    assert refused.counts == {"certificate": 2, "no_tls": 1}


def forged(name: bytes) -> bytes:
    """Return the beginning of a TLS handshake that asks for a name which is none."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    stands = ".".join(["a" * 50] * 3)
    tls = context.wrap_bio(incoming, outgoing, server_hostname=stands)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read().replace(stands.encode(), name.ljust(len(stands), b"x"))


def grown(log: Path, before: bytes) -> bool:
    return log.read_bytes() != before


SAYS = """
import logging, sys
from fedbac.deploy.transports.handshakes import explained
with explained():
    logging.basicConfig(level="INFO")
    from tests.deploy.test_refusals import *
    with edge(Identities(Path(sys.argv[1])), heartbeat=60) as parent:
        print(parent.children.port, flush=True)
        sys.stdin.read()
"""


@pytest.mark.full
def test_a_stranger_writes_no_line_of_its_own_into_a_log(tmp_path: Path) -> None:
    """gRPC quotes the name that it asks for, whatever is in it."""
    words = [sys.executable, "-c", SAYS, str(tmp_path / "edge")]
    entry, address = b"\nE1118 1:1 1 ", b"grpc.internal.endpoint_peer_address=ipv4:192.0.2.6:6"
    traced = entry + b"handshaker.cc:1] grpc.server_handshake_timeout_ms= " + address + b", error=a"
    names = (b"a.org", b"evil\nINFO: all is well \x1b[31m", entry + b"x.cc:1] all is well", traced)
    log, pipe = tmp_path / "log", subprocess.PIPE
    with log.open("wb") as out, subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=out) as site:
        assert site.stdout is not None
        port = int(site.stdout.readline())
        for name in names:
            before = log.read_bytes()
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(forged(name))
                assert stranger.recv(1), "it was heard"
            eventually(partial(grown, log, before))
        site.communicate()
    said = log.read_bytes()
    assert said.count(b"127.0.0.1:") == len(names), said
    for theirs in (b"all is well", b"evil", b"a.org", b"\x1b", b"192.0.2.6"):
        assert theirs not in said


def test_without_grpc_s_trace_its_own_lines_pass(caplog: pytest.LogCaptureFixture) -> None:
    passed: list[bytes] = []
    line = HEAD + b"ssl_transport_security.cc:2563] Handshake failed with error " + SSL + b"\n"
    Explainer(passed.append).take(line)
    assert (passed, caplog.messages) == ([line], [])


def dial(address: str, parent: str, name: str, proof: Any) -> None:
    """Dial as a stranger does, and wait to be refused."""
    options = [("grpc.ssl_target_name_override", parent), ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.secure_channel(address, proof, options)
    call = channel.stream_stream("/fedbac.Link/Join")(iter(()), metadata=(("fedbac-site", name),), timeout=30)
    with pytest.raises(grpc.RpcError):
        list(call)
    channel.close()


@pytest.mark.timeout(200)
@pytest.mark.full
def test_the_log_of_an_edge_says_who_was_refused_and_why(tmp_path: Path) -> None:
    """A real one, with strangers of every kind; and its metrics count them."""
    ours, theirs = make(tmp_path / "ours", 2, 1), make(tmp_path / "theirs", 1)
    (listen, metrics) = (f"127.0.0.1:{port}" for port in free_ports(2))
    ours.revoke("edge-0-client-1")
    trusted = (ours.kit("cloud") / "ca.crt").read_bytes()

    def proof(kit: Path) -> Any:
        return grpc.ssl_channel_credentials(trusted, (kit / "site.key").read_bytes(), (kit / "site.crt").read_bytes())

    words = ["edge", str(ours.kit("edge-0")), "--listen", listen, "--metrics", metrics]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen([sys.executable, "-m", "fedbac", *words], stderr=out) as site:
        try:
            eventually(lambda: "waiting for cloud" in log.read_text(), "it never listened")
            dial(listen, "edge-0", "edge-0-client-0", proof(theirs.kit("edge-0-client-0")))
            dial(listen, "edge-0", "edge-0-client-0", grpc.ssl_channel_credentials(trusted))
            dial(listen, "edge-0", "edge-0-client-1", proof(ours.kit("edge-0-client-1")))
            dial(listen, "edge-0", "edge-1-client-0", proof(ours.kit("edge-1-client-0")))
            for _ in range(60):
                with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2]))) as junk:
                    junk.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    junk.recv(1)

            def numbers() -> dict[str, float]:
                return read(urllib.request.urlopen(f"http://{metrics}/metrics").read().decode())

            eventually(lambda: numbers()["fedbac_refusals_total no_tls"] >= 60)
            found = numbers()
        finally:
            site.send_signal(signal.SIGTERM)
            site.wait(60)
    lines = [line.partition(" was refused: ") for line in log.read_text().splitlines() if " was refused: " in line]
    assert all(who.partition("WARNING ")[2].startswith("127.0.0.1:") for who, _, _ in lines)
    whys = [why for _, _, why in lines]
    assert whys[0].startswith("its certificate is not of this federation (CERTIFICATE_VERIFY_FAILED")
    assert whys[1].startswith("it has no certificate")
    assert whys[2] == "the certificate of 'edge-0-client-1' is revoked"
    assert whys[3] == "'edge-1-client-0' is none of this site's children"
    assert len(whys) < 40
    assert [found[f"fedbac_refusals_total {reason}"] for reason in ("certificate", "revoked", "name")] == [2, 1, 1]
    assert found["fedbac_children absent"] == 2
    assert "handshaker" not in log.read_text()
    key = (ours.kit("edge-0") / "site.key").read_text().splitlines()[1]
    assert key not in log.read_text()
