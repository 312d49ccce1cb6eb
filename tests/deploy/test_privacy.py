"""Privacy in a deployment: the simulator's numbers, noise that nobody else knows, and no round spent twice."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.config.experiment import Experiment
from fedbac.core.parts import Parts
from fedbac.core.requests import Evaluate, Train
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import read_update
from fedbac.deploy.protocol.wire import WireError
from fedbac.deploy.roles import clients
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.deploy.roles.edges import Interruption, RemoteEdges
from fedbac.deploy.roles.releases import ROUNDS_KEPT, Releases, stamp_of
from fedbac.errors import DeployError
from fedbac.runs.play import finish
from tests.covering import first
from tests.deploy.small import Small, compared, small
from tests.support import without

LOOSE = "method.privacy.delta=0.01"
BY_EDGES = ("method.privacy.noise_multiplier=1", LOOSE)
SECRET = ("method.aggregation.secret=true", "method.aggregation.threshold=2")
CASES: dict[str, tuple[str, ...]] = {
    "clients": (*BY_EDGES, "method.privacy.where=clients"),
    "examples": ("method.privacy={guarantee: example, noise_multiplier: 1}",),
    "edges": BY_EDGES,
    "clients, in secret sums": (*BY_EDGES, "method.privacy.where=clients", *SECRET),
}
HALF = "method.selection={kind: poisson, fraction: 0.5}"


def parts(*numbers: float) -> Parts:
    return {"global": {"w": torch.tensor([numbers])}}


def same_secrets(monkeypatch: pytest.MonkeyPatch, tiny: Small) -> None:
    """Have every site take the run's seed for its secret, as a simulation does."""
    monkeypatch.setattr(os, "urandom", lambda count: tiny.experiment.seed.to_bytes(count, "big"))


# ----------------------------------------------------------------------------------------------- what is kept


def test_a_round_is_answered_once_whatever_it_is_asked_again(tmp_path: Path) -> None:
    kept = Releases(tmp_path)
    first = kept.once((3, 0), parts(1.0), lambda: parts(5.0))
    assert torch.equal(first["global"]["w"], torch.tensor([[5.0]]))
    again = Releases(tmp_path).once((3, 0), parts(1.0), lambda: parts(7.0))  # others took part after a kill
    assert torch.equal(again["global"]["w"], torch.tensor([[5.0]]))
    with pytest.raises(SiteError, match="round 3 is spent") as refused:
        kept.once((3, 0), parts(2.0), lambda: parts(7.0))
    assert refused.value.failure is Failure.SPENT
    kept.once((3, 1), parts(2.0), lambda: parts(8.0))  # the next edge round is another answer
    for round_ in range(4, 4 + ROUNDS_KEPT):
        kept.once((round_, 0), parts(1.0), lambda: parts(6.0))
    with pytest.raises(SiteError, match="round 3 is spent"):  # what was said then is kept no more
        kept.once((3, 0), parts(1.0), lambda: parts(5.0))


def test_what_is_damaged_is_not_made_again(tmp_path: Path) -> None:
    kept = Releases(tmp_path)
    kept.once((1, 0), parts(1.0), lambda: parts(5.0))
    (file,) = tmp_path.glob("released-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SiteError, match="round 1 is spent"):
        kept.once((1, 0), parts(1.0), lambda: parts(5.0))


def test_a_site_draws_its_secret_once_and_stops_if_it_is_gone(tmp_path: Path) -> None:
    kept = Releases(tmp_path)
    assert kept.secret == Releases(tmp_path).secret != Releases(tmp_path / "other").secret
    assert kept.secret.bit_length() > 200
    assert (tmp_path / "noise.key").stat().st_mode & 0o777 == 0o600
    kept.once((1, 0), parts(1.0), lambda: parts(5.0))
    (tmp_path / "noise.key").unlink()
    with pytest.raises(DeployError, match="it is gone, and noise that was released came from it; restore it"):
        _ = Releases(tmp_path).secret


def test_stamps_tell_networks_apart() -> None:
    assert stamp_of(parts(1.0)) == stamp_of(parts(1.0))
    assert len({stamp_of(parts(1.0)), stamp_of(parts(2.0)), stamp_of(parts(1.0, 2.0))}) == 3


# ------------------------------------------------------------------------------------------- whole federations


@pytest.mark.parametrize("case", CASES)
def test_it_is_that_of_the_simulator(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("method.privacy.noise_multiplier=8", LOOSE, HALF) if case == "edges" else CASES[case]
    tiny = small("hierfavg", *settings, rounds=2)
    same_secrets(monkeypatch, tiny)
    deployed, simulated = tiny.federation(tmp_path).run(), tiny.simulated()
    assert compared(deployed.records) == compared(simulated.records)
    assert deployed.records[-1]["epsilon"] > 0


@pytest.mark.parametrize("case", first(3, CASES))
def test_no_seed_of_the_run_tells_the_noise(case: str, tmp_path: Path) -> None:
    tiny = small("hierfavg", *CASES[case], rounds=1)
    kept = []
    for name in ("one", "other"):
        tiny.federation(tmp_path / name).run()
        kept.append({p.name: p.read_bytes() for p in sorted((tmp_path / name).rglob("released-*"))})
    assert kept[0].keys() == kept[1].keys() != set()
    assert all(kept[0][name] != kept[1][name] for name in kept[0])


@pytest.mark.parametrize("case", first(1, CASES))
def test_a_killed_federation_repeats_its_bits_and_spends_nothing_twice(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are killed after the sites have answered round 3 and before the cloud has kept it; then one client is gone,
    so that the sum would be another."""
    seeds = iter(range(1, 1000))
    monkeypatch.setattr(os, "urandom", lambda count: next(seeds).to_bytes(count, "big"))
    tiny = small("hierfavg", *CASES[case], rounds=4)
    whole = tiny.federation(tmp_path / "whole").run(tmp_path / "whole" / "run")
    seeds = iter(range(1, 1000))
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    playing = federation.play(tmp_path / "run", enrolled)
    next(playing), next(playing)
    train = RemoteEdges.train

    def dies(remote: RemoteEdges, orders: Any) -> Any:
        train(remote, orders)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RemoteEdges, "train", dies)
        with pytest.raises(KeyboardInterrupt):
            next(playing)
    spent = released(tmp_path / "state")
    again = tiny.federation(tmp_path)  # every program is a new one, with what it kept on its disk
    resumed = again.play(tmp_path / "run", enrolled)
    if case != "examples":
        again.children("edge-1").lost = {"edge-1-client-0"}
    record = next(resumed)
    assert {name: text for name, text in released(tmp_path / "state").items() if name in spent} == spent
    again.children("edge-1").lost = set()
    records = finish(resumed).records
    if case == "examples":
        assert without(records) == without(whole.records)
    assert record["accuracy_per_edge"] == whole.records[2]["accuracy_per_edge"]
    assert [one["epsilon"] for one in records] == [one["epsilon"] for one in whole.records]


def released(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("released-*"))}


def test_a_site_sits_out_a_round_that_it_has_answered_from_another_model(tmp_path: Path) -> None:
    """As after a cloud went on without an edge, and then back: another answer would be another query."""
    tiny = small("hierfavg", *BY_EDGES, rounds=3)
    federation = tiny.federation(tmp_path)
    enrolled = federation.enrol()
    playing = federation.play(enrolled=enrolled)
    next(playing), next(playing)
    playing.close()
    for path in (tmp_path / "state" / "edge-0").rglob("released-000001-*"):  # it was not there then
        path.unlink()
    before = released(tmp_path / "state")
    federation.cloud.lost = {"edge-0"}
    again = federation.play(enrolled=enrolled)
    assert next(again)["absent"] == [0]
    federation.cloud.lost = set()
    with pytest.raises(Interruption, match="round 2 is played again: 0 edges answered"):
        next(again)  # from a model of edge 1 alone, and both have answered from one of both
    assert released(tmp_path / "state") == before


def test_a_client_says_no_loss_and_no_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, told, sums = small("hierfavg", *CASES["clients"], rounds=1), [], []

    def noting(*given: Any) -> Any:
        told.append(read_update(*given))
        return told[-1]

    def facts(holder: DataHolder, experiment: Experiment) -> Any:
        sums.append(said(holder, experiment).sums)
        return said(holder, experiment)

    said = DataHolder.facts
    monkeypatch.setattr(clients, "read_update", noting)
    monkeypatch.setattr(DataHolder, "facts", facts)
    tiny.federation(tmp_path).run()
    assert [one.loss_C.tolist() for one in told] == [[0.0]] * 5
    known = [rows for rows in sums if rows is not None]
    assert len(known) == 5
    assert all(total == 128 * count for rows in known for total, _, count in rows)


@pytest.mark.parametrize("case", first(2, CASES))
def test_a_client_answers_nothing_that_is_not_accounted_for(case: str, tmp_path: Path) -> None:
    """A dishonest parent asks for losses, for losses of every epoch, and for rounds that the run does not have."""
    federation = small("hierfavg", *CASES[case], rounds=1).federation(tmp_path)
    federation.run()
    holder = next(holder for name, holder in federation.shops.items() if "client" in name)
    assert isinstance(holder, DataHolder)
    bank: Parts = {"global": {}}
    row = {"global": np.zeros(1, dtype=np.int64)}
    train = Train((holder.number,), bank, row, 1, 0, 0.1)
    holder._check_accounted(train)
    holder._check_accounted(Evaluate(bank, {}, "test", (holder.number,), "client"))
    asked = (
        replace(train, keep=frozenset({"epochs"})),
        replace(train, round=2),
        replace(train, edge_round=1),
        Evaluate(bank, {}, "train", (holder.number,), "client"),
        Evaluate(bank, {}, "validation", (holder.number,), "client"),
    )
    for request in asked:
        with pytest.raises(WireError, match=r"more about the data than method\.privacy has noise for"):
            holder._check_accounted(request)


@pytest.mark.parametrize(("settings", "factor"), [(BY_EDGES, 0.0), ((), 10.0)])
def test_no_change_is_left_out_for_what_others_sent(settings: tuple[str, ...], factor: float, tmp_path: Path) -> None:
    """Who counts would else hang on the length of one client's change, and the sum move by more than that."""
    federation = small("hierfavg", *settings, rounds=1).federation(tmp_path)
    federation.run()
    handlers = [edge.handler for edge in federation.edges.values()]
    assert {handler.clients.standing.factor for handler in handlers if handler is not None} == {factor}
