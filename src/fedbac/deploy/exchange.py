"""A parent's request to a child, whatever carries it."""

import secrets


class Exchange:
    """One request to one child, and what became of it."""

    def __init__(self, message: bytes) -> None:
        self.number = secrets.randbits(63)  # as a signed number of 64 bits has room for
        self.message = message
        self.answer: bytes | None = None
        self.reason: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is an answer, or a reason why there is none."""
        return self.answer is not None or self.reason is not None
