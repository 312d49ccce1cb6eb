"""Credit of each client's own: is it sound, or are its labels noise? Alone, or with Thompson sampling."""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core import bandits
from fedbac.core.queries import Ask, Evidence, Query, Statistic
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray, Positive
from fedbac.selection.bandit import Thompson, ThompsonState
from fedbac.selection.simple import Fraction, Selection, largest

TRAINING = Statistic("loss")
REFERENCE_QUANTILE = 0.25
"""The client that others are compared with learns better than three quarters: sound if a quarter of all are."""
LEAST_LEARNED = 0.5
"""No credit is given before the reference client has learned this much: until then all losses are alike."""
LITTLE_DATA = 0.5
"""Who holds less than this share of the edge's mean is not judged: few steps teach little, whatever the labels."""


class CreditState(NamedTuple):
    """The state of the shared reward's sampling, and each client's own passes, fails and last training loss."""

    alpha_N: FloatArray
    beta_N: FloatArray
    accuracy: FloatArray
    pass_N: FloatArray
    fail_N: FloatArray
    loss_N: FloatArray
    """NaN before the client has trained."""

    @property
    def shared(self) -> ThompsonState:
        """What the paper's sampling remembers."""
        return ThompsonState(self.alpha_N, self.beta_N, self.accuracy)


class SoundState(NamedTuple):
    """Each client's passes, fails and last training loss."""

    pass_N: FloatArray
    fail_N: FloatArray
    loss_N: FloatArray
    """NaN before the client has trained."""


class Credited(Selection):
    """What policies have in common that give credit."""

    least_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Least share of the reference client's learning that is sound."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Forgetting factor of a client's credit, per judgement."""
    untrained_loss: Positive | None = None
    """L_0, the loss of a network that knows nothing; default: ln(number of classes)."""

    def trusted(self, state: "SoundState | CreditState") -> BoolArray:
        """Those that never failed, or passed more often."""
        trusted_N: BoolArray = (state.fail_N == 0) | (state.pass_N > state.fail_N)
        return trusted_N

    def _judged(self, state: "SoundState | CreditState", evidence: Evidence, mask_N: BoolArray) -> SoundState:
        """Pass or fail who trained on enough data, against all that is known."""
        loss_N = np.where(mask_N, evidence[TRAINING], state.loss_N)
        same = SoundState(state.pass_N, state.fail_N, loss_N)
        known_N = np.isfinite(loss_N)
        if not known_N.any():
            return same
        learned_N = (self.untrained_loss or math.log(evidence.num_classes)) - loss_N
        reference = float(np.quantile(learned_N[known_N], 1 - REFERENCE_QUANTILE))
        if reference < LEAST_LEARNED:
            return same
        sound_N = learned_N >= self.least_share * reference
        judged_N = mask_N & (evidence.size_N >= LITTLE_DATA * evidence.size_N.mean())

        def count(before_N: FloatArray, hit_N: BoolArray) -> FloatArray:
            return np.where(judged_N, self.discount * before_N + hit_N, before_N)

        return SoundState(count(state.pass_N, sound_N), count(state.fail_N, ~sound_N), loss_N)


def _sound(state: "SoundState | CreditState", rng: Rng) -> tuple[FloatArray, BoolArray]:
    """Draw how sound each client is, and say who passes for sound: above 1/2, or never failed."""
    belief_N = rng.beta(1 + state.pass_N, 1 + state.fail_N)
    return belief_N, (belief_N > 0.5) | (state.fail_N == 0)


class Sound(Credited):
    """All sound clients train; if none is sound, the likeliest one does.

    A client is sound if it never failed, or if a draw p̃_i ~ Beta(1 + passes, 1 + fails) is above 1/2. It passes and
    fails as in ``credit_thompson``.
    """

    kind: Literal["sound"] = "sound"
    asks: ClassVar[Ask] = Ask(after=(TRAINING,))
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """p: the largest share of an edge's clients that train, drawn from the sound ones."""

    def init(self, num_members: int) -> SoundState:
        """Neither passed nor failed."""
        return SoundState(np.zeros(num_members), np.zeros(num_members), np.full(num_members, np.nan))

    def act(self, state: SoundState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Those believed sound."""
        belief_N, sound_N = _sound(state, rng)
        able_N = evidence.size_N > 0
        if not (able_N & sound_N).any():
            return bandits.top(belief_N, 1, able_N, rng)
        return bandits.top(np.zeros(sound_N.size), bandits.budget(self.fraction, sound_N.size), able_N & sound_N, rng)

    def learn(self, state: SoundState, evidence: Evidence, mask_N: BoolArray) -> SoundState:
        """Pass or fail who trained."""
        return self._judged(state, evidence, mask_N)

    def beliefs(self, state: SoundState) -> FloatArray:
        """Return the mean of each posterior."""
        return (1 + state.pass_N) / (2 + state.pass_N + state.fail_N)


class CreditThompson(Credited):
    """The paper's Thompson sampling among clients that are sound: p̃_i > 1/2, with p̃_i ~ Beta(1 + passes, 1 + fails).

    A client that trains passes if it learned at least ``least_share`` of what its edge's reference client (the upper
    quartile) learned, L_0 − loss: rare classes can be learned in a few epochs, wrong labels cannot. Nobody is judged
    while the reference is below half a nat, nor with less than half of the edge's mean number of examples. Gaps are
    measured on clients that never failed, or passed more often. If nobody fails, this is the paper's sampling, draw for
    draw.
    """

    kind: Literal["credit_thompson"] = "credit_thompson"
    fraction: Fraction = 0.8
    shared: Thompson = Thompson()
    """Ranks the sound ones, by the shared reward; its fraction is not used."""

    def needs(self) -> frozenset[Query]:
        """Need the shared reward, and the loss with which each client trained."""
        return self.shared.needs() | {TRAINING}

    def init(self, num_members: int) -> CreditState:
        """Neither passed nor failed."""
        nothing = np.zeros(num_members)
        return CreditState(*self.shared.init(num_members), nothing, nothing, np.full(num_members, np.nan))

    def ask(self, state: CreditState, evidence: Evidence, rng: Rng) -> Ask:
        """Ask for the shared reward, and for the loss with which each client trained, which it sends anyway."""
        ask = self.shared.ask(state.shared, evidence, rng)
        return Ask(ask.before, (*ask.after, TRAINING))

    def act(self, state: CreditState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Top B of the shared reward's draws among the clients believed sound; then the likeliest of the others."""
        draw_N = self.shared.draw(state.shared, evidence, rng)
        belief_N, sound_N = _sound(state, rng)
        score_N = np.where(sound_N, 1 + draw_N, belief_N)
        return largest(score_N, self.fraction, evidence, rng)

    def learn(self, state: CreditState, evidence: Evidence, mask_N: BoolArray) -> CreditState:
        """Learn the shared reward; pass or fail who trained."""
        return CreditState(*self.shared.learn(state.shared, evidence, mask_N), *self._judged(state, evidence, mask_N))

    def beliefs(self, state: CreditState) -> FloatArray:
        """Return the mean of the posterior by which sound clients are ranked; of the others, how sound they seem."""
        sound_N = (1 + state.pass_N) / (2 + state.pass_N + state.fail_N)
        return np.where(self.trusted(state), self.shared.beliefs(state.shared), sound_N)
