"""Rules that withstand liars: against loops written from their definitions, and wherever clients are combined."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.aggregation import GeometricMedian, Krum, Mean, Median, NearestNeighbours, OneVoice, TrimmedMean
from fedbac.config.experiment import Method
from fedbac.core.aggregation import EdgeAverage, average_by_owner
from fedbac.core.parts import Parts
from fedbac.core.policies import Aggregation
from fedbac.core.requests import Train, Trained
from fedbac.core.settings import FloatArray
from fedbac.data import planted_groups
from fedbac.errors import PolicyError
from fedbac.local import LoopTrainer
from fedbac.rounds.edge import combined_parts
from fedbac.steps import Adam
from fedbac.topology import Flat
from tests.covering import first
from tests.support import SMALL, play, prepare

RULES: dict[str, Aggregation] = {
    "median": Median(),
    "trimmed": TrimmedMean(faulty=0.3),
    "krum": Krum(faulty=0.3),
    "multi": Krum(faulty=0.3, multi=True),
    "geometric": GeometricMedian(iterations=8),
}
NAN = float("nan")


def left_out(num: int) -> int:
    return min(math.ceil(0.3 * num), (num - 1) // 2)


def median(change: FloatArray) -> FloatArray:
    return np.array([np.median(column) for column in change.T])


def trimmed(change: FloatArray) -> FloatArray:
    f = left_out(len(change))
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in change.T])


def scores(change: FloatArray) -> list[float]:
    found = []
    for i, one in enumerate(change):
        far = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(change) if j != i)
        found.append(sum(far[: len(change) - left_out(len(change)) - 1]))
    return found


def krum(change: FloatArray) -> FloatArray:
    best: FloatArray = change.mean(0) if len(change) == 2 else change[int(np.argmin(scores(change)))]
    return best


def multi(change: FloatArray) -> FloatArray:
    best: FloatArray = change[np.argsort(scores(change), kind="stable")[: len(change) - left_out(len(change))]].mean(0)
    return best


def geometric(change: FloatArray) -> FloatArray:
    z = np.zeros(change.shape[1])
    for _ in range(8):
        beta = [1 / max(1e-6, float(np.linalg.norm(one - z))) for one in change]
        z = sum(b * one for b, one in zip(beta, change, strict=True)) / sum(beta)
    return z


ORACLES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "median": median,
    "trimmed": trimmed,
    "krum": krum,
    "multi": multi,
    "geometric": geometric,
}


def drawn(num: int, width: int = 13, seed: int = 0) -> torch.Tensor:
    return torch.randn((num, width), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_definition(name: str, num: int) -> None:
    change = drawn(num, seed=num)
    found = RULES[name].combine(change, torch.ones(num))
    np.testing.assert_allclose(found.numpy(), ORACLES[name](change.double().numpy()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_what_children_claim_to_hold_does_not_count(name: str) -> None:
    change = drawn(7)
    claimed = torch.tensor([1.0, 1.0, 1.0, 1e9, 1.0, 1.0, 1.0])
    assert torch.equal(RULES[name].combine(change, claimed), RULES[name].combine(change, torch.ones(7)))


@pytest.mark.parametrize("name", [name for name in RULES if name != "geometric"])
def test_units_and_origin_do_not_matter(name: str) -> None:
    """The geometric median is smoothed, and begins where children started: it has a unit and an origin."""
    change, ones, by = drawn(9), torch.ones(9), drawn(1, seed=5)[0]
    found = RULES[name].combine(change, ones)
    torch.testing.assert_close(RULES[name].combine(4 * change, ones), 4 * found)
    torch.testing.assert_close(RULES[name].combine(change + by, ones), found + by)


@pytest.mark.parametrize("name", RULES)
def test_two_of_seven_liars_move_it_no_further_than_the_others_are_apart(name: str) -> None:
    honest = drawn(5)
    for lie in (1e6, -1e30, 3e38):
        found = RULES[name].combine(torch.cat([torch.full((2, 13), lie), honest]), torch.ones(7))
        assert float((found - honest.mean(0)).norm()) < 2 * float(torch.pdist(honest).max())


def test_how_many_may_lie_is_rounded_up_and_leaves_somebody() -> None:
    found = {num: TrimmedMean(faulty=0.2).combine(drawn(num), torch.ones(num)) for num in (2, 3, 5)}
    torch.testing.assert_close(found[2], drawn(2).mean(0))
    torch.testing.assert_close(found[3], drawn(3).median(0).values)
    torch.testing.assert_close(found[5], drawn(5).sort(0).values[1:4].mean(0))
    torch.testing.assert_close(TrimmedMean(faulty=0).combine(drawn(5), torch.ones(5)), drawn(5).mean(0))


@pytest.mark.parametrize("num", [1, 2, 3, 8, 11])
def test_those_who_say_nearly_the_same_have_one_voice(num: int) -> None:
    """By definition: whoever is linked by pairs nearer than half the lower median of distances to the nearest other."""
    change = drawn(num, seed=num)
    change[num // 2 :: 3] = change[num // 2] + 0.01 * drawn(num, seed=99)[num // 2 :: 3]
    rows = change.double().numpy()
    far = [[float(np.linalg.norm(rows[i] - rows[j])) if i != j else math.inf for j in range(num)] for i in range(num)]
    limit = 0.5 * sorted(min(row) for row in far)[(num - 1) // 2]
    voices = [{i} for i in range(num)]
    for i, j in itertools.combinations(range(num), 2):
        if far[i][j] < limit:
            joined = next(one for one in voices if i in one) | next(one for one in voices if j in one)
            voices = [one for one in voices if not one & joined] + [joined]
    expected = sorted(rows[sorted(one)].mean(0).tolist() for one in voices)
    said, found = OneVoice().mix(change)
    np.testing.assert_allclose(sorted(said.tolist()), expected, rtol=1e-6, atol=1e-6)
    assert found == 0, "nobody says the very same"
    assert len(voices) == (num if num < 8 else num - len(range(num // 2, num, 3)) + 1)


def test_honest_children_that_are_alike_keep_their_voices() -> None:
    """Five of like data, and three that agree on a lie far away, or that say what nobody else does."""
    honest = torch.ones(13) + 0.1 * drawn(5)
    assert len(OneVoice().mix(torch.cat([honest, drawn(1).expand(3, 13) - 9]))[0]) == 6
    assert len(OneVoice().mix(torch.cat([honest, 50 * drawn(3, seed=2)]))[0]) == 8
    assert len(OneVoice().mix(torch.ones(4, 13))[0]) == 4


def test_an_agreed_lie_that_never_counts_changes_nothing() -> None:
    """The rule behind combines the honest as if they were alone; one of the liars might have copied an honest child,
    so it still expects one."""
    honest = drawn(5)
    said = torch.cat([honest, -honest.mean(0).expand(3, 13)])
    silent = OneVoice(count="never")
    heard, found = silent.mix(said)
    torch.testing.assert_close(heard, honest)
    assert found == 2
    assert OneVoice().mix(said)[1] == 1, "their one voice counts, and is one more lie"
    both = TrimmedMean(faulty=3, before=(silent, NearestNeighbours(faulty=3)))
    alone = TrimmedMean(faulty=1, before=(NearestNeighbours(faulty=1),))
    torch.testing.assert_close(both.combine(said, torch.ones(8)), alone.combine(honest, torch.ones(5)))
    assert len(silent.mix(torch.cat([said[5:], said[5:]]))[0]) == 6, "where all agree, all count"


def test_who_copies_the_honest_to_silence_them_does_not_spend_the_liars_that_are_left() -> None:
    """Two of five liars say what two honest children say, the others shout: all three must still be left out."""
    honest = drawn(11)
    lies = 1e6 * drawn(3, seed=3)
    rule = TrimmedMean(faulty=5, before=(OneVoice(count="never"),))
    found = rule.combine(torch.cat([honest, honest[:2], lies]), torch.ones(16))
    expected = torch.cat([honest[2:], lies]).sort(0).values[3:-3].mean(0)
    torch.testing.assert_close(found, expected)


def test_a_chain_of_lies_between_two_honest_children_does_not_spend_the_liars_that_are_left() -> None:
    """Four liars lead in small steps from one honest child to another that says nearly the same; the fifth shouts."""
    honest = drawn(11)
    honest[1] = honest[0] + 0.05 * drawn(1, seed=4)[0] / 13**0.5
    chain = torch.stack([honest[0].lerp(honest[1], step / 5) for step in range(1, 5)])
    rule = TrimmedMean(faulty=5, before=(OneVoice(count="never"),))
    found = rule.combine(torch.cat([honest, chain, 1e6 * drawn(1, seed=3)]), torch.ones(16))
    assert float(found.abs().max()) < 10


def test_honest_children_of_like_data_that_lose_their_voices_are_not_taken_for_liars() -> None:
    """Three that are nearly alike go unheard; the three that shout are still left out."""
    honest, noise = drawn(7), drawn(3, seed=4)
    honest[:3] = honest[0] + 0.01 * noise
    lies = 1e6 * drawn(3, seed=3)
    silent = OneVoice(count="never")
    assert [len(silent.mix(honest)[0]), silent.mix(honest)[1]] == [4, 0]
    found = TrimmedMean(faulty=3, before=(silent,)).combine(torch.cat([honest, lies]), torch.ones(10))
    assert float(found.abs().max()) < 10


# ---------------------------------------------------------------------------------------------- at an edge


def edge(rule: Aggregation, sent: Parts, sizes: Sequence[int], losses: Sequence[float], step: int) -> EdgeAverage:
    """Return what an edge makes of clients that come a few at a time; "own" is every client's, and is not combined."""
    num = len(sizes)
    row_C = {"global": np.zeros(num, dtype=int), "cluster": np.arange(num) % 3, "own": np.arange(num)[::-1].copy()}
    bank = {part: {"w": drawn(int(row_C[part].max()) + 1, 13, seed=9)} for part in sent}
    average = EdgeAverage(np.array(sizes), bank, row_C, {"global": rule, "cluster": rule})
    for at in range(0, num, step):
        some = {part: {name: v[at : at + step].clone() for name, v in params.items()} for part, params in sent.items()}
        average.add(some, np.array(losses[at : at + step]))
    return average


@pytest.mark.parametrize("name", RULES)
def test_an_edge_combines_the_changes_of_healthy_clients_row_by_row(name: str) -> None:
    """However many come at once, with the same bits; who is broken in any part counts in none."""
    num = 10
    sent: Parts = {part: {"w": drawn(num, 13, seed)} for seed, part in enumerate(("global", "cluster", "own"))}
    sent["global"]["w"][1, 2] = NAN
    sent["own"]["w"][4, 0] = float("inf")
    losses = [NAN if client == 7 else 1.0 for client in range(num)]
    sizes = [5] * num
    sizes[9] = 0
    averages = [edge(RULES[name], sent, sizes, losses, step) for step in (1, 3, 4, num)]
    first = averages[0]
    healthy = [client for client in range(num) if client not in (1, 4, 7)]
    assert np.flatnonzero(first.healthy_C).tolist() == healthy
    for part in ("global", "cluster"):
        for row in range(len(first.bank[part]["w"])):
            mine = [client for client in healthy if sizes[client] and first.row_C[part][client] == row]
            start = first.before[part]["w"][row].double().numpy()
            expected = start + ORACLES[name](sent[part]["w"][mine].double().numpy() - start) if mine else start
            np.testing.assert_allclose(first.bank[part]["w"][row].numpy(), expected, atol=2e-6)
            assert first.weight[part][row] == 5 * len(mine)
    assert torch.equal(first.bank["own"]["w"][9], sent["own"]["w"][0])
    assert torch.equal(first.bank["own"]["w"][5], first.before["own"]["w"][5]), "client 4 is broken"
    for other, part in itertools.product(averages[1:], sent):
        assert torch.equal(other.bank[part]["w"], first.bank[part]["w"])


def test_the_mean_holds_no_clients_and_other_rules_hold_all() -> None:
    assert combined_parts(Method(name="m")) == frozenset()
    assert combined_parts(Method(name="m", aggregation=Median())) == {"global"}


def test_a_row_of_one_client_is_copied_and_one_of_nobody_stays() -> None:
    sent: Parts = {part: {"w": drawn(2, 13, 1)} for part in ("global", "cluster", "own")}
    average = edge(Krum(), sent, [3, 3], [1.0, NAN], 2)
    assert torch.equal(average.bank["global"]["w"][0], sent["global"]["w"][0])
    assert torch.equal(average.bank["cluster"]["w"][1], average.before["cluster"]["w"][1])


@pytest.mark.parametrize("name", first(1, RULES))
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    reports, before = [{"w": drawn(1, 400_000, seed)} for seed in range(9)], {"w": torch.zeros(1, 400_000)}
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            found.append(average_by_owner(before, reports, np.ones(9), np.zeros(9, dtype=int), RULES[name]))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0]["w"], found[1]["w"])
    assert torch.equal(found[0]["w"], found[2]["w"])


def test_the_cloud_combines_what_sites_report_for_an_owner_and_counts_changes_from_what_was_sent() -> None:
    before, sent = {"w": drawn(3, seed=1)}, {"w": drawn(3, seed=2)}
    reports = [{"w": drawn(2, seed=seed)} for seed in (3, 4, 5)]
    weight, owner = np.array([9.0, 1.0, 1.0, 0.0, 1.0, 1.0]), np.array([0, 1, 0, 0, 0, 1])
    after = average_by_owner(before, reports, weight, owner, GeometricMedian(iterations=8), sent)["w"]
    rows = torch.cat([report["w"] for report in reports])
    for k, mine in ((0, [0, 2, 4]), (1, [1, 5])):
        start = sent["w"][k].double().numpy()
        np.testing.assert_allclose(after[k], start + geometric(rows[mine].double().numpy() - start), atol=2e-6)
    assert torch.equal(after[2], before["w"][2])


class Wrong(Median):
    """Answers with what it is told to."""

    kind: Any = "wrong"
    answer: str

    def combine(self, change_CD: torch.Tensor, weight_C: torch.Tensor) -> torch.Tensor:
        if self.answer == "an error":
            raise RuntimeError("no such rule")
        return {"all of them": change_CD, "NaN": change_CD[0] * NAN}[self.answer]


@pytest.mark.parametrize(
    ("answer", "said"),
    [("an error", "combine.. failed in a round: RuntimeError"), ("all of them", "one change"), ("NaN", "finite")],
)
def test_a_rule_that_answers_wrongly_is_named(answer: str, said: str) -> None:
    reports = [{"w": drawn(1, 4, seed)} for seed in range(2)]
    with pytest.raises(PolicyError, match=f"method.aggregation 'wrong': .*{said}"):
        average_by_owner({"w": torch.zeros(1, 4)}, reports, np.ones(2), np.zeros(2, dtype=int), Wrong(answer=answer))


# --------------------------------------------------------------------------------------------- in a run

DATA, SHARDS, _ = planted_groups(2, 5, 1, train=20, validation=2, test=30)


class Lying:
    """A trainer of which one client comes back with a million times its weights."""

    path = "lying"
    device = torch.device("cpu")

    def __init__(self, trainer: LoopTrainer, liar: int) -> None:
        self.trainer, self.liar = trainer, liar
        self.evaluate, self.close = trainer.evaluate, trainer.close

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        return [self._lie(request, one) for request, one in zip(requests, self.trainer.train(requests), strict=True)]

    def _lie(self, request: Train, trained: Trained) -> Trained:
        factor = torch.tensor([1e6 if client == self.liar else 1.0 for client in request.clients])
        parts_C = {
            part: {n: v * factor.view(-1, *[1] * (v.ndim - 1)) for n, v in params.items()}
            for part, params in trained.parts_C.items()
        }
        return replace(trained, parts_C=parts_C)


@pytest.mark.covering
@pytest.mark.parametrize("topology", [{}, {"topology": Flat()}], ids=["three tiers", "two tiers"])
@pytest.mark.parametrize("rule", first(2, [Mean(), *RULES.values()]), ids=["mean", *RULES])
def test_a_planted_liar_ruins_the_mean_and_nothing_else(rule: Aggregation, topology: dict[str, Any]) -> None:
    method = Method(name="lied to", aggregation=rule, **topology)
    _, federation = prepare(method, DATA, SHARDS, network=SMALL)
    trainer = Lying(LoopTrainer(federation.network, method.personalization, federation.examples), liar=3)
    played = play(method, DATA, SHARDS, trainer, num_rounds=25)
    largest = max(float(value.abs().max()) for value in played.end.parts["global"].values())
    assert (largest < 10) == (rule.needs == "all")
    assert (played.accuracy > 0.7) == (rule.needs == "all")


def test_the_cloud_may_combine_otherwise_than_its_edges() -> None:
    found = [
        play(Method(name="x", **rules), DATA, SHARDS).end.parts["global"]
        for rules in ({"aggregation": Median(), "cloud_aggregation": Mean()}, {"cloud_aggregation": Median()})
    ]
    assert not torch.equal(found[0]["1.weight"], found[1]["1.weight"])


def test_neither_column_costs_a_byte() -> None:
    rows = [Method(name="plain"), Method(name="x", aggregation=Krum(), step=Adam())]
    plain, other = ([record["bytes"] for record in play(row, DATA, SHARDS).records] for row in rows)
    assert plain == other
