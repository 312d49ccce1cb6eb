"""What ``make test`` leaves to ``make test-all``: tests marked ``full``, most cases of those marked ``covering``."""

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.covering import covering

if find_spec("hypothesis") is not None:  # beside NVFlare it is not installed
    from hypothesis import HealthCheck, settings

    # A busy machine is no fault of the code.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")

gc.disable()  # nothing of what collecting the tests makes is garbage, and to look at all of it again takes seconds


def pytest_collection_finish() -> None:
    """Leave what was collected out of all further collections of garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_power_fails() -> Iterator[None]:
    """Nothing waits for the disk; a test of what is written when watches a function of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``full`` what a covering test need not be run with; what is skipped here covers nothing."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for calls in tests.values():
        own = [call for call in calls if not call.get_closest_marker("full")]  # the others are not run anyway
        run = [call for call in own if not any(mark.args[0] for mark in call.iter_markers("skipif"))]
        rows = [tuple(f"{name}={value!r}" for name, value in call.callspec.params.items()) for call in run]
        kept = {run[row] for row in covering(rows)}
        for call in calls:
            if call not in kept:
                call.add_marker("full")
