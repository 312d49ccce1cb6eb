"""The mean of the children, by their examples."""

from typing import ClassVar, Literal

from torch import Tensor

from fedbac.core.settings import Settings


class Mean(Settings):
    """Eqs. 1, 5 and 6: Σ_i (n_i / n) Δ_i. Children are added up as they come, so that none of them is held."""

    kind: Literal["mean"] = "mean"
    needs: ClassVar[Literal["sum", "all"]] = "sum"

    def combine(self, change_CD: Tensor, weight_C: Tensor) -> Tensor:
        """Return the weighted mean."""
        share_C = weight_C.double() / weight_C.double().sum()
        return (share_C[:, None] * change_CD).sum(0).to(change_CD.dtype)
