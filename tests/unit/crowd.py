"""A site of made-up clients, for tests of what a selection policy does over many rounds."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedbac.core.policies import SelectionPolicy
from fedbac.core.queries import Evidence
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray
from fedbac.core.world import EQUAL, Profile

Answers = Mapping[Any, FloatArray]
"""Readings by their queries."""


def crowd(
    size_N: list[int] | int,
    *,
    round_: int = 1,
    seconds_N: list[float] | None = None,
    profile: Profile | None = None,
    started_N: BoolArray | None = None,
    readings: Answers | None = None,
) -> Evidence:
    """Return what a site shows of clients with these sizes, or of so many alike."""
    sizes = np.full(size_N, 10) if isinstance(size_N, int) else np.array(size_N)
    return Evidence(
        round=round_,
        num_rounds=100,
        num_classes=10,
        size_N=sizes,
        readings=dict(readings or {}),
        profile=profile or EQUAL.profile(0, tuple(range(sizes.size))),
        expected_N=np.ones(sizes.size) if seconds_N is None else np.array(seconds_N),
        selected_N=started_N,
    )


def play(
    policy: SelectionPolicy,
    begin: Evidence,
    rounds: int,
    answer: Callable[[int], Answers],
    *,
    seed: int = 0,
    home: Callable[[int, BoolArray], BoolArray] = lambda _, mask_N: mask_N,
) -> Iterator[tuple[Any, BoolArray]]:
    """Play rounds and yield the state before each and who was selected.

    ``answer`` gives the readings of a round, ``home`` who of the selected came home: others tell nothing afterwards.
    """
    state = policy.init(begin.size_N.size)
    for t in range(1, rounds + 1):
        seen = replace(begin, round=t)
        ask = policy.ask(state, seen, stream(seed, "candidates", t))
        told = answer(t)
        seen = replace(seen, readings={query: told[query] for query in ask.before})
        mask_N = policy.act(state, seen, stream(seed, "act", t))
        yield state, mask_N
        home_N = mask_N & home(t, mask_N)
        after = {query: np.where(home_N, told[query], np.nan) for query in ask.after}
        readings = dict(seen.readings) | after
        state = policy.learn(state, replace(seen, readings=readings, selected_N=mask_N), home_N)
