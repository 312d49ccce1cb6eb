"""The arguments of our GPU kernels, as ``kernels.cu`` declares them."""

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_float, c_int, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from fedbac.gpu.network import MAX_PARTS


class Rule(Structure):
    """As in ``kernels.cu``."""

    _fields_ = (
        ("momentum", c_float),
        ("max_norm", c_float),
        ("joint", c_int),
        ("decay", c_float * MAX_PARTS),
        ("penalty", c_float * MAX_PARTS),
        ("begin", c_int * MAX_PARTS),
        ("end", c_int * MAX_PARTS),
    )


@dataclass
class Arguments:
    """The arguments of a row of launches. They point to tensors, which must be there until the kernels have run."""

    buffers: Any

    def __post_init__(self) -> None:
        self.rule = Rule()
        self.step = c_int32(0)

    def point(self, name: str, tensor: Tensor | None) -> None:
        """Point a field to a tensor; without one the kernels do without."""
        setattr(self.buffers, name, None if tensor is None else tensor.data_ptr())

    def point_each(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Point the entries of an array of fields to tensors, one per layer."""
        for level, tensor in enumerate(tensors):
            getattr(self.buffers, name)[level] = tensor.data_ptr()


@cache
def buffers_type(levels: int) -> type[Structure]:
    """``Buffers`` of ``kernels.cu`` for a network of so many layers."""
    names = [
        "pixels",
        "labels",
        "seen",
        "visits",
        "crop",
        "flip",
        "jobs",
        "slots",
        "rates",
        "anchors",
        "anchor",
        "shift",
    ]
    names += ["weights", "velocity", "gradient", "partial", "squares", "loss", "square", "epoch_loss", "logits"]
    fields: list[tuple[str, Any]] = [(name, c_void_p) for name in names]
    fields += [(name, c_void_p * levels) for name in ("out", "back", "winner")]
    fields += [(name, c_int) for name in ("parts", "batch", "num_epochs", "first_epoch")]
    return type("Buffers", (ctypes.Structure,), {"_fields_": fields})
