"""Whatever a crash of the system leaves of a run, the same command goes on to the same bits and loses no told round."""

from pathlib import Path

import pytest

import fedbac
from fedbac.runs.configure import configure
from fedbac.runs.play import play
from tests.store.crashes import Disk, put
from tests.store.damage import INPUTS, TASK, weights

ROUNDS = 4
EXPERIMENT = configure("hierfavg", TASK, rounds=ROUNDS, inputs=INPUTS)
ALONE = fedbac.Runtime(workers=1, device="cpu")


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 9])
def test_every_prefix_of_disk_operations_in_every_allowed_order(every: int, tmp_path: Path) -> None:
    whole = tmp_path / "disk" / "runs" / "run"
    whole.parent.parent.mkdir()
    told = 0
    disk = Disk(tmp_path / "disk", lambda: told)
    with pytest.MonkeyPatch.context() as patch:
        disk.watch(patch)
        playing = play(EXPERIMENT, folder=whole, inputs=INPUTS, runtime=ALONE)
        for record in playing:
            told = record["round"]
        disk.look()
    disk.close()
    records = [record | {"seconds": 0} for record in fedbac.load(whole).records]
    assert len(disk.crashes) > 15 * ROUNDS
    for number, (left, sure) in enumerate(list(disk.crashes.items())[::every]):
        place = tmp_path / str(number)
        put(left, place)
        folder = place / "runs" / "run"
        again = play(EXPERIMENT, folder=folder, inputs=INPUTS, runtime=ALONE)
        names = sorted(path for path, _ in left)
        assert all(record["round"] > sure for record in again), f"round {sure} was lost, of {names}"
        assert [record | {"seconds": 0} for record in fedbac.load(folder).records] == records, names
        assert weights(folder) == weights(whole), names
