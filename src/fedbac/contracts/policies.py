"""What every clustering, sharing and selection policy promises, in rounds that are made up."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, get_args

import numpy as np

from fedbac.contracts import common
from fedbac.contracts.common import REPEATED, RESUMED, calling, check_same, fresh, require, trying
from fedbac.core import answers
from fedbac.core.answers import QUERIES, checked_ask
from fedbac.core.bandits import budget
from fedbac.core.policies import (
    Believing,
    ClusterPolicy,
    Exchange,
    Opening,
    SelectionPolicy,
    Sharing,
    Showing,
    Trusting,
)
from fedbac.core.queries import (
    AT_CLOUD,
    FOR_SHARING,
    MODELS,
    Accuracy,
    Ask,
    Evidence,
    Gram,
    Loss,
    Models,
    Moment,
    Query,
    Seconds,
    Slope,
    Split,
    Statistic,
    answerable,
)
from fedbac.core.rng import Rng, stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.world import World

T = TypeVar("T")
ALL_ROUNDS, NUM_ROUNDS, SITE_ROUNDS = 200, 100, 30
"""Rounds of a run; those played at the cloud (who is due less often is not seen to act), and at a site."""
STEPS = 5.0
"""Batches that a client trains on in a round."""
EPOCHS = 3
FRACTIONS = (0.01, 0.29, 0.4, 0.8, 1.0)
REPLAYED = "when the same rounds were played again; all it remembers belongs in state"


def made_up(query: Statistic, trained_N: BoolArray, rng: Rng) -> FloatArray:
    """Return a statistic of those that trained; NaN of the others."""
    shape = (trained_N.size, EPOCHS) if query.name == "epochs" else (trained_N.size,)
    value_N: FloatArray = rng.uniform(0.1, 2, shape)
    value_N[~trained_N] = np.nan
    return value_N


@dataclass(frozen=True)
class MadeUpWorld:
    """Members in clusters, of which some fail to train now and then, and some models diverge."""

    label_N: IntArray
    used_K: BoolArray
    silent: bool = False
    """Whether some members are not asked, as happens where members are clients."""

    def evidence(self, t: int, queries: Iterable[Query] = ()) -> Evidence:
        """Return what a policy is shown after round t."""
        return Evidence(
            round=t,
            num_rounds=ALL_ROUNDS,
            num_classes=10,
            size_N=stream(0, "sizes").integers(50, 500, size=self.label_N.size),
            readings={query: self._answer(query, t) for query in queries},
            label_N=self.label_N.copy(),
            used_K=self.used_K.copy(),
        )

    def moved(self, label_N: IntArray) -> "MadeUpWorld":
        """Return the world with these labels."""
        return replace(self, label_N=label_N.copy(), used_K=self.used_K | np.isin(np.arange(self.used_K.size), label_N))

    def _answer(self, query: Query, t: int) -> FloatArray:
        if isinstance(query, Gram | Slope):
            update_NF = np.where(self._idle(t)[:, None], np.nan, stream(0, "updates", t).normal(size=(self._num, 8)))
            network_KF = stream(0, "networks", t).normal(size=(self.used_K.size, 8))
            return update_NF @ (update_NF.T if isinstance(query, Gram) else network_KF.T)
        if isinstance(query, Statistic):
            return made_up(query, ~self._idle(t), stream(0, "statistic", t))
        assert not isinstance(query, Seconds), "only selection hears how long clients take"
        table_NK = self._table(query, t, "averaged")
        if self.silent:
            table_NK[stream(0, "silent", t).random(self._num) < 0.3] = np.nan
        own_N = table_NK[np.arange(self._num), self.label_N]
        if isinstance(query, Loss) and query.candidates is not None:
            for n, label in enumerate(self.label_N):
                measured = query.columns(int(label), self.used_K.size, stream(0, "candidates", t, n))
                table_NK[n, np.setdiff1d(np.arange(self.used_K.size), measured)] = np.nan
        if query.of in ("clusters", "occupied"):
            return table_NK
        if query.of == "unaveraged":
            alone_N = np.bincount(self.label_N)[self.label_N] == 1
            return np.where(alone_N, own_N, self._table(query, t, "alone")[:, 0])
        if query.of in ("others", "mean"):
            return self._table(query, t, query.of)[:, 0]
        return np.where(self._idle(t), np.nan, own_N) if query.of == "trained" else own_N

    def _table(self, query: Loss | Accuracy, t: int, what: str) -> FloatArray:
        splits: tuple[Split, ...] = ("train", "validation", "test")
        rng = stream(0, what, t, splits.index(query.on or "train"))
        shape = (self._num, self.used_K.size)
        loss_NK = rng.uniform(0.1, 2, shape)
        loss_NK[rng.random(shape) < 0.02] = np.inf  # a model that has diverged
        if query.of == "occupied":
            loss_NK[:, np.setdiff1d(np.arange(shape[1]), self.label_N)] = np.inf
        return loss_NK if isinstance(query, Loss) else np.exp(-loss_NK)

    def _idle(self, t: int) -> BoolArray:
        """Return who did not train: some, and in some rounds nobody did."""
        return (stream(0, "idle", t).random(self._num) < 0.1) | (t % 13 == 6)

    @property
    def _num(self) -> int:
        return self.label_N.size


def check_needs(who: str, column: str, policy: Any) -> frozenset[Query]:
    """Return all that a policy may ever ask for if it can be measured for its column."""
    needs = policy.needs()
    require(
        isinstance(needs, frozenset) and all(isinstance(query, QUERIES) for query in needs),
        f"{who}: needs() must return a frozenset of queries, not {needs!r}",
    )
    for query in needs:
        choice = f"Loss and Accuracy of {', '.join(model for model in get_args(Models) if model in MODELS[column])}, "
        choice += "Statistic and Seconds" if column == "selection" else "Statistic, Gram and Slope"
        named = f"{who}: needs() names {query}, which cannot be measured for it; it can have {choice}"
        require(answerable(column, query), named)
    return frozenset(needs)


class _Play:
    """A policy among made-up members."""

    def __init__(self, who: str, policy: Any, num_members: int) -> None:
        self.who, self.policy, self.num_members = who, policy, num_members

    def begin(self) -> Any:
        """Return the first state."""
        with calling(self.who, "init()"):
            state = self.policy.init(self.num_members)
        common.check_state(self.who, "init()", state)
        return state

    def again(self) -> Any:
        """Return the same play with a policy that another process made of the settings."""
        return type(self)(self.who, fresh(self.policy), self.num_members)

    def answered(self, verb: str, check: Callable[[Any], T], address: Sequence[Any] = (), **given: Any) -> T:
        """Return what a verb answers if it is a good answer, and the same each time; an address is that of a stream."""

        def ask() -> Any:
            return getattr(self.policy, verb)(*given.values(), *([stream(0, *address)] if address else ()))

        with calling(self.who, f"{verb}()", **given):
            answer = ask()
            found = check(answer)
        check_same(self.who, f"{verb}()", answer, ask(), REPEATED)
        return found

    def learned(self, **given: Any) -> Any:
        """Return the state after a round."""
        after = self.answered("learn", lambda found: found, **given)
        common.check_state(self.who, "learn()", after, like=given["state"])
        return after

    def reloaded(self, state: Any) -> Any:
        """Return a state after a checkpoint."""
        return common.check_reload(self.who, state, self.policy.init(self.num_members))


# ---------------------------------------------------------------------------------------------- clustering


def check_clustering(policy: Any, num_members: int = 6) -> None:
    """Hold a clustering policy to its promises, with so many members."""
    who = common.check_settings("clustering", policy, ClusterPolicy)
    needs = check_needs(who, "clustering", policy)
    cloud = _Clustered(who, policy, num_members)
    begin, first = cloud.first()
    end, last = cloud.play()
    if cloud.num_clusters > 1:  # else the cloud never asks: there is nothing to decide
        common.check_adaptive(who, policy.adaptive, begin, end)
    if not any(isinstance(query, Loss | Accuracy) and query.of == "unaveraged" for query in needs):
        cloud.play(silent=True)
    check_same(who, "act()", end, cloud.again().play()[0], REPLAYED)
    for t, state, world in ((1, begin, first), (NUM_ROUNDS + 1, end, last)):
        cloud.check_resume(state, world, t)
        common.check_notes(who, "clustering", policy, state)


class _Clustered(_Play):
    """Members that a policy assigns to clusters."""

    def __init__(self, who: str, policy: Any, num_members: int) -> None:
        super().__init__(who, policy, num_members)
        with calling(who, "clusters()"):
            self.num_clusters = answers.checked_clusters(policy, policy.clusters(num_members), num_members)

    def first(self, silent: bool = False) -> tuple[Any, MadeUpWorld]:
        """Return the first state and labels."""
        num, most = self.num_members, self.num_clusters
        check = partial(answers.checked_labels, self.policy, "start()", num_members=num, num_clusters=most)
        label_N = self.answered("start", check, ("start",), num_members=num)
        return self.begin(), MadeUpWorld(label_N, np.isin(np.arange(most), label_N), silent)

    def play(self, silent: bool = False) -> tuple[Any, MadeUpWorld]:
        """Return the state and the labels after many rounds."""
        state, world = self.first(silent)
        for t in range(0 if isinstance(self.policy, Opening) else 1, NUM_ROUNDS + 1):
            with trying(f"tried with {self.num_members} members, in made-up round {t}"):
                state, world = self.round(state, world, t)
        return state, world

    def round(self, state: Any, world: MadeUpWorld, t: int) -> tuple[Any, MadeUpWorld]:
        """Return the state and the labels after a round."""
        ask = self.ask(state, t)
        if ask is None or self.num_clusters == 1:
            return state, world
        evidence = world.evidence(t, (*ask.before, *ask.after))
        state = self.learned(state=state, evidence=evidence)
        if isinstance(self.policy, Showing):
            self._check_shown(state, evidence)
        check = partial(answers.checked_pair, self.policy)
        after, assignment = self.answered("act", check, ("act", t), state=state, evidence=evidence)
        with calling(self.who, "act()"):
            answers.checked_assignment(self.policy, assignment, self.num_members, self.num_clusters)
        common.check_state(self.who, "act()", after, like=state)
        return after, world.moved(assignment.label_N)

    def ask(self, state: Any, t: int) -> Ask | None:
        """Return what the policy wants, if it is due."""
        with calling(self.who, "ask()" if t else "first()", state=state):
            ask = self.policy.ask(state, Moment(t, ALL_ROUNDS, STEPS)) if t else self.policy.first()
            return None if ask is None else checked_ask("clustering", self.policy, ask, after=AT_CLOUD)

    def _check_shown(self, state: Any, evidence: Evidence) -> None:
        with calling(self.who, "shown()", state=state, evidence=evidence):
            shown = self.policy.shown(state, evidence)
        try:
            good = isinstance(json.loads(json.dumps(shown, allow_nan=False)), dict)
        except (TypeError, ValueError):
            good = False
        require(good, f"{self.who}: shown() must return plain data by name: text, finite numbers, lists and None")

    def check_resume(self, state: Any, world: MadeUpWorld, t: int) -> None:
        """Hold a policy of the same settings to go on from a checkpoint as if nothing had happened."""
        loaded, other = self.reloaded(state), self.again()
        for later in range(t, min(t + NUM_ROUNDS, ALL_ROUNDS)):
            due = self.ask(state, later)
            require(due == other.ask(loaded, later), f"{self.who}: ask() answered differently {RESUMED}")
            if due is not None:
                expected, found = self.round(state, world, later), other.round(loaded, world, later)
                check_same(self.who, "learn() or act()", expected, found, RESUMED)
                return


# ---------------------------------------------------------------------------------------------- sharing


def check_sharing(policy: Any, num_members: int = 6) -> None:
    """Hold a sharing policy to its promises, with so many members."""
    who = common.check_settings("sharing", policy, Sharing)
    check_needs(who, "sharing", policy)
    cloud = _Sharing(who, policy, num_members)
    begin, end = cloud.begin(), cloud.play()
    if np.unique(cloud.world.label_N).size > 1:  # else there is nobody to share with, and perhaps nothing to learn
        common.check_adaptive(who, policy.adaptive, begin, end)
    check_same(who, "learn()", end, cloud.again().play(), REPLAYED)
    for t, state in ((1, begin), (NUM_ROUNDS + 1, end)):
        loaded, other = cloud.reloaded(state), cloud.again()
        check_same(who, "act()", cloud.act(state, t), other.act(loaded, t), RESUMED)
        check_same(who, "ask() or learn()", cloud.learn(state, t), other.learn(loaded, t), RESUMED)
        common.check_notes(who, "sharing", policy, state)


class _Sharing(_Play):
    """Members in clusters that share; the last cluster has nobody, and never had."""

    def __init__(self, who: str, policy: Any, num_members: int) -> None:
        super().__init__(who, policy, num_members)
        self.num_clusters = 1 + (num_members + 1) // 2
        label_N = np.arange(num_members) % (self.num_clusters - 1)
        self.world = MadeUpWorld(label_N, np.isin(np.arange(self.num_clusters), label_N))

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
        sizes = {"num_clusters": self.num_clusters, "num_members": self.num_members}
        check = partial(answers.checked_exchange, self.policy, **sizes)
        exchange = self.answered("act", check, state=state, evidence=self.world.evidence(t))
        mixes = [mix_KJ for mix_KJ in (exchange.mix_KJ, exchange.judged_KJ) if mix_KJ is not None]
        nothing = all(np.array_equal(mix_KJ, np.eye(self.num_clusters)) for mix_KJ in mixes)
        require(nothing or self.policy.active, f"{self.who}: active is False, so act() must exchange nothing")
        return exchange

    def learn(self, state: Any, t: int) -> Any:
        """Return the state after the round."""
        with calling(self.who, "ask()", state=state):
            asked = answers.checked_queries(self.policy, self.policy.ask(state, Moment(t, ALL_ROUNDS, STEPS)))
            queries = checked_ask("sharing", self.policy, Ask(after=asked), after=FOR_SHARING).after
        return self.learned(state=state, evidence=self.world.evidence(t, queries))


# ---------------------------------------------------------------------------------------------- selection


def check_selection(policy: Any, num_members: int = 10) -> None:
    """Hold a selection policy to its promises, at a site of so many clients."""
    who = common.check_settings("selection", policy, SelectionPolicy)
    check_needs(who, "selection", policy)
    site = _Site(who, policy, num_members)
    begin, end = site.begin(), site.play()
    common.check_adaptive(who, policy.adaptive, begin, end)
    check_same(who, "learn()", end, site.again().play(), REPLAYED)
    for t, state in ((1, begin), (SITE_ROUNDS + 1, end)):
        site.check_resume(state, t)
        site.check_numbers(state, t)
        common.check_notes(who, "selection", policy, state)
        if isinstance(policy, Trusting):
            with calling(who, "trusted()", state=state):
                answers.checked_trust(policy, "trusted()", policy.trusted(state), num_members)
        if isinstance(policy, Believing):
            with calling(who, "beliefs()", state=state):
                belief_N = np.asarray(policy.beliefs(state))
            good = belief_N.shape == (num_members,) and bool(((belief_N >= 0) & (belief_N <= 1)).all())
            require(good, f"{who}: beliefs() must return a number from 0 to 1 for each client, not {belief_N!r}")


class _Site(_Play):
    """Clients of a site from which a policy selects."""

    def __init__(self, who: str, policy: Any, num_members: int) -> None:
        super().__init__(who, policy, num_members)
        self.size_N: IntArray = stream(0, "sizes").integers(1, 50, size=num_members)

    def play(self) -> Any:
        """Return the state after some rounds."""
        state = self.begin()
        for t in range(1, SITE_ROUNDS + 1):
            with trying(f"tried with {self.num_members} clients, in made-up round {t}"):
                state = self.learn(state, t, *self.act(state, t, self.size_N))
        return state

    def act(self, state: Any, t: int, size_N: IntArray) -> tuple[BoolArray, Evidence, Ask]:
        """Return the mask, and what the policy was shown and asked for."""
        profile = World().profile(0, tuple(range(size_N.size)))
        evidence = Evidence(
            round=t,
            num_rounds=ALL_ROUNDS // 2,
            num_classes=10,
            size_N=size_N,
            profile=profile,
            expected_N=profile.seconds(self.size_N.astype(np.float64), 1e6, 1e6),
            moved=t % 5 == 0,
        )
        with calling(self.who, "ask()", state=state, evidence=evidence):
            ask = self.policy.ask(state, evidence, stream(0, "candidates", t))
            ask = checked_ask("selection", self.policy, ask, before={"received"}, after={"trained"})
            if ask.among_N is not None:
                answers.checked_trust(self.policy, "ask().among_N", ask.among_N, size_N.size)
        known = replace(evidence, readings=_answers(ask.before, t, np.zeros(size_N.size, dtype=bool), ask.among_N))
        check = partial(answers.checked_mask, self.policy, size_N=size_N)
        return self.answered("act", check, ("act", t), state=state, evidence=known), known, ask

    def learn(self, state: Any, t: int, mask_N: BoolArray, evidence: Evidence, ask: Ask) -> Any:
        """Return the state after the round. Clients fail now and then, and in some round all of them."""
        trained_N = mask_N & (stream(0, "failures", t).random(mask_N.size) < 0.9) & (t % 11 != 5)
        readings = dict(evidence.readings) | _answers(ask.after, t, trained_N)
        seen = replace(evidence, readings=readings, selected_N=mask_N)
        return self.learned(state=state, evidence=seen, mask_N=trained_N)

    def check_resume(self, state: Any, t: int) -> None:
        """Hold a policy of the same settings to go on from a checkpoint as if nothing had happened."""
        loaded, other = self.reloaded(state), self.again()
        (mask_N, seen, ask), (mask_again_N, seen_again, ask_again) = (
            one.act(memory, t, self.size_N) for one, memory in ((self, state), (other, loaded))
        )
        same = (ask.before, ask.after) == (ask_again.before, ask_again.after)
        require(same, f"{self.who}: ask() answered differently {RESUMED}")
        check_same(self.who, "ask()", ask.among_N, ask_again.among_N, RESUMED)
        check_same(self.who, "act()", mask_N, mask_again_N, RESUMED)
        after = self.learn(state, t, mask_N, seen, ask)
        check_same(self.who, "learn()", after, other.learn(loaded, t, mask_N, seen_again, ask), RESUMED)

    def check_numbers(self, state: Any, t: int) -> None:
        """Hold it to select as many as it promises, none of them without data; or by chance alone, if it says so."""
        num, changes = self.num_members, "fraction" in type(self.policy).model_fields
        for fraction in FRACTIONS if changes else (self.policy.fraction,):
            policy = self.policy.model_copy(update={"fraction": fraction}) if changes else self.policy
            crowd = _Site(self.who, policy, num)
            for holders in (num, (num + 1) // 2, 1):
                size_N = np.where(np.arange(num) < holders, self.size_N, 0)
                mask_N, _, _ = crowd.act(state, t, size_N)
                if getattr(policy, "sampling", 1.0) < 1:
                    more_N, _, _ = crowd.act(state, t, 2 * size_N)
                    require(
                        np.array_equal(mask_N, more_N),
                        f"{self.who}: act() selected others where clients hold more, but "
                        f"sampling={policy.sampling} says that chance alone selects",
                    )
                    continue
                expected, found = min(budget(fraction, num), holders), int(mask_N.sum())
                require(
                    found == expected,
                    f"{self.who}: act() selected {found} of {holders} clients with data at fraction {fraction}; "
                    f"expected {expected}: max(1, ⌊fraction · {num}⌋), or all if there are fewer",
                )


def _answers(
    queries: Iterable[Query], t: int, trained_N: BoolArray, among_N: BoolArray | None = None
) -> dict[Query, FloatArray]:
    """Make up one number for the site, or one for each client; of a statistic, for each client that trained."""
    rng, found = stream(0, "answers", t), dict[Query, FloatArray]()
    for query in queries:
        if isinstance(query, Statistic):
            found[query] = made_up(query, trained_N, rng)
        elif isinstance(query, Seconds):
            found[query] = np.where(trained_N, rng.uniform(1, 60, trained_N.size), np.nan)
        elif isinstance(query, Loss | Accuracy):
            size = trained_N.size if query.each else None
            found[query] = np.asarray(rng.uniform(0.1, 2 if isinstance(query, Loss) else 0.9, size))
            if query.each and among_N is not None:
                found[query] = np.where(among_N, found[query], np.nan)
    return found
