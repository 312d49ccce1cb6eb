"""Clusters that share nothing but what the cloud owns, or that move, or predict, towards the mean of all."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core.geometry import cosines, known
from fedbac.core.policies import Exchange, NoState, Unlearned
from fedbac.core.queries import Evidence, Loss, Moment, Query, Statistic
from fedbac.core.settings import BoolArray, FloatArray, Rounds, RoundsOrNone, Settings


class SameQueries(Settings):
    """A sharing policy that asks for the same in every round, by default for nothing."""

    adaptive: ClassVar[bool] = True
    active: ClassVar[bool] = True

    def _queries(self) -> tuple[Query, ...]:
        return ()

    def needs(self) -> frozenset[Query]:
        """Need what it asks for."""
        return frozenset(self._queries())

    def ask(self, state: Any, moment: Moment) -> tuple[Query, ...]:
        """Ask as ever."""
        return self._queries()


class Apart(Unlearned, SameQueries):
    """Every cluster sends its own network."""

    kind: Literal["apart"] = "apart"
    active: ClassVar[bool] = False

    def act(self, state: NoState, evidence: Evidence) -> Exchange:
        """Exchange nothing."""
        return Exchange()


Share = Annotated[float, Field(ge=0, le=1)]
"""A part of the whole: 0 is nothing, 1 is all."""


def data_shares(evidence: Evidence) -> FloatArray:
    """Return the share of all data that the members of each cluster hold."""
    assert evidence.used_K is not None
    size_K = np.bincount(evidence.labels, weights=evidence.size_N, minlength=evidence.used_K.size)
    share_K: FloatArray = size_K / size_K.sum()
    return share_K


def member_shares(evidence: Evidence) -> FloatArray:
    """Return a row for each cluster: the shares of its members in its data; zeros where it has none."""
    assert evidence.used_K is not None
    member_KN = np.equal.outer(np.arange(evidence.used_K.size), evidence.labels) * evidence.size_N.astype(np.float64)
    total_K = member_KN.sum(1, keepdims=True)
    share_KN: FloatArray = np.divide(member_KN, total_K, out=np.zeros_like(member_KN), where=total_K > 0)
    return share_KN


def latest_cosines(cosine_NN: FloatArray, gram_NN: FloatArray) -> FloatArray:
    """Return the cosines of members' updates, each as of the last round in which both trained."""
    known_N = known(gram_NN)
    pairs = np.ix_(known_N, known_N)
    after_NN = cosine_NN.copy()
    after_NN[pairs] = cosines(gram_NN[pairs])
    return after_NN


def cluster_cosines(cosine_NN: FloatArray, evidence: Evidence) -> FloatArray:
    """Return the mean cosine of all pairs of members of two clusters, by data; 1 for each cluster with itself."""
    share_KN = member_shares(evidence)
    cosine_KK: FloatArray = share_KN @ cosine_NN @ share_KN.T
    np.fill_diagonal(cosine_KK, 1.0)
    return cosine_KK


LOSS_FLOOR = 0.25
"""Nats. Where the training loss is above this, overfitting is counted in units of the floor, not of the loss."""
SMOOTHING = 0.2
"""Weight of the newest round in the running mean: one noisy round seldom makes clusters share."""
VALIDATION = Loss("trained", "validation")
TRAINING = Statistic("loss")


def towards_mean(share: float, evidence: Evidence) -> Exchange:
    """(1 − ρ) Θ_k + ρ Σ_j w_j Θ_j, where w_j is the share of all data that the members of cluster j hold. What is sent
    is drawn; what is kept, measured and judged is not. Clusters without members do not draw."""
    weight_K = data_shares(evidence)
    return Exchange((1 - share) * np.eye(weight_K.size) + share * weight_K)


def also_judged(exchange: Exchange) -> Exchange:
    """Let clusters also keep the mix that they send, and their members predict with it."""
    return exchange._replace(kept=True, judged_KJ=exchange.mix_KJ)


class TowardsMean(Unlearned, SameQueries):
    """Draw all clusters' networks towards their mean, by data, in every round."""

    kind: Literal["towards_mean"] = "towards_mean"
    share: Share = 0.1
    """ρ: how far each network moves towards the mean."""

    def act(self, state: NoState, evidence: Evidence) -> Exchange:
        """Share."""
        return towards_mean(self.share, evidence)


class MeanThenApart(Unlearned, SameQueries):
    """One network, the mean by data, until every cluster continues alone from it: fine-tuning."""

    kind: Literal["mean_then_apart"] = "mean_then_apart"
    alone_rounds: RoundsOrNone = 10
    """F: the last rounds, alone."""

    def act(self, state: NoState, evidence: Evidence) -> Exchange:
        """Share as long as there are enough rounds left; the first round alone still begins with the mean."""
        first_alone = evidence.num_rounds - self.alone_rounds + 1
        if evidence.round > first_alone:
            return Exchange()
        return also_judged(towards_mean(1.0, evidence))


class OverfittingState(NamedTuple):
    """How much the edges overfit, and whether they ever did too much."""

    overfitting: FloatArray
    """The running mean of (V − T) / min(T, floor), a single number; NaN as long as nobody has measured."""
    overfitted: BoolArray
    """Whether it was above 1 in the first half of the run; then it stays true. Sharing costs at first, so a start near
    the end cannot pay; and it makes overfitting smaller, which is no reason to stop."""


class OnceOverfitted(SameQueries):
    """Once clusters overfit, draw them towards their mean until the end of the run.

    This starts only in the first half of the run, when a running mean of (V − T) / min(T, 0.25) is above 1: V is the
    edges' validation loss, T their clients' training loss, means by data over the edges that measured.
    """

    kind: Literal["once_overfitted"] = "once_overfitted"
    share: Share = 0.1
    """ρ: how far each network moves towards the mean."""

    def _queries(self) -> tuple[Query, ...]:
        return (VALIDATION, TRAINING)

    def init(self, num_members: int) -> OverfittingState:
        """Nothing is known."""
        return OverfittingState(np.array(np.nan), np.array(False))

    def act(self, state: OverfittingState, evidence: Evidence) -> Exchange:
        """Share if they have overfitted."""
        return towards_mean(self.share, evidence) if state.overfitted else Exchange()

    def learn(self, state: OverfittingState, evidence: Evidence) -> OverfittingState:
        """Update the running mean; an edge whose model has diverged does not count: it is no reason to share."""
        validation_N, training_N = evidence[VALIDATION], evidence[TRAINING]
        told_N = np.isfinite(validation_N)
        size_N = evidence.size_N.astype(np.float64)[told_N]
        if not size_N @ training_N[told_N]:
            return state
        validation, training = (np.average(loss_N[told_N], weights=size_N) for loss_N in (validation_N, training_N))
        now = (validation - training) / min(training, LOSS_FLOOR)
        before = float(state.overfitting)
        running = now if np.isnan(before) else before + SMOOTHING * (now - before)
        early = 2 * evidence.round <= evidence.num_rounds
        overfitted = bool(state.overfitted) or (early and bool(running > 1))
        return OverfittingState(np.array(running), np.array(overfitted))

    def notes(self, state: OverfittingState) -> Mapping[str, float]:
        """Show the running mean, and the ρ of the next round."""
        return {"overfitting": float(state.overfitting), "mean_share": self.share * float(state.overfitted)}


SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""What members try, from their own network to half of the mean."""
OWN = Loss("own", "validation")
QUERIES: tuple[Query, ...] = (OWN, *(Loss("mean", "validation", share=share) for share in SHARES[1:]))


class LeaningState(NamedTuple):
    """How much of the mean members predict with."""

    share_N: FloatArray
    """ρ, by member; that of a cluster is the mean over its members, by data."""
    apart: BoolArray
    """Whether there was more than one cluster in the last round; with one, its network is the mean."""


class PredictTowardsMean(SameQueries):
    """Members predict with (1 − ρ) Θ_k + ρ Σ_j w_j Θ_j, w_j being cluster j's share of all data.

    After every ``period`` rounds and the last, each member keeps the ρ of 0, 0.1, …, 0.5 with the least validation
    loss. Clients train Θ_k.
    """

    kind: Literal["predict_towards_mean"] = "predict_towards_mean"
    period: Rounds = 10
    """Rounds between two trials."""

    def _queries(self) -> tuple[Query, ...]:
        return QUERIES

    def init(self, num_members: int) -> LeaningState:
        """Nothing is measured."""
        return LeaningState(np.zeros(num_members), np.array(False))

    def ask(self, state: LeaningState, moment: Moment) -> tuple[Query, ...]:
        """Ask when it is time, if there is anything to blend."""
        due = moment.round % self.period == 0 or moment.round == moment.num_rounds
        return QUERIES if due and state.apart else ()

    def act(self, state: LeaningState, evidence: Evidence) -> Exchange:
        """Blend what members predict with, and nothing else."""
        share_K = (member_shares(evidence) @ state.share_N)[:, None]
        own_KJ = np.eye(share_K.size)
        return Exchange(judged_KJ=(1 - share_K) * own_KJ + share_K * data_shares(evidence))

    def learn(self, state: LeaningState, evidence: Evidence) -> LeaningState:
        """Keep the best share; who did not measure keeps what it had."""
        share_N = state.share_N
        if OWN in evidence.readings:
            loss_NS = np.stack([evidence[query] for query in QUERIES], axis=1)
            silent_NS = np.isnan(loss_NS)
            best_N = np.array(SHARES)[np.where(silent_NS, np.inf, loss_NS).argmin(axis=1)]
            share_N = np.where(silent_NS.any(axis=1), share_N, best_N)
        return LeaningState(share_N, np.array(np.unique(evidence.labels).size > 1))

    def notes(self, state: LeaningState) -> Mapping[str, float]:
        """Show the mean over members."""
        return {"mean_share": float(state.share_N.mean())}
