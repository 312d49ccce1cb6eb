"""How clients train: the optimizer, its settings, and the learning rate from round to round."""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from fedbac.core.settings import BareKind, Epochs, IntArray, NonNegative, Positive, RoundsOrNone, Settings


class Sgd(Settings):
    """SGD with momentum, as in PyTorch."""

    kind: Literal["sgd"] = "sgd"


class AdamW(Settings):
    """Adam with decoupled weight decay, as in PyTorch; reset in every phase of a client's training."""

    kind: Literal["adamw"] = "adamw"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """β₁."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """β₂."""
    epsilon: Positive = 1e-8
    """ε."""


OptimizerChoice = Annotated[Sgd | AdamW, Field(discriminator="kind"), BareKind]


class Training(Settings):
    """Local training, the same for every method."""

    epochs: Epochs = 5
    """E, passes over the client's data per round."""
    batch_size: Annotated[int, Field(gt=0, le=1_000_000)] = 32
    """Not given in the paper (C.1)."""
    drop_last: bool = False
    """Leave out a last batch that is not full, unless it is the only one."""
    learning_rate: Positive = 0.01
    """η of the first round (after the warm-up)."""
    schedule: Literal["exponential", "constant", "cosine"] = "exponential"
    """How η_t changes: by ``learning_rate_decay``, not, or by a half wave down to ``floor``."""
    learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = 0.995
    """η_t = η · decay^(t−1), constant within a round (C.5)."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of ``cosine``: the share of η left after the last round."""
    warmup_rounds: RoundsOrNone = 0
    """W: η_t = η · t/(W+1) in the first W rounds, before the schedule."""
    optimizer: OptimizerChoice = Sgd()
    """What clients train by."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD, as in PyTorch."""
    momentum_state: Literal["reset", "persist"] = "reset"
    """Whether momentum starts afresh every round or stays with its client (C.2)."""
    weight_decay: NonNegative = 5e-4
    """On every network."""
    clip_norm: Positive | None = 1.0
    """Largest norm of a gradient; null does not clip."""
    clip_scope: Literal["per_network", "joint"] = "per_network"
    """Clip each network by its own norm, or all by one (C.3)."""

    @model_validator(mode="after")
    def _keeps_what_it_can(self) -> "Training":
        if self.momentum_state == "persist" and self.optimizer.kind != "sgd":
            raise ValueError(f"momentum_state=persist is for sgd; {self.optimizer.kind} begins anew: use reset")
        return self

    def rate(self, round_: int, num_rounds: int) -> float:
        """Return η_t."""
        since = round_ - 1 - self.warmup_rounds
        if since < 0:
            return self.learning_rate * round_ / (self.warmup_rounds + 1)
        if self.schedule == "cosine":
            wave = (1 + math.cos(math.pi * since / (num_rounds - self.warmup_rounds))) / 2
            return self.learning_rate * (self.floor + (1 - self.floor) * wave)
        return self.learning_rate * (1.0 if self.schedule == "constant" else self.learning_rate_decay**since)

    def steps(self, size_N: IntArray) -> IntArray:
        """Return the batches in one epoch over so many examples."""
        full_N, rest_N = np.divmod(size_N, self.batch_size)
        dropped_N = self.drop_last & (full_N > 0)
        return full_N + ((rest_N > 0) & ~dropped_N)
