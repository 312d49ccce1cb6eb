"""What leaves a site when something fails there: our own sentences and numbers; the rest is in its own log."""

import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from fedbac.config.experiment import Runtime
from fedbac.deploy.pki.credentials import Credentials
from fedbac.deploy.pki.kits import FederationFolder, Kit
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.handshake import hello
from fedbac.deploy.protocol.wire import WireError, decode, encode
from fedbac.deploy.roles.client import OK, send
from fedbac.deploy.roles.edge import run_edge
from fedbac.deploy.roles.enrolment import enrol
from fedbac.deploy.roles.worker import serve
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig
from fedbac.deploy.transports.base import Refusal
from fedbac.deploy.transports.connect import children_of
from fedbac.deploy.transports.frames import Assembler, Kind, Outbox, Packet
from fedbac.deploy.transports.nvflare.parent import FAILED, Post
from fedbac.deploy.trial import free_ports
from fedbac.errors import ConfigError, DeployError
from fedbac.runs.configure import configure
from tests.covering import first
from tests.deploy.links import EDGE, FIRST, PATIENCE, Hostile, Identities, child, edge, eventually
from tests.deploy.small import small

SECRET = "DoeJohn4711"  # also good as the name of a class
TOLD = re.compile(r"error (\d{6}); its log says why")


class Unspeakable(Exception):  # noqa: N818
    """An exception of somebody else's, with a mistake of its own."""

    def __str__(self) -> str:
        raise ValueError(SECRET)


ERRORS: dict[str, Exception] = {
    "a loader's": ValueError(f"row 17: could not parse '{SECRET}; 1.2'"),
    "of two lines": ValueError(f"cannot parse\n{SECRET}"),
    "a network's": RuntimeError(f"{torch.full((2,), 4711.0)!r} of {SECRET}"),
    "a user's class": type(SECRET, (Exception,), {})("what"),
    "a path": FileNotFoundError(2, "No such file", f"/home/{SECRET}/scans.npz"),
    "ours, with a quotation": DeployError(f"--data: load failed with ValueError: {SECRET}"),
    "of a configuration": ConfigError(f"y_train: {SECRET!r} is no label"),
    "of a message": WireError(f"parts: {SECRET!r} is missing"),
    "a refusal": Refusal(f"not by {SECRET}"),
    "a detail": SiteError(Failure.CANNOT_RUN, detail=SECRET),
}


def said_of(error: Exception, told: str, log: str) -> None:
    """What travelled holds no word of the error, and the site's log all of it, under the same number."""
    assert SECRET not in told
    assert SECRET in log
    if isinstance(error, SiteError):
        assert told == "the experiment of the federation cannot run here; its log says why"
    else:
        number = TOLD.fullmatch(told)
        assert number, told
        assert f"a request failed: error {number[1]}: {type(error).__name__}" in log


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All frames that leave a site over gRPC."""
    frames: list[bytes] = []
    following = Outbox.__next__

    def noting(self: Outbox) -> bytes:
        frames.append(following(self))
        return frames[-1]

    monkeypatch.setattr(Outbox, "__next__", noting)
    return frames


@pytest.mark.parametrize("error", first(4, ERRORS.values()), ids=ERRORS)
def test_no_word_of_an_exception_leaves_a_site_over_grpc(
    error: Exception, identities: Identities, sent: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: bytes, gone: threading.Event) -> bytes:
        raise error

    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST, answer):
        parent.wait_for(FIRST)
        reason = parent.children.call({FIRST: b""}, PATIENCE)[1][FIRST]
        said_of(error, reason.removeprefix("failed: "), caplog.text)
        assert parent.children.present() == {FIRST}
    assert any(frame[0] == Kind.FAILED for frame in sent)
    assert SECRET.encode() not in b"".join(sent)
    assert all(record.exc_info is None for record in caplog.records if record.levelno > logging.DEBUG)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_no_word_of_an_exception_leaves_a_site_over_nvflare(
    error: Exception, identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it comes from an answer, from the welcome, or ends the role before it says hello."""

    def fail(*said: Any) -> bytes:
        raise error

    with _posted(identities.of(FIRST).certificate, fail) as post:
        for reply in (post.ask(EDGE, 1, b""), post.welcome(EDGE, b"")):
            assert reply[0] == FAILED
            said_of(error, reply[1].decode(), caplog.text)
    caplog.clear()
    broken = Post(FIRST, EDGE, 1000, {}, identities.of(FIRST).certificate)
    broken.fail(error)
    status, told = broken.hello(EDGE)
    assert status == FAILED
    assert SECRET.encode() not in told
    assert SECRET in caplog.text


@contextmanager
def _posted(certificate: Path, fail: Any) -> Iterator[Post]:
    """Yield where the calls of a child's parent arrive."""
    post, stop = Post(FIRST, EDGE, 1000, {}, certificate), threading.Event()
    thread = threading.Thread(target=post.serve, args=(lambda: b"hello", fail, fail, stop))
    thread.start()
    try:
        yield post
    finally:
        stop.set()
        thread.join()


def test_where_a_kit_lies_is_not_told_over_nvflare(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _posted(tmp_path / SECRET / "site.crt", None) as post:
        status, told = post.hello(EDGE)
    assert status == FAILED
    said_of(DeployError(), told.decode(), caplog.text)


def test_an_exception_that_cannot_be_shown_is_a_failure_like_any(
    identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: bytes, gone: threading.Event) -> bytes:
        raise Unspeakable

    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST, answer):
        parent.wait_for(FIRST)
        for _ in range(2):
            assert TOLD.search(parent.children.call({FIRST: b""}, PATIENCE)[1][FIRST])


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_no_word_of_an_exception_leaves_the_process_that_trains(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def answer(self, request: bytes) -> bytes:
            raise error

    requests, out = io.BytesIO(), io.BytesIO()
    send(requests, OK, b"fit")
    requests.seek(0)
    holder: Any = Failing()
    serve(holder, requests, out)
    assert SECRET.encode() not in out.getvalue()
    assert SECRET in caplog.text


def test_a_welcome_that_is_turned_down_is_not_explained_to_the_parent(
    identities: Identities, sent: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    def welcomed(said: bytes) -> None:
        raise Refusal(SECRET)

    with edge(identities) as parent, child(identities.of(FIRST), parent.address, FIRST, welcomed=welcomed):
        eventually(lambda: SECRET in caplog.text)
        eventually(lambda: not parent.children.present())
    assert SECRET.encode() not in b"".join(sent)


def test_a_mistake_of_the_parent_is_not_told_to_whoever_dials(
    identities: Identities, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def identify(*said: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(Credentials, "identify", identify)
    with edge(identities) as parent, Hostile(identities.of(FIRST), parent.address, FIRST) as hostile:
        error = hostile.end()
    assert (error.code(), error.details()) == (grpc.StatusCode.PERMISSION_DENIED, "the certificate cannot be used")
    assert SECRET in caplog.text


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a field of the facts": lambda facts: {"facts": facts | {"dtype": SECRET}},
    "no facts": lambda facts: {"facts": SECRET},
    "more than facts": lambda facts: {"facts": facts, SECRET: 1},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_one_client_says_of_its_data_is_not_quoted_to_the_cloud(
    lie: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = small("hierfavg").federation(tmp_path)
    links = federation.children(EDGE)
    honest = links.answers[FIRST]

    def answer(payload: bytes, gone: threading.Event) -> bytes:
        facts = decode(honest(payload, gone), ("facts",)).head["facts"]
        return encode("facts", lie(facts), {})

    links.answers[FIRST] = answer
    plain = federation.experiment.model_dump(mode="json")
    payload = encode("enroll", {"experiment": plain, "only": [], "without": []}, {})
    said = federation.edges[EDGE].answer(payload, threading.Event())
    assert FIRST in decode(said, ("roster",)).head["reasons"]
    assert SECRET.encode() not in said
    assert SECRET in caplog.text


def test_only_whole_numbers_fill_the_places_of_a_sentence() -> None:
    said: Any = SECRET
    with pytest.raises(TypeError):
        SiteError(Failure.ENDED, said)
    for failure in Failure:
        numbers = range(failure.value.count("{"))
        assert (
            SiteError.decoded(SiteError(failure, *numbers, detail=SECRET).encoded()).public
            == SiteError(failure, *numbers).public
        )


LOADER = f"""
from pathlib import Path
import numpy as np

class {SECRET}Error(Exception):
    pass

def load():
    if Path("loaded").exists():
        raise {SECRET}Error("row 17: could not parse '{SECRET}; 1.2'")
    Path("loaded").touch()
    x = np.zeros((40, 3, 8, 8), dtype=np.uint8)
    y = np.arange(40) % 10
    return {{"x_train": x, "y_train": y, "x_test": x, "y_test": y}}
"""


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_loader_that_fails_while_the_federation_runs_tells_the_row_to_nobody_but_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is the real command; its edge and the cloud are here, so that our log is theirs."""
    arrived: list[bytes] = []
    take = Assembler.take

    def noting(self: Assembler, frame: bytes) -> Packet | None:
        arrived.append(frame)
        return take(self, frame)

    monkeypatch.setattr(Assembler, "take", noting)
    (tmp_path / "loading.py").write_text(LOADER)
    federation = _federation(tmp_path / "clinic")
    stop, heard = threading.Event(), list[str]()
    log = tmp_path / "client.log"
    command = [sys.executable, "-m", "fedbac", "client", str(federation.kit(FIRST)), "--data", "loading:load"]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "--idle", "0.1"], cwd=tmp_path, stdout=errors, stderr=errors, env=_environment()
        ) as client,
        closing(children_of(Kit.load(federation.kit("cloud")), lambda name, said: hello("cloud"))) as children,
    ):
        edge_kit = Kit.load(federation.kit(EDGE))
        serving = threading.Thread(target=run_edge, args=(edge_kit, None, stop, Runtime(device="cpu")))
        serving.start()
        try:
            eventually(lambda: "the process that trains is ended" in log.read_text(), "it never rested")
            with pytest.raises(DeployError, match="stopped before the first round"):
                enrol(
                    configure(federation.kit("cloud") / "experiment.yaml"),
                    federation.config.sites()["cloud"].model_copy(update={"deploy": DeploySettings(deadline=PATIENCE)}),
                    children,
                    heard.append,
                    lambda: any(TOLD.search(text) for text in heard),
                )
        finally:
            client.terminate()
            stop.set()
            serving.join()
    number = TOLD.search(heard[-1])
    assert number
    assert f"error {number[1]}: DeployError: --data: loading:load failed with {SECRET}Error: row 17" in log.read_text()
    assert SECRET not in caplog.text + "".join(heard)
    assert arrived
    assert SECRET.encode() not in b"".join(arrived)


def _federation(folder: Path) -> FederationFolder:
    cloud, first = ({"address": f"127.0.0.1:{port}", "listen": f"127.0.0.1:{port}"} for port in free_ports(2))
    experiment = configure("hierfavg", settings={"task.num_edges": 1, "task.clients_per_edge": 1})
    config = FederationConfig(
        name="clinic",
        cloud=CloudPlace(**cloud),
        edges=(EdgePlace(**first, clients=1),),
        deploy=DeploySettings(deadline=60),
        experiment=experiment.model_dump(mode="json"),
    )
    return FederationFolder.init(folder, config)


def _environment() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", **os.environ}
