"""Who may join: strangers are turned away before a frame of theirs is read, and it is logged."""

import datetime as dt
import logging
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from fedbac.deploy.credentials import Credentials
from fedbac.deploy.frames import Assembler, Kind
from fedbac.deploy.grpc import GrpcChildren
from fedbac.deploy.grpc.children import Link
from fedbac.errors import DeployError
from tests.deploy.links import (
    CHILDREN,
    EDGE,
    FIRST,
    PATIENCE,
    SECOND,
    STRANGER,
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
        monkeypatch.setattr(Link, "expired", lambda self: True)
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


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    identities = Identities(tmp_path)

    def shown() -> int:
        context = ssl.create_default_context(cafile=identities.of(FIRST).authority)
        context.load_cert_chain(identities.of(FIRST).certificate, identities.of(FIRST).key)
        host, port = parent.address.split(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE) as connection,
            context.wrap_socket(connection, server_hostname=EDGE) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
            assert found
            return x509.load_der_x509_certificate(found).serial_number

    with edge(identities) as parent:
        first = shown()
        assert shown() == first
        identities.issue({EDGE: "edge"})
        assert shown() != first


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
