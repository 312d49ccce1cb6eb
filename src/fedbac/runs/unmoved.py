"""Parts that clients have trained and that are as they were: a run would go on to its end and learn nothing."""

from collections.abc import Collection

import torch
from torch import Tensor

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.parts import Scope, moving_parts
from fedbac.core.queries import Moment
from fedbac.core.state import State

ROUNDING, OF_DECAY = 2e-4, 0.1
"""What the rounding of many steps may add to a weight, as a share of it, and of what decay took away."""


def unmoved_parts(
    experiment: Experiment, before: State, after: State, trainable: Collection[str], elsewhere: Collection[Scope]
) -> list[str]:
    """Return the parts of a round in which clients trained that no gradient moved, for any owner. Those that never
    leave their owners (``elsewhere``) are not known here."""
    scheme = experiment.method.personalization
    moving = moving_parts(scheme, Moment(after.round, experiment.task.rounds))
    found = []
    for part, spec in scheme.parts.items():
        names = [name for name in before.parts[part] if name in trainable]
        if part in moving and spec.networks and spec.scope not in elsewhere and names:
            old_KD, new_KD = (trees.rows({n: parts[part][n] for n in names}) for parts in (before.parts, after.parts))
            if not any(_learned(old_D, new_D) for old_D, new_D in zip(old_KD, new_KD, strict=True)):
                found.append(part)
    return found


def _learned(old_D: Tensor, new_D: Tensor) -> bool:
    """Whether more happened to weights than weight decay, which shrinks all by one factor, and rounding."""
    if torch.equal(old_D, new_D):
        return False
    old_D, new_D = old_D.double(), new_D.double()
    square = float((old_D * old_D).sum())
    kept = min(float((old_D * new_D).sum()) / square, 1.0) if square and old_D.numel() > 1 else 1.0
    return bool(((new_D - kept * old_D).abs() > (ROUNDING + OF_DECAY * (1 - kept)) * old_D.abs()).any())
