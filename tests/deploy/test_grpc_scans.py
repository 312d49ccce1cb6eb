"""What strangers do to a parent's port, whom nobody keeps from dialling: the parent lives, its children get in."""

import resource
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedbac.deploy.transports.grpc.listening import OTHER_FILES, room_for
from tests.deploy.links import FIRST, SECOND, Identities, child
from tests.deploy.scanning import complaint, scanned


@pytest.mark.full
def test_a_port_scan_harms_nobody_also_while_the_certificate_is_renewed(tmp_path: Path) -> None:
    assert complaint(tmp_path, num_children=3, connections=8000, renewals=8, seed=0) is None


def test_connections_that_are_held_open_keep_no_child_out(identities: Identities) -> None:
    """Whether they say nothing, or begin a handshake and never end it."""
    with scanned(identities, (FIRST, SECOND)) as parent, ExitStack() as stack:
        for number in range(600):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", parent.port)))
            held.sendall(b"\x16\x03\x01\x02" if number % 2 else b"")
        for name in (FIRST, SECOND):
            stack.enter_context(child(identities.of(name), parent.address, name))
        assert parent.ask((FIRST, SECOND)) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "room"),
    [
        (1024, 20_000, 4096 + OTHER_FILES, 4096),
        (1024, 1024, 1024, 1024 - OTHER_FILES),
        (256, 256, 256, 128),
        (20_000, 20_000, 20_000, 4096),
        (1024, resource.RLIM_INFINITY, 4096 + OTHER_FILES, 4096),
    ],
)
def test_connections_leave_room_for_other_files(
    soft: int, hard: int, raised: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or strangers could keep the cloud from writing a round."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: limits.append(both))
    assert room_for(4096) == room
    assert limits[-1] == (raised, hard)


def test_where_files_have_no_limit_all_connections_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert room_for(4096) == 4096
