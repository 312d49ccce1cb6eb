"""Marks on the fields of what travels: whether a field is sent, and what it may hold beyond its type.

A dataclass with typed and marked fields is the only declaration of what a message holds: ``deploy.protocol`` writes,
reads and checks it by them. A reader has a template, a value of the same type. Where there is no mark, numbers are from
0 to ``LARGEST``, and mappings, tuples and arrays have the names, lengths, shapes and number types of the template.
"""

import math
from enum import Enum, auto
from typing import Annotated, NamedTuple, TypeVar

LARGEST = 2**53
T = TypeVar("T")


class Within(NamedTuple):
    """A finite number between two others, or an array or a network of such numbers."""

    low: float
    high: float


class Mark(Enum):
    """What is said of a field, in the words below."""

    LOCAL = auto()
    SOME = auto()
    ANY_NUMBER = auto()
    UNCHECKED = auto()


Local = Annotated[T, Mark.LOCAL]
"""Stays with whoever has it; the receiver has what is in its template."""
Some = Annotated[T, Mark.SOME]
"""Different ones of those in the template: names of a mapping, entries of a tuple or an array."""
AnyNumber = Annotated[T, Mark.ANY_NUMBER]
"""As many as the sender likes: entries of a tuple, rows of a stack, numbers of an array; those of a mapping alike."""
Unchecked = Annotated[T, Mark.UNCHECKED]
"""Any number, also NaN; tensors of any name and shape: what is wrapped up, or what one wrote oneself."""
Finite = Annotated[T, Within(-math.inf, math.inf)]
NearShare = Annotated[T, Within(0, 1 + 1e-9)]
"""From 0 to 1, but for rounding."""
