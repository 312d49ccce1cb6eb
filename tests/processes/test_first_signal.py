"""Ctrl-C in a terminal: it is answered at once, whatever the program is doing, and on a line of its own."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import LINUX

pytestmark = LINUX

IN_A_KERNEL = """
import ctypes, logging, os, threading, time
logging.basicConfig(format="%(message)s")
from fedbac.runs.stopping import Stop

libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)

def release():
    time.sleep(0.5)  # until the main thread waits
    print("ready", flush=True)
    input()
    libc.pthread_mutex_unlock(mutex)

stop = Stop()
with stop.caught():
    threading.Thread(target=release).start()
    libc.pthread_mutex_lock(mutex)  # no signal ends it, as none ends a kernel, and Python handles none meanwhile
    print("stopping" if stop.wanted else "going on", flush=True)
"""

WITH_A_BAR = """
import time
from fedbac.cli.main import main
from fedbac.cli.terminal import progress_bars
from fedbac.runs.stopping import Stop

stop = Stop()
with stop.caught(), progress_bars() as bars:
    bars.add_task("method", total=10, note="")
    print("ready", flush=True)
    while not stop.wanted:
        time.sleep(0.01)
print("over", flush=True)
"""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, code: str) -> None:
        self.handle, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=other, stdout=other, stderr=other,
            start_new_session=True, env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(other)
        self.said = ""

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Read until a text is shown, and return all that was shown before it."""
        end = time.monotonic() + seconds
        while text not in self.said:
            ready, _, _ = select.select([self.handle], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.said!r}"
            try:
                self.said += os.read(self.handle, 4096).decode()
            except OSError:  # the program has ended
                raise AssertionError(f"no {text!r} in {self.said!r}") from None
        before, _, self.said = self.said.partition(text)
        return before

    def type(self, keys: str) -> None:
        os.write(self.handle, keys.encode())


@pytest.fixture
def terminal() -> "Callable[[str], Terminal]":
    return Terminal


def test_it_is_answered_while_the_program_is_in_a_kernel(terminal: Callable[[str], Terminal]) -> None:
    program = terminal(IN_A_KERNEL)
    program.wait_for("ready")
    program.type("\x03")
    program.wait_for("Press Ctrl-C again", 20)
    program.type("go on\n")
    program.wait_for("stopping")
    assert program.process.wait(30) == 0


def test_it_is_not_written_into_the_bar(terminal: Callable[[str], Terminal]) -> None:
    program = terminal(WITH_A_BAR)
    program.wait_for("ready")
    program.wait_for("0/10")
    program.type("\x03")
    shown = program.wait_for("Stopping once") + program.wait_for("over")
    assert "^C" not in shown
    assert program.process.wait(30) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "fedbac", "methods"],
        ["-c", "import sys; sys.argv[1:] = ['methods']; from fedbac_command import main; main()"],
    ],
)
def test_it_ends_the_command_while_libraries_are_imported(words: list[str], tmp_path: Path) -> None:
    """An import that waits stands for slow ones: the signal comes in the midst of it."""
    (tmp_path / "torch.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "Stopped before anything began.\n")
