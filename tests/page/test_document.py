"""The data of the page's figures: the numbers of the records, written short."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac.data import Dataset, Shards
from fedbac.presets.methods import METHODS
from fedbac.report.document import document
from fedbac.report.groups import summarized
from fedbac.report.page import embedded
from fedbac.runs import play
from fedbac.runs.store import StoredRun
from tests.made_up_runs import fake, renamed, with_task


def changed(run: StoredRun, *changes: dict[str, Any], **config: Any) -> StoredRun:
    """Return a run in which the first records are changed, and its configuration."""
    records = [{**record, **change} for record, change in zip(run.records, changes, strict=False)]
    return replace(run, records=records + run.records[len(changes) :], config={**run.config, **config}, summary={})


def of(run: StoredRun) -> dict[str, Any]:
    (found,) = document(summarized([run]))["runs"]
    assert isinstance(found, dict)
    return found


def test_numbers_are_those_of_the_records() -> None:
    run = of(
        changed(
            fake("hierfavg", rounds=2, edges=2),
            {"accuracy": 0.30004, "accuracy_min": 0.1, "accuracy_per_edge": [0.1, 0.50008], "selected": [[0, 9], [10]]},
            {"accuracy": 0.5, "accuracy_min": 0.25, "accuracy_per_edge": [0.25, None], "selected": [[1], []]},
        )
    )
    assert run["accuracy"] == [3000, 5000]
    assert run["worst"] == [1000, 2500]
    assert run["edges"] == [[1000, 5001], [2500, None]]
    assert run["names"] == []
    assert run["sites"] == [10, 10]
    assert run["selected"] == [f"{1 + 2**9 + 2**10:x}", "2"]
    assert run["traffic"] == {
        "client-train": [2_000_000, 4_000_000],
        "client-evaluate": [40_000, 80_000],
        "cloud-train": [250_000, 500_000],
    }
    assert run["seconds"] is None
    assert run["beliefs"] is None
    assert (run["seed"], run["last"]) == (0, 2)


def test_an_assignment_is_written_where_it_changes() -> None:
    labels = [[0, 1], [0, 1], [1, 1], [1, 1]]
    run = changed(fake(rounds=4, edges=2), *({"assignment": label} for label in labels))
    assert of(run)["assignment"] == [(1, [0, 1]), (3, [1, 1])]


def test_costs_of_devices_add_up() -> None:
    run = changed(fake(rounds=3), *({"simulated_seconds": seconds} for seconds in (1.5, 2.25, 0.25)))
    assert of(run)["seconds"] == [1.5, 3.75, 4]


def test_beliefs_are_a_character_each() -> None:
    beliefs = [[0.0, 0.5], [1.0, None]]
    assert of(changed(fake(rounds=1), {"beliefs": beliefs}))["beliefs"] == ["#?[#"]


def test_gaps_keep_their_round_and_their_limit() -> None:
    gaps = {"clusters": [0, 3], "gap": [[0.0, 0.123456], [0.123456, None]], "limit": 0.21}
    run = of(changed(fake(rounds=3), {}, {"gaps": gaps}, {"gaps": None}))
    assert run["gaps"] == [
        {"round": 2, "clusters": [0, 3], "gap": [[0, 0.12346], [0.12346, None]], "limit": 0.21},
    ]


def test_runs_on_the_same_data_share_its_class_mix() -> None:
    mix = ["3 0 1", "0 2 2"]
    runs = [changed(fake(name, edges=2), classes_per_edge=mix) for name in ("fed-bac", "fedbac-plus")]
    found = document(summarized([*runs, fake("hierfavg")]))
    assert found["mixes"] == [[[3, 0, 1], [0, 2, 2]]]
    assert [run["mix"] for run in found["runs"]] == [0, 0, None]


@pytest.mark.parametrize(
    ("change", "shown", "left"),
    [
        ({"selected": [[10**12]]}, "selected", None),
        ({"selected": [[-1]]}, "selected", None),
        ({"selected": 3}, "selected", None),
        ({"selected": [["0"]]}, "selected", None),
        ({"beliefs": "no"}, "beliefs", None),
        ({"beliefs": [[float("nan")]]}, "beliefs", None),
        ({"gaps": "no"}, "gaps", []),
        ({"gaps": {"clusters": [1], "gap": 3}}, "gaps", []),
        ({"gaps": {"clusters": [1], "gap": [3]}}, "gaps", []),
        ({"accuracy_per_edge": [float("nan")] * 5}, "edges", [[None] * 5]),
    ],
    ids=str,
)
def test_what_a_strange_record_says_is_left_out(change: dict[str, Any], shown: str, left: Any) -> None:
    plain, strange = (
        json.loads(embedded(document(summarized([changed(fake(rounds=1), one)]))))["runs"][0] for one in ({}, change)
    )
    assert strange == {**plain, shown: left}, "and nothing else is"


def test_runs_of_earlier_versions_lack_only_what_they_did_not_write() -> None:
    run = fake(rounds=2)
    records = [{key: value for key, value in record.items() if key != "selected"} for record in run.records]
    found = of(replace(run, records=records))
    assert (found["selected"], found["beliefs"], found["gaps"], found["mix"]) == (None, None, [], None)
    assert found["accuracy"]


def test_a_real_run_has_everything() -> None:
    settings = ["task.num_edges=4", "task.clients_per_edge=2", "method.clustering.period=1", "task.data_fraction=0.3"]
    run = fedbac.run("fedbac-plus", "planted", rounds=2, settings=settings)
    found = document(summarized([run]))
    (shown,) = found["runs"]
    assert [len(row) for row in found["mixes"][0]] == [10] * 4
    assert sum(map(sum, found["mixes"][0])) > 1000
    assert len(shown["selected"]) == len(shown["beliefs"]) == 2
    assert {len(text) for text in shown["beliefs"]} == {8}
    assert [look["round"] for look in shown["gaps"]] == [1]  # nobody moves after the last round
    assert len(shown["gaps"][0]["gap"]) == 4


def test_edges_have_the_names_that_their_data_give_them() -> None:
    run = fedbac.run("hierfavg", "udhr", rounds=1, device="cpu", progress=False)
    names = run.config["edge_names"]
    assert len(set(names)) == len(names) == len(run.records[0]["accuracy_per_edge"])
    assert of(run)["names"] == [name[:30] for name in names]


@pytest.mark.full
def test_a_page_of_all_methods_stays_small() -> None:
    one = fake(rounds=200, edges=10, beliefs=[[0.5] * 10] * 10, selected=[[0, 3, 7]] * 10)
    text = embedded(document(summarized([renamed(one, name) for name in METHODS])))
    assert len(text) < 4_000_000
    assert len(json.loads(text)["runs"]) == len(METHODS) > 40


def test_a_run_writes_down_what_every_edge_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edge 0 holds examples 0 to 3, edge 1 the others, one of them for validation."""
    x, y = np.zeros((6, 4), dtype=np.float32), np.array([0, 0, 1, 2, 2, 2])
    data = Dataset.from_arrays("five", x, y, x[:2], y[1:3])
    groups: tuple[tuple[list[int], ...], ...] = ([0, 1], [2, 3], [4]), ([], [], [5])
    train, validation = (tuple(np.array(indices, dtype=np.int64) for indices in split) for split in groups)
    shards = Shards(train, validation, (np.array([0]), np.array([1])), (range(2), range(2, 3)))
    settings = ["task.num_edges=2", "task.clients_per_edge=[2, 1]", "task.network={kind: mlp, hidden: [2]}"]

    def config() -> dict[str, Any]:
        run = fedbac.run("hierfavg", rounds=1, settings=settings, dataset=data, shards=shards, workers=1)
        return run.config

    assert config()["classes_per_edge"] == ["2 1 1", "0 0 2"]
    monkeypatch.setattr(play, "MOST_CLASS_TEXT", 9)
    assert "classes_per_edge" not in config()


def test_of_very_many_clients_nothing_is_said_of_single_ones() -> None:
    run = with_task(fake(rounds=1, beliefs=[[0.5]] * 5), clients_per_edge=201)
    assert (of(run)["selected"], of(run)["beliefs"]) == (None, None)
