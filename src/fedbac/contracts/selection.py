"""What every selection policy promises its site."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fedbac.contracts.cloud import made_up
from fedbac.contracts.common import (
    REPEATED,
    RESUMED,
    calling,
    check_adaptive,
    check_needs,
    check_notes,
    check_reload,
    check_same,
    check_settings,
    check_state,
    fresh,
    require,
    trying,
)
from fedbac.core.answers import checked_ask, checked_mask, checked_trust
from fedbac.core.bandits import budget
from fedbac.core.policies import Believing, SelectionPolicy, Trusting
from fedbac.core.queries import AT_EDGE, Accuracy, Ask, Evidence, Loss, Query, Seconds, Statistic
from fedbac.core.rng import stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.world import World

NUM_ROUNDS = 30
"""Rounds that are played, beyond any usual warm-up."""
ALL_ROUNDS = 100
FRACTIONS = (0.01, 0.29, 0.4, 0.8, 1.0)


def check_selection(policy: Any, num_members: int = 10) -> None:
    """Hold a selection policy to its promises, at a site of so many clients."""
    who = check_settings("selection", policy, SelectionPolicy)
    check_needs(who, policy, _possible, "Loss and Accuracy of received and trained, Statistic and Seconds")
    site = _Site(who, policy, num_members)
    begin, end = site.begin(), site.play()
    check_adaptive(who, policy.adaptive, begin, end)
    again = _Site(who, fresh(policy), num_members).play()
    check_same(who, "learn()", end, again, "when the same rounds were played again; all it remembers belongs in state")
    for t, state in ((1, begin), (NUM_ROUNDS + 1, end)):
        _check_resume(site, state, t)
        _check_numbers(site, state, t)
        check_notes(who, "selection", policy, state)
        if isinstance(policy, Trusting):
            _check_trusted(site, state)
        if isinstance(policy, Believing):
            _check_beliefs(site, state)


class _Site:
    """A site of made-up clients from which a policy selects."""

    def __init__(self, who: str, policy: Any, num_members: int) -> None:
        self.who, self.policy, self.num_members = who, policy, num_members
        self.size_N: IntArray = stream(0, "sizes").integers(1, 50, size=num_members)

    def begin(self) -> Any:
        with calling(self.who, "init()"):
            state = self.policy.init(self.num_members)
        check_state(self.who, "init()", state)
        return state

    def play(self) -> Any:
        """Return the state after some rounds."""
        state = self.begin()
        for t in range(1, NUM_ROUNDS + 1):
            with trying(f"tried with {self.num_members} clients, in made-up round {t}"):
                state = self.learn(state, t, *self.act(state, t, self.size_N))
        return state

    def act(self, state: Any, t: int, size_N: IntArray) -> tuple[BoolArray, Evidence, Ask]:
        """Return the mask, and what the policy was shown and asked for."""
        profile = World().profile(0, tuple(range(size_N.size)))
        evidence = Evidence(
            round=t,
            num_rounds=ALL_ROUNDS,
            num_classes=10,
            size_N=size_N,
            profile=profile,
            expected_N=profile.seconds(self.size_N.astype(np.float64), 1e6, 1e6),
            moved=t % 5 == 0,
        )
        ask = self._ask(state, evidence)
        evidence = replace(evidence, readings=_answers(ask.before, t, np.zeros(size_N.size, dtype=bool), ask.among_N))
        with calling(self.who, "act()", state=state, evidence=evidence):
            mask_N = self.policy.act(state, evidence, stream(0, "act", t))
            mask_N = checked_mask(self.policy, mask_N, size_N)
        check_same(self.who, "act()", mask_N, self.policy.act(state, evidence, stream(0, "act", t)), REPEATED)
        return mask_N, evidence, ask

    def learn(self, state: Any, t: int, mask_N: BoolArray, evidence: Evidence, ask: Ask) -> Any:
        """Return the state after the round. Clients fail now and then, and in some round all of them."""
        trained_N = mask_N & (stream(0, "failures", t).random(mask_N.size) < 0.9) & (t % 11 != 5)
        readings = dict(evidence.readings) | _answers(ask.after, t, trained_N)
        seen = replace(evidence, readings=readings, selected_N=mask_N)
        with calling(self.who, "learn()", state=state, evidence=seen, mask_N=trained_N):
            after = self.policy.learn(state, seen, trained_N)
        check_state(self.who, "learn()", after, like=state)
        check_same(self.who, "learn()", after, self.policy.learn(state, seen, trained_N), REPEATED)
        return after

    def _ask(self, state: Any, evidence: Evidence) -> Ask:
        with calling(self.who, "ask()", state=state, evidence=evidence):
            ask = self.policy.ask(state, evidence, stream(0, "candidates", evidence.round))
            ask = checked_ask("selection", self.policy, ask, before={"received"}, after={"trained"})
            if ask.among_N is not None:
                checked_trust(self.policy, "ask().among_N", ask.among_N, evidence.size_N.size)
        return ask


def _possible(query: Query) -> bool:
    return query.of in AT_EDGE if isinstance(query, Loss | Accuracy) else isinstance(query, Statistic | Seconds)


def _answers(
    queries: Iterable[Query], t: int, trained_N: BoolArray, among_N: BoolArray | None = None
) -> dict[Query, FloatArray]:
    """Make up one number for the site, or one for each client; of a statistic, for each client that trained."""
    rng, answers = stream(0, "answers", t), dict[Query, FloatArray]()
    for query in queries:
        if isinstance(query, Statistic):
            answers[query] = made_up(query, trained_N, rng)
        elif isinstance(query, Seconds):
            answers[query] = np.where(trained_N, rng.uniform(1, 60, trained_N.size), np.nan)
        elif isinstance(query, Loss | Accuracy):
            size = trained_N.size if query.each else None
            answers[query] = np.asarray(rng.uniform(0.1, 2 if isinstance(query, Loss) else 0.9, size))
            if query.each and among_N is not None:
                answers[query] = np.where(among_N, answers[query], np.nan)
    return answers


def _check_resume(site: _Site, state: Any, t: int) -> None:
    """Hold a policy of the same settings to go on from a checkpoint as if nothing had happened."""
    loaded = check_reload(site.who, state, site.policy.init(site.num_members))
    other = _Site(site.who, fresh(site.policy), site.num_members)
    (mask_N, seen, ask), (mask_again_N, seen_again, ask_again) = (
        one.act(memory, t, site.size_N) for one, memory in ((site, state), (other, loaded))
    )
    same = (ask.before, ask.after) == (ask_again.before, ask_again.after)
    require(same, f"{site.who}: ask() answered differently {RESUMED}")
    check_same(site.who, "ask()", ask.among_N, ask_again.among_N, RESUMED)
    check_same(site.who, "act()", mask_N, mask_again_N, RESUMED)
    after = site.learn(state, t, mask_N, seen, ask)
    check_same(site.who, "learn()", after, other.learn(loaded, t, mask_N, seen_again, ask), RESUMED)


def _check_numbers(site: _Site, state: Any, t: int) -> None:
    """Hold it to select as many as it promises, none of them without data."""
    who, num = site.who, site.num_members
    changes = "fraction" in type(site.policy).model_fields
    for fraction in FRACTIONS if changes else (site.policy.fraction,):
        policy = site.policy.model_copy(update={"fraction": fraction}) if changes else site.policy
        promised = budget(fraction, num)
        crowd = _Site(who, policy, num)
        for holders in (num, (num + 1) // 2, 1):
            size_N = np.where(np.arange(num) < holders, site.size_N, 0)
            mask_N, _, _ = crowd.act(state, t, size_N)
            require(not mask_N[size_N == 0].any(), f"{who}: act() selected a client without data, which cannot train")
            expected, found = min(promised, holders), int(mask_N.sum())
            require(
                found == expected,
                f"{who}: act() selected {found} of {holders} clients with data at fraction {fraction}; expected "
                f"{expected}: max(1, ⌊fraction · {num}⌋), or all if there are fewer",
            )


def _check_trusted(site: _Site, state: Any) -> None:
    with calling(site.who, "trusted()", state=state):
        trusted_N = site.policy.trusted(state)
    mask = isinstance(trusted_N, np.ndarray) and trusted_N.dtype == np.bool_ and trusted_N.shape == (site.num_members,)
    require(mask, f"{site.who}: trusted() must return an array of bool with an entry for each client")


def _check_beliefs(site: _Site, state: Any) -> None:
    with calling(site.who, "beliefs()", state=state):
        belief_N = np.asarray(site.policy.beliefs(state))
    good = belief_N.shape == (site.num_members,) and bool(((belief_N >= 0) & (belief_N <= 1)).all())
    require(good, f"{site.who}: beliefs() must return a number from 0 to 1 for each client, not {belief_N!r}")
