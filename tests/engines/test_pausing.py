"""A device begins with the next round before the record of the one before it is told: nothing else changes by that."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from fedbac.config.experiment import Experiment
from fedbac.core.codecs import Links, TopK
from fedbac.core.requests import Begun, Evaluate, Measured, Train, Trained, Trainer
from fedbac.engines import Simulator
from fedbac.engines.pausing import begun, through
from fedbac.federation import Federation
from fedbac.rounds.beginning import start
from fedbac.rounds.cloud import rounds
from fedbac.rounds.orders import TrainOrder, TrainReport
from tests.engines.test_chunks import Ahead
from tests.engines.test_expecting import loop, played, setting


class Diary(Ahead):
    """Writes down what it does; its device does one thing after another, so that nothing is read before its time."""

    def __init__(self, trainer: Trainer, breaks_in: int = 0) -> None:
        super().__init__(trainer, 1000)
        self.breaks_in = breaks_in
        self.lines: list[str] = []

    def begin(self, requests: Sequence[Train]) -> Begun:
        round_ = requests[0].round
        if round_ == self.breaks_in:
            raise ValueError("this round cannot begin")
        self.lines.append(f"begin {round_}")
        begun = super().begin(requests)

        def finish() -> list[Trained]:
            self.lines.append(f"finish {round_}")
            return begun.finish()

        return replace(begun, finish=finish)

    def begin_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
        test = requests[0].split == "test"
        finish = super().begin_evaluation(requests)
        if test:
            self.lines.append("begin scores")

        def read() -> list[Measured]:
            if test:
                self.lines.append("read scores")
            return finish()

        return read


def edges_of(experiment: Experiment, federation: Federation, trainer: Trainer) -> Simulator:
    return Simulator(experiment, federation.sites, trainer)


@pytest.mark.parametrize("links", [Links(), Links(client_up=TopK(keep=0.3))], ids=["plain", "compressed"])
def test_the_device_trains_while_a_record_is_made_and_told(links: Links) -> None:
    experiment, federation = setting()
    experiment = experiment.model_copy(update={"method": experiment.method.model_copy(update={"links": links})})
    diary = Diary(loop(experiment, federation))
    state = start(experiment, federation.build, federation.sites)
    for record, _ in rounds(experiment, federation.sites, edges_of(experiment, federation, diary), state):
        diary.lines.append(f"told {record['round']}")
    middle = [line for n in range(1, 6) for line in (
        f"finish {n}", "begin scores", f"begin {n + 1}", "read scores", f"told {n}"
    )]  # fmt: skip
    assert diary.lines == ["begin 1", *middle, "finish 6", "begin scores", "read scores", "told 6"]


def test_a_round_that_cannot_begin_does_not_take_the_one_before_it_along() -> None:
    experiment, federation = setting()
    plain, states = played(experiment, federation, loop(experiment, federation))
    edges = edges_of(experiment, federation, Diary(loop(experiment, federation), breaks_in=4))
    going = rounds(experiment, federation.sites, edges, states[0])
    told = [next(going)[0]["accuracy"] for _ in range(3)]
    assert told == [record["accuracy"] for record in plain[:3]]
    with pytest.raises(ValueError, match="cannot begin"):
        next(going)


def test_whoever_stops_after_a_record_can_resume_from_its_state() -> None:
    experiment, federation = setting()
    plain, states = played(experiment, federation, loop(experiment, federation))
    edges = edges_of(experiment, federation, Diary(loop(experiment, federation)))
    going = rounds(experiment, federation.sites, edges, states[0])
    for _ in range(3):
        _, state = next(going)
    going.close()  # type: ignore[attr-defined]
    rest, _ = played(experiment, federation, Diary(loop(experiment, federation)), state)
    assert rest == plain[3:]


@pytest.mark.parametrize("ahead", [False, True])
def test_the_caller_s_time_counts_only_where_a_device_trains_in_it(ahead: bool) -> None:
    experiment, federation = setting()
    trainer = Diary(loop(experiment, federation)) if ahead else loop(experiment, federation)
    state = start(experiment, federation.build, federation.sites)
    slept, began, seconds = 0.0, time.perf_counter(), []
    for record, _ in rounds(experiment, federation.sites, edges_of(experiment, federation, trainer), state):
        seconds.append(record["seconds"])
        before = time.perf_counter()
        time.sleep(0.05)
        slept += time.perf_counter() - before
    whole = time.perf_counter() - began
    if ahead:
        assert min(seconds[1:]) >= 0.05
        assert sum(seconds) <= whole
    else:
        assert sum(seconds) <= whole - slept


def test_networks_that_came_back_are_gone_when_the_next_round_begins() -> None:
    experiment, federation = setting()
    alive: list[int] = []
    banks: list[weakref.ref[torch.Tensor]] = []

    class Watching(Simulator):
        def begin_training(self, orders: Sequence[TrainOrder]) -> Callable[[], list[TrainReport]]:
            alive.append(sum(bank() is not None for bank in banks))
            finish = super().begin_training(orders)

            def watched() -> list[TrainReport]:
                reports = finish()
                stacks = [part for report in reports for part in report.bank.values()]
                banks[:] = [weakref.ref(value) for stack in stacks for value in stack.values()]
                return reports

            return watched

    edges = Watching(experiment, federation.sites, Diary(loop(experiment, federation)))
    for _ in rounds(experiment, federation.sites, edges, start(experiment, federation.build, federation.sites)):
        pass
    assert banks
    assert alive == [0] * 6


def test_work_goes_to_its_first_pause_and_from_there_to_its_end() -> None:
    done = []

    def work(pauses: int):  # type: ignore[no-untyped-def]
        for number in range(pauses):
            done.append(number)
            yield
        return pauses

    rest = begun(work(2))
    assert done == [0]
    assert rest() == 2
    assert done == [0, 1]
    assert begun(work(0))() == through(work(0)) == 0
