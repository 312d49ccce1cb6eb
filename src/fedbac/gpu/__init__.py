"""Kernels that train many small networks at once on a GPU."""

from fedbac.gpu.driver import available
from fedbac.gpu.network import MAX_PARTS, Plan

__all__ = ["MAX_PARTS", "Plan", "available"]
