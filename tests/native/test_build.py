"""The kernel with every compiler at hand, for x86 and ARM, and the package where it could not be built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedbac import native
from fedbac.native import Images, JobSgd, JobVisits, Layers

ROOT = Path(__file__).parents[2]
ARM = "aarch64-linux-gnu"
COMPILERS = {
    "g++": ["g++"],
    "clang++": ["clang++"],
    "g++ for ARM": [f"{ARM}-g++", "-static"],
    "clang++ for ARM": ["clang++", f"--target={ARM}", "-static"],
}


def small_case() -> tuple[str, np.ndarray]:
    """A case as C++, and its result from the installed kernel: two parts, ragged batches, momentum, clipping, crops."""
    rng = np.random.default_rng(0)
    layers = Layers(2, 13, 14, ((3, 3), (5, 2)), (9, 7))
    images = Images(rng.integers(0, 256, (40, 2, 13, 14), np.uint8), rng.integers(0, 7, 40), [0.4, 0.5], [0.2, 0.3])
    networks = rng.uniform(-0.2, 0.2, (3, layers.num_parameters)).astype(np.float32)
    start = np.array([[0, 1], [2, 0]])
    num_examples, num_epochs = np.array([37, 5]), np.array([2, 3])
    visits = num_examples @ num_epochs
    examples = rng.integers(0, 40, visits)
    crop, flip = rng.integers(-3, 4, (visits, 2)).astype(np.int8), rng.integers(0, 2, visits).astype(bool)
    rates = np.array([0.05, 0.02])
    body = slice(0, layers.num_parameters - 7 * 10)
    sgd = JobSgd(16, rates, 0.9, weight_decay=(0.01, 0.0), l2=(0.0, 0.1), max_norm=0.5, moving=(body, slice(None)))
    anchor = np.array([[-1, 2], [-1, -1]])
    groups = [examples[:50], examples[50:]]
    pairs = np.array([(0, 0), (1, 0), (1, 1)])
    trained = native.train(
        layers,
        images,
        networks,
        start,
        JobVisits(examples, num_examples, num_epochs, crop, flip),
        sgd,
        anchors_AD=networks,
        anchor_JP=anchor,
        return_velocity=True,
        instruction_set="base",
    )
    evaluated = native.evaluate(layers, images, networks, start, groups, pairs, instruction_set="base")
    assert trained.velocity_JPD is not None
    outputs: list[Any] = [trained.parameters_JPD, trained.velocity_JPD, trained.loss_J, trained.square_J]
    outputs += [trained.finite_J, evaluated.loss, evaluated.correct]

    mean, std = np.array(images.mean_C), np.array(images.std_C)
    arrays: dict[str, Any] = {
        "int32_t shape": layers.numbers, "uint8_t pixels": images.pixels_NCHW, "float scale": 1 / (255 * std),
        "float shift": -mean / std, "int64_t labels": images.labels_N, "float networks": networks,
        "int64_t start": start, "int32_t examples": examples, "int64_t begin": [0, num_examples[0] * num_epochs[0]],
        "int64_t num_examples": num_examples, "int64_t num_epochs": num_epochs, "int8_t crop": crop,
        "uint8_t flip": flip.astype(int), "float weight_decay": sgd.weight_decay, "float l2": sgd.l2,
        "float learning_rate": rates, "int64_t anchor": anchor, "int64_t moving_begin": [0, 0],
        "int64_t moving_end": [body.stop, layers.num_parameters], "int64_t group_begin": [0, 50, visits],
        "int64_t pair_model": pairs[:, 0],
        "int64_t pair_group": pairs[:, 1],
    }  # fmt: skip
    numbers = {
        "int64_t batch_size": sgd.batch_size, "int64_t max_epochs": num_epochs.max(), "float momentum": sgd.momentum,
        "float max_norm": sgd.max_norm,
    }  # fmt: skip
    lines = [f"const {name} = {_literal(name, value)};" for name, value in numbers.items()]
    for name, values in arrays.items():
        lines.append(f"const {name}[] = {{{', '.join(_literal(name, value) for value in np.ravel(values))}}};")
    return "\n".join(lines), np.concatenate([np.ravel(output) for output in outputs])


def _literal(name: str, value: Any) -> str:
    return f"{np.float32(value):.9e}f" if name.startswith("float") else str(int(value))


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILERS)
def test_every_compiler_builds_it_without_a_warning_and_computes_the_same(name: str, tmp_path: Path) -> None:
    compiler, *flags = COMPILERS[name]
    for_arm = "ARM" in name
    emulator = ["qemu-aarch64"] if for_arm and os.uname().machine != "aarch64" else []
    tools = [compiler, f"{ARM}-g++", *emulator] if for_arm else [compiler]  # Clang takes the C++ library from GCC
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if native.missing() is not None:
        pytest.skip(f"nothing to compare with: the native kernel cannot be used: {native.missing()}")
    text, expected = small_case()
    (tmp_path / "case.hpp").write_text(text)
    program = tmp_path / "driver"
    sources = [f"-I{ROOT / 'src/fedbac/native'}", f"-I{tmp_path}", str(Path(__file__).with_name("driver.cpp"))]
    checks = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"]
    built = subprocess.run([compiler, *checks, *flags, *sources, "-o", str(program)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    found = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[-1].startswith("base ")
    for line in found:
        np.testing.assert_allclose(np.array(line.split()[1:], float), expected, rtol=1e-5, atol=1e-5)


def build(folder: Path, compiler: str) -> tuple[str, list[Path]]:
    """Return what building the extension with a stand-in for a compiler says, and the library if there is one."""
    stand_in = folder / "compiler"
    stand_in.write_text(f"#!/bin/sh\n{compiler}\n")
    stand_in.chmod(0o755)
    places = [f"--build-lib={folder / 'lib'}", f"--build-temp={folder / 'tmp'}"]
    environment = os.environ | {"CC": str(stand_in), "CXX": str(stand_in)}
    command = [sys.executable, "setup.py", "build_ext", *places]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr, list((folder / "lib").rglob("_kernel*"))


def test_flags_that_the_compiler_refuses_are_left_out(tmp_path: Path) -> None:
    refuse = 'case "$*" in *-fno-predictive-commoning*) exit 1;; esac\n'
    touch = 'while [ "$1" != -o ]; do shift; done; touch "$2"'
    said, libraries = build(tmp_path, refuse + touch)
    assert len(libraries) == 1, said


def test_a_build_that_fails_is_a_warning(tmp_path: Path) -> None:
    said, libraries = build(tmp_path, "exit 1")
    assert "_kernel" in said
    assert "failed" in said
    assert not libraries


@pytest.fixture
def kernel_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the library be looked for at another place, or at none."""

    def move(path: Path | None) -> None:
        monkeypatch.setattr(native, "_path", lambda: path)
        native._library.cache_clear()

    yield move
    native._library.cache_clear()


def test_a_kernel_that_is_absent_or_broken_is_missing_with_a_reason(kernel_at: Any, tmp_path: Path) -> None:
    kernel_at(None)
    assert "not built" in (native.missing() or "")
    broken = tmp_path / "_kernel.so"
    broken.write_text("not a library")
    kernel_at(broken)
    assert str(broken) in (native.missing() or "")
    assert native.missing() is not None


@pytest.mark.parametrize("library", [SimpleNamespace(), SimpleNamespace(fedbac_layout=lambda: 7)])
def test_a_kernel_of_another_layout_is_refused_instead_of_called(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_path", lambda: ROOT)
    monkeypatch.setattr(native, "_library", lambda: library)
    assert "another version of fedbac" in (native.missing() or "")
