"""Members of a federation that come and go: the run goes on under another charter."""

import json
import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.deploy.roles import epochs
from fedbac.deploy.roles.enrolment import Enrolled, stored
from fedbac.deploy.settings import Members
from fedbac.errors import DeployError
from fedbac.runs.play import finish
from fedbac.runs.store import Run, RunFolder
from tests.covering import first
from tests.deploy.in_memory import MemoryFederation
from tests.deploy.small import Small, compared, small
from tests.support import Record

METHODS = {
    "everything shared": ("hierfavg",),
    "clusters of edges": ("fed-bac", "method.clustering.period=1"),
    "a network per client": ("ditto",),
    "clusters of clients": ("ifca-clients",),
    "corrections of gradients": ("scaffold",),
    "clients that are chosen by what they said": ("hierfavg", "method.selection=oort"),
    "a network per edge": ("fedper",),
    "networks packed": ("hierfavg", "method.links.client_up=top_k"),
    "no tiers": ("fedavg",),
}


def take(playing: Generator[Record, None, Run], count: int) -> list[Record]:
    """Play some rounds, then stop the cloud."""
    records = [next(playing) for _ in range(count)]
    playing.close()
    return records


def changed(tiny: Small, folder: Path, members: Members = Members(), **task: Any) -> MemoryFederation:  # noqa: B008
    """Return the same federation, started again from kits that were made from a changed federation.yaml."""
    tree = tiny.experiment.model_dump(mode="json")
    experiment = parse(Experiment, {**tree, "task": {**tree["task"], **task}})
    sites, counts = dict(tiny.sites), experiment.task.clients()
    for m, count in enumerate(counts):
        for n in range(count):
            name = f"edge-{m}-client-{n}"
            sites.setdefault(name, tiny.sites[members.moved.get(name, "edge-0-client-0")])
        if "edge-0" in tiny.sites:
            sites.setdefault(f"edge-{m}", tiny.sites["edge-0"])
    known = {name: data for name, data in sites.items() if not members.gone(name)}
    return MemoryFederation(experiment, folder, known, tiny.federation(folder).deploy, members=members)


def same(records: list[Record], others: list[Record]) -> bool:
    return json.dumps(compared(records)) == json.dumps(compared(others))


@pytest.mark.parametrize("case", first(3, [case for case in METHODS if case != "corrections of gradients"]))
def test_an_edge_that_comes_late_is_one_that_was_away(case: str, tmp_path: Path) -> None:
    """A run that began without it goes on as one that had enrolled it and then lost it for as long.

    But for SCAFFOLD, whose step asks which share of all members has trained.
    """
    tiny = small(*METHODS[case], rounds=5)
    late = tiny.federation(tmp_path / "late", start_after=1e-9)
    late.cloud.lost = {"edge-1"}
    playing = late.play_on(tmp_path / "run")
    began = [next(playing), next(playing)]
    assert all(record["accuracy_per_edge"][1] is None for record in began)
    first = stored(tmp_path / "run")
    assert first is not None
    assert not any(name.startswith("edge-1") for name in first.charter.commitments)
    late.cloud.lost = set()
    run = finish(playing)

    away = tiny.federation(tmp_path / "away")
    enrolled = away.enrol()
    terms = replace(enrolled.charter, pixels=first.charter.pixels, run=first.charter.run)
    whole = replace(enrolled, charter=terms)
    away.cloud.lost = {"edge-1"}
    playing = away.play(enrolled=whole)
    expected = [next(playing), next(playing)]
    away.cloud.lost = set()
    expected += list(playing)
    for record in (*run.records, *expected):
        del record["bytes"]  # those who are away count, those who do not belong to the run do not
    assert same(run.records, expected)
    assert run.records[-1]["accuracy_per_edge"][1] is not None
    last = stored(tmp_path / "run")
    assert last is not None
    assert (last.charter.epoch, last.charter.after, last.charter.before) == (2, 2, first.charter.id)
    assert {name for name in last.charter.commitments if "client" in name} == set(last.charter.names)


@pytest.mark.parametrize("case", first(4, METHODS))
def test_a_client_that_is_added_takes_part_and_changes_nothing_before(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], rounds=5)
    began = take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    new = Members(added=("edge-0-client-2",))
    grown = changed(tiny, tmp_path, new, clients_per_edge=(3, 3))
    assert grown.sites["edge-0-client-2"].number == 5
    assert grown.sites["edge-1-client-0"].number == 2
    run = finish(grown.play_on(tmp_path / "run"))
    assert len(run.records) == 5
    last = stored(tmp_path / "run")
    assert last is not None
    assert last.charter.clients == ((0, 1, 5), (2, 3, 4))
    assert "edge-0-client-2" in last.charter.commitments
    later = {client for record in run.records[3:] for clients in record["selected"] for client in clients}
    if "oort" not in str(METHODS[case]):
        assert 5 in later
    assert not any(5 in clients for record in run.records[:3] for clients in record["selected"])
    plain = fedbac.load(tmp_path / "run")
    for record, old in zip(plain.records, began, strict=False):
        assert record["accuracy"] == old["accuracy"]
        assert [set(a) for a in record["selected"]] == [set(b) for b in old["selected"]]
    kept = RunFolder(tmp_path / "run" / "epochs" / "1").read()
    assert same(kept.records, began)
    (tmp_path / "page").mkdir()
    fedbac.report([plain], tmp_path / "page" / "report.html")


@pytest.mark.parametrize(
    "case", first(2, ["a network per client", "clusters of clients", "everything shared", "a network per edge"])
)
def test_an_edge_that_is_added_takes_part(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    new = Members(added=("edge-2-client-0", "edge-2-client-1"))
    grown = changed(tiny, tmp_path, new, num_edges=3, clients_per_edge=(2, 3, 2))
    run = finish(grown.play_on(tmp_path / "run"))
    assert [len(record["accuracy_per_edge"]) for record in run.records] == [3] * 4
    assert [record["accuracy_per_edge"][2] is None for record in run.records] == [True, True, True, False]
    if tiny.experiment.method.topology.tiers == 3:
        assert [record["absent"] for record in run.records] == [[2], [2], [2], []]


@pytest.mark.parametrize(
    "case", first(2, ["a network per client", "clusters of clients", "everything shared", "a network per edge"])
)
def test_who_leaves_is_asked_no_more(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    gone = Members(left=("edge-1-client-0",))
    fewer = changed(tiny, tmp_path, gone)
    assert "edge-1-client-0" not in fewer.sites["edge-1"].children
    run = finish(fewer.play_on(tmp_path / "run"))
    assert [2 in record["selected"][-1] for record in run.records] == [True, True, False, False]
    assert not any(record["failed"] for record in run.records)
    without = changed(tiny, tmp_path, Members(left=("edge-1-client-0", "edge-0")), rounds=6)
    run = finish(without.play_on(tmp_path / "run"))
    assert [record["accuracy_per_edge"][0] is None for record in run.records] == [False] * 4 + [True] * 2
    assert [epoch["epoch"] for epoch in RunFolder(tmp_path / "run").read_config()["epochs"]] == [1, 2]


def test_a_client_that_moves_keeps_what_it_owns(tmp_path: Path) -> None:
    tiny = small("ditto", rounds=5)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    moving = Members(
        added=("edge-0-client-2",), left=("edge-1-client-0",), moved={"edge-0-client-2": "edge-1-client-0"}
    )
    moved = changed(tiny, tmp_path, moving, clients_per_edge=(3, 3))
    run = tmp_path / "state" / "edge-1-client-0"
    shutil.copytree(run, tmp_path / "state" / "edge-0-client-2")
    own = sorted(path.name for path in (tmp_path / "state" / "edge-0-client-2").glob("*/own-*"))
    assert own == ["own-000001-0.safetensors", "own-000002-0.safetensors"]
    records = finish(moved.play_on(tmp_path / "run")).records
    assert [5 in record["selected"][0] for record in records] == [False, False, False, True, True]
    assert not any(2 in record["selected"][1] for record in records[2:])

    lost = changed(tiny, tmp_path / "b", moving, clients_per_edge=(3, 3))
    take(tiny.federation(tmp_path / "b").play_on(tmp_path / "b" / "run"), 2)
    with pytest.raises(DeployError, match=r"edge-0-client-2 cannot continue after round 3: its state is gone"):
        finish(lost.play_on(tmp_path / "b" / "run"))


def test_a_finished_run_takes_more_rounds(tmp_path: Path) -> None:
    """As if they had been planned, where nothing depends on how many there are."""
    tiny = small("hierfavg", rounds=2)
    finish(tiny.federation(tmp_path).play_on(tmp_path / "run"))
    run = finish(changed(tiny, tmp_path, rounds=4).play_on(tmp_path / "run"))
    assert same(run.records, small("hierfavg", rounds=4).simulated().records)
    with pytest.raises(DeployError, match="4 rounds are played already"):
        finish(changed(tiny, tmp_path, rounds=3).play_on(tmp_path / "run"))
    other = tiny.experiment.model_dump(mode="json")["task"]["training"] | {"batch_size": 7}
    with pytest.raises(DeployError, match=r"another experiment \(task.training.batch_size"):
        finish(changed(tiny, tmp_path, training=other).play_on(tmp_path / "run"))


def test_data_are_refreshed_only_when_the_operator_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny = small("hierfavg", rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    name = "edge-0-client-1"
    more = dict(tiny.sites[name])
    more |= {key: np.concatenate([value, value[:3]]) for key, value in more.items() if key.endswith("_train")}
    renewed = replace(tiny, sites={**tiny.sites, name: more})
    records = take(renewed.federation(tmp_path).play_on(tmp_path / "run"), 1)
    assert 1 not in records[0]["selected"][0]
    run = finish(renewed.federation(tmp_path).play_on(tmp_path / "run", [name]))
    assert all(1 in record["selected"][0] for record in run.records[2:])
    assert "with other data: edge-0-client-1" in caplog.text
    with pytest.raises(DeployError, match="--refresh: unknown site 'edge-7'"):
        finish(renewed.federation(tmp_path).play_on(tmp_path / "run", ["edge-7"]))


def test_who_joins_with_labels_that_the_run_does_not_know_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = small("hierfavg", rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    odd = dict(tiny.sites["edge-0-client-0"])
    odd |= {"y_train": np.full_like(odd["y_train"], 77)}
    sites = replace(tiny, sites={**tiny.sites, "edge-0-client-2": odd})
    grown = changed(sites, tmp_path, Members(added=("edge-0-client-2",)), clients_per_edge=(3, 3))
    run = finish(grown.play_on(tmp_path / "run"))
    assert "its labels go up to 77, and the run has classes 0 to" in caplog.text
    assert not any(5 in record["selected"][0] for record in run.records)


def test_newcomers_help_where_too_few_are_left(tmp_path: Path) -> None:
    """A round that cannot be played does not keep out those with whom it could be."""
    tiny = small("hierfavg", rounds=4)
    late = tiny.federation(tmp_path, start_after=1e-9)
    late.cloud.lost = {"edge-1"}
    playing = late.play_on(tmp_path / "run")
    next(playing)

    links = late.cloud
    honest = links.answers["edge-0"]

    def dies(payload: bytes, gone: Any) -> bytes:
        links.lost, links.answers["edge-0"] = set(), honest
        raise OSError

    links.answers["edge-0"] = dies
    records = finish(playing).records
    assert [record["accuracy_per_edge"][1] is None for record in records] == [True, False, False, False]


def test_numbers_never_change(tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    with pytest.raises(DeployError, match="would get other numbers; add sites with: fedbac federation add"):
        finish(changed(tiny, tmp_path, clients_per_edge=(3, 3)).play_on(tmp_path / "run"))


@pytest.mark.full
def test_a_cloud_that_dies_between_two_charters_finishes_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has done by then: every file it writes or removes may be the last."""
    tiny = small("fed-bac", rounds=3)
    take(tiny.federation(tmp_path).play_on(tmp_path / "begun"), 2)
    new = Members(added=("edge-0-client-2",))

    def grown(name: str) -> Run:
        return finish(changed(tiny, tmp_path, new, clients_per_edge=(3, 3)).play_on(tmp_path / name))

    shutil.copytree(tmp_path / "begun", tmp_path / "whole")
    (tmp_path / "whole" / ".lock").unlink(missing_ok=True)
    whole = grown("whole").records
    step = 0
    while True:
        step += 1
        name = f"dies-{step}"
        shutil.copytree(tmp_path / "begun", tmp_path / name)
        (tmp_path / name / ".lock").unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            dying(patch, step)
            try:
                advance_once(tiny, tmp_path, new, name)
                died = False
            except Killed:
                died = True
        assert same(grown(name).records, whole)
        if not died:
            break
    assert step > 8


class Killed(BaseException):
    """The process is gone."""


def dying(patch: pytest.MonkeyPatch, step: int) -> None:
    """Have the process die before its n-th change of the disk."""
    left = [step]

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (epochs, "remove"), (epochs, "make_folder"), (shutil, "copy2"), (Path, "rename"),
        (Enrolled, "save"), (RunFolder, "clear"), (RunFolder, "write_config"), (RunFolder, "append"),
        (RunFolder, "save"),
    ):  # fmt: skip
        patch.setattr(owner, name, counted(getattr(owner, name)))


def advance_once(tiny: Small, folder: Path, new: Members, name: str) -> None:
    playing = changed(tiny, folder, new, clients_per_edge=(3, 3)).play_on(folder / name)
    playing.close()
