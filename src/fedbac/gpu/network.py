"""How a network of ``native.Layers`` lies in the GPU kernels' memory, and how they are launched for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbac.core.settings import IntArray
from fedbac.gpu.convolution import up
from fedbac.gpu.driver import header, text
from fedbac.native import Layers

MAX_PARTS = 4
GROUP, PITCH = 16, 20
"""As in ``kernels.cu``: the examples that a block of the head works on, and their stride in shared memory."""
TOGETHER = 4
"""As in ``kernels.cu``: the lists of a backward pass have room for a multiple of so many winners."""
HEAD_THREADS = 512
"""Threads of a block of the head forwards."""
BACK_THREADS, STRIP = 256, 16
"""Threads of a block of the head backwards, and the outputs of a layer whose weights it holds at once."""
CHUNK = 4
"""Examples over which one block sums the gradient of a convolution's weights."""
SLICE = 4096
"""Weights that one block updates."""
SHARED_AIM = 96 * 1024
"""Bytes of shared memory that a block should not need where there is a choice; devices give it 99 to 227 KiB."""


@dataclass(frozen=True)
class Launch:
    """One kernel: its name, the blocks per network (y, z), threads and bytes of shared memory."""

    name: str
    y: int
    z: int
    threads: int
    shared: int


class ConvolutionBlock:
    """A block of convolution, ReLU and 2×2 max pooling, and the tiles in which the kernels work on it."""

    def __init__(
        self, level: int, channels: int, height: int, width: int, outputs: int, kernel: int, offset: int
    ) -> None:
        self.level, self.channels, self.height, self.width = level, channels, height, width
        self.outputs, self.kernel, self.offset = outputs, kernel, offset
        self.padded = 4 if outputs <= 4 else up(outputs, 8)
        """Columns of its weight matrix."""
        self.size = (channels * kernel**2 + 1) * self.padded
        """Numbers in its weight matrix, with the row of biases."""
        self.pooled = (height - kernel + 1) // 2, (width - kernel + 1) // 2
        """Height and width of its output."""
        self.positions = self.pooled[0] * self.pooled[1]
        """Pixels of an output channel."""
        self.tile = 4 if outputs <= 4 else 6 if outputs <= 6 else 8
        """Output channels per thread."""
        per_pair = self.positions * -(-outputs // self.tile)
        self.samples = 2 * max(1, min(8, -(-160 // per_pair)))
        """Examples per block of the forward pass: enough for some 200 threads, two for each."""
        items = self.samples // 2 * per_pair
        self.threads = up(-(-items // -(-items // 256)), 32)
        """Threads of the forward pass: one per item, or an even share of several."""
        self.blocks = max(1, 65536 // ((96 if self.tile <= 6 else 128) * self.threads))
        """Blocks of the forward pass that share a multiprocessor's 65,536 registers, some 96 or 128 for a thread."""
        self.inputs = min(channels, 8)
        """Input channels whose taps a warp of the backward passes holds."""
        self.split = max(1, min(8 // max(1, outputs // 2), self.positions // 32)) if outputs < 8 else 1
        """Warps that share the positions of one output channel."""
        self.units = outputs * -(-channels // self.inputs) * self.split
        self.warps = min(self.units, 16 // self.split * self.split)
        """Warps of the weights' gradient."""

    @cached_property
    def stride(self) -> int:
        """Row stride of the backward passes' input: the smallest at which a window's taps lie in different banks."""
        taps = np.arange(self.kernel**2)
        for stride in range(self.width, self.width + 32):
            bank = (taps // self.kernel * stride + taps % self.kernel) % 32
            if all(len(set(part)) == len(part) for part in np.split(bank, range(32, len(taps), 32))):
                return stride
        return self.width

    def forward_shared(self) -> int:
        """Bytes of shared memory of the forward pass."""
        return 4 * (self.size + self.samples * self.channels * self.height * up(self.width, 2) + 2)

    def weights_shared(self) -> int:
        """Bytes of shared memory of the weights' gradient."""
        share = up(-(-self.positions // self.split), TOGETHER)
        numbers = -(-(self.kernel**2) // 32) * self.inputs + 1
        work = 4 * up(self.channels * self.height * self.stride, 4) + 8 * self.warps * share
        return max(work, 4 * self.warps * numbers * 32)

    def back_shared(self, warps: int) -> int:
        """Bytes of shared memory of the input's gradient."""
        own = 8 * up(self.positions, TOGETHER) + 4 * self.channels * self.height * self.stride
        return 4 * up(self.outputs * self.channels * self.kernel**2, 2) + warps * own


class Linear:
    """A linear layer; all but the last have a ReLU."""

    def __init__(self, level: int, inputs: int, outputs: int, offset: int) -> None:
        self.level, self.inputs, self.outputs, self.offset = level, inputs, outputs, offset
        self.padded = up(outputs, 4)
        """Columns of its weight matrix."""
        self.size = (inputs + 1) * self.padded
        """Numbers in its weight matrix, with the row of biases."""
        self.tiles = -(-(inputs + 1) // 64) * -(-self.padded // 64)
        """Blocks of its weights' gradient."""


class NetworkPlan:
    """The kernels for one network, size of batch and kind of image (uint8, or floats that are used as they are)."""

    def __init__(self, layers: Layers, room: int, float_pixels: bool) -> None:
        self.layers, self.float_pixels = layers, float_pixels
        self.room = room
        """Examples of one client that there is room for: the largest batch."""
        self.convolutions: list[ConvolutionBlock] = []
        shape, offset = (layers.channels, layers.height, layers.width), 0
        for outputs, kernel in layers.convolutions:
            convolution = ConvolutionBlock(len(self.convolutions), *shape, outputs, kernel, offset)
            self.convolutions.append(convolution)
            shape, offset = (outputs, *convolution.pooled), offset + convolution.size
        self.conv_size = offset
        self.linear_input = int(np.prod(shape))
        self.linears: list[Linear] = []
        inputs = self.linear_input
        for outputs in layers.linears:
            linear = Linear(len(self.convolutions) + len(self.linears), inputs, outputs, offset)
            self.linears.append(linear)
            inputs, offset = outputs, offset + linear.size
        self.size = offset
        """Numbers per network, padding included."""
        self.groups, self.chunks, self.slices = -(-room // GROUP), -(-room // CHUNK), -(-offset // SLICE)
        """Blocks of the head per client; over which the gradient of a convolution is spread; that update a network."""
        pooled = [c.outputs * c.positions for c in self.convolutions]
        self.levels = pooled + [linear.padded for linear in self.linears]
        """Numbers per example in the output of every layer."""
        numbers = 3 * self.size + self.chunks * self.conv_size + 2 * room * sum(self.levels)
        self.row_bytes, self.scoring_bytes = 4 * numbers + room * sum(pooled), 5 * room * sum(pooled)
        """Bytes that one network of one client takes in training, and one batch in evaluation."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a device must be able to give a block."""
        return max(launch.shared for launch in [*self.training, *self.scoring])

    @cached_property
    def training(self) -> list[Launch]:
        """The kernels of a step."""
        back = []
        for c in reversed(self.convolutions):
            if c.level > 0:
                warps = self._back_warps(c)
                y = -(-self.room // warps)
                back.append(Launch(f"convolve_back_{c.level}", y, 1, 32 * warps, c.back_shared(warps)))
            z = -(-c.units // c.warps)
            back.append(Launch(f"convolve_weights_{c.level}", self.chunks, z, 32 * c.warps, c.weights_shared()))
        return [
            *self._forward(),
            self._head("head_train"),
            Launch("head_back", self.groups, 1, BACK_THREADS, self._back_shared(self._span())),
            Launch("linear_gradient", sum(linear.tiles for linear in self.linears), 1, 256, 0),
            *back,
            Launch("gather", self.slices, 1, 256, 0),
            Launch("update", self.slices, 1, 256, 0),
        ]

    @cached_property
    def scoring(self) -> list[Launch]:
        """The kernels that compute logits."""
        return [*self._forward(), self._head("head_score")]

    def _forward(self) -> list[Launch]:
        return [
            Launch(f"convolve_{c.level}", -(-self.room // c.samples), 1, c.threads, c.forward_shared())
            for c in self.convolutions
        ]

    def _head(self, name: str) -> Launch:
        return Launch(name, self.groups, 1, HEAD_THREADS, 4 * (self._head_wide() + 2 * self._widest()) * PITCH)

    def _span(self) -> int:
        """Return the most inputs of a layer whose weights a block of the head backwards holds: two for each thread
        (which has four and half of the examples), or fewer where it would need more memory than forwards."""
        span = 2 * BACK_THREADS
        most = max(SHARED_AIM, self._head("").shared)
        while span > 16 and self._back_shared(span) > most:
            span //= 2
        return span

    def _back_shared(self, span: int) -> int:
        """Return the bytes of shared memory of the head backwards: a strip of weights has a stride of four more."""
        inputs = max((linear.inputs for linear in self.linears if linear.level > 0), default=0)
        rows = self.linears[-1].padded + 2 * self._widest()
        return 4 * (rows * PITCH + GROUP + STRIP * (min(span, up(inputs, 16)) + 4))

    def _head_wide(self) -> int:
        """Return the rows of shared memory for the first layer's input, or the shares of a layer's sums."""
        shares = max(min(HEAD_THREADS, 8 * linear.padded) for linear in self.linears)
        return max(self.linear_input, -(-shares * GROUP // PITCH))

    def _widest(self) -> int:
        return max(linear.padded for linear in self.linears)

    def _back_warps(self, c: ConvolutionBlock) -> int:
        warps = 4
        while warps > 1 and c.back_shared(warps) > SHARED_AIM:
            warps //= 2
        return warps

    @cached_property
    def source(self) -> str:
        """The kernels' text with this network's header."""
        last = self.linears[-1]
        numbers: dict[str, object] = {
            "BATCH": self.room, "CLASSES": last.outputs, "CLASSES_PADDED": last.padded, "WEIGHTS": self.size,
            "CONV_WEIGHTS": self.conv_size, "CONVOLUTIONS": len(self.convolutions), "LINEAR_INPUT": self.linear_input,
            "WIDEST": self._widest(), "HEAD_WIDE": self._head_wide(), "HEAD_THREADS": HEAD_THREADS,
            "BACK_THREADS": BACK_THREADS, "SPAN": self._span(), "STRIP": STRIP, "LAST_LEVEL": last.level,
            "MAX_LEVELS": len(self.levels), "MAX_PARTS": MAX_PARTS, "CHUNK": CHUNK, "CHUNKS": self.chunks,
            "GROUPS": self.groups, "SLICE": SLICE, "SLICES": self.slices, "IMAGE_CHANNELS": self.layers.channels,
            "IMAGE_HEIGHT": self.layers.height, "IMAGE_WIDTH": self.layers.width,
            "FLOAT_PIXELS": int(self.float_pixels),
        }  # fmt: skip
        forward, back = [], []
        for c in self.convolutions:
            shape = [c.level, c.channels, c.height, c.width, c.outputs, c.kernel, c.padded, c.offset]
            forward.append([*shape, c.tile, c.samples, c.threads, c.blocks, c.stride, c.inputs, c.split, c.warps])
            if c.level > 0:
                back.append([*shape, c.stride, c.inputs, self._back_warps(c)])
        linears = [
            [number, x.level, x.inputs, x.padded, x.offset, int(x is not last)] for number, x in enumerate(self.linears)
        ]
        linears_back = [
            [x.level - 1, x.inputs, x.inputs if number == 0 else up(x.inputs, 4), x.padded, x.offset, int(number > 0)]
            for number, x in reversed(list(enumerate(self.linears)))
            if x.level > 0
        ]
        lists = {
            "CONVOLUTION_LIST": forward, "CONVOLUTION_BACK_LIST": back, "LINEARS": linears, "LINEARS_BACK": linears_back
        }  # fmt: skip
        calls = {f"{name}(X)": " ".join(f"X({str(one)[1:-1]})" for one in entries) for name, entries in lists.items()}
        return "\n".join([header(numbers | calls), text("kernels.cu")])

    def _placed(self) -> Iterator[tuple[ConvolutionBlock | Linear, int, int]]:
        """Yield each layer, the inputs of one of its outputs, and where its weights begin in a flat network."""
        begin = 0
        layers: list[ConvolutionBlock | Linear] = [*self.convolutions, *self.linears]
        for layer in layers:
            fan = layer.size // layer.padded - 1
            yield layer, fan, begin
            begin += layer.outputs * (fan + 1)

    def positions(self) -> IntArray:
        """Return, for every number of the kernels' layout, its index among a network's weights; −1 is padding."""
        out = np.full(self.size, -1, dtype=np.int64)
        for layer, fan, begin in self._placed():
            matrix = out[layer.offset : layer.offset + layer.size].reshape(fan + 1, layer.padded)[:, : layer.outputs]
            matrix[:fan] = begin + np.arange(layer.outputs * fan).reshape(layer.outputs, fan).T
            matrix[fan] = begin + layer.outputs * fan + np.arange(layer.outputs)
        return out

    def inside(self, weights: slice) -> slice:
        """Return where weights of whole layers, given by their span in a flat network, lie in the kernels' layout."""
        held = [layer for layer, _, begin in self._placed() if weights.start <= begin < weights.stop]
        return slice(held[0].offset, held[-1].offset + held[-1].size) if held else slice(0, 0)
