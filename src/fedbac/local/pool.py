"""The loop trainer in one single-threaded process per core; in this one alone while there is little to do."""

import logging
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from fedbac.core import signals, trees
from fedbac.core.parts import Anatomy, Parts, Personalization
from fedbac.core.requests import Evaluate, Measured, Teachers, Train, Trained, gathered
from fedbac.core.signals import SIGNALS
from fedbac.errors import EngineError, OutputError
from fedbac.files import write_whole
from fedbac.local.examples import Examples
from fedbac.local.loop import LoopTrainer

RESTARTS = 2
"""How often work is begun again whose process died; work that kills its process every time must end some day."""
LOOK_SECONDS = 0.5
"""How often a worker looks whether its parent is still there."""


def start_pool(workers: int, begin: Callable[..., None] | None = None, *args: Any, scratch: Path | None = None) -> Any:
    """Return an executor of worker processes, each of which calls ``begin`` with these arguments first. They must be
    small: what does not fit into a pipe would keep the parent waiting while a process starts, and for ever if it dies
    meanwhile. ``scratch`` is a folder that workers remove if the parent dies."""
    from loky import ProcessPoolExecutor  # starts slowly and is not always needed

    resource_tracker.ensure_running()  # else it begins with the first process, and ends the blocking of signals
    return ProcessPoolExecutor(
        max_workers=workers, timeout=60, initializer=_begin_worker, initargs=(os.getpid(), scratch, begin, args)
    )


def _begin_worker(parent: int, scratch: Path | None, begin: Callable[..., None] | None, args: tuple[Any, ...]) -> None:
    for number in SIGNALS:  # the parent's to handle: it saves first, and tells workers to stop
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent, scratch), daemon=True).start()
    if begin is not None:
        begin(*args)


def _end_with(parent: int, scratch: Path | None) -> None:
    """End this process, wherever it is, once its parent is gone: nobody waits for its work, and it holds locks."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


Arrays = dict[str, dict[str, np.ndarray]]
"""Parts as numpy arrays: cheap to send between processes."""

START_SECONDS = 5.0
"""About what it takes until workers have imported torch. They are started once the work has taken as long here: whoever
has little to do never waits for them, and whoever has much waits at most twice as long as had they begun with them."""

_worker: LoopTrainer
Job = TypeVar("Job")
Result = TypeVar("Result")

log = logging.getLogger("fedbac")


def _begin(arguments: str) -> None:
    global _worker
    torch.set_num_threads(1)
    with open(arguments, "rb") as file:
        _worker = LoopTrainer(*pickle.load(file))


def _train(request: Train, bank: Arrays, momentum: Arrays, shift: Arrays) -> tuple[Arrays, Arrays, Trained]:
    """Return what a client comes back with: its parts and momentum packed, and the rest."""
    whole = replace(request, bank=_unpack(bank), momentum=_unpack(momentum) or None, shift=_unpack(shift))
    trained = _worker.train_one(whole, 0)
    return _pack(trained.parts_C), _pack(trained.momentum or {}), replace(trained, parts_C={}, momentum=None)


def _evaluate(request: Evaluate, bank: Arrays) -> Measured:
    return _worker.evaluate_one(replace(request, bank=_unpack(bank)))


class PoolTrainer:
    """Spreads clients over worker processes once there is enough to do; computes exactly what the loop trainer does."""

    path = "torch-loop"
    device = torch.device("cpu")

    def __init__(self, network: nn.Module, scheme: Personalization, examples: Examples, workers: int) -> None:
        self.examples, self.network = examples, network
        self.anatomy = Anatomy(scheme, network)
        self.workers = workers
        self.alone = LoopTrainer(network, scheme, examples)
        self.spent = 0.0
        """Seconds of work in this process."""
        self.needed = network, scheme, examples
        self.folder = TemporaryDirectory(prefix="fedbac-")
        self.arguments = Path(self.folder.name, "arguments")
        """The file of what every worker needs, written once and read by each as it begins."""
        self.pool: Any = None

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests, largest first so that no worker is left with a long one at the end."""
        jobs = [(r, c) for r, request in enumerate(requests) for c in range(len(request.clients))]
        jobs.sort(key=lambda job: -self.examples.shards.train[requests[job[0]].clients[job[1]]].size)
        done = self._begin(jobs, lambda job: self.alone.train_one(requests[job[0]], job[1]))
        calls, left = [], jobs[len(done) :]
        for r, c in left:
            request = requests[r]
            one = request.part(slice(c, c + 1))
            bank = {part: trees.select(stack, one.row_C[part]) for part, stack in request.bank.items()}
            first = {part: np.zeros(1, dtype=np.int64) for part in bank}
            light = replace(one, bank={}, row_C=first, momentum=None, shift={}, teachers=_own(one.teachers))
            calls.append((light, _pack(bank), _pack(one.momentum or {}), _pack(one.shift)))
        for job, (parts, momentum, rest) in zip(left, self._spread(_train, calls), strict=True):
            done[job] = replace(rest, parts_C=_unpack(parts), momentum=_unpack(momentum) or None)
        return [gathered([done[r, c] for c in range(len(request.clients))]) for r, request in enumerate(requests)]

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""
        done = self._begin(range(len(requests)), lambda r: self.alone.evaluate_one(requests[r]))
        calls = []
        for request in requests[len(done) :]:
            bank, row_V = {}, {}
            for part in (part for network in self.anatomy.judged for part in self.anatomy.parts[network]):
                used, row_V[part] = np.unique(request.row_V[part], return_inverse=True)
                bank[part] = trees.select(request.bank[part], used)
            calls.append((replace(request, bank={}, row_V=row_V), _pack(bank)))
        return [*done.values(), *self._spread(_evaluate, calls)]

    def close(self) -> None:
        """Stop the workers."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, kill_workers=True)
        self.folder.cleanup()

    def _begin(self, jobs: Sequence[Job], work: Callable[[Job], Result]) -> dict[Job, Result]:
        """Do jobs in this process, the first ones, until it is worth to start workers for the others."""
        done: dict[Job, Result] = {}
        for job in jobs:
            if self.pool is not None or self.spent >= START_SECONDS:
                break
            began = perf_counter()
            done[job] = work(job)
            self.spent += perf_counter() - began
        return done

    def _start(self) -> Any:
        from cloudpickle import dumps  # a network may be of a class that only the user's script knows

        try:
            if not self.arguments.exists():
                write_whole(self.arguments, dumps(self.needed))
        except OutputError as error:
            raise EngineError(
                f"the data for worker processes cannot be written ({error}); make room, choose another folder by "
                "TMPDIR, or use one process (--workers 1)"
            ) from error
        return start_pool(self.workers, _begin, str(self.arguments), scratch=self.arguments.parent)

    def _spread(self, work: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what ``work`` returns for each call; what dies with a worker is done again by new ones."""
        from loky.process_executor import TerminatedWorkerError

        done: dict[int, Any] = {}
        if calls and self.pool is None:
            self.pool = self._start()
        for _ in range(1 + RESTARTS):
            try:
                with signals.held():
                    waiting = {i: self.pool.submit(work, *call) for i, call in enumerate(calls) if i not in done}
                while waiting:
                    i = next(iter(waiting))
                    done[i] = waiting.pop(i).result()
                return [done[i] for i in range(len(calls))]
            except TerminatedWorkerError:
                log.warning("A worker process died; what it was doing is done again.")
                self.pool.shutdown(wait=True, kill_workers=True)
                self.pool = self._start()
        raise EngineError(
            f"worker processes died {1 + RESTARTS} times over the same work; if they were killed for lack of memory, "
            "use fewer of them (--workers) or a smaller budget (--memory)"
        )


def _own(teachers: Teachers | None) -> Teachers | None:
    """Return the teachers of a single client: those that count, and none where it learns nothing from them."""
    if teachers is None or not teachers.shares.any():
        return None
    counts = np.flatnonzero(teachers.weight_CT[0] > 0)
    bank = {name: value.clone() for name, value in trees.select(teachers.bank, counts).items()}  # a view would take all
    return replace(teachers, bank=bank, weight_CT=teachers.weight_CT[:, counts])


def _pack(parts: Parts) -> Arrays:
    return {part: {name: value.numpy() for name, value in params.items()} for part, params in parts.items()}


def _unpack(packed: Arrays) -> Parts:
    return {part: {n: torch.from_numpy(value) for n, value in arrays.items()} for part, arrays in packed.items()}
