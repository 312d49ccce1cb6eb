"""Code of the user's that a configuration names, as ``package.module:name``.

No file runs code, and no message does. A name is imported only where a person has allowed its package: by ``--allow``,
by the variable FEDBAC_ALLOW, or by typing the name itself.
"""

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedbac.core.settings import Settings
from fedbac.errors import ConfigError, quoted
from fedbac.files import opened

VARIABLE = "FEDBAC_ALLOW"
"""Holds the packages that this process, and those that it starts, may import for a configuration."""
ENTRY = re.compile(r"([A-Za-z_]\w*)(?:=([0-9a-f]{12,64}))?")
COMPILED = {".pyc", ".pyo", ".so", ".pyd", ".dylib"}
"""Suffixes of files that differ from machine to machine."""

_imported: dict[str, str] = {}
"""By package, the hash that its files had before something of it was imported here."""


class PackageError(ConfigError):
    """A package that is not allowed here, not installed, or another one: with its hash and the one that is wanted."""

    def __init__(self, message: str, *hashes: str) -> None:
        super().__init__(message)
        self.hashes = hashes


class Package(Settings):
    """Something of an installed package that is made by calling it without arguments: a class or a function."""

    field: ClassVar[str] = ""
    kind: Literal["package"] = "package"
    name: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=200)]
    """As ``package.module:name``."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Hash of the package's files, if they must have it; ``fedbac federation init`` fills it in."""

    @property
    def package(self) -> str:
        """The package's name."""
        return re.split("[.:]", self.name)[0]

    def load(self) -> Any:
        """Import what is named, if it is allowed here and the package is the one that is meant."""
        package = self.package
        pins = [pin for name, pin in _allowed() if name == package]
        if not pins:
            raise PackageError(
                f"{self.field}: {self.name} is code of the package {package}, which is not allowed here; if you trust "
                f"it, start with --allow {package}, or with the variable {VARIABLE}={package}"
            )
        here = _imported.get(package) or fingerprint(package)
        for source, wanted in ((f"{self.field}.sha256", self.sha256), *((VARIABLE, pin) for pin in pins)):
            if wanted is not None and not here.startswith(wanted):
                raise PackageError(
                    f"{source}: it wants the package {package} with the hash {wanted}, but the one here has {here}; "
                    "install the same at every site and start again, or correct the hash",
                    here, wanted,
                )  # fmt: skip
        value = imported(self.name, self.field)
        if not callable(value) or str(getattr(value, "__module__", "")).partition(".")[0] != package:
            raise PackageError(f"{self.field}: {self.name} is no class or function that {package} itself defines")
        _imported[package] = here
        return value


def allow(*entries: str) -> dict[str, str]:
    """Let configurations name what is in these packages, ``NAME`` or ``NAME=HASH``; return the hashes of all that are.

    It holds for this process and those that it starts.
    """
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*filter(None, [os.environ.get(VARIABLE)]), *entries]))
    found = {name: fingerprint(name) for name, _ in _allowed()}
    for name, wanted in _allowed():
        if wanted is not None and not found[name].startswith(wanted):
            raise PackageError(f"--allow: {name} has the hash {found[name]} here, not {wanted}; look at what changed")
    return found


def _allowed() -> Iterator[tuple[str, str | None]]:
    for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
        known = ENTRY.fullmatch(entry)
        if known is None:
            raise ConfigError(
                f"--allow ({VARIABLE}): {quoted(entry)} is no package; give its name, as mymodels, or with at least 12 "
                "digits of its hash, as mymodels=0123456789ab"
            )
        yield known[1], known[2]


def fingerprint(package: str) -> str:
    """Return the hash of all files of a package but compiled and hidden ones, without importing it."""
    _look_here()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None else spec.origin
    roots = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()][::-1]
    # Of two files of the same name in parts of a package, Python imports the one in the first part, which comes last.
    files = {path.relative_to(root).as_posix(): path for root in roots for path in root.rglob("*") if path.is_file()}
    if not roots and origin is not None and Path(origin).is_file():
        files = {Path(origin).name: Path(origin)}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in Path(name).parts)
        if not hidden and path.suffix not in COMPILED:
            with opened(path) as file:
                digest.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    if not files:
        raise PackageError(f"--allow ({VARIABLE}): there is no package {package} here; install it")
    return digest.hexdigest()


def imported(name: str, field: str) -> Any:
    """Import what a person named as ``package.module:name``; messages begin with ``field``."""
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        _look_here()
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        raise PackageError(
            f"{field}: {name} is not there ({type(error).__name__}: {error}); name it as package.module:name"
        ) from error


def _look_here() -> None:
    """Find modules in the working folder too, as for a script, but after those that are installed."""
    importlib.invalidate_caches()
    if "" not in sys.path:
        sys.path.append("")
