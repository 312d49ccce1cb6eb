"""Policies and schemes as the originals have them, to price what differs: ``python benchmarks/paired.py costs``.

Each is a kind that a setting names, such as ``method.personalization.kind=pulled_whole``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

import fedbac
from fedbac.clustering.splits import LEAST_VARIANCE, GaussianRewards, RewardsState
from fedbac.clustering.updates import Agglomerative, widest_gap
from fedbac.config.choices import Choice
from fedbac.core.parts import LocalRun, Parts, Phase, Pull, Scope
from fedbac.core.policies import Assignment
from fedbac.core.queries import Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, IntArray, Settings
from fedbac.personalization import AdaptiveStart, Directed, DynamicPull, PersonalHead, Shared, TwoHeads
from fedbac.rounds import measure
from fedbac.selection.scored import SQUARE, Oort, OortState
from fedbac.sharing.blends import Similar, SimilarState


class PublicRewards(GaussianRewards):
    """FedGWC as its public code has it."""

    kind: Literal["public_rewards"] = "public_rewards"  # type: ignore[assignment]
    columns: bool = False
    """Compare columns of W."""
    from_one: bool = False
    """The running change begins with 1."""
    draws: int = 0
    """Means and variances are those of so many losses, those that are missing drawn from a Gaussian."""

    def init(self, num_members: int) -> RewardsState:
        """Begin with a change of 1."""
        state = super().init(num_members)
        return state._replace(change_N=np.ones(num_members)) if self.from_one else state

    def act(self, state: RewardsState, evidence: Evidence, rng: Rng) -> tuple[RewardsState, Assignment]:
        """Begin anew with a change of 1, too."""
        state, after = super().act(state, evidence, rng)
        return state._replace(change_N=np.nan_to_num(state.change_N, nan=1.0)) if self.from_one else state, after

    def _rewards(self, trace_NE: FloatArray, size_N: IntArray) -> FloatArray:
        share_N, missing = size_N / size_N.sum(), self.draws - len(size_N)
        if missing <= 0:
            return super()._rewards(trace_NE, size_N)
        mean_E = share_N @ trace_NE
        spread_E = np.sqrt(share_N @ (trace_NE - mean_E) ** 2)
        drawn_NE = np.random.default_rng(crc32(trace_NE.tobytes())).normal(size=(missing, mean_E.size))
        all_NE = np.concatenate([drawn_NE * spread_E + mean_E, trace_NE])
        from_mean_NE, variance_E = trace_NE - all_NE.mean(0), all_NE.var(0, ddof=1) + LEAST_VARIANCE
        reward_N: FloatArray = np.exp(-(from_mean_NE**2) / (2 * variance_E)).mean(1)
        return reward_N

    def _children(self, weight_NN: FloatArray, rng: Rng) -> IntArray:
        return super()._children(weight_NN.T if self.columns else weight_NN, rng)


UPDATES: list[Tensor] = []
"""Of the members in the last round, of which policies are told inner products only."""
_gram = measure.gram


def _remembered(update_N: Tensor, present_N: IntArray, count: int) -> FloatArray:
    UPDATES[:] = [update_N]
    return _gram(update_N, present_N, count)


class AgglomerativeManhattan(Agglomerative):
    """FL+HC by the Manhattan distance, with complete linkage."""

    kind: Literal["agglomerative_manhattan"] = "agglomerative_manhattan"  # type: ignore[assignment]

    def _groups(self, gram_NN: FloatArray, rng: Rng) -> IntArray:
        from scipy.cluster.hierarchy import cut_tree, linkage
        from scipy.spatial.distance import pdist

        joins = linkage(pdist(UPDATES[0].cpu().numpy(), "cityblock"), "complete")
        cut_N: IntArray = cut_tree(joins, [widest_gap(joins[:, 2])])[:, 0].astype(np.int64)
        return cut_N


class SimilarRounded(Similar):
    """pFedGraph whose cosines above 0.9 are 1."""

    kind: Literal["similar_rounded"] = "similar_rounded"  # type: ignore[assignment]

    def learn(self, state: SimilarState, evidence: Evidence) -> SimilarState:
        """Round up."""
        cosine_NN = super().learn(state, evidence).cosine_NN
        return SimilarState(np.where(cosine_NN > 0.9, 1.0, cosine_NN))


class DirectedAway(Directed):
    """pFedGraph with the sign of the public code."""

    kind: Literal["directed_away"] = "directed_away"  # type: ignore[assignment]
    strength: float = -0.01


class PulledWhole(Shared):
    """FedProx whose pull is not clipped."""

    kind: Literal["pulled_whole"] = "pulled_whole"  # type: ignore[assignment]

    def phases(self) -> tuple[Phase, ...]:
        """Train it."""
        return (Phase(moves=("global",), pull={"global": Pull(self.proximal, to="global", clipped=False)}),)


class DynamicPulledWhole(DynamicPull):
    """FedDyn whose pull is not clipped."""

    kind: Literal["dynamic_pulled_whole"] = "dynamic_pulled_whole"  # type: ignore[assignment]

    def phases(self) -> tuple[Phase, ...]:
        """Train the network, held back."""
        return (Phase(moves=("global",), pull={"global": Pull(self.alpha, to="global", clipped=False)}),)


class HeadLast(PersonalHead):
    """FedRep whose heads are trained alone in the last round, for ten epochs."""

    kind: Literal["head_last"] = "head_last"  # type: ignore[assignment]
    order: Literal["together", "head_first"] = "head_first"

    def phases(self) -> tuple[Phase, ...]:
        """Train the head, then the body but for the last round."""
        head, body = super().phases()
        return replace(head, until_last=1), replace(body, until_last=1), Phase(moves=("head",), epochs=10, last=1)


class RandomHead(TwoHeads):
    """FedRoD whose personal heads begin at random."""

    kind: Literal["random_head"] = "random_head"  # type: ignore[assignment]

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Take the heads of another network."""
        parts, other = super().init(build, owners), dict(build(1).named_parameters())
        count = owners[self.owner]
        head = {name: torch.stack([other[name].detach()] * count) for name in parts["personal"]}
        return parts | {"personal": head}


class MixedAgain(AdaptiveStart):
    """FedALA that learns a new mix before it is judged: in the last round nothing else changes."""

    kind: Literal["mixed_again"] = "mixed_again"  # type: ignore[assignment]
    last: int = 21
    """That round."""

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return the networks as received, and the mix."""
        if run.round < self.last:
            return super().after(received_C, started_C, trained_C, run)
        same = {name: value.expand_as(trained_C["personal"][name]) for name, value in received_C["global"].items()}
        return {"global": same, "personal": received_C["personal"], "mix": started_C["mix"]}


class OortLate(Oort):
    """Oort that leaves room for new clients for a round after there were some."""

    kind: Literal["oort_late"] = "oort_late"  # type: ignore[assignment]

    def _to_exploit(self, state: OortState, count: int, new_N: BoolArray) -> int:
        return super()._to_exploit(state, count, new_N | ((state.count_N == 1) & (state.last_N == state.played[0])))


EXPLOITED: dict[bytes, BoolArray] = {}
"""Who was selected by score, by the sizes of an edge's clients."""


class OortPaced(Oort):
    """Oort whose pacer sums the utility of those alone who were selected by score."""

    kind: Literal["oort_paced"] = "oort_paced"  # type: ignore[assignment]

    def _exploited(self, state: OortState, evidence: Evidence, known_N: BoolArray, count: int, rng: Rng) -> BoolArray:
        chosen_N = super()._exploited(state, evidence, known_N, count, rng)
        EXPLOITED[evidence.size_N.tobytes()] = chosen_N
        return chosen_N

    def learn(self, state: OortState, evidence: Evidence, mask_N: BoolArray) -> OortState:
        """Put their mean in place of that of all who are not new."""
        utility_N, scored_N = evidence.size_N * np.sqrt(evidence[SQUARE]), EXPLOITED[evidence.size_N.tobytes()]
        who = mask_N & scored_N, mask_N & (state.count_N > 0)
        theirs, ours = (utility_N[one_N].mean() if one_N.any() else 0.0 for one_N in who)
        return super().learn(state._replace(window=state.window + theirs - ours), evidence, mask_N)


KINDS: dict[Choice, tuple[type[Settings], ...]] = {
    fedbac.CLUSTERING: (PublicRewards, AgglomerativeManhattan),
    fedbac.SELECTION: (OortLate, OortPaced),
    fedbac.SHARING: (SimilarRounded,),
    fedbac.PERSONALIZATION: (
        DirectedAway, PulledWhole, DynamicPulledWhole, HeadLast, RandomHead, MixedAgain,
    ),
}  # fmt: skip


def register() -> None:
    """Make them known."""
    for choice, policies in KINDS.items():
        for policy in policies:
            choice.register(policy)
    measure.gram = _remembered
