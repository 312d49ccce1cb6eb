"""The first words between a child and its parent: versions that fit, and names."""

import json
import platform
from functools import cache
from importlib import metadata

from fedbac.deploy import log
from fedbac.deploy.transports.base import Refusal
from fedbac.errors import quoted
from fedbac.version import __version__

SPEAKS = 3
"""The version of what is said between sites."""
MOST = 4096
"""Bytes of a first word."""


@cache
def versions() -> dict[str, str]:
    """Return what this site runs; torch is not imported for that."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:  # as where somebody built it under another name
        torch = "unknown"
    return {"protocol": str(SPEAKS), "fedbac": __version__, "torch": torch, "Python": platform.python_version()}


def hello(name: str) -> bytes:
    """Return what a site says first, be it a child or its parent."""
    return json.dumps({"name": name, "speaks": SPEAKS, "versions": versions()}).encode()


def check_hello(name: str, data: bytes) -> None:
    """Turn a site away whose versions do not fit, or under another name than its certificate's.

    Another protocol is not understood; another fedbac, and another release of torch, may compute other numbers. All
    other differences are logged. Both ends compare, so both say it.
    """
    try:
        said = json.loads(data) if len(data) <= MOST else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Refusal("its first words cannot be read; install the same version of fedbac at both sites", "version")
    told = said.get("versions")
    theirs = {**dict.fromkeys(versions()), **(told if isinstance(told, dict) else {"fedbac": said.get("fedbac")})}
    other = [what for what, ours in versions().items() if theirs[what] != ours]
    if other:
        their, our = (", ".join(f"{what} {_plain(of[what])}" for what in other) for of in (theirs, versions()))
        if any(_part(what, theirs[what]) != _part(what, versions()[what]) for what in other):
            raise Refusal(f"{name} has {their}; its peer has {our}; install the same versions at both", "version")
        log.warning("%s has %s; this site has %s", name, their, our)
    if said.get("name") != name:
        raise Refusal(f"the certificate is of {name}, but it says that it is {quoted(said.get('name'))}", "name")


def _part(what: str, version: object) -> object:
    """Return what of a version must be the same at all sites."""
    return {"torch": str(version).split(".")[:2], "Python": None}.get(what, version)


def _plain(version: object) -> str:
    plain = isinstance(version, str) and version.isascii() and version.isprintable() and len(version) < 40
    return str(version) if plain else quoted(version)
