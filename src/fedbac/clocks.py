"""When a tier goes on: after everybody has answered, at a deadline, or with the first updates to arrive."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbac.core.settings import FloatArray, NonNegative, Positive, Settings
from fedbac.core.world import World


class _Barrier(Settings):
    """What is late is lost, so whatever counts was sent in this round."""

    holds: ClassVar[bool] = False

    def enough(self, wanted: int) -> int:
        """Wait for all."""
        return wanted

    def discount(self, age_C: FloatArray) -> FloatArray:
        """Take what comes as it is."""
        return np.ones_like(age_C)


class Synchronous(_Barrier):
    """Everybody who started is waited for, within any deadline of ``task.world``."""

    kind: Literal["synchronous"] = "synchronous"
    timed: ClassVar[bool] = False

    def world(self, world: World) -> World:
        """Return the devices as the task has them."""
        return world


class Deadline(_Barrier):
    """What comes later than so many seconds is lost; if nothing is in time, the first counts."""

    kind: Literal["deadline"] = "deadline"
    timed: ClassVar[bool] = True
    seconds: Positive = 10.0
    """How long an edge waits, in each of its rounds."""
    over_selection: Annotated[float, Field(ge=1, le=1_000_000)] = 1.0
    """Start this many times as many clients as selected; the first to finish count."""

    def world(self, world: World) -> World:
        """Return the devices with this deadline."""
        return world.model_copy(update={"deadline": self.seconds, "over_selection": self.over_selection})


class _Late(Settings):
    """What is late counts when it arrives: w ← w + Σ_i p_i (1 + age_i)^(−a) Δ_i, p by examples, over all that are
    there; age is how many averages were made since it began."""

    timed: ClassVar[bool] = True
    holds: ClassVar[bool] = True
    exponent: NonNegative = 0.5
    """a: how fast an update's weight falls with age; 0: never."""

    def world(self, world: World) -> World:
        """Return the devices without a deadline or spare clients: nobody's work is lost."""
        return world.model_copy(update={"deadline": None, "over_selection": 1.0})

    def discount(self, age_C: FloatArray) -> FloatArray:
        """Return (1 + age)^(−a)."""
        return (1.0 + age_C) ** -self.exponent


class Buffered(_Late):
    """FedBuff (Nguyen and others, 2022): a round ends when a buffer of updates is full. Others go on, and their updates
    count when they arrive, the less the older."""

    kind: Literal["buffered"] = "buffered"
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Size of the buffer, as a share of those under way; 1 waits for all."""

    def enough(self, wanted: int) -> int:
        """Wait for a full buffer."""
        return max(1, int(np.floor(self.share * wanted + 1e-9)))


class Asynchronous(_Late):
    """A buffer of one."""

    kind: Literal["asynchronous"] = "asynchronous"

    def enough(self, wanted: int) -> int:
        """Wait for one."""
        return 1
