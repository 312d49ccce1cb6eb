"""What every transform of a link promises."""

from collections.abc import Iterator
from typing import Any

import torch

from fedbac.contracts.common import calling, check_settings, require
from fedbac.core.codecs import Alteration, Codec, Packed, Transform
from fedbac.core.rng import Rng, stream

SIZES = (1, 2, 7, 100)
"""Numbers of the tensors that are packed."""
ROWS = 3
BOUND = 2.0
REPEATED = "to the same change and stream; all chance must come from the stream"


def check_transform(transform: Any) -> None:
    """Hold a transform to its promises."""
    who = check_settings("links", transform, Transform)
    check = _check_alteration if isinstance(transform, Alteration) else _check_codec
    for numbers in SIZES:
        for scale in (0.0, 1e-3, 10.0):
            change = scale * torch.randn(ROWS, numbers, generator=torch.Generator().manual_seed(numbers))
            check(who, transform, change)


def _streams(row: int) -> Rng:
    return stream(0, "client_up", 1, 0, row)


def _check_alteration(who: str, transform: Alteration, change_N: torch.Tensor) -> None:
    for row, change in enumerate(change_N):
        with calling(who, "alter()", change=change):
            first, second = (transform.alter(change, BOUND, _streams(row)) for _ in range(2))
        good = isinstance(first, torch.Tensor) and first.shape == change.shape and first.dtype == change.dtype
        require(good, f"{who}: alter() must return a change of the same shape and number type")
        require(torch.isfinite(first).all(), f"{who}: alter() must return finite numbers of finite ones")
        require(torch.equal(first, second), f"{who}: alter() answered differently {REPEATED}")
        bound = transform.bound(BOUND)
        require(
            bound is None or float(torch.linalg.vector_norm(first)) <= bound * (1 + 1e-5),
            f"{who}: bound() says {bound}, but alter() returned a longer change",
        )


def _check_codec(who: str, codec: Codec, change_N: torch.Tensor) -> None:
    numbers = change_N.shape[1]
    layout = codec.layout(numbers)
    with calling(who, "pack()", change_N=change_N):
        packed, again = (codec.pack(change_N, _streams) for _ in range(2))
    laid = {name: (piece.dtype, tuple(piece.shape)) for name, piece in packed.items()}
    wanted = {name: (dtype, (ROWS, count)) for name, (dtype, count) in layout.items()}
    require(laid == wanted, f"{who}: pack() of {numbers} numbers must return what layout() says, {wanted}, not {laid}")
    size = sum(piece[0].numel() * piece.element_size() for piece in packed.values())
    require(codec.num_bytes(numbers) == size, f"{who}: num_bytes({numbers}) must be {size}, as much as pack() returns")
    require(_same(packed, again), f"{who}: pack() answered differently {REPEATED}")
    for row in range(ROWS):
        alone = codec.pack(change_N[row : row + 1], lambda _, row=row: _streams(row))  # type: ignore[misc]
        require(
            _same(alone, {name: piece[row : row + 1] for name, piece in packed.items()}),
            f"{who}: pack() must pack every row for itself, however many come at once",
        )
    fault = codec.fault(packed, numbers)
    require(fault is None, f"{who}: fault() found fault with what pack() returned: {fault}")
    _check_unpacked(who, codec, packed, numbers, "what pack() returned")
    for piece, hostile in _hostile(packed):
        with calling(who, "fault()"):
            fault = codec.fault(hostile, numbers)
        require(fault is None or isinstance(fault, str), f"{who}: fault() must return a text or None, not {fault!r}")
        if fault is None:
            _check_unpacked(who, codec, hostile, numbers, f"a piece {piece!r} that fault() let pass")


def _check_unpacked(who: str, codec: Codec, packed: Packed, numbers: int, what: str) -> None:
    with calling(who, f"unpack() of {what}"):
        found = codec.unpack(packed, numbers)
    shape = (ROWS, numbers)
    good = isinstance(found, torch.Tensor) and found.shape == shape and found.dtype == torch.float32
    require(good, f"{who}: unpack() must return a tensor of float32 of shape {shape}")
    require(torch.isfinite(found).all(), f"{who}: unpack() made numbers that are not finite of {what}")


def _hostile(packed: Packed) -> Iterator[tuple[str, Packed]]:
    """Go through what somebody may send instead: laid out well, but of the worst numbers."""
    for name, piece in packed.items():
        limits = torch.finfo(piece.dtype) if piece.is_floating_point() else torch.iinfo(piece.dtype)
        worst = [limits.min, limits.max, 0, -1]
        worst += [float("nan"), float("inf"), -float("inf")] if piece.is_floating_point() else []
        for value in worst:
            yield name, packed | {name: torch.full_like(piece, value)}


def _same(left: Packed, right: Packed) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
