"""Compile CUDA C++ at run time and launch it: the little of NVRTC and of the driver that is needed."""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_int32, c_size_t, c_void_p, cast
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedbac import native

MAX_DYNAMIC_SHARED_SIZE, MAX_SHARED_PER_BLOCK = 8, 97
"""The driver's attributes: of a kernel, to use more than 48 KiB of shared memory; of a device, how much more."""


def available() -> bool:
    """Whether kernels can be compiled here: a GPU, and the run-time compiler that comes with torch for CUDA."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return False
    try:
        _compiler()
    except OSError:
        return False
    return True


def shared_limit() -> int:
    """Return the bytes of shared memory that a block may have on the current device."""
    driver, device, limit = ctypes.CDLL("libcuda.so.1"), c_int(), c_int()
    _check(driver, driver.cuDeviceGet(byref(device), torch.cuda.current_device()))
    _check(driver, driver.cuDeviceGetAttribute(byref(limit), MAX_SHARED_PER_BLOCK, device))
    return limit.value


class Kernel(NamedTuple):
    """A kernel, the blocks that it has for each row (y, z), its threads and bytes of shared memory."""

    kernel: Any
    y: int
    z: int
    threads: int
    shared: int


class KernelQueue(NamedTuple):
    """Where kernels run one after another: a stream, their arguments by ``pointers``, and the argument that counts."""

    stream: c_void_p | None
    arguments: Any
    step: c_int32


Turn = tuple[int, int, int]
"""A queue, its step, and its rows at this step."""


def in_turn(
    launch: Callable[..., None], kernels: Sequence[Kernel], queues: Sequence[KernelQueue], turns: Sequence[Turn]
) -> None:
    """Start kernels by a call for each."""
    for place, step, rows in turns:
        queue = queues[place]
        queue.step.value = step
        for kernel, y, z, threads, shared in kernels:
            launch(kernel, (rows, y, z), threads, shared, queue.stream, queue.arguments)


def launches(kernels: Sequence[Kernel], queues: Sequence[KernelQueue], turns: Sequence[Turn]) -> NDArray[np.int64]:
    """Return what ``in_turn`` would start, as rows of numbers and addresses."""
    each_K = [(one.kernel.value, one.y, one.z, one.threads, one.shared) for one in kernels]
    each_Q = [((s and s.value) or 0, ctypes.addressof(a), ctypes.addressof(step)) for s, a, step in queues]
    queue_T, step_T, rows_T = np.array(turns, dtype=np.int64).reshape(-1, 3).T[:, :, None]
    kernel, y, z, threads, shared = np.array(each_K, dtype=np.int64).T[:, None]
    stream, arguments, step = np.array(each_Q, dtype=np.int64)[queue_T[:, 0]].T[:, :, None]
    columns = np.broadcast_arrays(kernel, rows_T, y, z, threads, shared, stream, arguments, step, step_T)
    return np.ascontiguousarray(np.stack(columns, -1).reshape(-1, len(columns)))


class Module:
    """Compiled kernels, by name."""

    def __init__(self, source: str) -> None:
        torch.zeros(1, device="cuda")  # makes torch's context current in this thread
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._image = compile_source(source)
        self._module = c_void_p()
        _check(self._driver, self._driver.cuModuleLoadData(byref(self._module), self._image))

    def kernel(self, name: str, shared_bytes: int = 0) -> c_void_p:
        """Return a kernel that may use this much dynamic shared memory."""
        function = c_void_p()
        _check(self._driver, self._driver.cuModuleGetFunction(byref(function), self._module, name.encode()))
        if shared_bytes:
            _check(self._driver, self._driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE, shared_bytes))
        return function

    def launch(
        self, kernel: c_void_p, grid: tuple[int, int, int], threads: int, shared_bytes: int, stream: c_void_p | None,
        arguments: Any,
    ) -> None:  # fmt: skip
        """Start a kernel; ``arguments`` is what ``pointers`` made."""
        launch = self._driver.cuLaunchKernel
        _check(self._driver, launch(kernel, *grid, threads, 1, 1, shared_bytes, stream, arguments, None))

    def launch_all(self, kernels: Sequence[Kernel], queues: Sequence[KernelQueue], turns: Sequence[Turn]) -> None:
        """In every turn start all kernels for a queue's rows at its step."""
        if (start := native.launcher()) is None:
            in_turn(self.launch, kernels, queues, turns)
            return
        table = launches(kernels, queues, turns)
        _check(self._driver, start(cast(self._driver.cuLaunchKernel, c_void_p), table.ctypes.data, len(table)))


def _check(driver: ctypes.CDLL, code: int) -> None:
    if code:
        text = c_char_p()
        driver.cuGetErrorString(code, byref(text))
        raise RuntimeError(f"CUDA: {(text.value or b'error').decode()} ({code})")


class Streams:
    """Streams on which kernels run beside each other; on a CPU, where kernels are emulated, there are none."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.count, self.device, self.on_gpu = count, device, device.type == "cuda"
        self.beside = [torch.cuda.Stream(device) for _ in range(count - 1)] if self.on_gpu else []  # type: ignore[no-untyped-call]

    @contextmanager
    def fork(self) -> Iterator[list[c_void_p | None]]:
        """Yield the streams: they begin after all that torch was given so far, and torch goes on after them."""
        if not self.on_gpu:
            yield [None] * self.count
            return
        own = torch.cuda.current_stream(self.device)
        for stream in self.beside:
            stream.wait_stream(own)
        try:
            yield [c_void_p(stream.cuda_stream) for stream in (own, *self.beside)]
        finally:
            for stream in self.beside:
                own.wait_stream(stream)


def current_stream(device: torch.device) -> c_void_p | None:
    """Return the stream that torch works on; a CPU, where kernels are emulated, has none."""
    # Without a device torch would count devices first, which takes longer than to launch many kernels.
    return c_void_p(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None


def pointers(values: Sequence[Any]) -> Any:
    """Return the array of addresses of ``values`` that a launch wants; the values must outlive it."""
    return (c_void_p * len(values))(*[ctypes.addressof(value) for value in values])


def header(sizes: Mapping[str, object]) -> str:
    """Return the macros that come before the text of kernels."""
    return "\n".join(f"#define {name} {value}" for name, value in {"UNROLL": '_Pragma("unroll")', **sizes}.items())


def text(*names: str) -> str:
    """Return what these files say."""
    return "\n".join(files("fedbac.gpu").joinpath(name).read_text() for name in names)


def compile_source(source: str) -> bytes:
    """Return machine code for the current device."""
    nvrtc = _compiler()
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--std=c++17", b"--fmad=true"]
    program = c_void_p()
    if nvrtc.nvrtcCreateProgram(byref(program), source.encode(), b"fedbac.cu", 0, None, None):
        raise RuntimeError("the GPU kernel's compiler (NVRTC) could not be started")
    size = c_size_t()
    if nvrtc.nvrtcCompileProgram(program, c_int(len(options)), (c_char_p * len(options))(*options)):
        nvrtc.nvrtcGetProgramLogSize(program, byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"the GPU kernel did not compile:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, byref(size))
    image = ctypes.create_string_buffer(size.value)
    if nvrtc.nvrtcGetCUBIN(program, image):
        raise RuntimeError("the GPU kernel's compiler (NVRTC) gave no machine code for this device")
    nvrtc.nvrtcDestroyProgram(byref(program))
    return image.raw


def _compiler() -> ctypes.CDLL:
    assert torch.version.cuda is not None
    return ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}")
