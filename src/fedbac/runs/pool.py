"""Runs in processes of this machine, one of which may die without harm to the others."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedbac.core import signals
from fedbac.errors import EngineError
from fedbac.local.pool import RESTARTS, start_pool

log = logging.getLogger("fedbac")


class RunPool:
    """Worker processes, each a pool of its own: when one dies, only the run in its hands is begun again."""

    def __init__(self, size: int) -> None:
        self.threads = ThreadPoolExecutor(size)
        """Each waits for one worker."""
        self.mine = threading.local()
        self.pools: list[Any] = []
        self.closed, self.lock = False, threading.Lock()

    def submit(self, work: Callable[..., None], folder: str, *words: Any) -> Future[None]:
        """Have a worker do ``work(folder, *words)``, which must be able to go on where a dead worker left it."""
        return self.threads.submit(self._do, work, folder, *words)

    def close(self) -> None:
        """Kill the workers."""
        with self.lock:
            self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for pool in self.pools:
            pool.shutdown(wait=True, kill_workers=True)
        self.threads.shutdown(wait=True)

    def _do(self, work: Callable[..., None], folder: str, *words: Any) -> None:
        from loky.process_executor import TerminatedWorkerError

        for _ in range(1 + RESTARTS):
            pool = self._pool()
            if pool is None:
                return
            try:
                with signals.held():
                    future = pool.submit(work, folder, *words)
                future.result()
            except TerminatedWorkerError:
                self._drop(pool)
                if not self.closed:
                    log.warning("%s: its process died; it resumes from its last checkpoint", folder)
            else:
                return
        raise EngineError(
            f"{folder}: its process died {1 + RESTARTS} times; if it was killed for lack of memory, run fewer at a "
            "time (--jobs). The same command resumes from its last checkpoint"
        )

    def _pool(self) -> Any:
        """Return the pool of this thread, or nothing once all is to end."""
        with self.lock:
            if not self.closed and getattr(self.mine, "pool", None) is None:
                self.mine.pool = start_pool(1)
                self.pools.append(self.mine.pool)
            return None if self.closed else self.mine.pool

    def _drop(self, pool: Any) -> None:
        """Let go of a pool whose process died."""
        with self.lock:
            self.mine.pool = None
            if not self.closed:  # else it is dealt with already
                self.pools.remove(pool)
        pool.shutdown(wait=True, kill_workers=True)
