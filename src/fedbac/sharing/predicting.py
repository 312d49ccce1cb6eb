"""Clusters that train apart, and whose members predict with a blend of their own network and the mean of all."""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fedbac.core.policies import Exchange
from fedbac.core.queries import Evidence, Loss, Moment, Query
from fedbac.core.settings import BoolArray, FloatArray, Rounds, Settings
from fedbac.sharing.weights import data_shares, member_shares

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


class PredictTowardsMean(Settings):
    """Members predict with (1 − ρ) Θ_k + ρ Σ_j w_j Θ_j, where w_j is the share of all data that cluster j holds.

    Every so often, and after the last round, each member tries ρ = 0, 0.1, …, 0.5 on its validation data and keeps the
    one with the least loss. Clients train Θ_k: nothing of the mean is sent to be trained.
    """

    kind: Literal["predict_towards_mean"] = "predict_towards_mean"
    adaptive: ClassVar[bool] = True
    active: ClassVar[bool] = True
    period: Rounds = 10
    """Rounds between two trials."""

    def needs(self) -> frozenset[Query]:
        """Need the loss of every blend."""
        return frozenset(QUERIES)

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
