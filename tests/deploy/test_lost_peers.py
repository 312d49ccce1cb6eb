"""Lost, restarted and hostile sites: who fails counts for nothing, and below a quorum nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac.deploy.protocol.wire import Message, decode, encode
from fedbac.deploy.roles.edges import Interruption
from fedbac.errors import DeployError
from fedbac.runs.play import finish
from tests.covering import first
from tests.deploy.in_memory import MemoryFederation
from tests.deploy.small import FIRST, begun, played, small
from tests.support import without


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def lies(federation: MemoryFederation, site: str, kind: str, lie: Callable[[Message], bytes]) -> None:
    """Have a client, or an edge, answer otherwise whenever it would answer with this kind of message."""
    client = federation.sites[site].role == "client"
    links = federation.children(str(federation.sites[site].parent)) if client else federation.cloud
    honest = links.answers[site]

    def answer(payload: bytes, gone: Any) -> bytes:
        said = honest(payload, gone)
        message = decode(
            said, ("ready", "stranger", "facts", "roster", "update", "evaluation", "trained", "measured", "absent")
        )
        return lie(message) if message.kind == kind else said

    links.answers[site] = answer


def again(message: Message, head: dict[str, Any] | None = None, **tensors: Any) -> bytes:
    """Return a message with other tensors; those that are None are left out."""
    named = {name.replace("__", "/"): value for name, value in tensors.items()}
    whole = {path: value for path, value in {**message.tensors, **named}.items() if value is not None}
    return encode(message.kind, message.head | (head or {}), whole)


def report(message: Message, **changes: Any) -> bytes:
    """Return an edge's report with other plain values."""
    return again(message, {"report": message.head["report"] | changes})


def weights(message: Message) -> str:
    return next(path for path in message.tensors if path.startswith(("trained/parts_C/", "report/bank/")))


def change(message: Message, how: Callable[[Any], Any]) -> bytes:
    """Return a message with other weights."""
    path = weights(message)
    return encode(message.kind, message.head, {**message.tensors, path: how(message.tensors[path].clone())})


def raises(message: Message) -> bytes:
    raise RuntimeError("a client's own bug")


def filled(value: float) -> Callable[[Message], bytes]:
    return lambda message: change(message, lambda weight: weight.fill_(value))


LIES: dict[str, Callable[[Message], bytes]] = {
    "a name that is not there": lambda m: encode(
        "update", m.head, {(path + "x" if path == weights(m) else path): value for path, value in m.tensors.items()}
    ),
    "a weight too few": lambda m: encode("update", m.head, {p: v for p, v in m.tensors.items() if p != weights(m)}),
    "a tensor too many": lambda m: again(m, trained__parts_C__global__more=np.zeros((1, 2), dtype=np.float32)),
    "a part too many": lambda m: again(m, trained__parts_C__other__weight=np.zeros((1, 2), dtype=np.float32)),
    "another shape": lambda m: change(m, lambda weight: weight.flatten()),
    "two rows": lambda m: change(m, lambda weight: weight.repeat(2, *[1] * (weight.dim() - 1))),
    "another number type": lambda m: change(m, lambda weight: weight.double()),
    "weights that are not finite": filled(float("nan")),
    "infinite weights": filled(float("inf")),
    "a loss that is not finite": lambda m: again(m, trained__loss_C=np.array([np.nan])),
    "no loss": lambda m: again(m, trained__loss_C=None),
    "a loss below zero": lambda m: again(m, trained__loss_C=np.array([-1e300])),
    "a loss beyond all measure": lambda m: again(m, trained__loss_C=np.array([1e300])),
    "a loss of another type": lambda m: again(m, trained__loss_C=np.array([1.0], dtype=np.float32)),
    "another kind": lambda m: encode("evaluation", m.head, m.tensors),
    "no message": lambda m: b"x" * 100,
    "nothing": lambda m: b"",
    "an error": raises,
}


@pytest.mark.parametrize("lie", first(1, LIES))
def test_a_client_that_lies_has_failed(lie: str, tmp_path: Path) -> None:
    """The others' round is as if it had not come back."""
    federation, enrolled = begun(tmp_path / "lies", "hierfavg", rounds=1)
    lies(federation, FIRST, "update", LIES[lie])
    (record,) = played(federation, enrolled)
    assert (record["selected"][0], record["failed"], record["absent"]) == ([0, 1], [0], [])
    silent, enrolled = begun(tmp_path / "silent", "hierfavg", rounds=1)
    lies(silent, FIRST, "update", raises)
    assert without([record], "reasons") == without(played(silent, enrolled))


@pytest.mark.parametrize("method", first(1, ["fedavg", "ditto", "oort", "cfl", "phe-fl-kd"]))
def test_a_client_that_is_not_finite_fails_whatever_the_method(method: str, tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, method, rounds=3)
    lies(federation, FIRST, "update", filled(float("nan")))
    for record in played(federation, enrolled):
        assert (0 in record["failed"]) == (0 in [client for clients in record["selected"] for client in clients])


def test_statistics_that_cannot_be_are_refused(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "oort", rounds=2)
    lies(federation, FIRST, "update", lambda m: again(m, trained__square_C=np.array([np.inf])))
    assert played(federation, enrolled)[0]["absent"] == [0]  # of this edge nobody else was selected


FINDINGS: dict[str, dict[str, Any]] = {
    "more examples than it has": {"count_G": np.array([10**6])},
    "fewer than none": {"count_G": np.array([-1])},
    "an accuracy beyond 1": {"accuracy_VG": np.array([[1.5]])},
    "no accuracy": {"accuracy_VG": np.array([[np.nan]])},
    "of another shape": {"loss_VG": np.zeros((3, 3))},
    "a loss below zero": {"loss_VG": np.array([[-1e300]])},
}


@pytest.mark.parametrize("lie", first(1, FINDINGS))
def test_a_client_whose_measurements_cannot_be_is_left_out(lie: str, tmp_path: Path) -> None:
    """Each client is judged by its own model: the edge's accuracy is that of the other clients."""
    federation, enrolled = begun(tmp_path / "lies", "ditto", rounds=1)
    lies(federation, FIRST, "evaluation", lambda m: again(m, **{f"measured__{n}": v for n, v in FINDINGS[lie].items()}))
    (record,) = played(federation, enrolled)
    silent, enrolled = begun(tmp_path / "silent", "ditto", rounds=1)
    lies(silent, FIRST, "evaluation", raises)
    assert without([record]) == without(played(silent, enrolled))
    assert 0 <= record["accuracy_per_edge"][0] <= 1


# ---------------------------------------------------------------------------------------------- who is lost


@pytest.mark.parametrize("method", first(1, ["fed-bac", "fedavg", "ditto", "oort", "abad"]))
def test_a_lost_client_is_not_selected_and_comes_back(method: str, tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, method, rounds=4)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    federation.children("edge-1").lost = {"edge-1-client-0"}
    for record in (next(playing), next(playing)):
        selected = [client for clients in record["selected"] for client in clients]
        assert 2 not in selected
        assert selected
        assert (record["failed"], record["absent"]) == ([], [])
        assert None not in record["accuracy_per_edge"]
    federation.children("edge-1").lost = set()
    json.dumps(finish(playing).records, allow_nan=False)


@pytest.mark.parametrize("method", first(1, ["fed-bac", "ditto", "fedper-edges", "cfl-edges", "phe-fl-kd", "hierfavg"]))
def test_an_edge_whose_clients_are_all_lost_is_absent(method: str, tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, method, rounds=4)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    federation.children("edge-1").lost = set(federation.sites["edge-1"].children)
    lost = [next(playing), next(playing)]
    for record in lost:
        assert (record["absent"], record["selected"][1], record["failed"]) == ([1], [], [])
    federation.children("edge-1").lost = set()
    last = next(playing)
    assert last["absent"] == []
    assert None not in last["accuracy_per_edge"]
    json.dumps([*lost, last], allow_nan=False)


@pytest.mark.parametrize("method", first(1, ["fed-bac", "ditto", "fedper-edges", "cfl-edges", "phe-fl-kd"]))
def test_a_lost_edge_has_no_accuracy_and_the_others_are_judged_without_it(method: str, tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, method, rounds=3)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    federation.cloud.lost = {"edge-1"}
    record = next(playing)
    here, missing = record["accuracy_per_edge"]
    assert (record["absent"], missing) == ([1], None)
    assert record["accuracy"] == record["accuracy_min"] == record["accuracy_weighted"] == here
    assert record["accuracy_std"] == 0
    federation.cloud.lost = set()
    run = finish(playing)
    assert run.records[-1]["absent"] == []
    assert run.records[-1]["accuracy_per_edge"][1] is not None
    json.dumps([run.records, run.summary], allow_nan=False)


def test_without_edges_between_a_lost_edge_has_no_accuracy_either(tmp_path: Path) -> None:
    """Test data are the clients': nobody of edge 1 can be asked, and the round goes on."""
    federation = small("fedavg", rounds=2, tests_at="clients").federation(tmp_path)
    enrolled = federation.enrol()
    federation.cloud.lost = {"edge-1"}
    for record in played(federation, enrolled):
        assert record["selected"] == [[0, 1]]
        assert record["accuracy_per_edge"][1] is None
        assert record["accuracy_per_edge"][0] == record["accuracy"]


# ------------------------------------------------------------------------------------------------- a quorum


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


QUORUMS: dict[str, tuple[str, dict[str, int | None], dict[str, set[str]]]] = {
    "clients": ("fed-bac", {"min_edges": 2, "min_clients": 2}, {"edge-0": {FIRST}}),
    "edges": ("fed-bac", {"min_edges": 2}, {"cloud": {"edge-1"}}),
    "a majority of edges": ("fed-bac", {"min_edges": None}, {"cloud": {"edge-1"}}),
    "a majority of clients": ("fed-bac", {"min_edges": 2, "min_clients": None}, {"edge-0": {FIRST}}),
    "clients of a cloud without edges": ("fedavg", {"min_clients": 2}, {"cloud": {"edge-1"}, "edge-0": {FIRST}}),
}


@pytest.mark.parametrize("of", first(1, QUORUMS))
def test_below_a_quorum_nothing_is_written_until_they_are_back(of: str, tmp_path: Path) -> None:
    method, deploy, missing = QUORUMS[of]
    whole, enrolled = begun(tmp_path / "whole", method, rounds=2, **deploy)
    expected = played(whole, enrolled)
    federation, enrolled = begun(tmp_path, method, rounds=2, **deploy)
    run = tmp_path / "run"
    playing = federation.play(run, enrolled)
    next(playing)
    links = {name: federation.cloud if name == "cloud" else federation.children(name) for name in missing}
    for name, gone in missing.items():
        links[name].lost = gone
    before: dict[str, bytes] = contents(run)
    seen: list[bool] = []

    def waited(text: str) -> None:
        seen.append(contents(run) == before)
        if len(seen) == 3:
            for link in links.values():
                link.lost = set()

    federation.waited = waited
    record = next(playing)
    assert all(seen[:3])
    assert len(seen) >= 3
    assert record["round"] == 2
    assert without([record]) == without(expected[1:])
    assert (
        "missing: edge-1" if of in ("edges", "a majority of edges") else "round 2 is played again"
    ) in federation.said[0]


def test_a_majority_is_enough(tmp_path: Path) -> None:
    """Two of the three clients of edge 1 are; of its two, edge 0 needs both."""
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=1, min_edges=None, min_clients=None)
    federation.children("edge-1").lost = {"edge-1-client-0"}
    (record,) = played(federation, enrolled)
    assert (record["selected"], record["absent"]) == ([[0, 1], [3, 4]], [])


def test_an_operator_may_stop_a_cloud_that_waits(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, rounds=2, min_edges=2)
    playing = federation.play(tmp_path / "run", enrolled)
    next(playing)
    federation.cloud.lost = {"edge-0"}
    with pytest.raises(Interruption, match="missing: edge-0"):
        next(playing)
    federation.cloud.lost = set()
    federation.said.clear()
    assert len(federation.run(tmp_path / "run", enrolled).records) == 2


def test_enrolment_waits_for_everybody_and_says_for_whom(tmp_path: Path) -> None:
    federation = small("fed-bac").federation(tmp_path)
    federation.children("edge-1").lost = {"edge-1-client-2"}
    federation.cloud.lost = {"edge-0"}
    back = iter((federation.cloud, federation.children("edge-1")))
    federation.waited = lambda text: next(back).lost.clear()
    federation.enrol()
    assert federation.said == [
        "waiting for edge-0, edge-1-client-2",
        "waiting for edge-1-client-2",
    ]


# ----------------------------------------------------------------------------------------- edges that lie


EDGE_LIES: dict[str, tuple[Callable[[Message], bytes], str]] = {
    "networks that are not finite": (filled(float("nan")), "not finite"),
    "more examples than it has": (lambda m: again(m, report__weight__global=np.array([10**6])), "counts more than all"),
    "fewer examples than none": (lambda m: again(m, report__weight__global=np.array([-5])), "or not from 0"),
    "a loss below zero": (lambda m: report(m, loss=-1e300), "impossible losses"),
    "losses beyond all measure": (
        lambda m: again(m, report__statistic_N__loss=np.full(2, 1e300)), "impossible losses",
    ),
    "clients of another edge": (lambda m: report(m, selected=[2, 3]), "report/selected is"),
    "clients twice": (lambda m: report(m, failed=[0, 0]), "report/failed is"),
    "negative bytes": (lambda m: report(m, traffic={"entries": {"client-up-train": -1}}), "client-up-train is -1"),
    "bytes of no link": (lambda m: report(m, traffic={"entries": {"moon-up-train": 1}}), "traffic/entries holds"),
    "no losses": (
        lambda m: again(m, report__statistic_N__loss=None), "report/statistic_N holds []; it must hold ['loss']",
    ),
    "updates that nobody wanted": (
        lambda m: again(m, report__updates__cluster__x=np.zeros((1, 1), dtype=np.float32)), "report/updates holds",
    ),
    "endless seconds": (lambda m: report(m, seconds=-3.0), "report/seconds is -3.0; it must be from 0"),
    "no memory": (lambda m: report(m, selection=None), "report/selection is None"),
    "another policy's memory": (lambda m: again(m, report__selection__more=np.zeros(3)), "nobody asked for"),
    "an answer of another kind": (lambda m: encode("measured", m.head, m.tensors), "kind 'measured'"),
}  # fmt: skip


@pytest.mark.parametrize("lie", first(1, EDGE_LIES))
def test_an_edge_that_lies_is_absent(lie: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation, enrolled = begun(tmp_path, rounds=1)
    tell, reason = EDGE_LIES[lie]
    lies(federation, "edge-0", "trained", tell)
    (record,) = played(federation, enrolled)
    assert (record["absent"], record["selected"][0]) == ([0], [])
    assert reason in caplog.text


def test_an_order_with_a_memory_that_no_policy_can_use_is_refused_as_an_order(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "oort", rounds=1)
    honest, refused = federation.cloud.answers["edge-0"], list[str]()

    def answer(payload: bytes, gone: Any) -> Any:
        message = decode(payload, ("begin", "train", "measure", "model"))
        if message.kind == "train":
            with pytest.raises(DeployError) as caught:
                honest(again(message, order__selection__played=np.array([np.nan])), gone)
            refused.append(str(caught.value))
        return honest(payload, gone)

    federation.cloud.answers["edge-0"] = answer
    played(federation, enrolled)
    assert len(refused) == 1
    assert refused[0].startswith("train: this order of the cloud cannot be played: method.selection 'oort': act()")


def test_an_edge_whose_clients_count_alike_cannot_count_their_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the share that trained an owner steps, which would be many times all."""
    federation = small("hierfavg", "method.client_weight=uniform", rounds=1).federation(tmp_path)
    lies(federation, "edge-0", "trained", lambda m: again(m, report__weight__global=np.array([4])))
    assert federation.run().records[0]["absent"] == [0]
    assert "counts more than all clients of the edge" in caplog.text


@pytest.mark.parametrize(
    "change_",
    [
        {"count_G": np.array([10**6])},
        {"accuracy_VG": np.array([[np.nan]])},
        {"loss_VG": np.array([[-1e300]])},
        pytest.param({"loss_VG": np.array([[1e300]])}, marks=pytest.mark.full),
    ],
)
def test_an_edge_whose_accuracy_cannot_be_has_none(change_: dict[str, Any], tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=1)
    lies(
        federation,
        "edge-0",
        "measured",
        lambda m: again(m, **{f"report__readings__0__{name}": v for name, v in change_.items()}),
    )
    (record,) = played(federation, enrolled)
    assert record["accuracy_per_edge"][0] is None
    assert record["accuracy"] == record["accuracy_per_edge"][1]


# ---------------------------------------------------------------------------------- impossible data


def test_what_does_not_fit_together_is_refused_before_the_first_round(tmp_path: Path) -> None:
    tiny = small("fed-bac")
    sites = {name: dict(arrays) for name, arrays in tiny.sites.items()}
    for edge, width in ((0, 4), (1, 6)):  # of which no width is that of most
        for client in (f"edge-{edge}-client-0", f"edge-{edge}-client-1"):
            sites[client] = {name: x[..., :width] if name.startswith("x") else x for name, x in sites[client].items()}
    with pytest.raises(DeployError, match=r"has examples of uint8 \[1, 8, [68]\], and .* all must be alike"):
        MemoryFederation(tiny.experiment, tmp_path / "shape", sites).enrol()
    without_tests = {name: arrays for name, arrays in tiny.sites.items() if name != "edge-1"}
    with pytest.raises(DeployError, match="edge-1 has no test data, so its accuracy is undefined"):
        MemoryFederation(tiny.experiment, tmp_path / "tests", without_tests).enrol()


FACTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "classes that do not add up": lambda said: said | {"classes": [1, 2]},
    "more classes than there are numbers": lambda said: said | {"classes": [2**70]},
    "pixels beyond 255": lambda said: said | {"sums": [[10**9, 10**12, said["sums"][0][2]]]},
    "sums of other images": lambda said: said | {"sums": [[1, 1, 1]]},
    "no sums": lambda said: said | {"sums": None},
    "endless tokens": lambda said: said | {"largest_token": 10**15},
    "no shape": lambda said: said | {"shape": []},
    "more examples than fit a memory": lambda said: said | {"train": 10**12},
    "an endless shape": lambda said: said | {"shape": [10**9, 10**9]},
    "a negative size": lambda said: said | {"train": -1},
    "no fingerprint": lambda said: said | {"fingerprint": "../../x"},
    "another number type": lambda said: said | {"dtype": "object"},
}


@pytest.mark.parametrize("lie", FACTS)
def test_facts_that_cannot_be_are_waited_for_again(lie: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = small("fed-bac").federation(tmp_path)
    lies(federation, FIRST, "facts", lambda m: encode("facts", {"facts": FACTS[lie](m.head["facts"])}, {}))
    with pytest.raises(DeployError, match="stopped before the first round"):
        federation.enrol()
    assert f"{FIRST} said nothing of its data: facts: " in caplog.text
    assert FIRST in federation.said[-1]
