"""A run's numbers do not depend on what its caller, or another thread, does with torch and numpy."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedbac
from fedbac.core.runtime import COMMON, sealed
from fedbac.data.synthetic import toy
from fedbac.errors import ConfigError, Error
from tests.covering import first

DATA = toy(num_classes=5, size=16, train=120, test=120)
SMALL = ["task.num_edges=2", "task.clients_per_edge=2", "task.training.epochs=1", "method.selection.fraction=1.0"]


class Dropping(nn.Module):
    """A network that draws in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(256, 12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def records(method: str = "fed-bac", **given: Any) -> list[dict[str, Any]]:
    run = fedbac.run(method, dataset=DATA, settings=SMALL, rounds=2, workers=1, progress=False, **given)
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.records]


RUNS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "native": lambda: records(),
    "torch": lambda: records(trainer="torch"),
    "dropout": lambda: records(network=Dropping, device="cpu"),
    "gram": lambda: records("cfl-edges"),
    "own gradients": lambda: records("apfl-edges"),
}


@contextmanager
def put(name: str, value: Any) -> Iterator[None]:
    """Set something that all threads have in common."""
    get, set_, _ = COMMON[name]
    before = get()
    set_(value)
    try:
        yield
    finally:
        assert get() == value, "the run did not put back what it found"
        set_(before)


@contextmanager
def another_thread(work: Callable[[], object]) -> Iterator[None]:
    done = threading.Event()

    def forever() -> None:
        while not done.is_set():
            work()

    thread = threading.Thread(target=forever)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def drawn() -> Iterator[None]:
    """Check on the way that a run leaves the caller's random numbers alone."""
    torch.manual_seed(5)
    yield
    found = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(found, torch.rand(3))


@contextmanager
def numpy_drawn() -> Iterator[None]:
    """Check the same of numpy's."""
    np.random.seed(5)
    yield
    found = np.random.rand(3)
    np.random.seed(5)
    assert np.array_equal(found, np.random.rand(3))


HOSTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "meta device": lambda: torch.device("meta"),
    "double": lambda: put("default dtype", torch.float64),
    "half": lambda: put("default dtype", torch.float16),
    "medium products": lambda: put("precision of matrix products", "medium"),
    "high products": lambda: put("precision of matrix products", "high"),
    "deterministic": lambda: put("deterministic algorithms", (True, False)),
    "no oneDNN": lambda: put("oneDNN", False),
    "no NNPACK": lambda: put("NNPACK", False),
    "2 threads": lambda: put("number of threads", 2),
    "5 threads": lambda: put("number of threads", 5),
    "no denormals": lambda: put("denormal numbers", True) if torch.set_flush_denormal(False) else nullcontext(),
    "numpy raises": lambda: np.errstate(all="raise"),
    "numpy ignores": lambda: np.errstate(all="ignore"),
    "seeded": drawn,
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "brain floats": lambda: put("default dtype", torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "warned of what is not deterministic": lambda: put("deterministic algorithms", (True, True)),
    "coarse convolutions": lambda: put("precision of mkldnn.conv", "bf16"),
    "coarse products": lambda: put("precision of mkldnn.matmul", "bf16"),
    "no cuDNN": lambda: torch.backends.cudnn.flags(enabled=False),
    "cuDNN tries": lambda: torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True),
    "other attention": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "tensors packed": lambda: saved_tensors_hooks(lambda found: found.clone(), lambda kept: kept),
    "one autograd thread": lambda: torch.autograd.set_multithreading_enabled(False),
    "numpy seeded": numpy_drawn,
    "somebody draws": lambda: another_thread(lambda: torch.rand(10)),
    "somebody seeds": lambda: another_thread(lambda: torch.manual_seed(1)),
}


def tolerant(work: Callable[[], object]) -> Callable[[], None]:
    """While a graph is captured, torch has an error for whoever draws from the GPU's own generator."""

    def tried() -> None:
        with suppress(RuntimeError):
            work()

    return tried


if torch.cuda.is_available():
    THERE = torch.ones(64, 64, device="cuda")
    RUNS["dropout on a GPU"] = lambda: records(network=Dropping, device="cuda")
    HOSTS |= {
        "autocast on the GPU": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
        "GPU by default": lambda: torch.device("cuda"),
        "another stream": lambda: torch.cuda.stream(torch.cuda.Stream()),  # type: ignore[no-untyped-call]
        "somebody draws there": lambda: another_thread(tolerant(lambda: torch.rand(10, device="cuda"))),
        "somebody seeds there": lambda: another_thread(tolerant(lambda: torch.cuda.manual_seed(1))),
        "somebody computes there": lambda: another_thread(lambda: THERE.cos().sum()),
    }


@pytest.fixture(scope="module")
def usual() -> dict[str, list[dict[str, Any]]]:
    return {name: run() for name, run in RUNS.items()}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("host", first(8, HOSTS))
@pytest.mark.covering
def test_a_run_does_not_depend_on_the_state_of_its_caller(host: str, run: str, usual: dict[str, Any]) -> None:
    with HOSTS[host]():
        found = RUNS[run]()
    assert found == usual[run]


OF_A_THREAD = {"no_grad", "inference mode", "autocast", "meta device", "numpy raises", "numpy ignores", "no gradients"}
"""What a caller sets for its own thread, and not for those it starts."""
PAIRS = dict(zip(HOSTS, cycle(RUNS), strict=False))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("threads", first(1, [2, 5]))
@pytest.mark.parametrize("host", first(3, PAIRS))
def test_runs_in_threads_side_by_side_give_the_same_numbers(host: str, threads: int, usual: dict[str, Any]) -> None:
    run = PAIRS[host]
    outside, inside = (nullcontext, HOSTS[host]) if host in OF_A_THREAD else (HOSTS[host], nullcontext)

    def play(_: int) -> list[dict[str, Any]]:
        with inside():
            return RUNS[run]()

    with outside(), ThreadPoolExecutor(threads) as pool:
        assert all(found == usual[run] for found in pool.map(play, range(threads)))


def test_a_change_by_somebody_else_meanwhile_is_an_error() -> None:
    with pytest.raises(Error, match="default dtype was changed while a round was computed"), sealed():
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() == torch.float32


def test_a_network_that_cannot_learn_is_refused() -> None:
    class Detached(Dropping):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(ConfigError, match="does not depend on any weight that can learn"):
        records(network=Detached)


class Nothing(Dropping):
    """A network of which every gradient is zero. Weight decay moves its weights, and batches its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(2, nn.BatchNorm1d(12))

    def forward(self, x: Tensor) -> Tensor:
        return 0 * super().forward(x)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("labels", "loss", "times"),
    [
        (np.full(120, 3), "cross_entropy", 1),
        (np.arange(120) % 2, "cross_entropy", 0),
        (np.ones((120, 1), np.float32), "squared_error", 0),
    ],
)
def test_a_run_whose_labels_are_all_of_one_class_says_so_once(
    labels: Any, loss: str, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = fedbac.Dataset.from_arrays("alike", DATA.x_train, labels, DATA.x_train, labels)
    settings = [*SMALL, f"task.loss={loss}"]
    with fedbac.play("hierfavg", dataset=data, settings=settings, rounds=2, workers=1, out=tmp_path) as playing:
        next(playing)
    fedbac.resume(tmp_path, dataset=data, progress=False)
    assert caplog.text.count("every training label is class 3, so a model that always answers it scores 100 %") == times


@pytest.mark.parametrize(("decay", "method"), [(0.0, "fed-bac"), (5e-4, "fed-bac"), (5e-4, "fedadam"), (0.1, "ditto")])
@pytest.mark.parametrize("network", [Nothing, Dropping])
def test_a_run_in_which_no_weight_moves_says_so_in_one_line(
    network: type[Dropping], decay: float, method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = [*SMALL, f"task.training.weight_decay={decay}"]
    with fedbac.play(
        method, dataset=DATA, network=network, settings=settings, rounds=3, workers=1, out=tmp_path
    ) as playing:
        next(playing)
        next(playing)
    assert len(fedbac.resume(tmp_path, dataset=DATA, network=network, progress=False).records) == 3
    said = [record.getMessage() for record in caplog.records if "no gradient moved a weight" in record.getMessage()]
    assert [line.split(":")[0] for line in said] == ["round 1"] * (network is Nothing)
