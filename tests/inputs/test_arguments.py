"""Every argument of every call, given what it is not for: the answer is a value, or an error of ours that names it."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac.data import toy
from tests.covering import first
from tests.store.damage import TASK

ENDLESS: dict[str, Any] = {}
ENDLESS["kind"] = ENDLESS
LOOP: list[Any] = []
LOOP.append(LOOP)
STRANGE: list[Any] = [ENDLESS, LOOP, object(), b"x", float("nan"), -1, 1j, np.arange(3), lambda: 1, int, {1}, True, ""]
USUAL: dict[str, Any] = {"dataset": toy(size=8), "rounds": 1, "device": "cpu", "workers": 1, "progress": False}
OF_CALLS: dict[str, dict[str, Any]] = {
    "sweep": {"methods": ["hierfavg"], "task": TASK},
    "resume": {"folder": "run"},
    "verify": {"folder": "run"},
    "load": {"folder": "run"},
    "report": {"path": "report.html"},
    "run": {"method": "hierfavg", "task": TASK},
    "compare": {"methods": ["hierfavg"], "task": TASK},
    "tune": {"methods": ["hierfavg"], "task": TASK, "out": "tuned", "over": {"no.such": [1]}},
}


@pytest.mark.parametrize("call", first(5, OF_CALLS))
def test_whatever_is_given_the_answer_is_a_value_or_an_error_of_ours(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = fedbac.run("hierfavg", TASK, out="run", **USUAL)
    function = getattr(fedbac, call)
    names = inspect.signature(function).parameters
    arguments = {name: value for name, value in USUAL.items() if name in names} | OF_CALLS[call]
    if call == "report":
        arguments["runs"] = run
    found = []
    for name in names:
        for value in STRANGE:
            try:
                function(**arguments | {name: value})
            except fedbac.Error:
                pass
            except Exception as error:
                found.append(f"{name}: {type(value).__name__}: {type(error).__name__}: {error}")
    assert not found, "\n".join(found)
