"""The live page: it follows folders that others write, for any number of readers, and lets nobody else in."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedbac.report.beside import listen
from fedbac.report.following import Follower
from fedbac.runs.store import RunFolder
from tests.covering import first
from tests.page.growing import Growing, played, served
from tests.test_cli import COMMAND, SMALL, Shell
from tests.test_cli import fedbac as fedbac  # the fixture


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("source") / "run")


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Growing:
    return Growing(source, tmp_path / "runs" / "first")


def rounds_shown(follower: Follower) -> list[int]:
    return [len(run["accuracy"]) for run in follower.shown.document["runs"]]


# ------------------------------------------------------------------------------------------------- following


def test_it_shows_what_is_written_and_not_half_a_line(run: Growing) -> None:
    follower = Follower(lambda: [run.folder])
    assert rounds_shown(follower) == []
    assert "No round is finished yet" in follower.shown.parts["header"]
    run.grow(2)
    follower.refresh()
    before = follower.shown
    assert rounds_shown(follower) == [2]
    assert before.document["status"] == "Live: 1 run, 0 finished; round 2 of 5 in all"
    run.tear()
    follower.refresh()
    assert rounds_shown(follower) == [2]
    assert "warn" not in follower.shown.parts["header"]


def test_nothing_new_is_nothing_to_send(run: Growing) -> None:
    run.grow()
    follower = Follower(lambda: [run.folder])
    before = follower.shown
    follower.refresh()
    assert follower.shown is before


def test_runs_come_and_go(run: Growing, source: Path, tmp_path: Path) -> None:
    run.grow(5)
    folders = [run.folder]
    follower = Follower(lambda: folders)
    second = Growing(source, tmp_path / "runs" / "second")
    second.grow(3)
    folders.append(second.folder)
    follower.refresh()
    assert rounds_shown(follower) == [5, 3]
    assert follower.shown.document["status"] == "Live: 2 runs, 1 finished; round 8 of 10 in all"
    del folders[0]
    follower.refresh()
    assert rounds_shown(follower) == [3]


def test_a_damaged_run_is_named_and_the_others_are_shown(run: Growing, tmp_path: Path) -> None:
    run.grow(2)
    broken = tmp_path / "runs" / "<b>broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("experiment: 3\n")
    follower = Follower(lambda: [run.folder, RunFolder(broken)])
    assert rounds_shown(follower) == [2]
    assert "&lt;b&gt;broken" in follower.shown.parts["header"]


# --------------------------------------------------------------------------------------------------- serving


class Reader(contextlib.ExitStack):
    """Reads from a server by hand, so that any header can be sent; closes what it opened at its end."""

    def __init__(self, address: str) -> None:
        super().__init__()
        _, _, self.host, self.own = address.split("/")[:4]

    def _ask(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=20)
        self.callback(connection.close)
        connection.request("GET", path, headers=headers)
        return self.enter_context(connection.getresponse())

    def get(self, path: str | None = None, **headers: str) -> tuple[int, str, http.client.HTTPResponse]:
        answer = self._ask(f"/{self.own}/" if path is None else path, headers)
        return answer.status, answer.read().decode(), answer

    def stream(self, after: str = "") -> http.client.HTTPResponse:
        return self._ask(f"/{self.own}/events?after={after}", {})


def event(stream: http.client.HTTPResponse) -> dict[str, Any]:
    """Return the next event of a stream."""
    while True:
        line = stream.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line[6:])
            return found


@pytest.fixture
def reader(run: Growing) -> Iterator[Reader]:
    run.grow()
    with served(lambda: [run.folder]) as address, Reader(address) as reader:
        yield reader


def test_every_reader_gets_new_rounds(run: Growing, reader: Reader) -> None:
    first, second = reader.stream(), reader.stream()
    seen = event(first)
    assert [len(one["accuracy"]) for one in seen["document"]["runs"]] == [1]
    assert event(second) == seen
    second.close()  # a page that is closed takes nothing from the others
    run.grow()
    after = event(first)
    assert [len(one["accuracy"]) for one in after["document"]["runs"]] == [2]
    again = reader.stream(after=after["document"]["version"])  # a page that knows this is sent only what comes later
    run.grow()
    assert [len(one["accuracy"]) for one in event(again)["document"]["runs"]] == [3]


def test_the_page_has_what_there_is_and_its_own_script_only(reader: Reader) -> None:
    status, text, answer = reader.get()
    assert status == 200
    assert '<p id="live"' in text
    assert "fedbac-plus" in text
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::1]", ""])
def test_other_names_for_this_machine_are_refused(reader: Reader, host: str) -> None:
    """A page from elsewhere whose name leads to 127.0.0.1 must not read runs."""
    for path in (f"/{reader.own}/", f"/{reader.own}/events"):
        status, text, _ = reader.get(path, Host=host)
        assert status == 400
        assert "fedbac" not in text
    assert reader.get(Host="localhost")[0] == 200


@pytest.mark.parametrize("path", ["/", "/events", "/another/", "/another/events"])
def test_who_does_not_know_the_address_learns_nothing(reader: Reader, path: str) -> None:
    """Other users of the machine reach the port too."""
    status, text, answer = reader.get(path)
    assert (status, text) == (404, "Not Found")
    assert reader.own not in str(answer.headers)
    assert len(reader.own) > 20


def closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection without an answer."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_any_number_of_silent_connections_keeps_nobody_out(run: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would take a file handle of the run for as long as it likes."""
    monkeypatch.setattr("fedbac.report.live.MOST_CONNECTIONS", 8)
    run.grow()
    with served(lambda: [run.folder]) as address, Reader(address) as reader:
        stream = reader.stream()
        event(stream)
        host, port = reader.host.split(":")
        silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(200)]
        for opened in silent[:190]:
            assert closed(opened)
        assert reader.get()[0] == 200
        run.grow()
        assert event(stream), "whoever reads goes on reading"
        for opened in silent:
            opened.close()


def test_a_connection_that_asks_for_nothing_is_closed(run: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbac.report.live.ASK_SECONDS", 0.05)
    run.grow()
    with served(lambda: [run.folder]) as address, Reader(address) as reader:
        host, port = reader.host.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as half:
            half.sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert closed(half)
        monkeypatch.undo()
        assert event(reader.stream())


@pytest.mark.parametrize("path", ["/config.yaml", "/../config.yaml", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"])
def test_no_path_leads_to_a_file(reader: Reader, path: str) -> None:
    assert reader.get(path)[0] == 404


def test_it_is_reached_from_this_machine_only_and_a_taken_port_is_named() -> None:
    with listen(None) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(ValueError, match=f"--port {port}: it cannot be used .*; choose another one"):
            listen(port)


def test_an_open_page_does_not_hold_up_the_end_and_sees_the_last_round(run: Growing) -> None:
    run.grow()
    with contextlib.ExitStack() as left:
        with served(lambda: [run.folder]) as address:
            stream = left.enter_context(Reader(address)).stream()
            event(stream)
            run.grow(4)
        assert [len(one["accuracy"]) for one in event(stream)["document"]["runs"]] == [5]
        assert stream.read() == b"\n"


# ------------------------------------------------------------------------------------------------- commands


@pytest.mark.full
def test_watch_is_ended_by_ctrl_c_while_a_page_is_open(run: Growing, tmp_path: Path) -> None:
    run.grow()
    with subprocess.Popen(
        [*COMMAND, "watch", str(tmp_path / "runs")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/[\w-]+/", said)
        with Reader(address) as reader:
            assert event(reader.stream())["document"]["runs"]
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "runs are not affected" in out


ENDLESS = [*SMALL[2:], "--rounds", "100000", "--live", "--out", "runs"]
COMMANDS = {
    "run": ["run", "hierfavg", *ENDLESS],
    "compare": ["compare", "hierfavg", "fedavg", *ENDLESS],
    "sweep": ["sweep", "hierfavg", "--grid", "task.training.batch_size=8,16", "--jobs", "1", *ENDLESS],
}


class Playing:
    """A command that plays rounds until it is stopped, and shows them on a page."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.folder = folder / "runs"
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*COMMAND, *words], cwd=folder, **pipes)
        assert self.process.stdout is not None
        (self.address,) = re.findall(r"Live page: (http://127\.0\.0\.1:\d+/[\w-]+/) ", self.process.stdout.readline())
        self.page = next(
            child for child in psutil.Process(self.process.pid).children() if "fedbac.report.live" in child.cmdline()
        )

    def rounds(self) -> list[int]:
        """Return how many rounds the runs have, of those that have begun."""
        files = self.folder.rglob("rounds.jsonl")
        return [count for file in files if (count := file.read_bytes().count(b"\n"))]

    def goes_on(self) -> None:
        """Wait until another round is done."""
        before = sum(self.rounds())
        while sum(self.rounds()) == before:
            assert self.process.poll() is None, self.process.stderr
            time.sleep(0.02)

    def stop(self) -> str:
        """End it as Ctrl-C does, and return its complaints."""
        self.process.send_signal(signal.SIGINT)
        complaints = str(self.process.communicate(timeout=100)[1])
        assert self.process.returncode == 130
        assert "all complete rounds are saved" in complaints
        return complaints


@pytest.fixture
def playing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Playing]:
    command = Playing(COMMANDS[getattr(request, "param", "run")], tmp_path)
    yield command
    command.process.kill()
    command.process.communicate()


@pytest.mark.parametrize("playing", first(1, COMMANDS), indirect=True)
def test_live_follows_the_runs_of_a_command_and_ends_with_it(playing: Playing) -> None:
    """It is a process of its own, for whoever knows its path, which no list of processes shows; and what becomes of it
    does not touch a run."""
    *_, host, path, _ = playing.address.split("/")
    assert playing.page.pid != playing.process.pid
    for process in (playing.page, psutil.Process(playing.process.pid)):
        assert path not in " ".join(process.cmdline())
    with Reader(playing.address) as reader:
        stream = reader.stream()
        while not event(stream)["document"]["runs"]:
            pass
        with contextlib.ExitStack() as left:
            for _ in range(1100):
                half = left.enter_context(socket.create_connection(host.split(":"), timeout=60))
                half.sendall(b"GET / HTTP/1.1\r\nHost: ")
            playing.goes_on()
            assert reader.get()[0] == 200
        playing.page.suspend()
        playing.goes_on()
        playing.page.resume()
        assert "live page" not in playing.stop()
        *_, last = (line for line in stream if line.startswith(b"data: "))
        shown = [len(run["accuracy"]) for run in json.loads(last[6:])["document"]["runs"]]
    assert shown == playing.rounds()
    playing.page.wait(60)


@pytest.mark.full
def test_a_run_outlives_its_page(playing: Playing) -> None:
    playing.page.kill()
    playing.goes_on()
    assert "The live page ended before the runs did" in playing.stop().replace("\n", " ")


@pytest.mark.full
def test_a_page_that_stands_still_does_not_hold_up_the_end(playing: Playing) -> None:
    playing.page.suspend()
    playing.goes_on()
    playing.stop()
    assert not playing.page.is_running()


@pytest.mark.full
def test_the_page_ends_with_a_command_that_is_killed(playing: Playing) -> None:
    playing.process.kill()
    playing.page.wait(60)


@pytest.mark.full
def test_live_says_where_and_when_it_ends(fedbac: Shell) -> None:
    text = fedbac("run", "hierfavg", "--rounds", "1", "--live", "--out", "a", *SMALL[2:])
    assert re.search(r"Live page: http://127\.0\.0\.1:\d+/[\w-]+/ \(it ends with this command\)", text)
    assert text.index("Live page:") < text.index("Report:") < text.index("The live page has ended")


def test_watch_names_what_is_missing(fedbac: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nowhere: there is no such folder" in fedbac("watch", "nowhere", code=2)
    monkeypatch.delitem(sys.modules, "fedbac.report.live")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "the live page needs: pip install 'fedbac[watch]'" in fedbac("watch", ".", code=2)
