"""Members of a federation that come and go: the run goes on under another charter."""

import json
import shutil
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.heads import KINDS
from fedbac.deploy.protocol.wire import decode, encode
from fedbac.deploy.roles import epochs
from fedbac.deploy.roles.enrolment import Enrolled, Roll, next_charter, stored
from fedbac.deploy.settings import DeploySettings, MemberChanges
from fedbac.errors import DeployError
from fedbac.rounds.start import start
from fedbac.runs.play import finish
from fedbac.runs.store import RunFolder, StoredRun
from tests.covering import first
from tests.deploy.in_memory import MemoryChildren, MemoryFederation
from tests.deploy.small import Small, compared, small
from tests.deploy.test_liars import more
from tests.deploy.test_lost_peers import lies
from tests.support import Record

METHODS = {
    "everything shared": ("hierfavg",),
    "clusters of edges": ("fed-bac", "method.clustering.period=1"),
    "a network per client": ("ditto",),
    "clusters of clients": ("ifca",),
    "corrections of gradients": ("scaffold",),
    "clients that are chosen by what they said": ("hierfavg", "method.selection=oort"),
    "a network per edge": ("fedper-edges",),
    "networks packed": ("hierfavg", "method.links.client_up=top_k"),
    "no tiers": ("fedavg",),
}


def take(playing: Generator[Record, None, StoredRun], count: int) -> list[Record]:
    """Play some rounds, then stop the cloud."""
    records = [next(playing) for _ in range(count)]
    playing.close()
    return records


def changed(tiny: Small, folder: Path, members: MemberChanges = MemberChanges(), **task: Any) -> MemoryFederation:  # noqa: B008
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


@pytest.mark.parametrize("case", first(1, [case for case in METHODS if case != "corrections of gradients"]))
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


@pytest.mark.parametrize("case", first(1, METHODS))
def test_a_client_that_is_added_takes_part_and_changes_nothing_before(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], rounds=5)
    began = take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    new = MemberChanges(added=("edge-0-client-2",))
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
    "case", first(1, ["a network per client", "clusters of clients", "everything shared", "a network per edge"])
)
def test_an_edge_that_is_added_takes_part(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    new = MemberChanges(added=("edge-2-client-0", "edge-2-client-1"))
    grown = changed(tiny, tmp_path, new, num_edges=3, clients_per_edge=(2, 3, 2))
    run = finish(grown.play_on(tmp_path / "run"))
    assert [len(record["accuracy_per_edge"]) for record in run.records] == [3] * 4
    assert [record["accuracy_per_edge"][2] is None for record in run.records] == [True, True, True, False]
    if tiny.experiment.method.topology.tiers == 3:
        assert [record["absent"] for record in run.records] == [[2], [2], [2], []]


@pytest.mark.parametrize(
    "case", first(1, ["a network per client", "clusters of clients", "everything shared", "a network per edge"])
)
def test_who_leaves_is_asked_no_more(case: str, tmp_path: Path) -> None:
    tiny = small(*METHODS[case], rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    gone = MemberChanges(left=("edge-1-client-0",))
    fewer = changed(tiny, tmp_path, gone)
    assert "edge-1-client-0" not in fewer.sites["edge-1"].children
    run = finish(fewer.play_on(tmp_path / "run"))
    assert [2 in record["selected"][-1] for record in run.records] == [True, True, False, False]
    assert not any(record["failed"] for record in run.records)
    without = changed(tiny, tmp_path, MemberChanges(left=("edge-1-client-0", "edge-0")), rounds=6)
    run = finish(without.play_on(tmp_path / "run"))
    assert [record["accuracy_per_edge"][0] is None for record in run.records] == [False] * 4 + [True] * 2
    assert [epoch["epoch"] for epoch in RunFolder(tmp_path / "run").read_config()["epochs"]] == [1, 2]


def test_a_client_that_moves_keeps_what_it_owns(tmp_path: Path) -> None:
    tiny = small("ditto", rounds=5)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    moving = MemberChanges(
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
    assert "what computed its last rounds is not here" not in caplog.text
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
    grown = changed(sites, tmp_path, MemberChanges(added=("edge-0-client-2",)), clients_per_edge=(3, 3))
    run = finish(grown.play_on(tmp_path / "run"))
    assert "its labels go up to 77, and the run has classes 0 to" in caplog.text
    assert not any(5 in record["selected"][0] for record in run.records)


def relieved(folder: Path, rounds: int) -> tuple[MemoryChildren, Generator[Record, None, StoredRun]]:
    """Play a round of a run that began without an edge; in the next, the other one fails once and that one comes."""
    late = small("hierfavg", rounds=rounds).federation(folder, start_after=1e-9)
    links = late.cloud
    links.lost, honest = {"edge-1"}, links.answers["edge-0"]
    playing = late.play_on(folder / "run")
    next(playing)

    def dies(payload: bytes, gone: Any) -> bytes:
        links.lost, links.answers["edge-0"] = set(), honest
        raise OSError

    links.answers["edge-0"] = dies
    return links, playing


def test_newcomers_help_where_too_few_are_left(tmp_path: Path) -> None:
    """A round that cannot be played does not keep out those with whom it could be."""
    _, playing = relieved(tmp_path, 4)
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
    new = MemberChanges(added=("edge-0-client-2",))

    def grown(name: str) -> StoredRun:
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


def advance_once(tiny: Small, folder: Path, new: MemberChanges, name: str) -> None:
    playing = changed(tiny, folder, new, clients_per_edge=(3, 3)).play_on(folder / name)
    playing.close()


def twice(tiny: Small) -> tuple[Small, MemberChanges]:
    """Have client 2 move to edge 0 as client 5, and back as client 6, before the cloud hears of either."""
    names = ("edge-0-client-2", "edge-1-client-3")
    sites = {**tiny.sites, **dict.fromkeys(names, tiny.sites["edge-1-client-0"])}
    moved = {names[1]: names[0], names[0]: "edge-1-client-0"}
    return replace(tiny, sites=sites), MemberChanges(added=names, left=("edge-1-client-0", names[0]), moved=moved)


@pytest.mark.full
def test_a_client_that_moves_twice_keeps_what_it_owns(tmp_path: Path) -> None:
    tiny, moving = twice(small("ditto", rounds=5))
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    moved = changed(tiny, tmp_path, moving, clients_per_edge=(3, 4))
    shutil.copytree(tmp_path / "state" / "edge-1-client-0", tmp_path / "state" / "edge-1-client-3")
    records = finish(moved.play_on(tmp_path / "run")).records
    assert [6 in record["selected"][1] for record in records] == [False] * 3 + [True] * 2

    lost = changed(tiny, tmp_path / "b", moving, clients_per_edge=(3, 4))
    take(tiny.federation(tmp_path / "b").play_on(tmp_path / "b" / "run"), 2)
    with pytest.raises(DeployError, match=r"edge-1-client-3 cannot continue after round 3: its state is gone"):
        finish(lost.play_on(tmp_path / "b" / "run"))


def test_a_client_that_moves_twice_keeps_its_cluster(tmp_path: Path) -> None:
    tiny, moving = twice(small("ifca", rounds=3))
    took = take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)[-1]["assignment_next"]
    before = stored(tmp_path / "run")
    assert before is not None
    state = start(before.charter.experiment, before.build, before.sites)
    state.label_N[:] = took
    state.label_N[2] = 3
    grown = changed(tiny, tmp_path, moving, clients_per_edge=(3, 4))
    after = next_charter(before, grown.experiment, moving, Roll({}, {}, {}, {}), 2)
    first, began = (start(it.charter.experiment, it.build, it.sites) for it in (after, before))
    taken = epochs.grown(state, began, first, before, after, moving.moved)
    assert taken.label_N[[2, 5, 6]].tolist() == [3, 3, 3]


def test_an_edge_tells_nothing_of_clients_of_another_edge_or_of_those_who_left(tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=5)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    new = MemberChanges(added=("edge-0-client-2", "edge-1-client-3"), left=("edge-1-client-0",))
    grown = changed(tiny, tmp_path, new, clients_per_edge=(3, 4))
    grown.children("edge-1").lost = {"edge-1-client-3"}
    honest = grown.cloud.answers["edge-0"]
    others = ["edge-1-client-0", "edge-1-client-3"]

    def lies(payload: bytes, gone: Any) -> bytes:
        message = decode(honest(payload, gone), KINDS)
        head = message.head
        if message.kind == "roster":
            (told, *_) = head["clients"].values()
            head["clients"] |= {name: {**told, "train": 10**7} for name in others}
        elif "present" in head:
            head["present"] += others
        return encode(message.kind, head, message.tensors)

    grown.cloud.answers["edge-0"] = lies
    playing = grown.play_on(tmp_path / "run")
    assert [next(playing)["absent"], next(playing)["absent"]] == [[], []]
    grown.children("edge-1").lost = set()
    assert finish(playing).records[-1]["absent"] == []
    last = stored(tmp_path / "run")
    assert last is not None
    assert "edge-1-client-0" not in last.charter.commitments
    assert {"edge-0-client-2", "edge-1-client-3"} <= last.charter.commitments.keys()


@pytest.mark.full
def test_a_newcomer_that_goes_again_ends_nothing(tmp_path: Path) -> None:
    """A round cannot be played, somebody could join, and is gone before it is asked."""
    links, playing = relieved(tmp_path, 3)
    present = links.present

    def goes() -> frozenset[str]:
        there = present()
        links.lost |= {"edge-1"} & there
        return there

    links.present = goes  # type: ignore[method-assign]
    assert len(finish(playing).records) == 3


@pytest.mark.full
def test_who_is_declined_does_not_keep_the_cloud_from_going_back(tmp_path: Path) -> None:
    """A round that breaks down is repeated as often as is said, though somebody waits who cannot join."""
    tiny = small("hierfavg", rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    odd = {"x_train": np.zeros((9, 3), dtype=np.float32), "y_train": np.zeros(9, dtype=np.int64)}
    sites = replace(tiny, sites={**tiny.sites, "edge-0-client-2": odd})
    grown = changed(sites, tmp_path, MemberChanges(added=("edge-0-client-2",)), clients_per_edge=(3, 3))
    grown.deploy = grown.deploy.model_copy(update={"max_repeats": 1})
    grown.most_said = 50
    playing = grown.play_on(tmp_path / "run")
    next(playing)

    def breaks(payload: bytes, gone: Any) -> bytes:
        raise SiteError(Failure.NOT_SOUND, 1, 1)

    grown.cloud.answers |= dict.fromkeys(grown.cloud.answers, breaks)
    with pytest.raises(DeployError, match="No older checkpoint is left to go back to"):
        finish(playing)


@pytest.mark.full
def test_a_step_that_cannot_be_done_leaves_the_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = small("hierfavg", rounds=3)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 2)
    new = MemberChanges(added=("edge-0-client-2",))
    with monkeypatch.context() as patch:

        def cannot(*_: object) -> Any:
            raise DeployError("the method's memory cannot take new members")

        patch.setattr(epochs, "grown", cannot)
        with pytest.raises(DeployError, match="cannot take new members"):
            finish(changed(tiny, tmp_path, new, clients_per_edge=(3, 3)).play_on(tmp_path / "run"))
        run = finish(changed(tiny, tmp_path).play_on(tmp_path / "run"))
    assert same(run.records, tiny.simulated().records)


@pytest.mark.full
def test_a_step_is_finished_though_kits_have_changed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = small("hierfavg", rounds=4)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    first = MemberChanges(added=("edge-0-client-2",))
    with monkeypatch.context() as patch:

        def dies(*_: object) -> None:
            raise Killed

        patch.setattr(RunFolder, "clear", dies)
        with pytest.raises(Killed):
            finish(changed(tiny, tmp_path, first, clients_per_edge=(3, 3)).play_on(tmp_path / "run"))
    moved, old = "edge-0-client-3", "edge-1-client-0"
    then = MemberChanges(added=(*first.added, moved), left=(old,), moved={moved: old})
    run = finish(changed(tiny, tmp_path, then, clients_per_edge=(4, 3)).play_on(tmp_path / "run"))
    assert {5, 6} <= set(run.records[-1]["selected"][0])


@pytest.mark.full
def test_test_data_of_an_edge_are_refreshed_too(tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=3)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    fewer = {key: value[:7] for key, value in tiny.sites["edge-0"].items()}
    renewed = replace(tiny, sites={**tiny.sites, "edge-0": fewer})
    run = finish(renewed.federation(tmp_path).play_on(tmp_path / "run", ["edge-0"]))
    assert all(record["absent"] == [] for record in run.records)
    last = stored(tmp_path / "run")
    assert last is not None
    assert (last.charter.epoch, last.charter.edge_tests(0)) == (2, 7)
    finish(renewed.federation(tmp_path).play_on(tmp_path / "run", ["edge-0"]))
    again = stored(tmp_path / "run")
    assert again is not None
    assert again.charter.epoch == 2, "data that are the same make no epoch"


def test_a_new_edge_whose_test_data_look_otherwise_does_not_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = small("hierfavg", rounds=3)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    odd = {**tiny.sites["edge-0"], "x_test": tiny.sites["edge-0"]["x_test"][..., :4]}
    sites = replace(tiny, sites={**tiny.sites, "edge-2": odd})
    new = MemberChanges(added=("edge-2-client-0",))
    finish(changed(sites, tmp_path, new, num_edges=3, clients_per_edge=(2, 3, 1)).play_on(tmp_path / "run"))
    assert "edge-2 cannot join: its examples" in caplog.text
    last = stored(tmp_path / "run")
    assert last is not None
    assert not any(name.startswith("edge-2") for name in last.charter.commitments)


def test_a_run_begins_without_an_edge_s_missing_clients_if_they_left(tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=1)
    deploy = DeploySettings(min_clients=2, start_after=1e-9)
    gone = MemberChanges(left=("edge-0-client-1",))
    data = {name: arrays for name, arrays in tiny.sites.items() if not gone.gone(name)}
    run = finish(MemoryFederation(tiny.experiment, tmp_path, data, deploy, members=gone).play_on(tmp_path / "run"))
    assert run.records[0]["selected"][0] == [0]


def test_the_cloud_does_not_see_the_totals_of_edges_grow_client_by_client(tmp_path: Path) -> None:
    federation = small("hierfavg").federation(tmp_path)
    links, told, away = federation.children("edge-1"), list[Any](), ["edge-1-client-0", "edge-1-client-2"]
    honest = federation.cloud.answers["edge-1"]

    def heard(payload: bytes, gone: Any) -> bytes:
        answer = honest(payload, gone)
        told.append(decode(answer, KINDS).head["together"])
        return answer

    federation.cloud.answers["edge-1"] = heard
    links.lost = set(away)
    federation.waited = lambda _: links.lost.remove(away.pop())
    federation.enrol()
    assert [bool(one) for one in told] == [False, False, True]


def test_an_edge_whose_kit_has_another_start_after_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = small("hierfavg").federation(tmp_path, start_after=1e-9)
    edge, federation.most_said = federation.edges["edge-1"], 1
    edge.site = edge.site.model_copy(update={"deploy": DeploySettings()})
    federation.children("edge-1").lost = {"edge-1-client-0"}
    assert not any(name.startswith("edge-1") for name in federation.enrol().charter.commitments)
    assert "edge-1: facts: classes and sums of all clients are missing; if its kit has" in caplog.text


def test_fewer_edges_are_no_change_of_members(tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=3)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    with pytest.raises(DeployError, match="would get other numbers"):
        finish(changed(tiny, tmp_path, num_edges=1, clients_per_edge=(2,)).play_on(tmp_path / "run"))


@pytest.mark.full
def test_a_new_edge_may_come_before_its_clients(tmp_path: Path) -> None:
    tiny = small("hierfavg", rounds=5)
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    new = MemberChanges(added=("edge-2-client-0",))
    grown = changed(tiny, tmp_path, new, num_edges=3, clients_per_edge=(2, 3, 1))
    grown.children("edge-2").lost = {"edge-2-client-0"}
    playing = grown.play_on(tmp_path / "run")
    assert [next(playing)["absent"] for _ in range(2)] == [[2], [2]]  # asked between them, and has no client yet
    grown.children("edge-2").lost = set()
    assert [record["absent"] for record in finish(playing).records[3:]] == [[], []]


@pytest.mark.full
def test_a_newcomer_that_says_that_it_holds_most_examples_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny, name = small("hierfavg", rounds=3), "edge-0-client-2"
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    grown = changed(tiny, tmp_path, MemberChanges(added=(name,)), clients_per_edge=(3, 3))
    lies(grown, name, "facts", more)
    finish(grown.play_on(tmp_path / "run"))
    assert f"{name} says that it holds" in caplog.text


def unfinished(run: Path) -> None:
    """Have the last step be done again, without what it begins with."""
    shutil.copy(run / "charter.json", run / "epochs" / "next.json")
    shutil.rmtree(run / "epochs" / "2")


@pytest.mark.full
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "charter.json").unlink(), r"charter.json: it is missing, and the run is of epoch 3"),
        (lambda run: shutil.copy(run / "epochs" / "1" / "charter.json", run), r"it is of epoch 1, and the run is of"),
        (unfinished, r"2: it is missing, and with it the run as it was"),
    ],
)
def test_a_run_folder_whose_parts_are_of_different_backups_is_kept_as_it_is(
    spoil: Any, message: str, tmp_path: Path
) -> None:
    tiny, new = small("hierfavg", rounds=6), MemberChanges(added=("edge-0-client-2",))
    take(tiny.federation(tmp_path).play_on(tmp_path / "run"), 1)
    take(changed(tiny, tmp_path, new, clients_per_edge=(3, 3)).play_on(tmp_path / "run"), 2)
    spoil(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*") if path.is_file()}
    with pytest.raises(DeployError, match=message):
        changed(tiny, tmp_path, new, clients_per_edge=(3, 3)).play_on(tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*") if path.is_file()} == before


def other_images(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {n: np.zeros((len(it), 2, 9, 9), dtype=np.uint8) if n.startswith("x") else it for n, it in arrays.items()}


@pytest.mark.covering
@pytest.mark.parametrize("start_after", [None, 1e-9])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("labels", "its labels go up to 99999, where those of the edge's other clients go up to about"),
        ("examples", "its examples are uint8 [2, 9, 9], those of most others uint8 [1, 8, 8]"),
    ],
)
def test_one_client_does_not_keep_the_others_from_starting(
    change: str, says: str, start_after: float | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its data fit to nobody's: it is named and left out, and the others play as if it had never been."""
    tiny, name = small("hierfavg", rounds=2), "edge-1-client-1"
    odd = other_images(tiny.sites[name]) if change == "examples" else dict(tiny.sites[name])
    if change == "labels":
        odd["y_train"] = np.concatenate([odd["y_train"][:-1], [99_999]])
    federation = replace(tiny, sites={**tiny.sites, name: odd}).federation(tmp_path, start_after=start_after)
    enrolled = federation.enrol()
    assert set(enrolled.charter.names) - set(enrolled.charter.commitments) == {name}
    assert f"{name} is left out: {says}" in caplog.text
    alone = tiny.federation(tmp_path / "alone", start_after=1e-9)
    alone.children("edge-1").lost = {name}
    rest = alone.enrol()
    assert (rest.charter.num_classes, rest.charter.pixels) == (enrolled.charter.num_classes, enrolled.charter.pixels)
    assert same(federation.run(enrolled=enrolled).records, alone.run(enrolled=rest).records)


@pytest.mark.full
def test_one_client_is_not_left_out_where_a_quorum_needs_it(tmp_path: Path) -> None:
    tiny, name = small("hierfavg", rounds=2), "edge-0-client-1"
    sites = {**tiny.sites, name: other_images(tiny.sites[name])}
    federation = replace(tiny, sites=sites).federation(tmp_path, min_clients=2)
    with pytest.raises(DeployError, match="stopped before the first round"):
        federation.enrol()
    assert any(f"{name} (its examples are uint8 [2, 9, 9], those of most others" in said for said in federation.said)
