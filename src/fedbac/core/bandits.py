"""Mathematics that bandits of any kind need, as pure functions of arrays."""

import numpy as np

from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, FloatArray

TINY = 1e-12
"""A weight with which a candidate is drawn last."""


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


def draw(weight_N: FloatArray, count: int, candidate_N: BoolArray, rng: Rng) -> BoolArray:
    """Return the mask of ``count`` candidates drawn without replacement in proportion to their weights, or of all."""
    key_N = np.log(rng.random(weight_N.size)) / np.maximum(weight_N, TINY)  # Efraimidis and Spirakis, in logarithms
    return top(key_N, count, candidate_N, rng)


def spread(value_N: FloatArray, known_N: BoolArray) -> FloatArray:
    """Return values scaled so that the known ones run from 0 to 1; equal ones are 0.5, unknown ones the known mean."""
    scaled_N = np.full(value_N.size, 0.5)
    if not known_N.any():
        return scaled_N
    low, high = value_N[known_N].min(), value_N[known_N].max()
    if high > low:
        scaled_N[known_N] = (value_N[known_N] - low) / (high - low)
        scaled_N[~known_N] = scaled_N[known_N].mean()
    return scaled_N
