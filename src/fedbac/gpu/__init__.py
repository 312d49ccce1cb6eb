"""Kernels that train many small networks at once on a GPU."""

from fedbac.gpu.driver import available, shared_limit
from fedbac.gpu.network import MAX_PARTS, NetworkPlan

__all__ = ["MAX_PARTS", "NetworkPlan", "available", "shared_limit"]
