"""The first words between a child and its parent: versions that fit, and names."""

import json
import platform
from typing import Any

from fedbac.deploy.transports.base import Refusal
from fedbac.errors import quoted
from fedbac.version import __version__

SPEAKS = 2
"""The version of what is said between sites."""
MOST = 4096
"""Bytes of a first word."""


def hello(name: str) -> bytes:
    """Return what a child says first."""
    return _said({"name": name, "speaks": SPEAKS, "fedbac": __version__, "python": platform.python_version()})


def welcome(name: str) -> bytes:
    """Return what a parent answers."""
    return _said({"name": name, "speaks": SPEAKS, "fedbac": __version__})


def check_hello(name: str, data: bytes) -> None:
    """Turn a child away that speaks another version, or under another name than its certificate's."""
    said = _read(data)
    if said.get("speaks") != SPEAKS:
        raise Refusal(
            f"{name} has fedbac {quoted(said.get('fedbac'))} and this site {__version__}, which do not understand each "
            "other; install the same version"
        )
    if said.get("name") != name:
        raise Refusal(f"the certificate is of {name}, but it says that it is {quoted(said.get('name'))}")


def check_welcome(name: str, data: bytes) -> None:
    """Refuse a parent of another version."""
    check_hello(name, data)


def _said(words: dict[str, Any]) -> bytes:
    return json.dumps(words).encode()


def _read(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data) if len(data) <= MOST else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Refusal("its first words cannot be read; install the same version of fedbac at both sites")
    return said
