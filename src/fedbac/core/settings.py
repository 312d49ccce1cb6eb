"""Frozen models of hyperparameters, and the arrays that policies compute with."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Settings(BaseModel):
    """A frozen model of hyperparameters: a policy or scheme is its own configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
