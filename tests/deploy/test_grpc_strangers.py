"""Who may join: strangers are turned away before a frame of theirs is read, and it is logged."""

import datetime as dt
import logging
import shutil
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from fedbac.deploy.pki.credentials import Credentials
from fedbac.deploy.transports.frames import Assembler, Kind
from fedbac.deploy.transports.grpc import GrpcChildren, listening
from fedbac.deploy.transports.grpc.children import Connection
from fedbac.errors import DeployError
from tests.covering import first
from tests.deploy.links import (
    CHILDREN,
    EDGE,
    FIRST,
    PATIENCE,
    SECOND,
    STRANGER,
    Edge,
    Hostile,
    Identities,
    child,
    edge,
    eventually,
    program,
)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Return whether no frame was read at all."""
    taken: list[bytes] = []
    monkeypatch.setattr(Assembler, "take", lambda self, frame: taken.append(frame))
    return lambda: not taken


SERVER = """
    greeted = []
    children = GrpcChildren("127.0.0.1:0", credentials, names, lambda *said: greeted.append(said) or b"",
                            heartbeat=5, limit=99)
    print(children.port, flush=True)
    input()
    children.close()
    print(len(greeted), flush=True)
"""


def test_who_cannot_prove_itself_fails_the_handshake_which_is_logged(identities: Identities, tmp_path: Path) -> None:
    """Without a certificate, with one of another authority, with an expired one, and without TLS at all."""
    foreign = Identities(tmp_path / "foreign").of(FIRST)
    late = Identities(tmp_path / "late", authority=identities.authority, days=1, begin=_days_ago(3)).of(FIRST)
    trusted = identities.of(EDGE).authority.read_bytes()
    strangers = [
        grpc.ssl_channel_credentials(trusted),
        grpc.ssl_channel_credentials(trusted, foreign.key.read_bytes(), foreign.certificate.read_bytes()),
        grpc.ssl_channel_credentials(trusted, late.key.read_bytes(), late.certificate.read_bytes()),
        None,
    ]
    with program(SERVER, credentials=identities.of(EDGE), names=CHILDREN) as process:
        assert process.stdout
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        for stranger in strangers:
            with Hostile(stranger, address, FIRST) as hostile:
                hostile.say(Kind.HELLO, payload=b"hello")
                assert hostile.end().code() is grpc.StatusCode.UNAVAILABLE
        out, err = process.communicate("\n", timeout=PATIENCE)
    assert out.strip() == "0"
    failures = [line for line in err.splitlines() if "Handshake failed" in line]
    for line, why in zip(
        failures,
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "unable to get local issuer", "has expired", "WRONG_VERSION"),
        strict=True,
    ):
        assert why in line
    assert "Traceback" not in err


def _days_ago(days: int) -> dt.datetime:
    return dt.datetime.now(dt.UTC) - dt.timedelta(days=days)


@pytest.mark.parametrize(
    ("holder", "claimed", "says"),
    [
        (FIRST, SECOND, "the certificate of 'edge-0-client-0' came under the name 'edge-0-client-1'"),
        (FIRST, None, "the certificate of 'edge-0-client-0' came under the name None"),
        (STRANGER, FIRST, "the certificate of 'edge-1-client-0' came under the name 'edge-0-client-0'"),
        (STRANGER, STRANGER, "'edge-1-client-0' is none of this site's children"),
        (EDGE, EDGE, "'edge-0' is none of this site's children"),
    ],
)
def test_a_genuine_certificate_in_the_wrong_place_is_refused(
    holder: str,
    claimed: str | None,
    says: str,
    identities: Identities,
    caplog: pytest.LogCaptureFixture,
    unread: Callable[[], bool],
) -> None:
    with edge(identities) as parent, Hostile(identities.of(holder), parent.address, claimed) as hostile:
        hostile.say(Kind.HELLO, payload=b"hello")
        error = hostile.end()
        assert (error.code(), error.details()) == (grpc.StatusCode.PERMISSION_DENIED, says)
        assert any(message.endswith(f"was refused: {says}") for message in caplog.messages)
        assert unread()
        assert parent.greeted == []


def test_a_child_that_is_refused_says_why_once(identities: Identities, caplog: pytest.LogCaptureFixture) -> None:
    with edge(identities) as parent, child(identities.of(STRANGER), parent.address, STRANGER):
        eventually(lambda: "edge-0: 'edge-1-client-0' is none of this site's children" in caplog.messages)
        assert parent.greeted == []


def test_a_revoked_certificate_is_refused_and_a_new_one_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also of a child that is connected; all others stay."""
    identities = Identities(tmp_path)
    with (
        edge(identities) as parent,
        child(identities.of(FIRST), parent.address, FIRST),
        child(identities.of(SECOND), parent.address, SECOND),
    ):
        parent.wait_for(FIRST, SECOND)
        identities.authority.revoke(FIRST)
        eventually(lambda: parent.children.present() == {SECOND})
        assert f"{FIRST} has a certificate that is revoked" in caplog.messages
        with Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
            hostile.say(Kind.HELLO, payload=b"hello")
            assert hostile.end().details() == "the certificate of 'edge-0-client-0' is revoked"
        assert len(parent.greeted) == 2
        identities.issue({FIRST: "client"})
        with child(identities.of(FIRST), parent.address, FIRST):
            parent.wait_for(FIRST, SECOND)


def test_a_certificate_that_expires_ends_its_link(
    identities: Identities, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST):
        parent.wait_for(FIRST)
        monkeypatch.setattr(Connection, "expired", lambda self: True)
        eventually(lambda: parent.children.present() == frozenset())
        assert f"{FIRST} has a certificate that has expired" in caplog.messages


def test_a_list_that_the_authority_did_not_sign_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identities, foreign = Identities(tmp_path / "ours"), Identities(tmp_path / "theirs")
    identities.authority.revoke(FIRST)
    foreign.authority.revoke(SECOND)
    ours = identities.of(EDGE).revoked
    theirs = foreign.of(EDGE).revoked
    assert ours is not None
    assert theirs is not None
    with edge(identities) as parent, child(identities.of(SECOND), parent.address, SECOND):
        parent.wait_for(SECOND)
        shutil.copy(theirs, ours)
        eventually(lambda: any("the list read before stays in force" in message for message in caplog.messages))
        with Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
            assert hostile.end().details() == "the certificate of 'edge-0-client-0' is revoked"
    with pytest.raises(DeployError, match="did not sign it"), edge(identities):
        pass


def test_a_client_s_certificate_cannot_stand_in_for_a_parent(
    identities: Identities, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even one with the parent's name: it says that its holder is no server."""
    posing = Identities(tmp_path, authority=identities.authority)
    posing.issue({EDGE: "client"})
    with edge(posing) as parent, child(identities.of(FIRST), parent.address, FIRST):
        eventually(lambda: any("CERTIFICATE_VERIFY_FAILED" in message for message in caplog.messages))
        assert parent.greeted == []
    with edge(identities) as parent, Hostile(identities.of(FIRST), parent.address, FIRST) as genuine:
        genuine.joins()  # or the test above would pass for another reason


def shown(parent: Edge, identities: Identities) -> int | None:
    """Return the number of the certificate that a parent shows; None in the moment between two of them."""
    context = ssl.create_default_context(cafile=identities.of(FIRST).authority)
    context.load_cert_chain(identities.of(FIRST).certificate, identities.of(FIRST).key)
    try:
        with (
            socket.create_connection(("127.0.0.1", parent.children.port), PATIENCE) as connection,
            context.wrap_socket(connection, server_hostname=EDGE) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
            assert found
            return x509.load_der_x509_certificate(found).serial_number
    except (ConnectionError, ssl.SSLEOFError):
        return None


def serial(identities: Identities) -> int:
    return x509.load_pem_x509_certificate(identities.of(EDGE).certificate.read_bytes()).serial_number


def test_a_renewed_certificate_is_shown_without_a_restart_and_links_outlive_it(tmp_path: Path) -> None:
    """Also the request that a child is at work on."""
    identities = Identities(tmp_path)
    asked, release = threading.Event(), threading.Event()

    def answer(request: bytes, gone: threading.Event) -> bytes:
        asked.set()
        release.wait(PATIENCE)
        return request

    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST, answer):
        parent.wait_for(FIRST)
        assert shown(parent, identities) == serial(identities)
        with ThreadPoolExecutor(1) as pool:
            called = pool.submit(parent.children.call, {FIRST: b"long"}, PATIENCE)
            assert asked.wait(PATIENCE)
            for _ in range(3):
                identities.issue({EDGE: "edge"})
                eventually(lambda: shown(parent, identities) == serial(identities))
            release.set()
            assert called.result() == ({FIRST: b"long"}, {})
        with child(identities.of(SECOND), parent.address, SECOND):
            parent.wait_for(FIRST, SECOND)
        assert parent.greeted.count((FIRST, b"hello")) == 1


@pytest.mark.parametrize("damage", first(2, ["certificate", "missing", "key", "authority", "junk"]))
def test_files_that_do_not_belong_together_change_nothing(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a kit is copied: what was read before stays in use, until all of it is there."""
    identities, other = Identities(tmp_path / "ours"), Identities(tmp_path / "theirs")
    files = identities.of(EDGE)
    with edge(identities) as parent:
        before = serial(identities)
        broken = getattr(files, damage, files.key)
        whole = broken.read_bytes()
        if damage == "missing":
            broken.unlink()
        else:
            broken.write_bytes(b"junk" if damage == "junk" else getattr(other.of(EDGE), damage).read_bytes())
        eventually(lambda: any("what was read before stays in use" in message for message in caplog.messages))
        broken.write_bytes(whole)
        assert shown(parent, identities) == before
        identities.issue({EDGE: "edge"})
        eventually(lambda: shown(parent, identities) == serial(identities))
    assert len([message for message in caplog.messages if "stays in use" in message]) < 4  # not at every look


def test_a_port_that_is_taken_between_two_certificates_is_asked_for_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identities, never = Identities(tmp_path), threading.Event()
    monkeypatch.setattr(listening, "TRIES", 3)
    thieves: list[socket.socket] = []

    def steal() -> bool:
        with suppress(OSError):  # of a port that is not free yet
            thieves.append(socket.create_server(("127.0.0.1", listener.port)))
        return bool(thieves)

    def make() -> grpc.Server:
        if ready:
            eventually(steal)
        return grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])

    ready = False
    listener = listening.Listener("127.0.0.1:0", identities.of(EDGE), make)
    ready = True
    try:
        identities.issue({EDGE: "edge"})
        for _ in range(2):
            listener.renew(never)
        assert caplog.messages == [
            f"listen: cannot listen at 127.0.0.1:{listener.port}; is the port in use, or the host another's?; trying on"
        ]
        thieves.pop().close()
        listener.renew(never)
        socket.create_connection(("127.0.0.1", listener.port)).close()
    finally:
        listener.close(0)


@pytest.mark.parametrize("file", ["key", "certificate", "authority", "revoked"])
def test_a_missing_file_is_named(file: str, identities: Identities) -> None:
    files = vars(identities.of(EDGE)) | {file: Path("nowhere")}
    with pytest.raises(DeployError, match="nowhere: the file is missing"):
        GrpcChildren("127.0.0.1:0", Credentials(**files), CHILDREN, lambda *said: b"", heartbeat=1, limit=99)


def test_a_child_whose_files_are_being_replaced_waits(identities: Identities, caplog: pytest.LogCaptureFixture) -> None:
    gone = Credentials(Path("nowhere"), Path("nowhere"), Path("nowhere"))
    with child(gone, "127.0.0.1:1", FIRST):
        eventually(lambda: any("nowhere: the file is missing" in message for message in caplog.messages))


def test_a_parent_that_is_not_up_yet_or_stops_is_no_trouble(
    identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fedbac")
    with edge(identities) as parent:
        port, address = parent.children.port, parent.address
    with child(identities.of(FIRST), address, FIRST):
        waiting = f"waiting for edge-0, which does not listen at {address} yet"
        eventually(lambda: waiting in caplog.messages)
        with edge(identities, port=port) as parent:
            parent.wait_for(FIRST)
        eventually(lambda: "edge-0 has stopped" in caplog.messages)
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert "failed to connect" not in caplog.text
