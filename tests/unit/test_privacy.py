"""What a run with privacy promises, that its noise keeps it, and what is refused because it would tell more."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import torch

import fedbac
from fedbac import ConfigError, Experiment, Method, Poisson, Privacy
from fedbac.core.aggregation import EdgeAverage
from fedbac.core.policies import NoState
from fedbac.core.requests import Average, Averaged
from fedbac.core.rng import stream
from fedbac.data import planted_groups
from fedbac.personalization import Additive, Personal, Shared
from fedbac.privacy import epsilon, noise_for
from fedbac.report import table
from fedbac.report.outcome import caveats
from fedbac.rounds.edge import serve
from fedbac.rounds.messages import Site, TrainOrder
from tests.support import Played, without
from tests.support import play as played
from tests.unit.tiny import beginning, tiny_data, tiny_run, tiny_task

DATA, SHARDS, _ = planted_groups(2, 4, 1, train=20, validation=2, test=30)
LOOSE = 1e-2
HALF = "method.selection={kind: poisson, fraction: 0.5}"
"""δ for a handful of clients."""


def direct(sigma: float, delta: float, count: int, q: float = 1.0) -> float:
    """ε by privacy loss distributions, as anybody would ask dp-accounting for it."""
    event: dp.DpEvent = dp.GaussianDpEvent(sigma)
    accountant = dp.pld.PLDAccountant()
    accountant.compose(event if q == 1 else dp.PoissonSampledDpEvent(q, event), count)
    return float(accountant.get_epsilon(delta))


def private(**changes: Any) -> Privacy:
    return Privacy(**({"clip": 0.3, "noise_multiplier": 1.0, "delta": LOOSE} | changes))


def run(privacy: Privacy | None, rounds: int = 2, /, **method: Any) -> Played:
    return played(Method(name="x", privacy=privacy, **method), DATA, SHARDS, num_rounds=rounds)


def flat(parts: Any) -> torch.Tensor:
    return torch.cat([value.flatten() for _, params in sorted(parts.items()) for _, value in sorted(params.items())])


# ------------------------------------------------------------------------------------------------ the account


@pytest.mark.parametrize(
    ("sigma", "count", "q"),
    [pytest.param(10.0, 200, 1.0, marks=pytest.mark.full), (4.0, 3, 1.0), (8.0, 100, 0.1), (6.0, 2, 0.5)],
)
def test_epsilon_is_that_of_dp_accounting(sigma: float, count: int, q: float) -> None:
    assert epsilon(sigma, 1e-5, count, q) == pytest.approx(direct(sigma, 1e-5, count, q), abs=1e-6)


@pytest.mark.full
def test_small_federations_pay_dearly() -> None:
    """δ = 1e-5, four of five clients in each of 200 rounds."""
    assert epsilon(1.0, 1e-5, 200, 0.8) == pytest.approx(117.5, abs=0.1)
    assert epsilon(10.0, 1e-5, 200, 0.8) == pytest.approx(5.07, abs=0.01)


@pytest.mark.parametrize(("target", "count", "q"), [(2.0, 50, 1.0), pytest.param(0.5, 20, 0.2, marks=pytest.mark.full)])
def test_the_noise_for_an_epsilon_is_as_little_as_keeps_it(target: float, count: int, q: float) -> None:
    sigma = noise_for(target, 1e-5, count, q)
    assert direct(sigma, 1e-5, count, q) <= target + 1e-6
    assert direct(0.98 * sigma, 1e-5, count, q) > target


def test_every_average_of_an_edge_is_an_answer_and_sampling_counts_only_by_chance() -> None:
    def promised(**method: Any) -> Any:
        privacy = private(noise_multiplier=8.0)
        return Experiment(task=tiny_task(rounds=5), method=Method(name="x", privacy=privacy, **method)).promise

    twice = promised(topology=fedbac.Hierarchical(edge_rounds=3))
    assert [twice.spent(t) for t in (0, 1, 5)] == [
        0.0,
        *(pytest.approx(direct(8.0, LOOSE, n), abs=1e-6) for n in (3, 15)),
    ]
    # Drawn without replacement, or by what the devices do: as if everybody took part in every round.
    for selection in (fedbac.Random(fraction=0.2), fedbac.LatencyUCB(fraction=0.2)):
        assert promised(selection=selection).spent(5) == pytest.approx(direct(8.0, LOOSE, 5), abs=1e-6)
    drawn = promised(selection=Poisson(fraction=0.2))
    assert drawn.spent(5) == pytest.approx(direct(8.0, LOOSE, 5, 0.2), abs=1e-6)
    assert drawn.spent_knowing(5) == pytest.approx(direct(8.0, LOOSE, 5), abs=1e-6)
    assert "to those who learn who trained" in str(drawn)


def test_examples_are_asked_about_once_in_every_pass_of_every_phase() -> None:
    privacy = Privacy(guarantee="example", noise_multiplier=3.0)
    task = tiny_task(rounds=4, training=fedbac.Training(epochs=2))
    for scheme, passes in ((Shared(), 2), (Additive(), 2), (Personal(), 4)):
        promise = Experiment(task=task, method=Method(name="x", personalization=scheme, privacy=privacy)).promise
        assert promise is not None
        assert promise.queries == tuple(passes * t for t in range(5))


def test_it_is_said_before_the_run_and_in_every_record(caplog: pytest.LogCaptureFixture) -> None:
    settings = ("method.privacy.epsilon=3", f"method.privacy.delta={LOOSE}")
    with caplog.at_level(logging.WARNING, "fedbac"):
        run = tiny_run("hierfavg", *settings, task=tiny_task(rounds=3))
    records = run.records
    assert "privacy of every client: epsilon 3 at delta 0.01 after 3 rounds; noise of 1.431 times clip=1" in caplog.text
    assert any("hierfavg: privacy of every client: epsilon 3 at" in note for note in caveats([run]))
    header, rows = table([run])
    assert rows[0][header.index("ε")] == "3"
    spent = [record["epsilon"] for record in records]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(3, abs=1e-6)
    assert [record["loss"] for record in records] == [None] * 3  # how large a loss is would be an answer too
    assert "epsilon" not in tiny_run("hierfavg", task=tiny_task(rounds=1)).records[0]


# ------------------------------------------------------------------------------------------------- the noise


def test_without_noise_or_bound_it_is_the_plain_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is expected of a row is what comes when everybody does."""
    monkeypatch.setattr(fedbac.data, "fixed_normalization", lambda channels: DATA.normalization())
    nothing = private(clip=1e9, noise_multiplier=0.0, most_examples=10**6)
    for method in (
        {},
        {"client_weight": "uniform"},
        {"personalization": Additive(), "clustering": fedbac.Fixed(num_clusters=2)},
    ):
        plain, alike = (run(one, **method) for one in (None, nothing))
        torch.testing.assert_close(flat(alike.end.parts), flat(plain.end.parts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["edge", "clients"])
def test_clients_that_count_alike_need_no_noise_for_more_examples(where: str) -> None:
    """As none counts as more than one, whatever may be declared."""
    one, many = (private(where=where, most_examples=most) for most in (1, 7))
    expected, found = run(one), run(many, client_weight="uniform")
    assert torch.equal(flat(found.end.parts), flat(expected.end.parts))
    assert str(found.experiment.promise) == str(expected.experiment.promise)


@pytest.mark.parametrize("selection", [fedbac.Random(), Poisson(fraction=0.5)], ids=["all", "poisson"])
@pytest.mark.parametrize("scheme", [Shared(), Additive()], ids=["one part", "two parts"])
def test_no_client_moves_the_sum_further_than_the_clip(scheme: Any, selection: Any) -> None:
    """Whatever one client's data are: the sums differ by at most C over all parts, whoever was drawn."""
    privacy, moved = private(noise_multiplier=0.0), DATA.x_train.copy()
    moved[SHARDS.train[0]] = moved[SHARDS.train[0]][:, ::-1] * 0 + moved.max()
    other = replace(DATA, x_train=moved)
    method = Method(name="x", privacy=privacy, personalization=scheme, selection=selection)
    one, two = (flat(played(method, data, SHARDS, num_rounds=1).end.parts) for data in (DATA, other))
    expected = selection.fraction * len(SHARDS.clients[0])
    edges = len(SHARDS.clients)
    away = float((one - two).norm()) * expected * edges
    assert 0 < away <= 2 * privacy.clip + 1e-5  # one that says something else; one that says nothing moves it by C


def test_the_noise_is_what_was_promised() -> None:
    """Of the same seed, runs with and without noise differ by it alone in their first round."""
    quiet, loud = (run(private(noise_multiplier=sigma), 1) for sigma in (0.0, 2.0))
    edges, clients = len(SHARDS.clients), len(SHARDS.clients[0])
    noise = (flat(loud.end.parts) - flat(quiet.end.parts)).numpy() * clients * edges / (2.0 * 0.3)
    assert noise.std() == pytest.approx(np.sqrt(edges), rel=0.15)
    assert abs(noise.mean()) < 4 * np.sqrt(edges / noise.size)
    again = run(private(noise_multiplier=2.0), 1)
    assert torch.equal(flat(again.end.parts), flat(loud.end.parts))


def test_shares_of_the_clients_add_up_to_the_noise_of_a_trusted_edge() -> None:
    quiet = run(private(noise_multiplier=0.0), 1)
    shares = run(private(noise_multiplier=2.0, where="clients"), 1)
    edges, clients = len(SHARDS.clients), len(SHARDS.clients[0])
    noise = (flat(shares.end.parts) - flat(quiet.end.parts)).numpy() * clients * edges / (2.0 * 0.3)
    assert noise.std() == pytest.approx(np.sqrt(edges), rel=0.15)


def test_a_sum_of_fewer_than_enough_shares_is_not_used() -> None:
    method = {"selection": fedbac.Random(fraction=0.5)}
    few = run(private(where="clients", fewest=4), 1, **method)
    assert torch.equal(flat(few.end.parts), flat(few.states[0].parts))
    enough = run(private(where="clients", fewest=2), 1, **method)
    assert not torch.equal(flat(enough.end.parts), flat(enough.states[0].parts))


def test_a_round_that_chance_leaves_empty_is_noise_alone() -> None:
    """Or it would tell that nobody took part."""
    empty = run(private(), 1, selection=Poisson(fraction=0.01))
    assert empty.records[0]["selected"] == [[], []]
    assert not torch.equal(flat(empty.end.parts), flat(empty.states[0].parts))
    plain = run(None, 1, selection=Poisson(fraction=0.01))
    assert torch.equal(flat(plain.end.parts), flat(plain.states[0].parts))


def test_poisson_draws_every_client_for_itself() -> None:
    evidence, trials = replace(beginning(1, num_members=4), size_N=np.array([5, 5, 0, 5])), 2000
    masks = np.array([Poisson(fraction=0.3).act(NoState(), evidence, stream(0, "x", t)) for t in range(trials)])
    assert not masks[:, 2].any()
    assert np.abs(masks[:, [0, 1, 3]].mean(0) - 0.3).max() < 5 * np.sqrt(0.21 / trials)
    pairs = (masks[:, 0] & masks[:, 1]).mean()
    assert abs(pairs - 0.09) < 5 * np.sqrt(0.09 / trials)


def test_pixels_are_seen_by_no_statistic_of_theirs() -> None:
    task, data = tiny_task(), fedbac.data.load("fashion-mnist-mini")
    for privacy, alike in ((None, False), (private(), True)):
        experiment = Experiment(task=task, method=Method(name="x", privacy=privacy))
        dark = replace(data, x_train=data.x_train // 2)
        light, dim = (fedbac.federation.assemble(experiment, dataset=one).normalization for one in (data, dark))
        assert light is not None
        assert dim is not None
        assert np.array_equal(light[0], dim[0]) == alike


def test_a_private_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    settings = ("method.privacy.noise_multiplier=1", f"method.privacy.delta={LOOSE}", "method.privacy.where=clients")
    task = tiny_task(rounds=4)
    whole = tiny_run("hierfavg", *settings, task=task)
    playing = fedbac.play(
        "hierfavg", task, settings=settings, device="cpu", workers=1, dataset=tiny_data(), out=tmp_path / "r"
    )
    for _ in range(2):
        next(playing)
    playing.close()
    assert without(fedbac.resume(tmp_path / "r", dataset=tiny_data()).records) == without(whole.records)


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("preset", "settings", "said"),
    [
        ("fed-bac", (), "method.clustering 'linucb' asks for the loss of 'clusters' models on train data"),
        ("ifca-edges", (), "method.clustering 'lowest_loss' asks for the loss"),
        ("cfl", (), "method.clustering 'cosine_splits' asks for Gram of single clients' updates"),
        ("oort", (), "method.selection 'oort' asks for the statistic 'square' of local training"),
        ("phe-fl", (), "method.sharing 'leave_one_out' asks for the accuracy of 'others' models on validation data"),
        ("hierfavg", ("method.aggregation=krum",), "method.aggregation 'krum' is no sum"),
        ("abad", (), r"method.links.client_up \(top_k\) comes after the clipping of method.privacy"),
        ("fedala-edges", (), "has a part stand for two"),
        ("scaffold", ("method.privacy.guarantee=example",), "looks at data outside of SGD"),
        ("hierfavg", ("method.privacy.delta=0.5",), "is more than one over the 30 clients"),
        ("hierfavg", ("method.privacy.where=clients", "method.privacy.fewest=9"), "but an edge has 5 clients"),
        ("hierfavg", ("method.privacy.where=clients", HALF), "say how many shares"),
        ("hierfavg", ("method.privacy.noise_multiplier=1",), "give noise_multiplier, or epsilon"),
        ("hierfavg", ("method.privacy.fewest=3",), "fewest is of where=clients"),
        ("hierfavg", ("method.privacy={guarantee: example, epsilon: 1, where: clients}",), "of guarantee=client; "),
    ],
)  # fmt: skip
def test_what_would_tell_more_is_refused_by_name(preset: str, settings: tuple[str, ...], said: str) -> None:
    private = ("method.privacy.epsilon=3", f"method.privacy.delta={LOOSE}")
    with pytest.raises(ConfigError, match=said):
        fedbac.configure(preset, tiny_task(num_edges=6, clients_per_edge=5), settings=[*private, *settings])


@pytest.mark.parametrize("preset", ["cfl-edges", "scaffold", "ditto", "fedper-edges", "cocs", "fedadam"])
def test_what_is_made_of_noised_sums_needs_no_more_noise(preset: str) -> None:
    private = ("method.privacy.epsilon=3", f"method.privacy.delta={LOOSE}")
    assert fedbac.configure(preset, tiny_task(num_edges=2), settings=private).promise is not None


def test_statistics_of_batches_are_refused() -> None:
    normed = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
    with pytest.raises(ConfigError, match="statistics of batches"):
        tiny_run(
            "hierfavg", "method.privacy.noise_multiplier=1", f"method.privacy.delta={LOOSE}", network=lambda: normed
        )


def test_a_client_counts_as_many_examples_as_it_holds_up_to_what_was_declared() -> None:
    """The work of a site, with clients that come back with what is written here."""
    privacy = private(noise_multiplier=0.0, most_examples=4)
    experiment = Experiment(task=tiny_task(), method=Method(name="x", privacy=privacy))
    site = Site(0, (5, 6, 7), np.array([2, 9, 30]), np.zeros(3, dtype=np.int64), num_classes=2)
    start, change_CD = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.1, 0.0], [0.2, 0.0], [0.0, 0.3]])
    order = TrainOrder(0, 1, {"global": {"w": start}}, {"global": np.zeros(3, dtype=np.int64)}, NoState(), moved=False)
    work = serve(order, site, experiment)
    average = next(work)
    assert isinstance(average, Average)
    assert average.size_C.tolist() == [2, 4, 4]
    came = EdgeAverage(average.size_C, average.train.bank, average.train.row_C)
    came.add({"global": {"w": start + change_CD}}, np.array([0.5, np.nan, 0.5]))  # the second broke down
    with pytest.raises(StopIteration) as done:
        work.send(Averaged(came.bank, came.weight, came.healthy_C, came.loss_C))
    report = done.value.value
    total = (2 * change_CD[0] + 4 * change_CD[2]) / 10  # over what was to be expected, not over who came
    torch.testing.assert_close(report.bank["global"]["w"], start + total)
    assert report.weight["global"].tolist() == [41]
    assert np.isnan(report.loss)


@pytest.mark.parametrize(
    ("world", "privacy", "counts"),
    [
        (None, {}, True),
        ({"speed_spread": 1.0}, {}, True),
        ({"dropout": 0.1}, {}, False),
        ({"deadline": 5.0}, {}, False),
        ({"over_selection": 2.0}, {}, False),
        (None, {"where": "clients", "fewest": 2}, False),
    ],
)
def test_chance_counts_only_where_nothing_else_says_who_takes_part(
    world: dict[str, Any] | None, privacy: dict[str, Any], counts: bool
) -> None:
    told = [f"method.privacy={ ({'noise_multiplier': 1.0, 'delta': LOOSE} | privacy) }", HALF]
    told += [] if world is None else [f"task.world={world}"]
    experiment = fedbac.configure("hierfavg", tiny_task(), settings=told)
    assert experiment.promise is not None
    assert experiment.promise.sampling == (0.5 if counts else 1.0)
