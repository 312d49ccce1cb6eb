"""What a site tells the one above of a failure: a sentence of this list with numbers in it, and nothing else.

The text of an exception may quote data: that of a loader the row that it cannot parse, that of a network a tensor. So
does sometimes the name of its class, and a path names a person. All that stays in the log of the site, with a number
that travels, by which the operators of both sites find it.
"""

import json
import re
import secrets
from enum import Enum
from operator import index
from typing import Self

from fedbac.errors import DeployError, visible

ITS_LOG = "; its log says why"
BROKE_DOWN = "training broke down"
"""So begin reasons that are no reason to wait: the networks, or who sends them, are to blame."""


class Failure(Enum):
    """All that may be told, with places for numbers."""

    UNNAMED = "error {}" + ITS_LOG
    CANNOT_RUN = "the experiment of the federation cannot run here" + ITS_LOG
    NOT_ALLOWED = "the package of task.network or task.loss is not allowed here, or not installed" + ITS_LOG
    OTHER_PACKAGE = (
        "the package of task.network or task.loss is another one: its hash begins with {:012x}, that of the federation "
        "with {:012x}; install the same at every site, and start the site again"
    )
    OTHER_LABELS = "its labels are not what the federation learns" + ITS_LOG
    OTHER_DATA = (
        "its data are not those with which the run began; put them back and start it again, or have the cloud take "
        "the new ones (fedbac cloud KIT --refresh SITE)"
    )
    MORE_CLASSES = "its labels go up to {}, and the run has classes 0 to {}; leave those examples out"
    FAR_OFF = "its labels go up to {}, where those of the edge's other clients go up to about {}"
    OTHER_KIT = "the run has {} clients at this edge and its kit {}; renew the kit"
    BUSY = "is still busy with an earlier request"
    NOT_WAITED_FOR = "nobody waited for the answer any more"
    LONG_REQUEST = "the message is longer than {:,} bytes (deploy.max_message_mib)"
    LONG_ANSWER = "the answer has {:,} bytes; {:,} are allowed (deploy.max_message_mib)"
    ENDED = "the process that trains ended (exit status {}); it is started again when needed"
    FEW_PRESENT = "{} of {} clients are there and deploy.min_clients is {}"
    FEW_TRAINED = "{} of {} chosen clients trained and deploy.min_clients is {}"
    NOT_SOUND = BROKE_DOWN + ": {} of {} chosen clients sent what is not finite, or too large"
    RESTING = BROKE_DOWN + ": {} of {} clients sit out this round, and deploy.min_clients is {}"
    NONE_MEASURED = "nobody who holds data answered when clients were asked to measure a model"
    OUTLIER = "its update changes {:,} times as much as is allowed (deploy.outlier_factor)"
    LATE = "it gave no answer in time"
    UNUSABLE = "what it said cannot be used; the log of the site above it says why"
    FEW_IN_SUM = (
        "{} of {} clients are left in a secret sum, which needs {} (method.aggregation.threshold, or two thirds)"
    )
    NO_SUM = "it takes no part in this secret sum" + ITS_LOG
    NO_ROOM = "its disk has no room for the updates of its clients; free some" + ITS_LOG
    NO_TESTS = "nobody could measure on the test data of {} edges" + ITS_LOG
    SPENT = "round {} is spent: it has answered it with noise, from other networks (method.privacy)"
    CLIENT_STATE = "client {}: the run continues after round {}, but the state it has kept is of round {}"
    EDGE_STATE = "edge {}: the run continues after round {}, but the state it has kept is of round {}"


class SiteError(DeployError):
    """An error of which ``told`` may leave the site; ``detail`` may not."""

    def __init__(self, failure: Failure, *numbers: int, detail: str = "") -> None:
        self.failure, self.numbers = failure, tuple(map(index, numbers))  # what is no whole number is an error
        self.public = failure.value.format(*self.numbers)
        super().__init__(f"{self.public.removesuffix(ITS_LOG)}: {detail}" if detail else self.public)

    @classmethod
    def of(cls, error: BaseException) -> "SiteError":
        """Return any error as one that may be told of."""
        if isinstance(error, SiteError):
            return error
        try:
            detail = visible(f"{type(error).__name__}: {error}")
        except Exception:  # others write exceptions too, whose text may fail
            detail = type(error).__name__
        return SiteError(Failure.UNNAMED, 100_000 + secrets.randbelow(900_000), detail=detail)

    @classmethod
    def found(cls, reason: str, *failures: Failure) -> "SiteError | None":
        """Return the first of these failures that a site has told of, from what was made of its text on the way."""
        for failure in failures:
            numbers = re.search(re.escape(failure.value).replace(r"\{\}", "([0-9]{1,12})"), reason)
            if numbers:
                return SiteError(failure, *map(int, numbers.groups()))
        return None

    def encoded(self) -> bytes:
        """Return it without its detail."""
        return json.dumps([self.failure.name, *self.numbers]).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """Return what was encoded."""
        name, *numbers = json.loads(data)
        return cls(Failure[name], *numbers)
