"""Geometry of updates from their inner products alone: angles, distances and coordinates."""

import numpy as np

from fedbac.core.settings import BoolArray, FloatArray


def known(gram_NN: FloatArray) -> BoolArray:
    """Return which members have an update."""
    return np.isfinite(np.diagonal(gram_NN))


def cosines(gram_NN: FloatArray) -> FloatArray:
    """Return the cosine of the angle between all pairs, 1 with itself; 0 with an update of length zero."""
    norm_N = np.sqrt(np.diagonal(gram_NN))
    length_NN = np.outer(norm_N, norm_N)
    cosine_NN = np.divide(gram_NN, length_NN, out=np.zeros_like(gram_NN), where=length_NN > 0)
    np.fill_diagonal(cosine_NN, 1.0)
    clipped: FloatArray = np.clip(cosine_NN, -1.0, 1.0)
    return clipped


def distances(gram_NN: FloatArray) -> FloatArray:
    """Return the Euclidean distance between all pairs: ‖a − b‖² = ‖a‖² + ‖b‖² − 2⟨a, b⟩."""
    square_N = np.diagonal(gram_NN)
    square_NN = np.add.outer(square_N, square_N) - 2 * gram_NN
    np.fill_diagonal(square_NN, 0.0)
    return np.sqrt(np.maximum(square_NN, 0.0))


def coordinates(gram_NN: FloatArray) -> FloatArray:
    """Return points with these inner products, the rows of VΛ^½ where G = VΛVᵀ: their distances are the updates'."""
    value_F, vector_NF = np.linalg.eigh(gram_NN)
    point_NF: FloatArray = vector_NF * np.sqrt(np.maximum(value_F, 0.0))
    return point_NF
