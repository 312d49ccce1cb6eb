"""What every clustering policy promises the cloud."""

import json
from typing import Any

import numpy as np

from fedbac.contracts.cloud import ALL_ROUNDS, STEPS, World
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
from fedbac.core.answers import checked_ask, checked_assignment, checked_clusters, checked_labels
from fedbac.core.policies import ClusterPolicy, Showing
from fedbac.core.queries import AT_CLOUD, Accuracy, Ask, Evidence, Loss, Moment, Query, Seconds
from fedbac.core.rng import stream

NUM_ROUNDS = 100
"""Rounds that are played: a policy that is due less often is not seen to act."""


def check_clustering(policy: Any, num_members: int = 6) -> None:
    """Hold a clustering policy to its promises, with so many members."""
    who = check_settings("clustering", policy, ClusterPolicy)
    needs = check_needs(
        who,
        policy,
        _possible,
        "Loss and Accuracy of own, unaveraged, others, mean, clusters and occupied models, Statistic, Gram and Slope",
    )
    cloud = _Cloud(who, policy, num_members)
    begin, first = cloud.begin()
    end, last = cloud.play()
    if cloud.num_clusters > 1:  # else the cloud never asks: there is nothing to decide
        check_adaptive(who, policy.adaptive, begin, end)
    if not any(isinstance(query, Loss | Accuracy) and query.of == "unaveraged" for query in needs):
        _Cloud(who, policy, num_members, silent=True).play()
    again, _ = _Cloud(who, fresh(policy), num_members).play()
    check_same(who, "act()", end, again, "when the same rounds were played again; all it remembers belongs in state")
    for t, state, world in ((1, begin, first), (NUM_ROUNDS + 1, end, last)):
        _check_resume(cloud, state, world, t)
        check_notes(who, "clustering", policy, state)


class _Cloud:
    """A cloud of made-up members that a policy assigns to clusters."""

    def __init__(self, who: str, policy: Any, num_members: int, silent: bool = False) -> None:
        self.who, self.policy, self.num_members, self.silent = who, policy, num_members, silent
        with calling(who, "clusters()"):
            self.num_clusters = checked_clusters(policy, policy.clusters(num_members), num_members)

    def begin(self) -> tuple[Any, World]:
        """Return the first state and labels."""
        with calling(self.who, "init()"):
            state = self.policy.init(self.num_members)
        check_state(self.who, "init()", state)
        with calling(self.who, "start()"):
            label_N = self.policy.start(self.num_members, stream(0, "start"))
            label_N = checked_labels(self.policy, "start()", label_N, self.num_members, self.num_clusters)
        check_same(self.who, "start()", label_N, self.policy.start(self.num_members, stream(0, "start")), REPEATED)
        return state, World(label_N, np.isin(np.arange(self.num_clusters), label_N), self.silent)

    def play(self) -> tuple[Any, World]:
        """Return the state and the labels after many rounds."""
        state, world = self.begin()
        for t in range(1, NUM_ROUNDS + 1):
            with trying(f"tried with {self.num_members} members, in made-up round {t}"):
                state, world = self.round(state, world, t)
        return state, world

    def round(self, state: Any, world: World, t: int) -> tuple[Any, World]:
        """Return the state and the labels after a round."""
        ask = self.ask(state, t)
        if ask is None or self.num_clusters == 1:
            return state, world
        evidence = world.evidence(t, (*ask.before, *ask.after))
        return self._act(self._learn(state, evidence), evidence, world, t)

    def ask(self, state: Any, t: int) -> Ask | None:
        """Return what the policy wants, if it is due."""
        with calling(self.who, "ask()", state=state):
            ask = self.policy.ask(state, Moment(t, ALL_ROUNDS, STEPS))
            return None if ask is None else checked_ask("clustering", self.policy, ask, after=AT_CLOUD)

    def _learn(self, state: Any, evidence: Evidence) -> Any:
        with calling(self.who, "learn()", state=state, evidence=evidence):
            after = self.policy.learn(state, evidence)
        check_state(self.who, "learn()", after, like=state)
        check_same(self.who, "learn()", after, self.policy.learn(state, evidence), REPEATED)
        return after

    def _act(self, state: Any, evidence: Evidence, world: World, t: int) -> tuple[Any, World]:
        if isinstance(self.policy, Showing):
            self._check_shown(state, evidence)
        with calling(self.who, "act()", state=state, evidence=evidence):
            answer = self.policy.act(state, evidence, stream(0, "act", t))
            pair = isinstance(answer, tuple) and len(answer) == 2 and not hasattr(answer, "_fields")
            require(pair, f"{self.who}: act() must return a state and an Assignment, not a {type(answer).__name__}")
            after, assignment = answer
            checked_assignment(self.policy, assignment, self.num_members, self.num_clusters)
        check_state(self.who, "act()", after, like=state)
        check_same(self.who, "act()", answer, self.policy.act(state, evidence, stream(0, "act", t)), REPEATED)
        return after, world.moved(assignment.label_N)

    def _check_shown(self, state: Any, evidence: Evidence) -> None:
        with calling(self.who, "shown()", state=state, evidence=evidence):
            shown = self.policy.shown(state, evidence)
        try:
            good = isinstance(json.loads(json.dumps(shown, allow_nan=False)), dict)
        except (TypeError, ValueError):
            good = False
        require(good, f"{self.who}: shown() must return plain data by name: text, finite numbers, lists and None")


def _possible(query: Query) -> bool:
    if isinstance(query, Loss | Accuracy):
        return query.of in AT_CLOUD and not query.each
    return not isinstance(query, Seconds)


def _check_resume(cloud: _Cloud, state: Any, world: World, t: int) -> None:
    """Hold a policy of the same settings to go on from a checkpoint as if nothing had happened."""
    loaded = check_reload(cloud.who, state, cloud.policy.init(cloud.num_members))
    other = _Cloud(cloud.who, fresh(cloud.policy), cloud.num_members)
    for later in range(t, min(t + NUM_ROUNDS, ALL_ROUNDS)):
        due = cloud.ask(state, later)
        require(due == other.ask(loaded, later), f"{cloud.who}: ask() answered differently {RESUMED}")
        if due is not None:
            expected, found = cloud.round(state, world, later), other.round(loaded, world, later)
            check_same(cloud.who, "learn() or act()", expected, found, RESUMED)
            return
