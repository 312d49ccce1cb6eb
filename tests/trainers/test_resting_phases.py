"""Phases that are part of training in some rounds only: when they run, what travels, and how trainers let them rest."""

from dataclasses import replace

import numpy as np
import pytest

from fedbac import LateHead, Phase
from fedbac.core.links import Link
from fedbac.core.parts import moved_parts, moving_parts, running_phases
from fedbac.core.queries import Moment
from fedbac.core.requests import Trained
from fedbac.local.stages import stages_now, stages_of
from tests.schemes import InTurns
from tests.support import distance
from tests.trainers.reference import PATHS, RATE, check, make, requests, setting, with_momentum

ROUNDS = 6


def rounds_of(phase: Phase) -> list[int]:
    return [t for t in range(1, ROUNDS + 1) if phase.runs(Moment(t, ROUNDS))]


def test_windows_count_from_the_end() -> None:
    assert rounds_of(Phase(("a",))) == [1, 2, 3, 4, 5, 6]
    assert rounds_of(Phase(("a",), last=2)) == [5, 6]
    assert rounds_of(Phase(("a",), until_last=2)) == [1, 2, 3, 4]
    assert rounds_of(Phase(("a",), last=4, until_last=1)) == [3, 4, 5]
    assert rounds_of(Phase(("a",), last=0)) == []
    assert rounds_of(Phase(("a",), last=9)) == [1, 2, 3, 4, 5, 6]


def test_parts_that_rest_stay_and_what_never_moved_need_not_travel() -> None:
    """In six rounds the head learns in the last two; before, everybody has it from the seed."""
    scheme = LateHead(last=2)
    early, late = Moment(4, ROUNDS), Moment(5, ROUNDS)
    assert [running_phases(scheme, moment) for moment in (early, late)] == [(0,), (1,)]
    assert running_phases(InTurns(), early) is None
    for found in (moving_parts, moved_parts):
        assert found(scheme, early) == {"body"}
        assert found(scheme, late) == {"body", "head"}
    assert moving_parts(scheme) == {"body", "head"}


class HeadEarly(LateHead):
    """The other way round: the head learns at first and then rests."""

    def phases(self) -> tuple[Phase, ...]:
        return Phase(moves=("body",), last=self.last), Phase(moves=("body", "head"), until_last=self.last)


def test_what_rests_after_it_has_moved_is_still_sent_to_clients_but_does_not_come_back() -> None:
    links = {t: Link("client", HeadEarly(last=2), Moment(t, ROUNDS)).passing for t in (1, 6)}
    assert links[1] == {"down": {"body", "head"}, "up": {"body", "head"}}
    assert links[6] == {"down": {"body", "head"}, "up": {"body"}}


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("running", [(0,), (1,)])
def test_trainers_run_the_phases_that_are_asked_for_and_no_other(path: str, running: tuple[int, ...]) -> None:
    """With momentum and statistics; a trainer that has run all phases before must not remember them."""

    class Some(InTurns):
        def phases(self) -> tuple[Phase, ...]:
            return tuple(phase for number, phase in enumerate(super().phases()) if number in running)

    federation, scheme = setting(clip_norm=0.4), InTurns()
    trainer = make(path, federation, scheme)
    asked = [
        replace(with_momentum(request, None, federation), keep=frozenset({"square", "epochs"}))
        for request in requests(federation, scheme)
    ]
    whole = trainer.train(asked)
    some: list[Trained] = trainer.train([replace(request, phases=running) for request in asked])
    for request, found in zip(asked, some, strict=True):
        check(found, federation, Some(), request)
        assert found.epoch_CE is not None
        assert found.epoch_CE.shape == (len(request.clients), 2), "two epochs of one phase"
    again = trainer.train([replace(request, phases=(0, 1)) for request in asked])
    for one, other in zip(whole, again, strict=True):
        assert distance(one.parts_C, other.parts_C) == 0
        np.testing.assert_array_equal(one.loss_C, other.loss_C)


@pytest.mark.parametrize("path", PATHS)
def test_rates_belong_to_the_numbers_of_phases_whichever_run(path: str) -> None:
    federation, scheme = setting(), InTurns()
    (request, *_) = requests(federation, scheme)
    scale = {0: np.zeros(3), 1: np.full(3, 0.5)}
    second = replace(request, phases=(1,), rate_scale=scale)
    slow = replace(request, phases=(1,), learning_rate=RATE / 2)
    trainer = make(path, federation, scheme)
    assert distance(trainer.train([second])[0].parts_C, trainer.train([slow])[0].parts_C) == 0


def test_requests_of_different_phases_are_not_trained_together() -> None:
    federation, scheme = setting(), InTurns()
    (first, second, *_) = requests(federation, scheme)
    trainer = make("loop", federation, scheme)
    stages = stages_of(trainer.anatomy, federation.examples.training)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="cannot be trained together"):
        stages_now(stages, [first, replace(second, phases=(0,))])
