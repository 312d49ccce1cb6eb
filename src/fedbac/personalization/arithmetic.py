"""What several schemes compute."""

import torch
from torch import Tensor

from fedbac.core.parts import Params
from fedbac.core.settings import FloatArray


def column(value_C: FloatArray | Tensor, like: Tensor) -> Tensor:
    """Return a number for each row, to be multiplied with a stack."""
    number_C = torch.as_tensor(value_C, dtype=like.dtype, device=like.device)
    return number_C.reshape(-1, *[1] * (like.dim() - 1))


def inverse(value_C: Tensor) -> Tensor:
    """Return 1/x, and 0 where x is 0."""
    return torch.where(value_C > 0, 1 / value_C, torch.zeros_like(value_C))


def mean_gradient(started: Params, trained: Params, travel_C: FloatArray | Tensor) -> Params:
    """Return the constant gradient that would have brought clients from start to end; 0 of those that never moved.

    It stands for the mean of the gradients on the way, clipped and with weight decay as SGD had them.
    """
    return {
        name: (value - trained[name]) * inverse(column(travel_C, value).double()).to(value.dtype)
        for name, value in started.items()
    }
