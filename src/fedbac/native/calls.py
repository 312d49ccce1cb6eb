"""How the kernel is called: with the structs of ``network.hpp``, and so that a signal ends it at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any, TypeVar

import numpy as np


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class ImagesArgument(Structure):
    """``fedbac_images``."""

    _fields_ = [("pixels", c_void_p), ("is_float", c_int32), *_fields(c_void_p, "scale shift labels")]


class TrainCall(Structure):
    """``fedbac_train_call``."""

    _fields_ = [
        ("shape", c_void_p), *_fields(c_int32, "num_parts num_threads instruction_set"), ("images", ImagesArgument),
        ("num_jobs", c_int64), *_fields(c_void_p, "networks start schedule schedule_begin num_examples num_epochs"),
        ("batch_size", c_int64), ("drop_last", c_int32), *_fields(c_void_p, "crop flip learning_rate"),
        ("momentum", c_float), *_fields(c_void_p, "weight_decay l2 anchors anchor moving_begin moving_end"),
        ("max_norm", c_float), ("clip_per_part", c_int32),
        *_fields(c_void_p, "shift velocity_in velocity_out trained loss square epoch_loss"), ("max_epochs", c_int64),
        *_fields(c_void_p, "finite stop"),
    ]  # fmt: skip


class EvaluateCall(Structure):
    """``fedbac_evaluate_call``."""

    _fields_ = [
        ("shape", c_void_p), *_fields(c_int32, "num_parts num_threads instruction_set"), ("images", ImagesArgument),
        *_fields(c_void_p, "networks models"), ("num_groups", c_int64), *_fields(c_void_p, "examples group_begin"),
        ("num_pairs", c_int64), *_fields(c_void_p, "pair_model pair_group loss correct stop"),
    ]  # fmt: skip


Struct = TypeVar("Struct", bound=Structure)


def filled(kind: type[Struct], **given: Any) -> Struct:
    """Return a struct that points to the arrays given, and keeps them alive."""
    struct = kind(**{name: v.ctypes.data if isinstance(v, np.ndarray) else v for name, v in given.items()})
    struct.given = given
    return struct


Result = TypeVar("Result")


def interruptible(work: Callable[[c_int32], Result]) -> Result:
    """Return ``work(stop)``, done in another thread while this one waits.

    Python's signal handlers run on the main thread, and not while it is in the kernel; here it only waits. When a
    handler raises, ``stop`` tells the kernel to end after the samples in hand, and what it computed is lost.
    """
    stop = c_int32(0)
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(work, stop).result()
        except BaseException:
            stop.value = 1
            raise
