"""A cloud that goes back further than its sites can, and sites that lost what they kept: the operator decides."""

import re
import shutil
from pathlib import Path

import pytest

from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.transports.grpc.common import shown
from fedbac.errors import DeployError, quoted
from fedbac.runs.play import finish
from tests.covering import first
from tests.deploy.in_memory import MemoryFederation
from tests.deploy.small import FIRST, small
from tests.support import without

FEW = (1, 1)
"""Clients of each edge."""
PERSIST = "task.training.momentum_state=persist"
ADVICE = r"fedbac cloud KIT --accept-rollback$"
KEPT = {
    "a client's network": ("ditto", FIRST),
    "an edge's head": ("fedper-edges", "edge-0"),
    "momentum": ("hierfavg", FIRST, PERSIST),
    "momentum without edges between": ("fedavg", FIRST, PERSIST),
}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("own-*"))}


def state(federation: MemoryFederation, site: str) -> Path:
    (folder,) = (federation.folder / "state" / site).iterdir()
    return folder


@pytest.mark.parametrize("case", first(1, ["an edge's head", *(case for case in KEPT if "edge's" not in case)]))
@pytest.mark.parametrize("copied", first(1, [2, 0]))
def test_an_old_backup_of_the_cloud_stops_the_run_and_changes_nothing(
    case: str, copied: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one from before the first round, after which everybody would begin afresh."""
    method, site, *settings = KEPT[case]
    federation = small(method, *settings, rounds=7, counts=FEW).federation(tmp_path)
    enrolled = federation.enrol()
    playing = federation.play(tmp_path / "run", enrolled)
    for _ in range(copied):
        next(playing)
    if copied:
        shutil.copytree(tmp_path / "run", tmp_path / "backup")
        (tmp_path / "backup" / ".lock").unlink(missing_ok=True)
    finish(playing)
    before = files(tmp_path / "state")
    said = rf"{site} cannot continue after round {copied}: it has kept state up to round 7\. The cloud's run folder is"
    with pytest.raises(DeployError, match=rf"{said} an old copy: restore the newest one; or .*{ADVICE}"):
        federation.run(tmp_path / "backup", enrolled)
    assert files(tmp_path / "state") == before
    assert f"the run continues after round {copied}, but the state it has kept is of round 7" in caplog.text
    assert "restore this folder, or the newest run folder of the cloud" in caplog.text

    oldest = min(state(federation, site).glob("own-*")).read_bytes()
    federation.accept_rollback = True
    playing = federation.play(tmp_path / "backup", enrolled)
    next(playing)
    assert oldest in files(state(federation, site)).values()  # what it goes on with, under an earlier round
    assert "instead of" in caplog.text
    playing.close()
    federation.accept_rollback = False
    assert len(federation.run(tmp_path / "backup", enrolled).records) == 7


@pytest.mark.parametrize("case", first(1, KEPT))
@pytest.mark.parametrize("damage", first(1, ["lost", "cut"]))
def test_a_site_that_lost_its_state_stops_the_run_until_it_is_back(case: str, damage: str, tmp_path: Path) -> None:
    method, site, *settings = KEPT[case]
    tiny = small(method, *settings, rounds=4, counts=FEW)
    whole = tiny.federation(tmp_path / "whole").run().records
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    playing = federation.play(tmp_path / "run", enrolled)
    next(playing)
    next(playing)
    playing.close()
    shutil.copytree(tmp_path / "state", tmp_path / "saved")
    if damage == "lost":
        shutil.rmtree(state(federation, site))
    else:
        newest = max(state(federation, site).glob("own-*"))
        newest.write_bytes(newest.read_bytes()[:100])
    is_now = "gone" if damage == "lost" else "of round 1"
    says = rf"{site} cannot continue after round 2: its state is {is_now}\. Restore its state folder; or .*{ADVICE}"
    with pytest.raises(DeployError, match=says):
        federation.run(tmp_path / "run", enrolled)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    (tmp_path / "again" / ".lock").unlink(missing_ok=True)

    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "saved", tmp_path / "state")
    assert without(federation.run(tmp_path / "run", enrolled).records) == without(whole)

    shutil.rmtree(tmp_path / "state" / site)
    federation.accept_rollback = True
    playing = federation.play(tmp_path / "again", enrolled)
    next(playing)
    playing.close()
    federation.accept_rollback = False
    assert len(federation.run(tmp_path / "again", enrolled).records) == 4


@pytest.mark.full
def test_a_client_that_never_trained_lacks_nothing(tmp_path: Path) -> None:
    """Nor does one whose only training did not count."""
    tiny = small("scaffold", "method.selection.fraction=0.4", rounds=6)
    whole = tiny.federation(tmp_path / "whole").run().records
    assert len({client for record in whole[:3] for clients in record["selected"] for client in clients}) < 5
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    for _ in range(5):
        playing = federation.play(tmp_path / "run", enrolled)
        next(playing)
        playing.close()
        federation = tiny.federation(tmp_path)
    assert without(federation.run(tmp_path / "run", enrolled).records) == without(whole)


@pytest.mark.parametrize("failure", [Failure.CLIENT_STATE, Failure.EDGE_STATE])
def test_what_is_told_of_lost_state_is_recognized_whatever_carries_it(failure: Failure) -> None:
    told = SiteError(failure, 9_999, 123_456, 123_450, detail="C:\\secret").public
    for carried in (shown(f"failed: {told}"), quoted(f"failed: {told}"), told[:200]):
        found = SiteError.found(carried, Failure.CLIENT_STATE, Failure.EDGE_STATE)
        assert found is not None
        assert (found.failure, found.numbers) == (failure, (9_999, 123_456, 123_450))
    assert SiteError.found(re.sub(r"\d+", "x", told), failure) is None
