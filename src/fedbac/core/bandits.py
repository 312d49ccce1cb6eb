"""The mathematics of the two bandits, as pure functions of arrays."""

import math

import numpy as np

from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray

EPSILON = 1e-8
"""ε of Eqs. 7 and 9."""


WORST = 1e4
"""Stands for the infinite loss of a diverged model, so that contexts and rewards stay finite."""


def loss_log_ratio(current: float, alternative: float) -> float:
    """First feature of Eq. 7: ln((L_current + ε) / (L_alternative + ε)), negative when the current one fits better."""
    return math.log((min(current, WORST) + EPSILON) / (min(alternative, WORST) + EPSILON))


def balance(current: int, alternative: int) -> float:
    """Second feature of Eq. 7: (|C_current| − |C_alt|) / (|C_current| + |C_alt|), and 0 when both are empty."""
    total = current + alternative
    return (current - alternative) / total if total else 0.0


def stability(rounds_in_cluster: int, period: int) -> float:
    """Third feature of Eq. 7: min(τ_m / 2τ_re, 1)."""
    return min(rounds_in_cluster / (2 * period), 1.0)


def fit_reward(current: float, alternative: float) -> float:
    """Eq. 9: r = (L_alternative − L_current) / (L_alternative + L_current + ε), in [−1, 1]."""
    current, alternative = min(current, WORST), min(alternative, WORST)
    return (alternative - current) / (alternative + current + EPSILON)


def ridge_update(
    A: FloatArray, b: FloatArray, x: FloatArray, reward: float, discount: float
) -> tuple[FloatArray, FloatArray]:
    """Eq. 10: A ← A + x xᵀ, b ← b + r x; a discount below 1 first shrinks what was learned towards A = I, b = 0."""
    identity = np.eye(x.size)
    return identity + discount * (A - identity) + np.outer(x, x), discount * b + reward * x


def upper_confidence(A: FloatArray, b: FloatArray, x: FloatArray, alpha: float) -> FloatArray:
    """Eq. 8, the bracket: θ̂ᵀx + α √(xᵀ A⁻¹ x) with θ̂ = A⁻¹ b, over any leading axes."""
    inverse_x = np.linalg.solve(A, np.broadcast_to(x, b.shape)[..., None])[..., 0]
    mean = np.sum(inverse_x * b, axis=-1)  # xᵀA⁻¹b, A being symmetric
    bound: FloatArray = mean + alpha * np.sqrt(np.maximum(np.sum(inverse_x * x, axis=-1), 0.0))
    return bound


def soft_step(reward: float, scale: float = 10.0, cap: float = 2.0) -> float:
    """Eq. 11: Δ = min(10 · |r|, 2)."""
    return min(scale * abs(reward), cap)


def beta_update(
    alpha_N: FloatArray, beta_N: FloatArray, mask_N: BoolArray, reward: float, step: float
) -> tuple[FloatArray, FloatArray]:
    """Eq. 12: every selected member gains Δ in α when r > 0, else in β."""
    gain = step * mask_N
    return (alpha_N + gain, beta_N) if reward > 0 else (alpha_N, beta_N + gain)


def budget(fraction: float, num_members: int) -> int:
    """B = max(1, ⌊p · N_m⌋), safe against 0.29 · 100 = 28.999…"""
    return max(1, int(np.floor(fraction * num_members + 1e-9)))


def top(score_N: FloatArray, count: int, candidate_N: BoolArray, rng: Rng) -> BoolArray:
    """Return the mask of the ``count`` best candidates, ties broken at random; fewer if there are fewer candidates."""
    order = np.lexsort((rng.random(score_N.size), -score_N))
    chosen = order[candidate_N[order]][:count]
    mask = np.zeros(score_N.size, dtype=bool)
    mask[chosen] = True
    return mask
