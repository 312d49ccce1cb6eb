"""AdamW, for the weights of one client or stacked ones of many."""

from collections.abc import Sequence

from torch import Tensor

from fedbac.config.training import AdamW, Training

Number = float | Tensor
"""Of one client, or a tensor that goes with stacked weights."""


def adamw_of(training: Training) -> AdamW | None:
    """Return the settings of AdamW; None if training goes by SGD."""
    return training.optimizer if isinstance(training.optimizer, AdamW) else None


def corrections(settings: AdamW, steps: Number) -> tuple[Number, Number]:
    """Return 1 − β₁ⁿ and 1 − β₂ⁿ; single precision would lose digits of them."""
    return 1 - settings.beta1**steps, 1 - settings.beta2**steps


def adamw_step(
    settings: AdamW, weight: Tensor, moments: tuple[Tensor, Tensor], gradient: Tensor, decay: Number, rate: Number,
    corrected: Sequence[Number],
) -> None:  # fmt: skip
    """w ← (1 − η·decay)·w − η·m̂/(√v̂ + ε), as ``torch.optim.AdamW``."""
    first, second = moments
    first.lerp_(gradient, 1 - settings.beta1)
    second.mul_(settings.beta2).addcmul_(gradient, gradient, value=1 - settings.beta2)
    weight.mul_(1 - rate * decay)
    weight.sub_(first / (second.sqrt() / corrected[1] ** 0.5 + settings.epsilon) * (rate / corrected[0]))
