"""What the cloud and clusters do with the combination of their children: take it, or step towards it.

Δ is how far the combination is from where the children started. An edge's own part, or a client's, is taken as it is.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbac.core.settings import Positive, Settings

Decay = Annotated[float, Field(ge=0, lt=1)]
Memory = Mapping[str, Tensor]


class Take(Settings):
    """The combination replaces what was there: w ← w + Δ."""

    kind: Literal["take"] = "take"
    active: ClassVar[bool] = False

    def init(self, row_KD: Tensor) -> Memory:
        """Remember nothing."""
        return {}

    def step(self, before_KD: Tensor, combined_KD: Tensor, memory: Memory, share_K: Tensor) -> tuple[Tensor, Memory]:
        """Return the combination."""
        return combined_KD, memory


class Momentum(Settings):
    """Server momentum, as in FedAvgM (Hsu, Qi, Brown, 2019): v ← β v + Δ and w ← w + η v, from v = 0."""

    kind: Literal["momentum"] = "momentum"
    active: ClassVar[bool] = True
    learning_rate: Positive = 1.0
    """η, of the server."""
    beta: Decay = 0.9
    """β."""

    def init(self, row_KD: Tensor) -> Memory:
        """Begin at rest."""
        return {"velocity": torch.zeros_like(row_KD)}

    def step(self, before_KD: Tensor, combined_KD: Tensor, memory: Memory, share_K: Tensor) -> tuple[Tensor, Memory]:
        """Move on, and a little further in the direction of old."""
        velocity_KD = self.beta * memory["velocity"] + (combined_KD - before_KD)
        return before_KD + self.learning_rate * velocity_KD, {"velocity": velocity_KD}


class _Adaptive(Settings):
    """Algorithm 2 of Reddi and others (2021): w ← w + η m / (√v + τ), without correction of the bias.

    m ← β₁ m + (1 − β₁) Δ from m = 0; v begins at τ².
    """

    active: ClassVar[bool] = True
    learning_rate: Positive = 0.00316
    """η, of the server: 10^−2.5, the authors' choice for EMNIST."""
    beta_1: Decay = 0.9
    """β₁."""
    beta_2: Decay = 0.99
    """β₂."""
    tau: Positive = 1e-3
    """τ: the smaller, the more adaptive."""

    def init(self, row_KD: Tensor) -> Memory:
        """Begin at rest."""
        return {"first": torch.zeros_like(row_KD), "second": torch.full_like(row_KD, self.tau**2)}

    def step(self, before_KD: Tensor, combined_KD: Tensor, memory: Memory, share_K: Tensor) -> tuple[Tensor, Memory]:
        """Move every weight, the less the more it has changed before."""
        change_KD = combined_KD - before_KD
        first_KD = self.beta_1 * memory["first"] + (1 - self.beta_1) * change_KD
        second_KD = self._second(memory["second"], change_KD.square())
        after_KD = before_KD + self.learning_rate * first_KD / (second_KD.sqrt() + self.tau)
        return after_KD, {"first": first_KD, "second": second_KD}

    def _second(self, second_KD: Tensor, square_KD: Tensor) -> Tensor:
        raise NotImplementedError


class Adam(_Adaptive):
    """FedAdam (Reddi and others, 2021): w ← w + η m / (√v + τ) with v ← β₂ v + (1 − β₂) Δ², from v = τ².

    m ← β₁ m + (1 − β₁) Δ, from m = 0. There is no correction of the bias.
    """

    kind: Literal["adam"] = "adam"

    def _second(self, second_KD: Tensor, square_KD: Tensor) -> Tensor:
        return self.beta_2 * second_KD + (1 - self.beta_2) * square_KD


class Yogi(_Adaptive):
    """FedYogi (Reddi and others, 2021): as ``adam``, but v ← v − (1 − β₂) Δ² sign(v − Δ²): it shrinks more slowly."""

    kind: Literal["yogi"] = "yogi"

    def _second(self, second_KD: Tensor, square_KD: Tensor) -> Tensor:
        return second_KD - (1 - self.beta_2) * square_KD * (second_KD - square_KD).sign()


class Dynamic(Settings):
    """The server of FedDyn (Acar and others, 2021): h ← h − α p Δ and w ← w + Δ − h / α, from h = 0.

    p is the share of the owner's clients that trained, as they count, so p Δ is the sum of their (n_i / n) Δ_i.
    """

    kind: Literal["dynamic"] = "dynamic"
    active: ClassVar[bool] = True
    alpha: Positive = 0.01
    """α."""

    def init(self, row_KD: Tensor) -> Memory:
        """Begin without any drift."""
        return {"drift": torch.zeros_like(row_KD)}

    def step(self, before_KD: Tensor, combined_KD: Tensor, memory: Memory, share_K: Tensor) -> tuple[Tensor, Memory]:
        """Take the combination, and what clients have drifted by so far."""
        drift_KD = memory["drift"] - self.alpha * share_K[:, None] * (combined_KD - before_KD)
        return combined_KD - drift_KD / self.alpha, {"drift": drift_KD}
