"""What every sharing policy promises the cloud."""

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
from fedbac.core.answers import checked_ask, checked_exchange, checked_queries
from fedbac.core.policies import Exchange, Sharing
from fedbac.core.queries import FOR_SHARING, Accuracy, Ask, Loss, Moment, Query, Seconds

NUM_ROUNDS = 100


def check_sharing(policy: Any, num_members: int = 6) -> None:
    """Hold a sharing policy to its promises, with so many members."""
    who = check_settings("sharing", policy, Sharing)
    check_needs(
        who,
        policy,
        _possible,
        "Loss and Accuracy of trained, own, others, mean, clusters and occupied models, Statistic, Gram and Slope",
    )
    cloud = _Cloud(who, policy, num_members)
    begin, end = cloud.begin(), cloud.play()
    if np.unique(cloud.world.label_N).size > 1:  # else there is nobody to share with, and perhaps nothing to learn
        check_adaptive(who, policy.adaptive, begin, end)
    again = _Cloud(who, fresh(policy), num_members).play()
    check_same(who, "learn()", end, again, "when the same rounds were played again; all it remembers belongs in state")
    for t, state in ((1, begin), (NUM_ROUNDS + 1, end)):
        loaded = check_reload(who, state, policy.init(num_members))
        other = _Cloud(who, fresh(policy), num_members)
        check_same(who, "act()", cloud.act(state, t), other.act(loaded, t), RESUMED)
        check_same(who, "ask() or learn()", cloud.learn(state, t), other.learn(loaded, t), RESUMED)
        check_notes(who, "sharing", policy, state)


class _Cloud:
    """A cloud of made-up members in clusters that share; the last cluster has nobody, and never had."""

    def __init__(self, who: str, policy: Any, num_members: int) -> None:
        self.who, self.policy, self.num_members = who, policy, num_members
        self.num_clusters = 1 + (num_members + 1) // 2
        label_N = np.arange(num_members) % (self.num_clusters - 1)
        self.world = World(label_N, np.isin(np.arange(self.num_clusters), label_N))

    def begin(self) -> Any:
        with calling(self.who, "init()"):
            state = self.policy.init(self.num_members)
        check_state(self.who, "init()", state)
        return state

    def play(self) -> Any:
        """Return the state after many rounds."""
        state = self.begin()
        for t in range(1, NUM_ROUNDS + 1):
            with trying(f"tried with {self.num_members} members in {self.num_clusters} clusters, in made-up round {t}"):
                self.act(state, t)
                state = self.learn(state, t)
        return state

    def act(self, state: Any, t: int) -> Exchange:
        """Return what clusters send; nothing of this round is measured yet."""
        evidence = self.world.evidence(t)
        with calling(self.who, "act()", state=state, evidence=evidence):
            exchange = checked_exchange(
                self.policy, self.policy.act(state, evidence), self.num_clusters, self.num_members
            )
        check_same(self.who, "act()", exchange, self.policy.act(state, evidence), REPEATED)
        mixes = [mix_KJ for mix_KJ in (exchange.mix_KJ, exchange.judged_KJ) if mix_KJ is not None]
        nothing = all(np.array_equal(mix_KJ, np.eye(self.num_clusters)) for mix_KJ in mixes)
        require(nothing or self.policy.active, f"{self.who}: active is False, so act() must exchange nothing")
        return exchange

    def learn(self, state: Any, t: int) -> Any:
        """Return the state after the round."""
        evidence = self.world.evidence(t, self._ask(state, t))
        with calling(self.who, "learn()", state=state, evidence=evidence):
            after = self.policy.learn(state, evidence)
        check_state(self.who, "learn()", after, like=state)
        check_same(self.who, "learn()", after, self.policy.learn(state, evidence), REPEATED)
        return after

    def _ask(self, state: Any, t: int) -> tuple[Query, ...]:
        with calling(self.who, "ask()", state=state):
            asked = checked_queries(self.policy, self.policy.ask(state, Moment(t, ALL_ROUNDS, STEPS)))
            return checked_ask("sharing", self.policy, Ask(after=asked), after=FOR_SHARING).after


def _possible(query: Query) -> bool:
    if isinstance(query, Loss | Accuracy):
        return query.of in FOR_SHARING and not query.each
    return not isinstance(query, Seconds)
