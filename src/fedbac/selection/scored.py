"""Clients by a score: Oort's utility (Lai et al. 2021), or our reading of Trindade and da Fonseca (2024)."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Seconds, Statistic
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, NonNegative, Positive, Rounds
from fedbac.core.world import Share
from fedbac.selection.simple import Fraction, Selection, largest

SQUARE, SECONDS = Statistic("square"), Seconds()
LEAST_RANGE = 1e-4
"""Utilities that differ by less are alike."""
FLAT, SHARP = 0.1, 5.0
"""Relative changes of the utility of a window: at most flat raises the pacer's threshold, at least sharp lowers it."""
Percent = Annotated[float, Field(ge=0, le=100)]


class OortState(NamedTuple):
    """What is known of each client, and where the pacer stands."""

    utility_N: FloatArray
    """U_i when it last trained; NaN before."""
    seconds_N: FloatArray
    """How long it took then; NaN before."""
    count_N: FloatArray
    """Rounds for which it was selected."""
    last_N: FloatArray
    """The last of them; 0 before."""
    played: FloatArray
    """Rounds so far, in an array of one, as are the next three."""
    threshold: FloatArray
    """Percentile of durations that is not penalized."""
    window: FloatArray
    """Utility of exploited clients, summed over the rounds of the pacer's window."""
    window_before: FloatArray


class Oort(Selection):
    """Exploit clients of high utility, U_i = n_i √(mean ℓ²), and explore new ones; slow clients are penalized."""

    kind: Literal["oort"] = "oort"
    asks: ClassVar[Ask] = Ask(after=(SQUARE, SECONDS))
    fraction: Fraction = 0.8
    exploration: Share = 0.9
    """ε: share of new clients among the selected; it shrinks every round."""
    exploration_decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Factor by which ε shrinks per round."""
    exploration_min: Share = 0.2
    """Lower limit of ε while there are new clients."""
    sample_window: Annotated[float, Field(ge=1, le=1_000_000)] = 5.0
    """Explored clients are drawn from this many times as many with the most data; slow ones are penalized."""
    cut_off: Share = 0.7
    """Exploited clients reach at least this share of the score just below the cut."""
    clip_bound: Share = 0.98
    """Utilities above this quantile are cut down to it."""
    uncertainty: NonNegative = 0.1
    """c in √(c ln t / last round), the bonus for long absence."""
    round_threshold: Percent = 10.0
    """Percentile of durations from which clients are penalized at first; 100: none."""
    round_penalty: NonNegative = 2.0
    """α: taking t > T_pref seconds multiplies the score by (T_pref / t)^α."""
    pacer_step: Rounds = 20
    """Rounds of the pacer's window, after which the threshold rises if utility changed by at most a tenth, and falls if
    it grew sixfold."""
    pacer_delta: Annotated[float, Field(ge=0, le=100)] = 5.0
    """Percentage points by which the pacer moves the threshold."""
    blacklist_after: Rounds | None = None
    """Clients selected more often are passed over; null: none."""
    blacklist_share: Share = 0.3
    """Largest share of clients to pass over."""

    def init(self, num_members: int) -> OortState:
        """Nobody has been selected."""
        unknown, nothing = np.full(num_members, np.nan), np.zeros(num_members)
        number = np.zeros(1)
        return OortState(unknown, unknown, nothing, nothing, number, np.array([self.round_threshold]), number, number)

    def act(self, state: OortState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Exploit, explore, and fill what is left at random."""
        there_N = evidence.size_N > 0
        able_N = there_N & ~self.blacklisted(state)
        new_N = able_N & (state.count_N == 0)
        count = bandits.budget(self.fraction, there_N.size)
        chosen_N = self._exploited(state, evidence, able_N & ~new_N, self._to_exploit(state, count, new_N), rng)
        chosen_N |= self._explored(state, evidence, new_N, count - int(chosen_N.sum()), rng)
        left = count - int(chosen_N.sum())
        return chosen_N | bandits.top(able_N.astype(np.float64), left, there_N & ~chosen_N, rng)

    def _to_exploit(self, state: OortState, count: int, new_N: BoolArray) -> int:
        """⌊(1 − ε) B⌋, or all of B if nobody is new."""
        decayed = self.exploration * self.exploration_decay ** (state.played[0] + 1)
        share = max(decayed, self.exploration_min) if new_N.any() else 0.0
        return int(count * (1 - share) + 1e-9)

    def _exploited(self, state: OortState, evidence: Evidence, known_N: BoolArray, count: int, rng: Rng) -> BoolArray:
        """Draw by score among those near the best."""
        if count == 0 or not known_N.any():
            return np.zeros(known_N.size, dtype=bool)
        score_N = self.score(state, evidence, known_N)
        best = np.sort(score_N[known_N])[::-1]
        least = self.cut_off * best[min(count, best.size - 1)]
        return bandits.draw(score_N, count, known_N & (score_N >= least), rng)

    def score(self, state: OortState, evidence: Evidence, known_N: BoolArray) -> FloatArray:
        """Return the utility of known clients from 0 to 1, plus the bonus, times the penalty. A client that never
        brought an update home counts as the mean of the others."""
        told_N = known_N & np.isfinite(state.utility_N)
        mean = state.utility_N[told_N].mean() if told_N.any() else 0.0
        utility_N = np.where(told_N, state.utility_N, mean)
        ordered = np.sort(utility_N[known_N])
        clip = ordered[min(int(ordered.size * self.clip_bound), ordered.size - 1)]
        low = 0.999 * ordered[0]
        relative_N = (np.minimum(utility_N, clip) - low) / max(ordered[-1] - low, LEAST_RANGE)
        t = state.played[0] + 1
        bonus_N = np.sqrt(self.uncertainty * np.log(t) / np.maximum(state.last_N, 1))
        score_N: FloatArray = (relative_N + bonus_N) * self.penalty(state, evidence)
        return np.where(known_N, score_N, 0.0)

    def penalty(self, state: OortState, evidence: Evidence) -> FloatArray:
        """Return the system factor (T_pref / t_i)^α, 1 for all that take at most T_pref."""
        seconds_N = np.where(np.isnan(state.seconds_N), evidence.durations, state.seconds_N)
        if state.threshold[0] >= 100:
            return np.ones(seconds_N.size)
        place = min(int(seconds_N.size * state.threshold[0] / 100), seconds_N.size - 1)
        preferred = np.sort(seconds_N)[place]
        slow_N = seconds_N > preferred  # who claims to take no time is not slow
        factor_N: FloatArray = np.divide(preferred, seconds_N, out=np.ones(seconds_N.size), where=slow_N)
        return factor_N**self.round_penalty

    def _explored(self, state: OortState, evidence: Evidence, new_N: BoolArray, count: int, rng: Rng) -> BoolArray:
        """Draw by data, penalized if slow, among the best of those never selected."""
        reward_N = evidence.size_N * self.penalty(state, evidence)
        window_N = bandits.top(reward_N, int(self.sample_window * count), new_N, rng)
        return bandits.draw(reward_N, count, window_N, rng)

    def blacklisted(self, state: OortState) -> BoolArray:
        """Return who was selected too often: the most often selected, up to the largest share."""
        if self.blacklist_after is None:
            return np.zeros(state.count_N.size, dtype=bool)
        most = np.argsort(-state.count_N, kind="stable")[: int(self.blacklist_share * state.count_N.size)]
        return np.isin(np.arange(state.count_N.size), most) & (state.count_N > self.blacklist_after)

    def learn(self, state: OortState, evidence: Evidence, mask_N: BoolArray) -> OortState:
        """Remember utilities and durations of those that trained, and pace."""
        utility_N = np.where(mask_N, evidence.size_N * np.sqrt(evidence[SQUARE]), state.utility_N)
        seconds_N = np.where(np.isnan(evidence[SECONDS]), state.seconds_N, evidence[SECONDS])
        exploited_N = mask_N & (state.count_N > 0)
        t = state.played[0] + 1
        state = state._replace(
            utility_N=utility_N,
            seconds_N=seconds_N,
            count_N=state.count_N + evidence.started,
            last_N=np.where(evidence.started, t, state.last_N),
            played=state.played + 1,
            window=state.window + (utility_N[exploited_N].mean() if exploited_N.any() else 0.0),
        )
        return self._paced(state) if t % self.pacer_step == 0 else state

    def _paced(self, state: OortState) -> OortState:
        """Let slower clients in where the utility no longer changes, and shut them out where it changes sharply."""
        threshold, before = state.threshold, state.window_before
        if state.played[0] >= 2 * self.pacer_step:
            change = np.abs(state.window - before)
            if change <= FLAT * before:
                threshold = np.minimum(threshold + self.pacer_delta, 100.0)
            elif change >= SHARP * before:
                threshold = np.maximum(threshold - self.pacer_delta, self.pacer_delta)
        return state._replace(threshold=threshold, window=np.zeros(1), window_before=state.window)


LOSS = Statistic("loss")


class ResourceState(NamedTuple):
    """Running means of what clients achieved; NaN before there is anything."""

    loss_N: FloatArray
    success_N: FloatArray
    """How often the update of a selected client counted."""


class ResourceScore(Selection):
    """Take the B clients with the largest weighted sum of features, each scaled to 0 to 1 over available clients;
    unknown values count as the mean.
    """

    kind: Literal["resource_score"] = "resource_score"
    asks: ClassVar[Ask] = Ask(after=(LOSS,))
    fraction: Fraction = 0.8
    speed_weight: NonNegative = 1.0
    """Of training speed."""
    link_weight: NonNegative = 1.0
    """Of how fast models and updates travel."""
    data_weight: NonNegative = 1.0
    """Of the number of examples."""
    performance_weight: NonNegative = 1.0
    """Of a low training loss."""
    success_weight: NonNegative = 1.0
    """Of how often updates counted."""
    deadline: Positive | None = None
    """Seconds; clients expected to take longer are passed over while enough remain."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """ρ: weight of the past in running means of losses and successes."""

    def init(self, num_members: int) -> ResourceState:
        """Nothing is known."""
        unknown = np.full(num_members, np.nan)
        return ResourceState(unknown, unknown)

    def act(self, state: ResourceState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Take the best of those that will be in time; if they are too few, the fastest of the others."""
        seconds_N = evidence.durations
        score_N = self.score(state, evidence)
        if self.deadline is not None:
            score_N = np.where(seconds_N <= self.deadline, score_N, -seconds_N)
        return largest(score_N, self.fraction, evidence, rng)

    def score(self, state: ResourceState, evidence: Evidence) -> FloatArray:
        """Return what each client is ranked by."""
        devices, there_N = evidence.devices, evidence.size_N > 0
        features = (
            (self.speed_weight, devices.speed_N),
            (self.link_weight, 1 / (1 / devices.down_N + 1 / devices.up_N)),
            (self.data_weight, evidence.size_N.astype(np.float64)),
            (self.performance_weight, -state.loss_N),
            (self.success_weight, state.success_N),
        )
        total_N = np.zeros(there_N.size)
        for weight, value_N in features:
            total_N += weight * bandits.spread(value_N, there_N & ~np.isnan(value_N))
        return total_N

    def learn(self, state: ResourceState, evidence: Evidence, mask_N: BoolArray) -> ResourceState:
        """Update the running means of those that have news."""
        success_N = self._mean(state.success_N, mask_N.astype(np.float64), evidence.started)
        return ResourceState(self._mean(state.loss_N, evidence[LOSS], mask_N), success_N)

    def _mean(self, before_N: FloatArray, news_N: FloatArray, has_news_N: BoolArray) -> FloatArray:
        known_N = np.where(np.isnan(before_N), news_N, before_N)
        return np.where(has_news_N, self.memory * known_N + (1 - self.memory) * news_N, before_N)
