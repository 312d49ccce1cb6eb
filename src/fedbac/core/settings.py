"""Frozen models of hyperparameters, the limits of their values, and the arrays that policies compute with."""

import re
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedbac.errors import quoted

# Not numpy's NDArray, which is no type that can be taken apart from numpy 2.5 on; messages are read by these.
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

# Limits are far above what makes sense and far below what runs out of memory, or out of the kernels' number types.
MAX_EDGES, MAX_CLIENTS, MAX_ROUNDS, MAX_EPOCHS = 10_000, 1_000_000, 999_999, 1_000
MOST_JOBS = 1024
"""Runs at a time."""
MAX_NAME = 100
"""Bytes of a name, so that a folder named after it and a few settings fits every file system."""

Edges = Annotated[int, Field(gt=0, le=MAX_EDGES)]
"""A number of edges, clusters or other things of which an edge has one."""
Rounds = Annotated[int, Field(gt=0, le=MAX_ROUNDS)]
RoundsOrNone = Annotated[int, Field(ge=0, le=MAX_ROUNDS)]
"""A number of rounds that may be zero."""
Epochs = Annotated[int, Field(gt=0, le=MAX_EPOCHS)]
NumLayers = Annotated[int, Field(gt=0, le=1_000)]
Width = Annotated[int, Field(gt=0, le=100_000)]
"""Outputs of one layer."""
Examples = Annotated[int, Field(gt=0, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
"""A number above zero that is no larger than what single precision holds, in which the kernels compute."""
NonNegative = Annotated[float, Field(ge=0, le=1e30)]


def plain_name(name: str) -> str:
    """Return a name that may become a folder and a line of output, or raise a ValueError that says what is wrong."""
    if len(name.encode(errors="surrogatepass")) > MAX_NAME:
        raise ValueError(f"{quoted(name)} is too long for a name; use at most {MAX_NAME} characters")
    if not re.fullmatch(r"\w[\w .,+()=@-]*", name):
        raise ValueError(
            f"{quoted(name)} is no plain name; use letters, digits, spaces and . , + - _ ( ) = @, "
            "and begin with a letter or a digit"
        )
    return name


Name = Annotated[str, AfterValidator(plain_name)]


def of_kind(value: Any) -> Any:
    """Return what a bare kind stands for, or the name of something in a package."""
    if isinstance(value, str):
        return {"kind": "package", "name": value} if ":" in value else {"kind": value}
    return value


BareKind = BeforeValidator(of_kind)
"""Annotation of a field whose value is chosen by its ``kind``: the kind alone will do, or ``package.module:name``."""


def in_a_row(value: Any) -> Any:
    """Return a list: of one, where there is one, and of none, where there is nothing."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def written(row: tuple["Settings", ...]) -> Any:
    """Return one as itself and none as null, which versions that knew no lists read too."""
    plain = [one.model_dump(mode="json") for one in row]
    return plain if len(plain) > 1 else next(iter(plain), None)


class Settings(BaseModel):
    """A frozen model of hyperparameters: a policy or scheme is its own configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
