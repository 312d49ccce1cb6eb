"""A device is given work before its results are known: nothing changes by that but the time."""

import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from fedbac import engines
from fedbac.aggregation import Median
from fedbac.config.columns import Links
from fedbac.config.experiment import Evaluation, Experiment, Runtime
from fedbac.core.codecs import TopK
from fedbac.core.parts import Parts, Personalization
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.world import World
from fedbac.engines import Prefetching, Simulator, connect
from fedbac.personalization import Additive
from fedbac.rounds import cloud
from fedbac.rounds.messages import TrainOrder, TrainReport
from fedbac.rounds.start import start
from fedbac.sharing import TowardsMean
from fedbac.steps import Momentum
from fedbac.topology import Hierarchical
from tests.covering import first
from tests.engines.queueing import Diary, Queueing, edges_of, loop, played, playing, setting
from tests.schemes import Personal
from tests.support import distance, without

WORLD = World(availability=0.8, dropout=0.3, deadline=1.0)
EARLY: dict[str, dict[str, Any]] = {
    "plain": {},
    "judged at edges": {"evaluation": Evaluation(point="edge_model", last_rounds=1)},
    "the cloud combines and steps otherwise": {"cloud_aggregation": Median(), "step": Momentum(learning_rate=0.5)},
}
AFTER_LEARNING: dict[str, dict[str, Any]] = {"a mix is judged": {"sharing": TowardsMean(share=0.3)}}
AFTER_MOVES: dict[str, dict[str, Any]] = {
    "judged with new clusters": {"evaluation": Evaluation(point="post_reassign", last_rounds=1)}
}
IN_TURN: dict[str, dict[str, Any]] = {
    "updates compressed": {"links": Links(client_up=TopK(keep=0.3))},
    "averages compressed": {"links": Links(cloud_up=TopK(keep=0.3))},
    "two rounds of edges": {"topology": Hierarchical(edge_rounds=2)},
    "edges hold all clients": {"aggregation": Median()},
}
VARIANTS = {**EARLY, **AFTER_LEARNING, **AFTER_MOVES, **IN_TURN}
NUM_ROUNDS = 6


@cache
def usual() -> tuple[Any, ...]:
    """Return an experiment, its federation, and its records and states by a trainer that does one thing at a time."""
    experiment, federation = setting()
    return experiment, federation, *played(experiment, federation, loop(experiment, federation))


def varied(experiment: Experiment, change: dict[str, Any]) -> Experiment:
    if "evaluation" in change:
        return experiment.model_copy(update=change)
    return experiment.model_copy(update={"method": experiment.method.model_copy(update=change)})


@pytest.mark.parametrize("scheme", first(1, [Personal(), Additive()]), ids=lambda scheme: scheme.kind)
@pytest.mark.parametrize("world", first(1, [WORLD, None]), ids=["some away", "all there"])
def test_a_run_has_the_same_numbers_and_so_has_the_rest_of_it(scheme: Personalization, world: World | None) -> None:
    experiment, federation = setting(world=world, scheme=scheme)
    plain, states = played(experiment, federation, loop(experiment, federation))
    diary = Diary(loop(experiment, federation))
    records, ends = played(experiment, federation, diary)
    assert records == plain
    assert distance(ends[-1].parts, states[-1].parts) == 0
    assert diary.used == diary.expected == [3, 4, 5, 6], "two rounds show what is always asked"
    resumed, ends = played(experiment, federation, Diary(loop(experiment, federation)), states[3])
    assert resumed == plain[3:]
    assert distance(ends[-1].parts, states[-1].parts) == 0


@pytest.mark.parametrize(
    "change", first(2, sorted(VARIANTS, key=lambda change: change not in ("plain", "updates compressed")))
)
def test_the_device_scores_while_clients_train_and_trains_while_a_record_is_told(change: str) -> None:
    """If it can be known what is judged. The numbers are those of a trainer that does one thing at a time."""
    experiment, federation = setting()
    experiment = varied(experiment, VARIANTS[change])
    plain, states = played(experiment, federation, loop(experiment, federation))
    diary = Diary(loop(experiment, federation))
    lines, records, ends = diary.lines, [], []
    for record, state in playing(experiment, federation, diary, states[0]):
        lines.append(f"told {record['round']}")
        records.append(record)
        ends.append(state)
    assert without(records) == plain
    assert distance(ends[-1].parts, states[-1].parts) == 0
    moves_due = {2, 4, 6}
    for number in range(1, NUM_ROUNDS + 1):
        told = lines.index(f"told {number}")
        finished = max(i for i, line in enumerate(lines) if line == f"finish {number}")
        begun = [i for i, line in enumerate(lines) if line == "begin scores"][number - 1]
        read = [i for i, line in enumerate(lines) if line == "read scores"][number - 1]
        assert begun < read < told
        early = change in EARLY or (change in AFTER_MOVES and number not in moves_due)
        assert (begun < finished) == early, (number, lines)
        if number < NUM_ROUNDS:
            begins, ends_ = lines.index(f"begin {number + 1}"), lines.index(f"finish {number + 1}")
            assert begun < begins < read
            assert (told < ends_) == (change not in IN_TURN), "it trains while the record is told"


def test_a_round_in_which_a_client_fails_is_measured_and_scored_again() -> None:
    experiment, federation = setting(broken=True)
    plain, states = played(experiment, federation, loop(experiment, federation))
    diary = Diary(loop(experiment, federation))
    records, ends = played(experiment, federation, diary, states[0])
    assert records == plain, "bytes too: nothing is counted twice"
    assert distance(ends[-1].parts, states[-1].parts) == 0
    failed = [bool(record["failed"]) for record in plain]
    wrong = [failed[0]]
    for broken in failed[1:]:
        wrong.append(broken and not wrong[-1])  # after a wrong guess there is none in the next round
    assert any(wrong)
    assert not all(wrong)
    before = [diary.lines[diary.lines.index(f"finish {number}") - 1] for number in range(2, NUM_ROUNDS + 1)]
    assert [line == "begin scores" for line in before] == [not guess for guess in wrong[:-1]]
    assert diary.lines.count("begin scores") == len(plain) + sum(wrong) + 1, "the last round has another moment"
    assert diary.lines.count("read scores") == len(plain) + 1
    assert [round_ for round_ in diary.expected if failed[round_ - 1]]
    assert diary.used == [round_ for round_ in diary.expected if not failed[round_ - 1]]


@pytest.mark.parametrize("room", first(1, [4, 1]))
def test_where_memory_runs_out_clients_come_in_chunks_and_nothing_is_guessed(room: int) -> None:
    experiment, federation, plain, states = usual()
    diary = Diary(loop(experiment, federation), room=room)
    records, ends = played(experiment, federation, diary, states[0])
    assert records == plain
    assert distance(ends[-1].parts, states[-1].parts) == 0
    assert max(diary.sizes) <= room
    busy, training = [], 0
    for line in diary.lines[diary.lines.index("begin 2") :]:
        training += line.startswith("begin ") - line.startswith("finish ") - (line == "begin scores")
        busy += [training] if line == "begin scores" else []
    assert busy == [0] * NUM_ROUNDS, "what is in chunks is scored when it is done"


@pytest.mark.full
def test_scores_that_find_no_room_beside_the_training_are_made_after_it() -> None:
    experiment, federation, plain, states = usual()

    class Cramped(Diary):
        def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
            if self.trains and requests[0].split == "test":
                self.lines.append("no room")
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().queue_evaluation(requests)

    cramped = Cramped(loop(experiment, federation))
    assert played(experiment, federation, cramped, states[0])[0] == plain
    assert cramped.lines.count("no room") == len(plain)


def test_memory_that_runs_out_when_nothing_is_guessed_any_more_is_an_error() -> None:
    experiment, federation = setting()

    class Full(Diary):
        def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
            if requests[0].split == "test":
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().queue_evaluation(requests)

    with pytest.raises(torch.OutOfMemoryError):
        played(experiment, federation, Full(loop(experiment, federation)))


def test_a_state_is_made_when_its_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores may be read before the device has mixed clusters or kept momentum: whoever saves the state must wait."""
    experiment, federation = setting()
    diary = Diary(loop(experiment, federation))

    def made(edges: Prefetching) -> Callable[[], object]:
        diary.lines.append("state queued")
        return lambda: diary.lines.append("state made")

    monkeypatch.setattr(Prefetching, "_made", made)
    reassign = cloud.Round._reassign

    def reassigned(round_: cloud.Round, *given: Any) -> Any:
        diary.lines.append("reassigned")
        return reassign(round_, *given)

    monkeypatch.setattr(cloud.Round, "_reassign", reassigned)
    for record, _ in playing(experiment, federation, diary):
        diary.lines.append(f"told {record['round']}")
    lines = [line for line in diary.lines if line.split()[0] in ("reassigned", "state", "begin", "told")]
    for number in range(2, NUM_ROUNDS):
        mine = lines[lines.index(f"told {number - 1}") : lines.index(f"told {number}")]
        order = [mine.index(line) for line in ("reassigned", "state queued", f"begin {number + 1}", "state made")]
        assert order == sorted(order), mine


def test_a_round_that_cannot_begin_does_not_take_the_one_before_it_along() -> None:
    experiment, federation, plain, states = usual()
    going = playing(experiment, federation, Diary(loop(experiment, federation), breaks_in=4), states[0])
    told = [next(going)[0]["accuracy"] for _ in range(3)]
    assert told == [record["accuracy"] for record in plain[:3]]
    with pytest.raises(ValueError, match="cannot begin"):
        next(going)


def test_whoever_stops_after_a_record_can_resume_from_its_state() -> None:
    experiment, federation, plain, states = usual()
    going = playing(experiment, federation, Diary(loop(experiment, federation)), states[0])
    for _ in range(3):
        _, state = next(going)
    going.close()  # type: ignore[attr-defined]
    rest, _ = played(experiment, federation, Diary(loop(experiment, federation)), state)
    assert rest == plain[3:]


def test_a_finished_run_is_not_played_on() -> None:
    experiment, federation, _, states = usual()
    assert list(playing(experiment, federation, Diary(loop(experiment, federation)), states[-1])) == []


@pytest.mark.full
@pytest.mark.parametrize("ahead", [False, True])
def test_the_caller_s_time_counts_only_where_a_device_trains_in_it(ahead: bool) -> None:
    experiment, federation = setting()
    trainer = Diary(loop(experiment, federation)) if ahead else loop(experiment, federation)
    slept, began, seconds = 0.0, time.perf_counter(), []
    for record, _ in playing(experiment, federation, trainer):
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


@pytest.mark.full
def test_networks_that_came_back_are_gone_when_the_next_round_begins() -> None:
    experiment, federation = setting()
    alive: list[int] = []
    banks: list[weakref.ref[torch.Tensor]] = []

    class Watching(Prefetching):
        def train(self, orders: Sequence[TrainOrder]) -> list[TrainReport]:
            alive.append(sum(bank() is not None for bank in banks))
            reports = super().train(orders)
            stacks = [part for report in reports for part in report.bank.values()]
            banks[:] = [weakref.ref(value) for stack in stacks for value in stack.values()]
            return reports

    edges = Watching(experiment, federation.sites, Diary(loop(experiment, federation)))
    for _ in edges.rounds(start(experiment, federation.build, federation.sites)):
        pass
    assert banks
    assert alive == [0] * NUM_ROUNDS


@pytest.mark.full
def test_what_clients_came_back_with_is_gone_when_edges_measure() -> None:
    """A device has room for the clients in training or for what is measured, not always for both."""
    experiment, federation = setting()
    alive: list[int] = []
    weights: list[weakref.ref[torch.Tensor]] = []

    class Watched(Queueing):
        def queue(self, requests: Sequence[Train]) -> tuple[list[Parts], Callable[[], list[Trained]]]:
            parts, finish = super().queue(requests)
            weights[:] = [weakref.ref(v) for parts_C in parts for p in parts_C.values() for v in p.values()]
            return parts, finish

        def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
            finish = super().queue_evaluation(requests)
            if requests[0].split == "test":
                return finish

            def read() -> list[Measured]:
                alive.append(sum(weight() is not None for weight in weights))
                return finish()

            return read

    edges = edges_of(experiment, federation, Watched(loop(experiment, federation)))
    assert isinstance(edges, Prefetching)
    for _ in edges.rounds(start(experiment, federation.build, federation.sites)):
        pass
    assert weights
    assert set(alive) == {0}


def test_only_a_trainer_that_queues_works_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, federation = setting()
    plain = loop(experiment, federation)
    for trainer, kind in ((plain, Simulator), (Diary(plain), Prefetching)):
        monkeypatch.setattr(engines, "make_trainer", lambda *_, trainer=trainer: trainer)
        assert type(connect(experiment, federation, Runtime())) is kind
