"""Averages at the edge and at the cloud."""

from collections.abc import Mapping, Sequence

from fedbac import trees
from fedbac.types import FloatArray, IntArray, Params, Parts, Scope


def edge_average(parts_C: Parts, size_C: FloatArray) -> Parts:
    """Eq. 1: Θ̄_m = Σ_{i∈S_m} (n_i / n_{S_m}) Θ_i, for every part; a client of weight zero does not count."""
    return {part: trees.weighted_mean(params, size_C) for part, params in parts_C.items()}


def global_average(parts_M: Params, weight_M: FloatArray) -> Params:
    """Eq. 5: Θ_global = Σ_m (n_m / n) Θ̄_{global,m}, over all edges."""
    return trees.weighted_mean(parts_M, weight_M)


def cluster_average(parts_M: Params, weight_M: FloatArray, label_M: IntArray, before_K: Params) -> Params:
    """Eq. 6: Θ_k = Σ_{m∈C_k} (n_m / n_k) Θ̄_{k,m} for every cluster that has members; an empty one is kept."""
    return trees.grouped_mean(parts_M, weight_M, label_M, before_K)


def cloud_average(
    before: Parts, reports_M: Sequence[Parts], weight_M: FloatArray, label_M: IntArray, scopes: Mapping[str, Scope]
) -> Parts:
    """Two-phase aggregation: every part is averaged at its own scope; edges of weight zero do not count."""
    if not (weight_M > 0).any():
        return before
    after: Parts = {}
    for part, scope in scopes.items():
        parts_M = trees.stack([report[part] for report in reports_M])
        if scope == "cloud":
            after[part] = trees.stack([global_average(parts_M, weight_M)])
        else:
            after[part] = cluster_average(parts_M, weight_M, label_M, before[part])
    return after
