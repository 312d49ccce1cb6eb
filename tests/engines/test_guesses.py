"""What is guessed before a device has trained: the same bits where it comes true, and no use where it does not."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.clustering import Fixed
from fedbac.config.experiment import Method, Training
from fedbac.core.aggregation import BLOCK, EdgeAverage
from fedbac.core.parts import Parts, Personalization
from fedbac.core.requests import Average, Evaluate, Train
from fedbac.engines import Prefetching
from fedbac.engines.prefetch import Guess, Later, Queued, WrongGuessError, later, once, same_questions
from fedbac.engines.simulator import Chunks, average_of
from fedbac.personalization import Additive
from fedbac.rounds.start import start
from tests.engines.queueing import DATA, SHARDS, Diary, Queueing, edges_of, loop, setting
from tests.engines.test_chunks import questions, same
from tests.schemes import Layered, Personal
from tests.support import poisoned, prepare


@pytest.mark.parametrize("num", [5, 2 * BLOCK + 22])
@pytest.mark.parametrize("broken", [False, True])
def test_a_guess_has_the_bits_of_the_average_and_shows_whether_weights_are_finite(num: int, broken: bool) -> None:
    rng = np.random.default_rng(0)
    w = torch.from_numpy(rng.normal(size=(num, 7)).astype(np.float32))
    parts: Parts = {"global": {"w": w}, "cluster": {"w": 2 * w}, "own": {"w": 3 * w}}
    row_C = {"global": np.zeros(num, dtype=int), "cluster": rng.integers(0, 3, num), "own": rng.permutation(num)}
    bank = {part: {"w": torch.zeros(int(row_C[part].max()) + 1, 7)} for part in parts}
    request = Average(Train(tuple(range(num)), bank, row_C, 1, 0, 0.1), rng.integers(1, 500, num))
    plain = average_of(request)
    assert isinstance(plain, EdgeAverage)
    plain.add(parts, np.ones(num))
    if broken:
        parts["own"]["w"][3, 2] = np.nan
    guess = Guess(request, parts)
    assert torch.cat(guess.looks).isfinite().all() != broken
    if not broken:
        for part in parts:
            assert torch.equal(guess.bank[part]["w"], plain.bank[part]["w"])
            assert guess.weight[part].tolist() == plain.weight[part].tolist()


def finite(parts: Parts | None) -> Parts:
    assert parts is not None
    return {part: {name: value.nan_to_num() for name, value in params.items()} for part, params in parts.items()}


@pytest.mark.covering
@pytest.mark.parametrize("room", [1000, 5])
@pytest.mark.parametrize("broken", [(), (2,)])
@pytest.mark.parametrize("scheme", [Additive(), Personal(), Layered()], ids=lambda scheme: scheme.kind)
def test_averages_that_are_queued_with_the_training_have_the_same_bits(
    scheme: Personalization, broken: tuple[int, ...], room: int
) -> None:
    """Momenta and statistics too; also where a client fails, or memory runs out."""
    training = Training(epochs=1, batch_size=4, momentum_state="persist")
    data = poisoned(DATA, SHARDS.train[broken[0]]) if broken else DATA
    method = Method(name="tried", clustering=Fixed(num_clusters=1), personalization=scheme)
    experiment, federation = prepare(method, data, SHARDS, training=training)
    asked = questions(federation, scheme)
    trainer = Queueing(loop(experiment, federation), room)
    queued = Prefetching(experiment, federation.sites, trainer)._queued(dict(enumerate(asked)))
    assert queued is not None
    found = queued.averaged()
    assert max(trainer.sizes) <= room
    guessed = [one.bank is guess.bank for one, guess in zip(found, queued.guesses, strict=True)]
    assert guessed == [room == 1000 and not set(broken) & set(one.train.clients) for one in asked]
    plain = Chunks(loop(experiment, federation), None, 1).average(asked)
    assert same(*([replace(one, momentum=finite(one.momentum)) for one in some] for some in (found, plain)))


def question(parts: Parts, **change: Any) -> Evaluate:
    return replace(Evaluate(parts, {part: np.zeros(1, dtype=np.int64) for part in parts}, "train", (0, 1)), **change)


def test_what_was_measured_is_no_answer_to_another_question() -> None:
    experiment, federation = setting()
    first = start(experiment, federation.build, federation.sites).parts
    other = {part: dict(stack) for part, stack in first.items()}
    for asked, right in (
        (question(first), True),
        (question(first, owners=(0, 2)), False),
        (question(first, split="validation"), False),
        (question(first, max_samples=1), False),
        (question(other), False),
    ):
        assert same_questions({0: asked}, {0: question(first)}) == right
    assert not same_questions({0: question(first)}, {1: question(first)})
    assert not same_questions({0: question(first)}, {})


def test_what_nobody_asks_for_is_expected_no_more() -> None:
    experiment, federation = setting()
    edges = edges_of(experiment, federation, Diary(loop(experiment, federation)))
    assert isinstance(edges, Prefetching)
    asked = question(start(experiment, federation.build, federation.sites).parts)
    queued = Queued([], list, {0: asked}, lambda: pytest.fail("waited for what nobody asked"))
    edges.asked, edges.steady = {0: asked}, True
    assert edges._measured({}, queued) == {}
    assert edges.asked == {}
    assert not edges.steady


def test_a_report_waits_for_what_was_not_guessed() -> None:
    read: list[str] = []
    bank: Parts = {"global": {"w": torch.ones(1, 2)}}
    weight = {"global": np.array([3])}

    def finish(found: Parts) -> Callable[[], list[Any]]:
        def done() -> list[Any]:
            read.append("waited")
            return [Report(found, {"global": np.array([3])})]

        return done

    class Report:
        def __init__(self, bank: Parts, weight: dict[str, Any]) -> None:
            self.bank, self.weight, self.loss = bank, weight, 0.5

    (right,) = later(finish(bank), [{"bank": bank, "weight": weight}])
    assert right.bank is bank
    assert right.weight is weight
    assert read == []
    assert right.loss == 0.5
    assert right.loss == 0.5
    assert read == ["waited"]
    (wrong,) = later(finish({"global": {"w": torch.ones(1, 2)}}), [{"bank": bank, "weight": weight}])
    with pytest.raises(WrongGuessError):
        _ = wrong.loss
    assert isinstance(wrong, Later)
    assert wrong.read().loss == 0.5
    (unknown,) = later(finish(bank), [{}])
    assert unknown.bank is bank


def test_what_is_called_once_lets_go_of_all_but_its_result() -> None:
    big = torch.zeros(3)
    there = weakref.ref(big)

    def sized(tensor: torch.Tensor) -> Callable[[], int]:
        return once(lambda: tensor.numel())

    size = sized(big)
    del big
    assert there() is not None
    assert (size(), size()) == (3, 3)
    assert there() is None
