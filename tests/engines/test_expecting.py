"""Measurements that are begun before edges ask: the same numbers, and only where it is known what will be asked."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedbac.clustering import Fixed, LinUCB
from fedbac.config.experiment import Experiment, Method, Training
from fedbac.core.parts import Parts, Personalization
from fedbac.core.requests import Begun, Evaluate, Measured, Train, Trained, Trainer
from fedbac.core.state import State
from fedbac.core.world import World
from fedbac.data import planted_groups
from fedbac.engines import Simulator
from fedbac.engines.expecting import Expected
from fedbac.engines.pausing import through
from fedbac.federation import Federation
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive
from fedbac.rounds.beginning import start
from fedbac.rounds.cloud import rounds
from fedbac.selection import Thompson
from tests.engines.test_chunks import Ahead
from tests.schemes import Personal
from tests.support import Record, distance, poisoned, prepare, without

DATA, SHARDS, _ = planted_groups(3, 5, 2, train=6, validation=2, test=12)
TRAINING = Training(epochs=1, batch_size=4)
WORLD = World(availability=0.8, dropout=0.3, deadline=1.0)


class Counting(Ahead):
    """Tells what was measured ahead and what upon asking, by rounds of training."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer, 1000)
        self.begun: list[int] = []
        self.used: list[int] = []
        self.round = 0
        self.trains = False

    def begin(self, requests: Sequence[Train]) -> Begun:
        self.round, self.trains = requests[0].round, True
        begun = super().begin(requests)

        def finish() -> list[Trained]:
            self.trains = False
            return begun.finish()

        return replace(begun, finish=finish)

    def begin_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
        if not self.trains or requests[0].split == "test":  # upon asking, or scores
            return super().begin_evaluation(requests)
        self.begun.append(self.round)
        finish, round_ = super().begin_evaluation(requests), self.round

        def used() -> list[Measured]:
            self.used.append(round_)
            return finish()

        return used


def played(
    experiment: Experiment, federation: Federation, trainer: Trainer, state: State | None = None
) -> tuple[list[Record], list[State]]:
    state = state or start(experiment, federation.build, federation.sites)
    edges = Simulator(experiment, federation.sites, trainer)
    records, states = zip(*rounds(experiment, federation.sites, edges, state), strict=True)
    return without(records), [state, *states]


def setting(
    world: World | None = None, scheme: Personalization | None = None, broken: bool = False
) -> tuple[Experiment, Federation]:
    data = poisoned(DATA, SHARDS.train[2]) if broken else DATA
    scheme = scheme or Additive()
    clustering = LinUCB(period=2) if "cluster" in scheme.parts else Fixed(num_clusters=1)
    wanted = Method(name="tried", clustering=clustering, selection=Thompson(warmup=1), personalization=scheme)
    experiment, federation = prepare(wanted, data, SHARDS, training=TRAINING, num_rounds=6)
    task = experiment.task.model_copy(update={"world": world})
    return experiment.model_copy(update={"task": task}), federation


def loop(experiment: Experiment, federation: Federation) -> LoopTrainer:
    return LoopTrainer(federation.network, experiment.method.personalization, federation.examples)


@pytest.mark.parametrize("scheme", [Additive(), Personal()], ids=lambda scheme: scheme.kind)
@pytest.mark.parametrize("world", [None, WORLD], ids=["all there", "some away"])
def test_a_run_has_the_same_numbers_and_so_has_the_rest_of_it(scheme: Personalization, world: World | None) -> None:
    experiment, federation = setting(world=world, scheme=scheme)
    plain, states = played(experiment, federation, loop(experiment, federation))
    ahead = Counting(loop(experiment, federation))
    records, ends = played(experiment, federation, ahead)
    assert records == plain
    assert distance(ends[-1].parts, states[-1].parts) == 0
    assert ahead.used == ahead.begun == [3, 4, 5, 6], "two rounds show what is always asked"
    resumed, ends = played(experiment, federation, Counting(loop(experiment, federation)), states[3])
    assert resumed == plain[3:]
    assert distance(ends[-1].parts, states[-1].parts) == 0


def test_the_averages_of_a_round_in_which_a_client_fails_are_measured_again() -> None:
    experiment, federation = setting(broken=True)
    plain, _ = played(experiment, federation, loop(experiment, federation))
    failed = [bool(record["failed"]) for record in plain]
    assert any(failed)
    ahead = Counting(loop(experiment, federation))
    assert played(experiment, federation, ahead)[0] == plain
    assert [round_ for round_ in ahead.begun if failed[round_ - 1]]
    assert ahead.used == [round_ for round_ in ahead.begun if not failed[round_ - 1]]


def expecting() -> tuple[Expected, Counting, Parts]:
    """Return what expects, its trainer, and the networks of an edge."""
    experiment, federation = setting()
    trainer = Counting(loop(experiment, federation))
    parts = start(experiment, federation.build, federation.sites).parts
    first = {part: {name: value[:1] for name, value in stack.items()} for part, stack in parts.items()}
    return Simulator(experiment, federation.sites, trainer).expected, trainer, first


def test_what_was_begun_is_no_answer_to_another_question() -> None:
    expected, trainer, first = expecting()
    other = {part: dict(stack) for part, stack in first.items()}
    asked = Evaluate(first, {part: np.zeros(1, dtype=np.int64) for part in first}, "train", (0, 1))
    trainer.trains = True  # what is begun now is begun ahead
    for _ in range(2):
        expected.begin({0: first})
        assert not trainer.begun
        through(expected.answer({0: asked}, after_averages=True))
        trainer.begun = []
    for question, right in (
        (asked, True),
        (replace(asked, owners=(0, 2)), False),
        (replace(asked, split="validation"), False),
        (replace(asked, bank=other), False),
    ):
        expected.asked, expected.steady = {0: replace(asked, bank={})}, True
        trainer.begun, trainer.used = [], []
        expected.begin({0: first})
        trainer.trains = False
        (found,) = through(expected.answer({0: question}, after_averages=True))
        trainer.trains = True
        (wanted,) = trainer.evaluate([question])
        np.testing.assert_array_equal(found.loss_VG, wanted.loss_VG)
        assert (len(trainer.begun), len(trainer.used)) == (1, int(right))
        assert expected.steady == right
        assert not expected.asked[0].bank, "no networks are held on to"


def test_what_nobody_asked_for_is_let_go_and_not_begun_again() -> None:
    expected, trainer, first = expecting()
    asked = Evaluate({}, {part: np.zeros(1, dtype=np.int64) for part in first}, "train", (0, 1))
    expected.asked, expected.steady, trainer.trains = {0: asked}, True, True
    for _ in range(2):
        expected.begin({0: first})
        expected.forget()
        assert expected.begun is None
    assert len(trainer.begun) == 1
