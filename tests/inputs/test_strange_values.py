"""Values that Python lets through to us and that are not what they seem: each is used rightly, or one sentence."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedbac
from fedbac.cli.main import main
from fedbac.core.state import flatten
from fedbac.data import load, toy
from fedbac.engines import simulator
from fedbac.errors import ConfigError, DataNotFoundError, PolicyError, RunInUseError
from tests.store.damage import TASK
from tests.test_cli import SMALL

DATA = toy(size=8)
RNG = np.random.default_rng(0)
X, Y = RNG.random((300, 1, 8, 8), dtype=np.float32), RNG.integers(0, 10, 300)


def loss(x: Any = X, y: Any = Y, network: Any = None) -> float:
    data = fedbac.Dataset.from_arrays("own", x, y, x[:200], y[:200])
    run = fedbac.run("hierfavg", TASK, dataset=data, network=network, rounds=1, device="cpu", workers=1)
    return float(run.records[-1]["loss"])


class Made(nn.Module):
    """What something makes of its input."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        return self.make(x)


def test_the_other_byte_order_is_the_same_data() -> None:
    assert loss(X.astype(">f4")) == loss(X.astype(">f8")) == loss(y=Y.astype(">i4")) == loss()
    assert loss(np.ma.masked_array(X, mask=False)) == loss()


def test_a_file_says_how_many_classes_there_are(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x_train": X, "y_train": Y % 5, "x_test": X, "y_test": Y % 5}
    np.savez(tmp_path / "own.npz", num_classes=7, **arrays)
    assert load(str(tmp_path / "own.npz")).num_classes == 7
    np.savez(tmp_path / "own.npz", num_classes=2**62, **arrays)
    with pytest.raises(DataNotFoundError, match="num_classes is 4611686018427387904; it must be a whole number"):
        load(str(tmp_path / "own.npz"))


def test_a_single_number_is_no_data() -> None:
    with pytest.raises(ConfigError, match=r"y_train is 3\.0; give an array with an example in every row"):
        fedbac.Dataset.from_arrays("own", X, np.array(3.0), X, Y)


def test_tensors_and_long_numbers_are_the_same_data() -> None:
    whole = torch.tensor(X)
    assert loss(X.astype(np.longdouble)) == loss(whole.requires_grad_()) == loss(y=torch.tensor(Y)) == loss()
    rough = whole.bfloat16()
    assert loss(rough) == loss(rough.float())


@pytest.mark.parametrize(
    ("x", "y", "problem"),
    [
        (np.where(X > 0.9, 1e300, X.astype(np.float64)), Y, "numbers that float32 has not"),
        (np.where(X > 0.9, np.nan, X), Y, "hold NaN"),
        (np.ma.masked_array(X, mask=X > 0.5), Y, "x_train is masked in places"),
        (X, np.ma.masked_array(Y, mask=Y > 5), "y_train is masked in places"),
        (X, np.full(len(X), 1e300), "must be 1 finite numbers"),
        (X, Y + 2**62, "num_classes is 4611686018427387914; it must be a whole number from 1 to"),
        (X, Y + 100_000, "whole number from 1 to 100,000"),
        (X[:, :, :0], Y, r"examples have shape \(1, 0, 8\), so nothing is in them"),
        (np.full((300, 3), 2**62), Y, "tokens run from 4611686018427387904"),
        (X, [[1], [1, 2]], "y_train is no array"),
        ([X[0], X[1, :, :4]], Y, "x_train is no array .*images of one size"),
        (X, torch.zeros(300, device="meta"), "y_train is no array"),
        (X, np.eye(10)[Y], "use squared_error, or give classes as whole numbers"),
        (X, Y[:, None], "use next_token, or give classes as whole numbers"),
    ],
)
def test_data_that_would_mislead_are_refused(x: Any, y: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loss(x, y)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: nn.Linear(64, 10).double(), "1.weight is float64, but only float32 is trained"),
        (lambda: nn.Linear(64, 10).half(), "1.weight is float16, but only float32 is trained"),
        (lambda: nn.Linear(64, 10).bfloat16(), "1.weight is bfloat16, but only float32 is trained"),
        (lambda: nn.Linear(64, 10, dtype=torch.complex64), "is complex64, but only float32 is trained; make it of two"),
        (lambda: Made(lambda x: x), "it has no weights, so nothing can learn"),
        (lambda: nn.LazyLinear(10), "1.weight is of a lazy layer"),
        (lambda: nn.Sequential(nn.Linear(64, 10), Made(lambda x: x + 0j)), "real logits, not complex64, strided"),
        (lambda: nn.Sequential(nn.Linear(64, 10), Made(Tensor.to_sparse)), "real logits, not float32, sparse_coo"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_networks_of_another_kind_are_named(make: Callable[[], nn.Module], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loss(network=lambda: nn.Sequential(nn.Flatten(), make()))


@pytest.mark.parametrize("strange", [np.array([{}]), np.array([1j]), np.array(["a"])])
def test_what_no_checkpoint_holds_is_named(strange: Any) -> None:
    with pytest.raises(PolicyError, match=r"clustering/memory: a policy remembers .*, which no checkpoint can hold"):
        flatten({"clustering": {"memory": strange}})
    assert flatten({"a": np.arange(3, dtype=">f8")})["a"].tolist() == [0, 1, 2]


class Count(NamedTuple):
    rounds: Any


class Forgetful(fedbac.Random):
    """A policy of the user's that remembers something else than it began with."""

    kind: Literal["forgetful"] = "forgetful"  # type: ignore[assignment]
    learned: ClassVar[Any]

    def init(self, num_members: int) -> Any:
        return Count(np.zeros(1))

    def learn(self, state: Any, evidence: Any, mask_N: Any) -> Any:
        return Count(self.learned)


ENDLESS: dict[str, Any] = {}
ENDLESS["rounds"] = ENDLESS


@pytest.mark.parametrize("learned", [1, 1.0, np.float64(1), ENDLESS, [np.ones(1)], np.array([{}]), np.array([1j])])
def test_what_a_policy_comes_to_remember_can_be_saved(learned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no array would be in no checkpoint, and the run could not be resumed."""
    monkeypatch.setattr(Forgetful, "learned", learned, raising=False)
    method = fedbac.Method(name="forgetful", selection=Forgetful())
    with pytest.raises(
        PolicyError, match=r"selection .*: learn\(\) and act\(\) must return an array of numbers as field"
    ):
        fedbac.run(method, TASK, dataset=DATA, rounds=1, device="cpu", workers=1)


def test_settings_that_contain_themselves_are_one_sentence() -> None:
    endless: dict[str, Any] = {}
    endless["kind"] = endless
    for path in ("task", "method", "method.clustering", "task.training", "evaluation", "seed", "runtime.workers"):
        with pytest.raises(ConfigError):
            fedbac.run("hierfavg", TASK, dataset=DATA, settings={path: endless})


def test_a_run_that_was_left_is_told_from_that_of_another_process(tmp_path: Path) -> None:
    left = fedbac.play("hierfavg", TASK, dataset=DATA, out=tmp_path, device="cpu", workers=1)
    for _ in left:
        break
    with pytest.raises(RunInUseError, match=r"this process began is still open; .*close\(\)"):
        fedbac.resume(tmp_path, dataset=DATA)
    left.close()
    assert len(fedbac.resume(tmp_path, dataset=DATA).records) == TASK.rounds


@pytest.mark.full
def test_a_name_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the folder, which could not be resumed, nor elsewhere in a command, which the folder states."""
    for name in ("\ud800", os.fsdecode(b"\xff")):
        with pytest.raises(ConfigError, match="must be text in UTF-8"):
            fedbac.run("hierfavg", TASK, dataset=DATA, out=f"{tmp_path}/{name}")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    odd = ["--data", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), "--out", str(tmp_path / "run")]
    words = ["run", "hierfavg", *SMALL, "--rounds", "1", *odd]
    done = subprocess.run([sys.executable, "-m", "fedbac", *words], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(sys, "argv", ["fedbac", *words])
    with pytest.raises(SystemExit) as end:  # the second time it is read
        main()
    assert not end.value.code


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_limit_of_all_control_groups_counts(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, names = tmp_path / "groups", ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    (tmp_path / "own").write_text("3:cpu:/x\n5:memory,hugetlb:/a/b\n" if version == 1 else "0::/a/b\n")
    top = root / "memory" if version == 1 else root
    (top / "a" / "b").mkdir(parents=True)
    for group, limit, used in (("a/b", 9000, 100), ("a", 1000, 400)):
        for name, value in zip(names, (limit, used), strict=True):
            (top / group / f"memory.{name}").write_text(f"{value}\n")
    (top / f"memory.{names[0]}").write_text("max\n")
    monkeypatch.setattr(simulator, "GROUPS", root)
    monkeypatch.setattr(simulator, "OWN_GROUPS", tmp_path / "own")
    assert simulator.free_memory(torch.device("cpu")) == 600
    (top / "a" / f"memory.{names[1]}").write_text("4000\n")
    assert simulator.free_memory(torch.device("cpu")) == 0
