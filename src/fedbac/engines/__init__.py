"""Engines: how the cloud reaches its edges."""

from fedbac.engines.simulator import Simulator

__all__ = ["Simulator"]
