"""How the kernel is called: with the structs of ``network.hpp``, and so that a signal ends it at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, c_double, c_float, c_int8, c_int32, c_int64, c_uint8, c_void_p
from typing import TypeVar


class ImagesArgument(Structure):
    """``fedbac_images``."""

    _fields_ = [("pixels", c_void_p), ("is_float", c_int32), ("scale", POINTER(c_float)), ("shift", POINTER(c_float)),
                ("labels", POINTER(c_int64))]  # fmt: skip


class TrainCall(Structure):
    """``fedbac_train_call``."""

    _fields_ = [
        ("shape", POINTER(c_int32)), ("num_parts", c_int32), ("num_threads", c_int32), ("instruction_set", c_int32),
        ("images", ImagesArgument), ("num_jobs", c_int64), ("networks", POINTER(c_float)), ("start", POINTER(c_int64)),
        ("schedule", POINTER(c_int32)), ("schedule_begin", POINTER(c_int64)), ("num_examples", POINTER(c_int64)),
        ("num_epochs", POINTER(c_int64)), ("batch_size", c_int64), ("drop_last", c_int32), ("crop", POINTER(c_int8)),
        ("flip", POINTER(c_uint8)), ("learning_rate", POINTER(c_float)), ("momentum", c_float),
        ("weight_decay", POINTER(c_float)), ("l2", POINTER(c_float)), ("anchors", POINTER(c_float)),
        ("anchor", POINTER(c_int64)), ("moving_begin", POINTER(c_int64)), ("moving_end", POINTER(c_int64)),
        ("max_norm", c_float), ("clip_per_part", c_int32), ("shift", POINTER(c_float)),
        ("velocity_in", POINTER(c_float)), ("velocity_out", POINTER(c_float)), ("trained", POINTER(c_float)),
        ("loss", POINTER(c_double)), ("square", POINTER(c_double)), ("epoch_loss", POINTER(c_double)),
        ("max_epochs", c_int64), ("finite", POINTER(c_uint8)), ("stop", POINTER(c_int32)),
    ]  # fmt: skip


class EvaluateCall(Structure):
    """``fedbac_evaluate_call``."""

    _fields_ = [
        ("shape", POINTER(c_int32)), ("num_parts", c_int32), ("num_threads", c_int32), ("instruction_set", c_int32),
        ("images", ImagesArgument), ("networks", POINTER(c_float)), ("models", POINTER(c_int64)),
        ("num_groups", c_int64), ("examples", POINTER(c_int32)), ("group_begin", POINTER(c_int64)),
        ("num_pairs", c_int64), ("pair_model", POINTER(c_int64)), ("pair_group", POINTER(c_int64)),
        ("loss", POINTER(c_double)), ("correct", POINTER(c_int64)), ("stop", POINTER(c_int32)),
    ]  # fmt: skip


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
