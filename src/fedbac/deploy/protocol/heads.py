"""What a message says of itself, read without torch: a process that only passes messages on stays small."""

import json
from typing import Any

from fedbac.deploy.spool import Payload
from fedbac.errors import DeployError

PROTOCOL = 1
"""The version of what is said; sites of different versions do not talk."""
MOST_HEAD = 2**22
"""Bytes of the JSON of a message."""
MOST_TENSORS = 100_000
ROOM = 2**23
"""Bytes that a message may have which holds no networks, and that others may have besides them."""
LENGTH = 8
"""Bytes of the number that a message begins with: the length of its JSON."""
KINDS = (
    "enroll", "facts", "roster", "begin", "ready", "revoked", "stranger", "forgotten", "absent", "train", "trained",
    "measure", "measured", "relay", "relayed", "fit", "update", "evaluate", "evaluation", "model", "version",
    "secret_keys", "secret_shares", "secret_fit", "secret_evaluate", "secret_confirm", "secret_unmask",
    "secret",
)  # fmt: skip
"""All that is said; ``messages`` declares what each holds."""


class WireError(DeployError):
    """A message that is not what it should be; it is refused."""


def said(data: Payload) -> tuple[Any, Any, Any, Any]:
    """Return protocol, kind, order of tensors and values, as a message says them."""
    length = int.from_bytes(data[:LENGTH], "little")
    if len(data) < LENGTH or length > min(len(data) - LENGTH, MOST_HEAD):
        raise WireError("a message is cut short, or says too much of itself")
    try:
        outer = json.loads(data[LENGTH : LENGTH + length])
        if not isinstance(outer, dict) or len(outer) > MOST_TENSORS:
            raise WireError("a message holds too many tensors")
        meta = outer.get("__metadata__", {})
        found = json.loads(meta["fedbac"], parse_constant=_refuse_constant)
        return found["protocol"], found["kind"], found["order"], found["head"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError("a message has no head that can be read") from error


def kind_of(data: Payload) -> str:
    """Return what a message says that it is; ``other`` for what nobody here says, which a parent must not remember."""
    try:
        _, kind, _, _ = said(data)
    except WireError:
        return "other"
    return kind if isinstance(kind, str) and kind in KINDS else "other"


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")
