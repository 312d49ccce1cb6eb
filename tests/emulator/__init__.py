"""The GPU kernels on a CPU: compiled as C++ with the little of CUDA they use emulated, and launched the same way."""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import POINTER, c_uint, c_void_p
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fedbac.gpu.driver import Kernel, KernelQueue, Turn, in_turn

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
NO_COMPILER = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate the GPU kernels with")


class EmulatedModule:
    """Takes the place of ``driver.Module``; tensors must be on the CPU."""

    def __init__(self, source: str) -> None:
        self.library = ctypes.CDLL(str(_compiled(source)))

    def kernel(self, name: str, shared_bytes: int = 0) -> str:
        return name

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, shared_bytes: int, stream: None, arguments: Any
    ) -> None:
        launch = getattr(self.library, f"launch_{kernel}")
        launch.argtypes = [POINTER(c_uint), c_uint, POINTER(c_void_p)]
        launch((c_uint * 3)(*grid), threads, ctypes.cast(arguments, POINTER(c_void_p)))

    def launch_all(self, kernels: Sequence[Kernel], lanes: Sequence[KernelQueue], turns: Sequence[Turn]) -> None:
        in_turn(self.launch, kernels, lanes, turns)


@lru_cache
def _compiled(source: str) -> Path:
    """Return the library of some kernels; what a process has compiled once, all later ones take."""
    own = files("fedbac.gpu").joinpath("intrinsics.cu").read_text()  # cuda.hpp has them in other words
    text = source.replace(own, "").replace("extern __shared__", "extern").replace("__shared__", "static")
    launchers = _of_network(text) if "CONVOLUTION_LIST(X)" in text else _of_kernels(text)
    text = "\n".join([(HERE / "cuda.hpp").read_text(), text, *launchers])
    command = [str(COMPILER), "-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC"]
    key = hashlib.sha256("\n".join([*command, text]).encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"fedbac-emulator-{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            file, library = Path(place) / "kernels.cpp", Path(place) / "kernels.so"
            file.write_text(text)
            subprocess.run([*command, "-o", str(library), str(file)], check=True)
            library.replace(target)  # at once, as others may be compiling the same
    return target


def _of_kernels(text: str) -> list[str]:
    """Return launchers of the kernels that a text spells out."""
    found = []
    for name, signature in re.findall(
        r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)', text
    ):
        kinds = [parameter.strip().rpartition(" ")[0] for parameter in signature.split(",")]
        given = ", ".join(f"*({kind}*)a[{place}]" for place, kind in enumerate(kinds))
        found.append(
            f'extern "C" void launch_{name}(const unsigned* grid, unsigned threads, void** a) {{ '
            f"LAUNCH({name}, {given}) }}"
        )
    return found


def _of_network(text: str) -> list[str]:
    """Return launchers of the kernels of a network, which macros make."""
    levels = re.findall(r"X\((\d+),", text.partition("CONVOLUTION_LIST(X)")[2].partition("\n")[0])
    names = ["head_train", "head_score", "head_back", "linear_gradient", "gather", "update"]
    names += [f"{kind}_{level}" for kind in ("convolve", "convolve_weights") for level in levels]
    names += [f"convolve_back_{level}" for level in levels if level != "0"]
    launchers = [
        f'extern "C" void launch_{name}(const unsigned* grid, unsigned threads, void** a) {{ '
        f"LAUNCH({name}, *(Buffers*)a[0], *(Rule*)a[1], *(int*)a[2]) }}"
        for name in names
    ]
    launchers.append(
        'extern "C" void launch_judge(const unsigned* grid, unsigned threads, void** a) { '
        "LAUNCH(judge, *(const float**)a[0], *(const int**)a[1], *(const int**)a[2], *(const long long**)a[3], "
        "*(int*)a[4], *(double**)a[5], *(int**)a[6]) }"
    )
    return launchers
