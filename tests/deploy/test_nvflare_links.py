"""Both ends of a link over NVFlare, with plain calls where NVFlare would carry them; its package is not needed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedbac.deploy import nvflare
from fedbac.deploy.nvflare.children import NvflareChildren
from fedbac.deploy.nvflare.orders import Outcome, SiteOrder, ask_to_stop, stop_asked
from fedbac.deploy.nvflare.parent import NvflareParent
from fedbac.deploy.nvflare.places import FOLDER
from fedbac.deploy.nvflare.post import FAILED, Post
from fedbac.deploy.transport import Refusal
from fedbac.errors import ConfigError, DeployError

EDGE, FIRST, SECOND = "edge-0", "edge-0-client-0", "edge-0-client-1"
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
def serving(name: str, answer: Callable[[bytes, threading.Event], bytes], hello: bytes = b"hello") -> Iterator[Wire]:
    """Serve as a child in a thread; yield the way to it."""
    post, stop = Post(name, EDGE, LIMIT, {}), threading.Event()
    thread = threading.Thread(
        target=NvflareParent(post).serve, args=(lambda: hello, lambda welcome: None, answer, stop)
    )
    thread.start()
    try:
        yield Wire(post)
    finally:
        stop.set()
        thread.join()


def children(
    wires: dict[str, Wire], greet: Callable[[str, bytes], bytes] = lambda name, hello: b"welcome"
) -> NvflareChildren:
    post = Post(EDGE, "server", LIMIT, wires)
    post.called.set()
    return NvflareChildren(post, [FIRST, SECOND], greet, heartbeat=HEARTBEAT)


def echo(request: bytes, gone: threading.Event) -> bytes:
    return request


def until(true: Callable[[], object]) -> None:
    for _ in range(int(LONG / 0.01)):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never happened")


def test_children_are_there_from_the_start_and_answer() -> None:
    with serving(FIRST, echo) as first, serving(SECOND, lambda request, gone: request * 2) as second:
        mine = children({FIRST: first, SECOND: second})
        assert mine.present() == {FIRST, SECOND}
        assert mine.call({FIRST: b"a", SECOND: b"b"}, LONG) == ({FIRST: b"a", SECOND: b"bb"}, {})
        assert set(mine.seen()) == {FIRST, SECOND}
        mine.close()
        assert mine.present() == frozenset()


def test_a_child_that_is_not_in_the_job_or_was_refused_is_not_there() -> None:
    def greet(name: str, hello: bytes) -> bytes:
        raise Refusal("install the same version")

    with serving(FIRST, echo) as first:
        mine = children({FIRST: first}, greet)
        assert mine.present() == frozenset()
        assert mine.call({FIRST: b"", SECOND: b""}, LONG)[1] == dict.fromkeys((FIRST, SECOND), "is not there")
        mine.close()


def test_a_child_that_falls_silent_is_given_up_at_once_and_comes_back() -> None:
    release = threading.Event()

    def slow(request: bytes, gone: threading.Event) -> bytes:
        release.wait(LONG)
        return request

    with serving(FIRST, slow) as first:
        mine = children({FIRST: first})
        threading.Timer(0.1, lambda: setattr(first, "cut", True)).start()
        answers, reasons = mine.call({FIRST: b"a"}, LONG)
        assert answers == {}
        assert reasons[FIRST].startswith("no sign of life for")
        release.set()
        first.cut = False
        until(lambda: FIRST in mine.present())
        until(lambda: mine.call({FIRST: b"again"}, LONG)[0] == {FIRST: b"again"})
        mine.close()


def test_nobody_but_the_parent_is_answered() -> None:
    with serving(FIRST, echo) as first:
        for caller in ("server", SECOND, "edge-1"):
            first.caller = caller
            for reply in (first.hello(), first.ping(), first.ask(1, b"x"), first.welcome(b"x")):
                assert reply == (FAILED, b"edge-0-client-0 answers only to its parent")


def test_errors_are_said_in_one_line_that_quotes_no_data() -> None:
    def fail(request: bytes, gone: threading.Event) -> bytes:
        if request == b"ours":
            raise DeployError("the data are missing\nput them back")
        raise ValueError("patient 4711")

    with serving(FIRST, fail) as first:
        mine = children({FIRST: first})
        assert mine.call({FIRST: b"ours"}, LONG)[1] == {FIRST: "the data are missing"}
        told = "failed with ValueError; the log of edge-0-client-0 says more"
        assert mine.call({FIRST: b""}, LONG)[1] == {FIRST: told}
        mine.close()


def test_messages_beyond_the_limit_are_refused_either_way() -> None:
    with serving(FIRST, lambda request, gone: request * 2) as first:
        mine = children({FIRST: first})
        assert "1,001 bytes; 1,000 are allowed" in mine.call({FIRST: b"x" * 1001}, LONG)[1][FIRST]
        assert "1,200 bytes; 1,000 are allowed" in mine.call({FIRST: b"x" * 600}, LONG)[1][FIRST]
        assert "longer than 1,000 bytes" in first.ask(1, b"x" * 1001)[1].decode()
        mine.close()


def test_what_is_no_reply_is_a_reason() -> None:
    class Liar(Wire):
        def __getattr__(self, method: str) -> Callable[..., Any]:
            return lambda *args: (0, b"") if method != "ask" else {"result": 1}

    with serving(FIRST, echo) as first:
        mine = children({FIRST: Liar(first.post)})
        assert mine.call({FIRST: b"x"}, LONG)[1] == {FIRST: "it sent what is no reply"}
        mine.close()


def test_a_role_that_ended_with_an_error_says_so_instead_of_hello() -> None:
    post = Post(FIRST, EDGE, LIMIT, {})
    post.fail(DeployError("x_train and y_train are missing"))
    assert post.hello(EDGE) == (FAILED, b"x_train and y_train are missing")


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
    assert Outcome.read(tmp_path, "first") is None
    Outcome("first", "finished").save(tmp_path)
    assert Outcome.read(tmp_path, "first") == Outcome("first", "finished")
    assert Outcome.read(tmp_path, "second") is None  # its process died before it could say


def test_a_wish_to_stop_is_taken_back_by_the_next_start(tmp_path: Path) -> None:
    ask_to_stop(tmp_path, True)
    assert stop_asked(tmp_path)
    ask_to_stop(tmp_path, False)
    assert not stop_asked(tmp_path)
