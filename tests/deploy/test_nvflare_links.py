"""Both ends of a link over NVFlare, with plain calls where NVFlare would carry them; its package is not needed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedbac.deploy.transports import nvflare
from fedbac.deploy.transports.base import Refusal
from fedbac.deploy.transports.nvflare.children import NvflareChildren, Trust
from fedbac.deploy.transports.nvflare.files import FOLDER, JobOutcome, Returning, SiteOrder, ask_to_stop, stop_asked
from fedbac.deploy.transports.nvflare.parent import END, FAILED, Post
from fedbac.errors import ConfigError
from tests.deploy.links import EDGE, FIRST, SECOND, Identities

LIMIT = 1000
HEARTBEAT = 0.05
LONG = 30.0


class Wire:
    """A proxy as NVFlare makes them: calls the post of another process, unless the link is cut."""

    def __init__(self, post: Post, caller: str = EDGE) -> None:
        self.post, self.caller, self.cut = post, caller, False

    def __call__(self, timeout: float = LONG, expect_result: bool = True) -> "Wire":
        return self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self.cut:
                raise TimeoutError("quotes data")
            return getattr(self.post, method)(self.caller, *args)

        return call


@contextmanager
def serving(
    identities: Identities, name: str, answer: Callable[[bytes, threading.Event], bytes], hello: bytes = b"hello"
) -> Iterator[Wire]:
    """Serve as a child in a thread; yield the way to it."""
    post, stop = Post(name, EDGE, LIMIT, {}, identities.of(name).certificate), threading.Event()
    thread = threading.Thread(target=post.serve, args=(lambda: hello, lambda welcome: None, answer, stop))
    thread.start()
    try:
        yield Wire(post)
    finally:
        stop.set()
        thread.join()


def children(
    identities: Identities,
    wires: dict[str, Wire],
    greet: Callable[[str, bytes], bytes] = lambda name, hello: b"welcome",
) -> NvflareChildren:
    post = Post(EDGE, "server", LIMIT, wires, identities.of(EDGE).certificate)
    post.called.set()
    return NvflareChildren(post, [FIRST, SECOND], greet, Trust(identities.of(EDGE)), heartbeat=HEARTBEAT)


def echo(request: bytes, gone: threading.Event) -> bytes:
    return request


def until(true: Callable[[], object]) -> None:
    for _ in range(int(LONG / 0.01)):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never happened")


def test_children_are_there_from_the_start_and_answer(identities: Identities) -> None:
    with (
        serving(identities, FIRST, echo) as first,
        serving(identities, SECOND, lambda request, gone: request * 2) as second,
    ):
        mine = children(identities, {FIRST: first, SECOND: second})
        assert mine.present() == {FIRST, SECOND}
        assert mine.call({FIRST: b"a", SECOND: b"b"}, LONG) == ({FIRST: b"a", SECOND: b"bb"}, {})
        assert set(mine.seen()) == {FIRST, SECOND}
        mine.close()
        assert mine.present() == frozenset()


def test_a_child_that_is_not_in_the_job_or_was_refused_is_not_there(identities: Identities) -> None:
    def greet(name: str, hello: bytes) -> bytes:
        raise Refusal("install the same version")

    with serving(identities, FIRST, echo) as first:
        mine = children(identities, {FIRST: first}, greet)
        assert mine.present() == frozenset()
        assert mine.call({FIRST: b"", SECOND: b""}, LONG)[1] == dict.fromkeys((FIRST, SECOND), "is not there")
        mine.close()


def test_a_child_that_falls_silent_is_given_up_at_once_and_comes_back(identities: Identities) -> None:
    release = threading.Event()

    def slow(request: bytes, gone: threading.Event) -> bytes:
        release.wait(LONG)
        return request

    with serving(identities, FIRST, slow) as first:
        mine = children(identities, {FIRST: first})
        threading.Timer(0.1, lambda: setattr(first, "cut", True)).start()
        answers, reasons = mine.call({FIRST: b"a"}, LONG)
        assert answers == {}
        assert reasons[FIRST].startswith("no sign of life for")
        release.set()
        first.cut = False
        until(lambda: FIRST in mine.present())
        until(lambda: mine.call({FIRST: b"again"}, LONG)[0] == {FIRST: b"again"})
        mine.close()


@pytest.mark.parametrize("how", ["the file changes", "the cloud passes it on"])
def test_a_revoked_child_loses_its_link_and_is_refused(how: str, tmp_path: Path) -> None:
    """NVFlare knows nothing of our list, so the parent itself holds the certificate against it."""
    identities = Identities(tmp_path)
    before = identities.authority.list_file.read_bytes()
    with serving(identities, FIRST, echo) as first, serving(identities, SECOND, echo) as second:
        mine = children(identities, {FIRST: first, SECOND: second})
        assert mine.present() == {FIRST, SECOND}
        identities.authority.revoke(FIRST)
        if how == "the cloud passes it on":
            newer = identities.authority.list_file.read_bytes()
            identities.authority.list_file.write_bytes(before)
            mine.turn_away(newer)
        until(lambda: mine.present() == {SECOND})
        assert mine.call({FIRST: b"a", SECOND: b"b"}, LONG) == ({SECOND: b"b"}, {FIRST: "is not there"})
        mine.close()


def test_a_child_must_bring_its_own_certificate(identities: Identities, tmp_path: Path) -> None:
    trust = Trust(identities.of(EDGE))
    own, others = (identities.of(name).certificate.read_bytes() for name in (FIRST, SECOND))
    foreign = Identities(tmp_path).of(FIRST).certificate.read_bytes()
    assert trust.take(FIRST, own + END + b"hello")[1] == b"hello"
    for said in (b"hello", END + b"hello", others + END + b"hello", foreign + END + b"hello", b"x" + END):
        with pytest.raises(Refusal):
            trust.take(FIRST, said)


def in_job(edges: set[str], clients: set[str], at: float, spoke: float) -> dict[str, Any]:
    """Return the status of a cloud with one edge."""
    there = {EDGE: {"present": EDGE in edges, "seen": at}}
    return {"at": at, "edges": there, "clients": {EDGE: sorted(clients)}, "spoke": {EDGE: spoke}}


def test_a_site_that_was_in_the_job_and_is_heard_of_again_has_come_back() -> None:
    returning = Returning({EDGE: [FIRST, SECOND]}, [], patience=3)
    both, one = {FIRST, SECOND}, {SECOND}
    assert returning.back(in_job({EDGE}, both, 10, 10), {FIRST: 10}) == []
    assert returning.back(in_job({EDGE}, one, 20, 20), {FIRST: 15}) == []  # it is only not forgotten yet
    assert returning.back(in_job({EDGE}, one, 30, 20), {FIRST: 25}) == []  # the edge has said nothing since
    assert returning.back(in_job({EDGE}, one, 40, 40), {FIRST: 35}) == [FIRST]
    assert returning.back(in_job({EDGE}, both, 50, 50), {FIRST: 45}) == []  # it had only been frozen
    assert returning.back(in_job(set(), both, 60, 50), {EDGE: 55}) == []
    assert returning.back(in_job(set(), both, 67, 50), {EDGE: 65}) == []
    assert returning.back(in_job(set(), both, 80, 50), {EDGE: 75}) == [EDGE]


def test_a_site_that_the_job_refused_does_not_come_back_but_one_that_was_missing_does() -> None:
    returning = Returning({EDGE: [FIRST, SECOND]}, [SECOND], patience=3)
    for at in (10.0, 20.0, 30.0):
        found = returning.back(in_job({EDGE}, set(), at, at), {FIRST: at + 1, SECOND: at + 1})
    assert found == [SECOND]


def test_nobody_but_the_parent_is_answered(identities: Identities) -> None:
    with serving(identities, FIRST, echo) as first:
        for caller in ("server", SECOND, "edge-1"):
            first.caller = caller
            for reply in (first.hello(), first.ping(), first.ask(1, b"x"), first.welcome(b"x")):
                assert reply == (FAILED, b"edge-0-client-0 answers only to its parent")


def test_messages_beyond_the_limit_are_refused_either_way(identities: Identities) -> None:
    with serving(identities, FIRST, lambda request, gone: request * 2) as first:
        mine = children(identities, {FIRST: first})
        assert "1,001 bytes; 1,000 are allowed" in mine.call({FIRST: b"x" * 1001}, LONG)[1][FIRST]
        assert "1,200 bytes; 1,000 are allowed" in mine.call({FIRST: b"x" * 600}, LONG)[1][FIRST]
        assert "longer than 1,000 bytes" in first.ask(1, b"x" * 1001)[1].decode()
        mine.close()


def test_what_is_no_reply_is_a_reason(identities: Identities) -> None:
    class Liar(Wire):
        def __getattr__(self, method: str) -> Callable[..., Any]:
            return (lambda *args: {"result": 1}) if method == "ask" else super().__getattr__(method)

    with serving(identities, FIRST, echo) as first:
        mine = children(identities, {FIRST: Liar(first.post)})
        assert mine.call({FIRST: b"x"}, LONG)[1] == {FIRST: "it sent what is no reply"}
        mine.close()


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvflare, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        nvflare.require()
    assert str(raised.value) == ("deploy.transport: nvflare needs the package nvflare; pip install 'fedbac[nvflare]'")


def test_a_run_that_has_begun_is_overwritten_no_more_when_its_job_is_submitted_again(tmp_path: Path) -> None:
    SiteOrder(out="run", rounds=3, overwrite=True).save(tmp_path)
    order = SiteOrder.read(tmp_path / FOLDER)
    assert order.overwrite
    order.begun(tmp_path)
    assert SiteOrder.read(tmp_path / FOLDER) == SiteOrder(out="run", rounds=3, overwrite=False)


def test_how_a_job_ended_is_not_taken_for_how_another_did(tmp_path: Path) -> None:
    assert JobOutcome.read(tmp_path, "first") is None
    JobOutcome("first", "finished").save(tmp_path)
    assert JobOutcome.read(tmp_path, "first") == JobOutcome("first", "finished")
    assert JobOutcome.read(tmp_path, "second") is None  # its process died before it could say


def test_a_wish_to_stop_is_taken_back_by_the_next_start(tmp_path: Path) -> None:
    ask_to_stop(tmp_path, True)
    assert stop_asked(tmp_path)
    ask_to_stop(tmp_path, False)
    assert not stop_asked(tmp_path)
