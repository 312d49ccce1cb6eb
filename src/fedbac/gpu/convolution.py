"""How a convolution of many clients is cut into tiles for ``convolution.cu``, and launched."""

from collections.abc import Callable
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fedbac.gpu.driver import Module, current_stream, header, pointers, shared_limit, text

Mode = Literal["float32", "tf32", "bf16"]
MODES: tuple[Mode, ...] = ("float32", "tf32", "bf16")
THREADS, TILE_BYTES, MOST_BYTES = 256, 64 * 1024, 96 * 1024
"""Threads of a block, bytes of shared memory at which two share a multiprocessor, and most that a tile may take."""
MOST_TAPS, FEWEST_PAIRS = 25, 16
"""Larger filters do not fit a thread's registers; fewer pairs of channels leave it idle."""

Sizes = dict[str, int]


@dataclass(frozen=True)
class Layer:
    """The convolution of one client."""

    channels: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    step: int
    padding: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an output."""
        return (
            (self.height + 2 * self.padding[0] - self.kernel[0]) // self.step + 1,
            (self.width + 2 * self.padding[1] - self.kernel[1]) // self.step + 1,
        )

    @property
    def taps(self) -> int:
        """Pixels of a filter."""
        return self.kernel[0] * self.kernel[1]


class Convolution:
    """The kernels of a layer, in one precision."""

    def __init__(self, layer: Layer, mode: Mode, load: Callable[[str], Any] = Module) -> None:
        self.layer, self.mode, self.load = layer, mode, load
        self.per_word = 2 if mode == "bf16" else 1

    @property
    def covered(self) -> bool:
        """Whether the kernels serve this layer, and serve it well."""
        layer = self.layer
        filled = min(layer.size) > 0 and layer.channels * layer.outputs >= FEWEST_PAIRS
        small = layer.taps <= MOST_TAPS and max(layer.padding) <= 8 and layer.step <= 4
        return filled and small and self.shared <= shared_limit()

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a device must be able to give a block."""
        return max(_shared(sizes) for sizes in [self.forward, *self.back, self.filters])

    @cached_property
    def forward(self) -> Sizes:
        """Sizes of the kernel that convolves."""
        layer = self.layer
        grid = {
            "IN": layer.channels, "OUT": layer.outputs, "IN_Y": layer.height, "IN_X": layer.width,
            "OUT_HEIGHT": layer.size[0], "OUT_WIDTH": layer.size[1], "IN_STEP": layer.step, "OUT_STEP": 1, "OUT_Y": 0,
            "TAPS_Y": layer.kernel[0], "DY": -layer.padding[0], "TAP_Y": 0, "TAP_STEP": 1,
            "DX": -layer.padding[1], "REACH": layer.kernel[1],
        }  # fmt: skip
        return self._tiled([grid])[0]

    @cached_property
    def back(self) -> list[Sizes]:
        """Sizes of the kernels for the gradient of the input, one for every remainder of a row by the step."""
        layer, grids = self.layer, []
        columns = [self._meeting(rest, 1) for rest in range(layer.step)]
        begin = min(first for first, taps, _ in columns if taps)
        for rest in range(layer.step):
            first, taps, tap = self._meeting(rest, 0)
            grids.append({
                "IN": layer.outputs, "OUT": layer.channels, "IN_Y": layer.size[0], "IN_X": layer.size[1],
                "OUT_HEIGHT": layer.height, "OUT_WIDTH": layer.width, "IN_STEP": 1, "OUT_STEP": layer.step,
                "OUT_Y": rest, "TAPS_Y": taps, "DY": first, "TAP_Y": tap, "TAP_STEP": -layer.step,
                "DX": begin, "REACH": max(first + taps for first, taps, _ in columns) - begin,
            })  # fmt: skip
        return self._tiled(grids)

    def _meeting(self, rest: int, axis: int) -> tuple[int, int, int]:
        """Return, for input pixels of this rest by the step, the first output they reach, how many and its tap."""
        step, kernel, padding = self.layer.step, self.layer.kernel[axis], self.layer.padding[axis]
        first = (rest + padding) % step
        taps = max(0, -(-(kernel - first) // step))
        return (rest + padding - first) // step - max(taps - 1, 0), taps, first + step * max(taps - 1, 0)

    def _columns(self, sizes: Sizes) -> str:
        """Return, as functions of the rest that a column leaves, its taps: where they begin and end, and the first."""
        found = [(0, self.layer.kernel[1], 0)]
        if sizes["TAP_STEP"] < 0:
            meetings = [self._meeting(rest, 1) for rest in range(self.layer.step)]
            found = [(first - sizes["DX"], taps, tap) for first, taps, tap in meetings]
        chosen = {
            "begin": [first for first, _, _ in found],
            "end": [first + taps for first, taps, _ in found],
            "tap_x": [tap for _, _, tap in found],
        }
        texts = []
        for name, values in chosen.items():
            choice = "".join(f"x == {x} ? {value} : " for x, value in enumerate(values[:-1])) + str(values[-1])
            texts.append(f"static constexpr __device__ int {name}(int x) {{ return {choice}; }}")
        return " ".join(texts)

    def _tiled(self, grids: list[Sizes]) -> list[Sizes]:
        """Add the sizes of tiles, the same for all grids of a kernel but for what depends on their taps."""
        first, exact = grids[0], self.mode == "float32"
        rows = max(-(-(g["OUT_HEIGHT"] - g["OUT_Y"]) // g["OUT_STEP"]) for g in grids)
        step = first["OUT_STEP"]
        columns = -(-first["OUT_WIDTH"] // step)
        if exact:
            out_tile = 8 if first["OUT"] > 4 else 4
            pixels = 4 if 1.2 * up(columns, 4) < up(columns, 8) else 8
            pixels = min(pixels, max(1, 8 // step))
            out_groups, groups = min(8, -(-first["OUT"] // out_tile)), -(-columns // pixels)
            while out_groups > 1 and out_groups * groups > 2 * THREADS:
                out_groups //= 2
            out_block, places = out_groups * out_tile, max(1, THREADS // out_groups)
            out_stride = out_block
        else:
            out_tile = min(4, -(-first["OUT"] // 16))
            pixels, groups = max(1, (8 if out_tile <= 2 else 4) // step), -(-columns // 8)
            out_block, places = 16 * out_tile, THREADS // 32 * pixels
            out_stride = out_block + 8
        q_rows = min(rows, max(1, places // groups))
        q_rows = -(-rows // -(-rows // q_rows))
        for grid in grids:
            left = up(max(0, -grid["DX"]), 4)
            reach = grid["IN_STEP"] * (groups * (pixels if exact else 8) - 1) + grid["DX"] + grid["REACH"]
            stride = up(left + max(grid["IN_X"], reach), 4)
            tile_rows = grid["IN_STEP"] * (q_rows - 1) + max(grid["TAPS_Y"], 1)
            if exact:
                stride = _row_stride(stride, grid["IN_STEP"] * pixels, grid["IN_STEP"], groups)
            plane = tile_rows * stride if exact else _congruent(tile_rows * stride, 8)
            grid |= {"LEFT": left, "STRIDE": stride, "ROWS": tile_rows, "PLANE": plane}
        words, taps = -(-first["IN"] // self.per_word), self.layer.taps
        plane, least = max(grid["PLANE"] for grid in grids), 1 if exact else 8
        fitting = (MOST_BYTES // (4 * least) - taps * out_stride) // plane
        samples = max(1, min(places // (q_rows * groups), fitting))
        units = samples * q_rows * groups
        threads = up(out_block // out_tile * units, 32) if exact else 32 * -(-units // pixels)
        chunk = max(1, TILE_BYTES // (4 * (samples * plane + taps * out_stride)))
        padded = words if exact else up(words, 8)
        chunk = min(padded, chunk if exact else max(8, chunk // 8 * 8))
        chunk = -(-padded // -(-padded // chunk))
        chunk = chunk if exact else up(chunk, 8)
        for grid in grids:
            grid |= {
                "GRIDS": len(grids), "KERNEL_Y": self.layer.kernel[0], "KERNEL_X": self.layer.kernel[1],
                "IN_WORDS": words, "OUT_TILE": out_tile, "OUT_BLOCK": out_block, "OUT_STRIDE": out_stride,
                "PIXELS": pixels, "Q_GROUPS": groups, "Q_ROWS": q_rows, "SAMPLES": samples, "CHUNK": chunk,
                "TILE": samples * chunk * grid["PLANE"], "FILTERS": chunk * taps * out_stride, "THREADS": threads,
                "BANDS": -(-rows // q_rows), "OUT_BLOCKS": -(-first["OUT"] // out_block),
            }  # fmt: skip
        return grids

    @cached_property
    def filters(self) -> Sizes:
        """Sizes of the kernel for the gradient of the filters."""
        layer, exact = self.layer, self.mode == "float32"
        (height, width), taps = layer.size, layer.taps
        unit = (1, 1) if exact else (16, 8)  # outputs and inputs of the smallest tile
        tiles = [(o, c) for o in (1, 2, 4, 8) for c in (1, 2, 4, 8)]
        held = 1 if exact else 4
        fitting = [t for t in tiles if t[0] * t[1] * taps * held <= 80] or [(1, 1)]

        def work(tile: tuple[int, int]) -> tuple[float, int]:
            """Numbers read from tiles for a product, padding included, and those of a thread."""
            outputs, inputs = up(layer.outputs, tile[0] * unit[0]), up(layer.channels, tile[1] * unit[1])
            reads = (2 * tile[0] + layer.kernel[0] * layer.kernel[1] * tile[1]) / (tile[0] * tile[1])
            return outputs * inputs * (1 + reads / taps), -tile[0] * tile[1]

        out_tile, in_tile = min(fitting, key=work)
        most = THREADS if exact else THREADS // 32
        outs = min(-(-layer.outputs // (out_tile * unit[0])), 16 if exact else 4)
        ins = min(-(-layer.channels // (in_tile * unit[1])), max(1, most // outs))
        group = 4 if exact else 8
        groups = -(-width // group)
        left = up(layer.padding[1], 4)
        reach = layer.step * (groups * group - 1) - layer.padding[1] + layer.kernel[1]
        stride = up(left + max(layer.width, reach), 4)
        out_stride = groups * group
        out_block, in_block = outs * out_tile * unit[0], ins * in_tile * unit[1]

        def room(rows: int) -> tuple[int, int, int]:
            seen = layer.step * (rows - 1) + layer.kernel[0]
            plane, out_plane = _congruent(seen * stride, 4), _congruent(rows * out_stride, 4)
            return in_block * plane + out_block * out_plane, plane, out_plane

        rows = max([r for r in range(1, height + 1) if 4 * room(r)[0] <= 3 * TILE_BYTES // 4] or [1])
        rows = -(-height // -(-height // rows))
        _, plane, out_plane = room(rows)
        slices = max(1, min(most // (outs * ins), rows * groups))
        each = layer.channels * layer.height * layer.width + layer.outputs * height * width
        samples = 4 * self.per_word
        while samples * each < layer.outputs * layer.channels * taps:
            samples *= 2
        return {
            "IN": layer.channels, "OUT": layer.outputs, "HEIGHT": layer.height, "WIDTH": layer.width,
            "OUT_HEIGHT": height, "OUT_WIDTH": width, "KERNEL_Y": layer.kernel[0], "KERNEL_X": layer.kernel[1],
            "STEP": layer.step, "PAD_Y": layer.padding[0], "PAD_X": layer.padding[1], "OUT_TILE": out_tile,
            "IN_TILE": in_tile, "OUT_BLOCK": out_block, "IN_BLOCK": in_block, "GROUPS": groups, "LEFT": left,
            "STRIDE": stride, "PLANE": plane, "ROWS": layer.step * (rows - 1) + layer.kernel[0],
            "OUT_STRIDE": out_stride, "OUT_PLANE": out_plane, "OUT_ROWS": rows, "SLICES": slices,
            "CHUNK": max(1, samples // self.per_word), "TILE": in_block * plane,
            "OUT_TILE_WORDS": out_block * out_plane, "HELD": held,
            "THREADS": outs * ins * slices * (1 if exact else 32),
        }  # fmt: skip

    @cached_property
    def source(self) -> str:
        """The kernels' text with this layer's sizes."""
        structs = {"Forward": self.forward, "Filters": self.filters}
        structs |= {f"Back{number}": sizes for number, sizes in enumerate(self.back)}
        texts = [header({"MODE": MODES.index(self.mode)})]
        for name, sizes in structs.items():
            numbers = ", ".join(f"{key} = {value}" for key, value in sizes.items())
            columns = self._columns(sizes) if "TAP_STEP" in sizes else ""
            texts.append(f"struct {name} {{ enum {{ {numbers} }}; {columns} }};")
        texts.append(text("intrinsics.cu", "convolution.cu"))
        convolved = "(const number* in, const stored* weights, number* out, int batch, int clients)"
        given = "(in, weights, out, batch, clients);"
        cases = [f"case {n}: return convolve<Back{n}>{given}" for n in range(len(self.back))]
        summed = "(const number* in, const number* back, float* out, int batch, int clients)"
        bodies = [
            (f"forward{convolved}", self.forward, f"convolve<Forward>{given}"),
            (f"back{convolved}", self.back[0], f"switch (blockIdx.z % {len(cases)}) {{ {' '.join(cases)} }}"),
            (f"filters_{summed}", self.filters, "filters<Filters>(in, back, out, batch, clients);"),
        ]
        for signature, sizes, body in bodies:
            small = "PIXELS" in sizes and sizes["OUT_STEP"] * sizes["OUT_TILE"] * sizes["PIXELS"] <= 8
            blocks = 3 if self.mode != "float32" and small else 2  # as many as share a multiprocessor's registers
            bounds = f"__launch_bounds__({sizes['THREADS']}, {blocks if sizes['THREADS'] <= THREADS else 1})"
            texts.append(f'extern "C" __global__ void {bounds} {signature} {{ {body} }}')
        return "\n".join(texts)

    @cached_property
    def module(self) -> Any:
        """The compiled kernels."""
        return self.load(self.source)

    def convolve(self, x: Tensor, weight: Tensor, clients: int) -> Tensor:
        """Return the convolution of ``x [batch, clients · channels, …]``."""
        return self._convolve("forward", self.forward, x, weight, (0, 2, 3, 1), clients)

    def to_input(self, gradient: Tensor, weight: Tensor, clients: int) -> Tensor:
        """Return the gradient of the input."""
        return self._convolve("back", self.back[0], gradient, weight, (0, 1, 3, 2), clients)

    def to_filters(self, x: Tensor, gradient: Tensor, clients: int) -> Tensor:
        """Return the gradient of the filters: sums over some examples each, and these summed in their order."""
        layer, sizes, batch = self.layer, self.filters, len(x)
        chunks = -(-batch // (sizes["CHUNK"] * self.per_word))
        shape = (chunks, clients * layer.outputs, layer.channels, *layer.kernel)
        partial = torch.empty(shape, device=x.device, dtype=torch.float32)
        blocks = -(-layer.channels // sizes["IN_BLOCK"]), -(-layer.outputs // sizes["OUT_BLOCK"])
        self._launch("filters_", sizes, (clients * chunks, *blocks), x, gradient, partial, clients)
        return partial.sum(0).to(x.dtype)

    def _words(self, filters: Tensor) -> Tensor:
        """Return filters ``[client, reduced, tap, kept]`` as the kernel reads them."""
        if self.per_word == 1:
            return filters.contiguous()
        if filters.shape[1] % 2:
            filters = torch.cat([filters, torch.zeros_like(filters[:, :1])], 1)
        clients, reduced, *rest = filters.shape
        return filters.reshape(clients, reduced // 2, 2, *rest).movedim(2, 4).contiguous()

    def _convolve(
        self, name: str, sizes: Sizes, x: Tensor, weight: Tensor, axes: tuple[int, ...], clients: int
    ) -> Tensor:
        """Convolve by filters ``[client, output, channel, tap]`` whose axes are brought into another order first."""
        layer = self.layer
        filters = self._words(weight.reshape(clients, layer.outputs, layer.channels, layer.taps).permute(axes))
        out = x.new_empty((len(x), clients * sizes["OUT"], sizes["OUT_HEIGHT"], sizes["OUT_WIDTH"]))
        blocks = clients * -(-len(x) // sizes["SAMPLES"])
        grid = blocks, sizes["BANDS"], sizes["OUT_BLOCKS"] * sizes["GRIDS"]
        self._launch(name, sizes, grid, x, filters, out, clients)
        return out

    def _launch(
        self,
        name: str,
        sizes: Sizes,
        grid: tuple[int, int, int],
        first: Tensor,
        second: Tensor,
        out: Tensor,
        clients: int,
    ) -> None:
        module, shared = self.module, max(map(_shared, self.back if name == "back" else [sizes]))
        first, second = first.contiguous(), second.contiguous()
        values: list[Any] = [c_void_p(tensor.data_ptr()) for tensor in (first, second, out)]
        values += [c_int(len(first)), c_int(clients)]
        stream = current_stream(first.device)
        module.launch(module.kernel(name, shared), grid, sizes["THREADS"], shared, stream, pointers(values))


kernels_for = cache(Convolution)
"""The kernels of a layer, compiled once."""


def _shared(sizes: Sizes) -> int:
    """Return the bytes of shared memory of a kernel."""
    if "FILTERS" in sizes:
        return 4 * (sizes["TILE"] + sizes["FILTERS"])
    held = sizes["OUT_TILE"] * sizes["IN_TILE"] * sizes["KERNEL_Y"] * sizes["KERNEL_X"] * sizes["HELD"]
    return 4 * max(sizes["TILE"] + sizes["OUT_TILE_WORDS"], held * sizes["THREADS"] // sizes["SLICES"])


def _row_stride(least: int, pixels: int, step: int, groups: int) -> int:
    """Return a row stride of a tile at which the fewest threads side by side meet in a bank of shared memory."""

    def meetings(stride: int) -> int:
        at = [(t // groups * step * stride + t % groups * pixels) // 4 % 8 for t in range(8)]
        return max(at.count(bank) for bank in at)

    return min(range(least, least + 16, 4), key=lambda stride: (meetings(stride), stride))


def _congruent(n: int, rest: int) -> int:
    """Return the next number that leaves this rest by 32: planes of a tile then lie in different banks."""
    return n + (rest - n) % 32


def up(n: int, multiple: int) -> int:
    """Round up."""
    return -(-n // multiple) * multiple
