"""Every preset resumes exactly, with noisy, compressed links and clients that drop out; also on a GPU, if there is one.

Three rounds, stopped after two: policies have measured, moved members and kept memories by then, and a personal part
has been trained and saved.
"""

from pathlib import Path
from typing import Any

import pytest

import fedbac
from fedbac import METHODS, Runtime
from fedbac.core.world import World
from fedbac.data import toy
from fedbac.runs.configure import Inputs
from fedbac.runs.play import play
from tests.covering import presets
from tests.support import NO_GPU, without
from tests.unit.tiny import tiny_task

HARD = World(dropout=0.3, availability=0.9)
LINKS = (
    "method.links.client_up=[{kind: clip, norm: 9}, {kind: noise, multiplier: 1e-3}, top_k]",
    "method.links.cloud_down.kind=eight_bits",
)


def interrupted_and_whole(preset: str, folder: Path, device: str, **task: Any) -> tuple[Any, Any]:
    inputs = Inputs(toy(size=16, train=300, test=60))  # images large enough for presets that have LeNet-5
    small = tiny_task(num_edges=6, clients_per_edge=3, world=HARD, rounds=3, **task)
    experiment = fedbac.configure(preset, small, settings=LINKS, inputs=inputs)
    runtime = Runtime(device=device, workers=1)
    playing = play(experiment, folder=folder, runtime=runtime, inputs=inputs)
    next(playing)
    next(playing)
    playing.close()
    resumed = fedbac.resume(folder, dataset=inputs.dataset)
    return resumed.records, list(play(experiment, runtime=runtime, inputs=inputs))


@pytest.mark.parametrize("preset", presets("clustering"))
def test_a_preset_resumes_exactly(preset: str, tmp_path: Path) -> None:
    resumed, whole = interrupted_and_whole(preset, tmp_path, "cpu")
    assert without(resumed) == without(whole)


@NO_GPU
@pytest.mark.parametrize("preset", METHODS)
def test_a_preset_resumes_exactly_on_a_gpu(preset: str, tmp_path: Path) -> None:
    resumed, whole = interrupted_and_whole(preset, tmp_path, "cuda", network=fedbac.LeNet5())
    assert without(resumed) == without(whole)
