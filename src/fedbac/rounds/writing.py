"""How arrays of policies are written into the record of a round: short, and without what JSON cannot hold."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedbac.core.policies import Gaps

DIGITS = 4


def written(numbers: Iterable[float]) -> list[float | None]:
    """Return numbers rounded for a reader; None where one is not finite."""
    return [round(float(number), DIGITS) if np.isfinite(number) else None for number in numbers]


def written_gaps(gaps: Gaps) -> dict[str, Any]:
    """Return the clusters, the gaps between them, and the limit below which they may merge."""
    return {
        "clusters": [int(label) for label in gaps.label_G],
        "gap": [written(row) for row in gaps.gap_GG],
        "limit": round(float(gaps.limit), DIGITS),
    }
