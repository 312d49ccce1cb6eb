"""Worker processes of this machine: they leave signals to their parent and end with it."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from fedbac.core.signals import SIGNALS

RESTARTS = 2
"""How often work is begun again whose process died; work that kills its process every time must end some day."""
LOOK_SECONDS = 0.5
"""How often a worker looks whether its parent is still there."""


def start_pool(workers: int, begin: Callable[..., None] | None = None, *words: Any, litter: Path | None = None) -> Any:
    """Return an executor of worker processes, each of which calls ``begin`` with these words first.

    The words must be few: what does not fit into a pipe would keep the parent waiting while a process starts, and for
    ever if it dies meanwhile. ``litter`` is a folder that workers remove if the parent dies.
    """
    from loky import ProcessPoolExecutor  # starts slowly and is not always needed

    resource_tracker.ensure_running()  # else it begins with the first process, and ends the blocking of signals
    return ProcessPoolExecutor(
        max_workers=workers, timeout=60, initializer=_begin, initargs=(os.getpid(), litter, begin, words)
    )


def _begin(parent: int, litter: Path | None, begin: Callable[..., None] | None, words: tuple[Any, ...]) -> None:
    for number in SIGNALS:  # the parent's to handle: it saves first, and tells workers to stop
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent, litter), daemon=True).start()
    if begin is not None:
        begin(*words)


def _end_with(parent: int, litter: Path | None) -> None:
    """End this process, wherever it is, once its parent is gone: nobody waits for its work, and it holds locks."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    if litter is not None:
        shutil.rmtree(litter, ignore_errors=True)
    os._exit(1)
