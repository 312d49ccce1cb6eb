"""The errors of fedbac, one tree, and words for their messages."""

import difflib
import re
from collections.abc import Iterable

LONGEST_QUOTE = 200
"""Characters of a value that a message repeats."""
MOST_NAMES = 12
"""Names that a message lists beside the one that was probably meant."""


class Error(Exception):
    """Anything that fedbac raises on purpose; its message says what is wrong and what to do."""


class ConfigError(Error, ValueError):
    """A configuration that cannot run; the message names the field, the value and what is allowed."""


class PartitionError(Error, ValueError):
    """No partition of the data meets the stated minimum sizes."""


class PolicyError(Error, ValueError):
    """A policy answered what cannot be done; the message names the policy and what is expected."""


class FederationError(Error):
    """Something outside the program went wrong."""


class DataNotFoundError(FederationError):
    """A data set is in none of the places tried."""


class DeployError(FederationError):
    """A federation on a network cannot be set up, joined or kept; the message names the file or site, and the fix."""


class EngineError(FederationError):
    """A distributed engine cannot be reached or gave up."""


class TooFewSitesError(EngineError):
    """Too few sites answered for a round to count; it is played again."""


class NotEnoughMemoryError(FederationError):
    """Not even one client can be trained in the memory there is."""


class OutputError(FederationError):
    """A file cannot be written; what was there before still is."""


class RunFolderError(FederationError):
    """A run folder that cannot be used as asked."""


class RunInUseError(RunFolderError):
    """Another process is writing to the run folder."""


class CheckpointError(RunFolderError):
    """No checkpoint in the run folder can be read."""


def visible(text: object) -> str:
    """Return text in which nothing moves a cursor, colours or hides: all but line ends is printable or an escape."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode() for sign in str(text)
    )


def quoted(value: object) -> str:
    """Return a value as a message shows it: on one line, control characters made visible, long ones cut short."""
    if isinstance(value, str | bytes):
        value, cut = value[:LONGEST_QUOTE], len(value) > LONGEST_QUOTE
        return f"{value!r}{'…' * cut}"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes; a tree deeper than its stack
        return f"this {type(value).__name__}"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def unknown(what: str, name: object, known: Iterable[str], command: str | None = None) -> str:
    """Say that a name is unknown, with the nearest one and all others; of many, with the command that lists them."""
    names = sorted(known)
    name = name if isinstance(name, str) else quoted(name)
    plain = {_plain(other): other for other in names}
    typed = _plain(name[:LONGEST_QUOTE])
    near = difflib.get_close_matches(typed, plain)
    near.sort(key=lambda other: sorted(other) != sorted(typed))  # letters that changed places are the likeliest slip
    everything = f"known: {', '.join(names)}"
    if near and len(names) > MOST_NAMES:
        everything = f"{command} lists all {len(names)}" if command else f"there are {len(names)}"
    return f"unknown {what} {quoted(name)}; {f'did you mean {plain[near[0]]!r}? ' if near else ''}{everything}"


def _plain(name: str) -> str:
    """Return a name without what people leave out or mix up in it."""
    return re.sub(r"[-_ ]", "", name.lower())
