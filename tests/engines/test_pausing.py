"""A device begins with the next round before the record of the one before it is told: nothing else changes by that."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedbac.config.experiment import Evaluation, Experiment
from fedbac.core.codecs import Links, TopK
from fedbac.core.requests import Begun, Evaluate, Measured, Train, Trained, Trainer
from fedbac.engines import Simulator
from fedbac.engines.pausing import begun, through
from fedbac.federation import Federation
from fedbac.rounds import cloud
from fedbac.rounds.beginning import start
from fedbac.rounds.cloud import rounds
from fedbac.rounds.orders import TrainOrder, TrainReport, Underway
from fedbac.sharing import TowardsMean
from fedbac.topology import Hierarchical
from tests.engines.test_chunks import Ahead
from tests.engines.test_expecting import loop, played, setting
from tests.support import distance, without


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


FORESEEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "judged at edges": {"evaluation": Evaluation(point="edge_model")},
}
ASKED_FOR: dict[str, dict[str, Any]] = {
    "updates compressed": {"links": Links(client_up=TopK(keep=0.3))},
    "averages compressed": {"links": Links(cloud_up=TopK(keep=0.3))},
    "two rounds of edges": {"topology": Hierarchical(edge_rounds=2)},
    "a mix is judged": {"sharing": TowardsMean(share=0.3)},
}
MOVED: dict[str, dict[str, Any]] = {"judged with new clusters": {"evaluation": Evaluation(point="post_reassign")}}


def varied(experiment: Experiment, change: dict[str, Any]) -> Experiment:
    if "evaluation" in change:
        return experiment.model_copy(update=change)
    return experiment.model_copy(update={"method": experiment.method.model_copy(update=change)})


@pytest.mark.parametrize("change", [*FORESEEN, *ASKED_FOR, *MOVED])
def test_the_device_scores_before_the_host_hears_of_the_training_if_it_can_be_known_what(change: str) -> None:
    """And it trains while a record is made and told. The numbers are those of a trainer that does one at a time."""
    experiment, federation = setting()
    experiment = varied(experiment, {**FORESEEN, **ASKED_FOR, **MOVED}[change])
    plain, states = played(experiment, federation, loop(experiment, federation))
    diary = Diary(loop(experiment, federation))
    lines, records, ends = diary.lines, [], []
    for record, state in rounds(experiment, federation.sites, edges_of(experiment, federation, diary), states[0]):
        lines.append(f"told {record['round']}")
        records.append(record)
        ends.append(state)
    assert without(records) == plain
    assert distance(ends[-1].parts, states[-1].parts) == 0
    measured_first, moves_due = 1, {2, 4, 6}
    for number in range(1, 7):
        last = lines.index(f"told {number}")
        finished = max(i for i, line in enumerate(lines[:last]) if line == f"finish {number}")
        begun = max(i for i, line in enumerate(lines[: lines.index(f"told {number}")]) if line == "begin scores")
        foreseen = number > measured_first and (change in FORESEEN or (change in MOVED and number not in moves_due))
        assert (begun < finished) == foreseen, (number, lines)
        if number < 6:
            assert begun < lines.index(f"begin {number + 1}") < last


def test_a_round_in_which_a_client_fails_is_scored_again() -> None:
    experiment, federation = setting(broken=True)
    plain, states = played(experiment, federation, loop(experiment, federation))
    diary = Diary(loop(experiment, federation))
    records, _ = played(experiment, federation, diary, states[0])
    assert records == plain
    failed = [bool(record["failed"]) for record in plain]
    wrong = [False]  # in the first round edges measure before they train
    for broken in failed[1:]:
        wrong.append(broken and not wrong[-1])  # after a wrong guess there is none in the next round
    assert any(wrong)
    before = [diary.lines[diary.lines.index(f"finish {number}") - 1] for number in range(2, 7)]
    assert [line == "begin scores" for line in before] == [not guess for guess in wrong[:-1]]
    assert diary.lines.count("begin scores") == len(plain) + sum(wrong)
    assert diary.lines.count("read scores") == len(plain)


def test_scores_that_find_no_room_beside_the_training_are_made_after_it() -> None:
    experiment, federation = setting()
    plain, states = played(experiment, federation, loop(experiment, federation))

    class Cramped(Diary):
        trains = 0

        def begin(self, requests: Sequence[Train]) -> Begun:
            begun = super().begin(requests)
            self.trains += 1

            def finish() -> list[Trained]:
                self.trains -= 1
                return begun.finish()

            return replace(begun, finish=finish)

        def begin_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
            if self.trains and requests[0].split == "test":
                self.lines.append("no room")
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().begin_evaluation(requests)

    cramped = Cramped(loop(experiment, federation))
    assert played(experiment, federation, cramped, states[0])[0] == plain
    assert cramped.lines.count("no room") == len(plain) - 1


def test_a_state_is_made_when_its_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores may be read before the device has mixed clusters or kept momentum: whoever saves the state must wait."""
    experiment, federation = setting()
    diary = Diary(loop(experiment, federation))

    def made(round_: cloud.Round) -> Callable[[], object]:
        diary.lines.append("state queued")
        return lambda: diary.lines.append("state made")

    monkeypatch.setattr(cloud.Round, "_made", made)
    edges, state = edges_of(experiment, federation, diary), start(experiment, federation.build, federation.sites)
    reassign = cloud.Round._reassign

    def reassigned(round_: cloud.Round, *given: Any) -> Any:
        diary.lines.append("reassigned")
        return reassign(round_, *given)

    monkeypatch.setattr(cloud.Round, "_reassign", reassigned)
    for record, _ in rounds(experiment, federation.sites, edges, state):
        diary.lines.append(f"told {record['round']}")
    lines = [line for line in diary.lines if line.split()[0] in ("reassigned", "state", "begin", "told")]
    for number in range(2, 6):
        mine = lines[lines.index(f"told {number - 1}") : lines.index(f"told {number}")]
        order = [mine.index(line) for line in ("reassigned", "state queued", f"begin {number + 1}", "state made")]
        assert order == sorted(order), mine


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
        def begin_training(self, orders: Sequence[TrainOrder]) -> Underway:
            alive.append(sum(bank() is not None for bank in banks))
            underway = super().begin_training(orders)

            def watched() -> list[TrainReport]:
                reports = underway.reports()
                stacks = [part for report in reports for part in report.bank.values()]
                banks[:] = [weakref.ref(value) for stack in stacks for value in stack.values()]
                return reports

            return underway._replace(reports=watched)

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
