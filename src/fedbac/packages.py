"""Code of the user's that a configuration names, as ``package.module:name`` or ``file.py:name``.

No configuration runs code, and no message does. A name is imported only where a person has allowed its package or
file: by ``--allow``, by the variable FEDBAC_ALLOW, or by typing the name itself. Packages may also announce networks
and data sets under plain names, by entry points.
"""

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedbac.core.settings import Settings
from fedbac.errors import ConfigError, quoted
from fedbac.files import opened, read_bytes

VARIABLE = "FEDBAC_ALLOW"
"""Holds the packages and files that this process, and those that it starts, may import for a configuration."""
NETWORKS, DATASETS = "fedbac.networks", "fedbac.datasets"
"""Groups of entry points."""
NAME = r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:,=\x00-\x1f]+\.py):[A-Za-z_]\w*"
ENTRY = re.compile(r"([A-Za-z_]\w*|[^,=\x00-\x1f]+\.py)(?:=([0-9a-f]{12,64}))?")
COMPILED = {".pyc", ".pyo", ".so", ".pyd", ".dylib"}
"""Suffixes of files that differ from machine to machine."""

_imported: dict[str, str] = {}
"""By package, the hash that its files had before something of it was imported here."""
_files: dict[str, ModuleType] = {}
"""Files that were run as modules, by a name with their hash: one that changed is another."""


class PackageError(ConfigError):
    """Code that is not allowed here, not installed, or another than is meant: with its hash and the one wanted."""

    def __init__(self, message: str, *hashes: str) -> None:
        super().__init__(message)
        self.hashes = hashes


class Package(Settings):
    """Something of an installed package, or of a file, that is called to make it: a class or a function."""

    field: ClassVar[str] = ""
    kind: Literal["package"] = "package"
    name: Annotated[str, Field(pattern=f"^{NAME}$", max_length=1000)]
    """As ``package.module:name`` or ``file.py:name``."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Hash of the package's files, if they must have it; ``fedbac federation init`` fills it in."""

    @property
    def package(self) -> str:
        """The package's name, or the file's path."""
        return home_of(self.name)

    def load(self) -> Callable[..., Any]:
        """Import what is named, if it is allowed here and the package is the one that is meant."""
        package = self.package
        pins = [pin for name, pin in _allowed() if name == package]
        if not pins:
            what = "the file" if is_file(package) else "the package"
            raise PackageError(
                f"{self.field}: {self.name} is code of {what} {package}, which is not allowed here; if you trust "
                f"it, start with --allow {package}, or with the variable {VARIABLE}={package}"
            )
        here = _imported.get(package) or fingerprint(package, self.field)
        for source, wanted in ((f"{self.field}.sha256", self.sha256), *((VARIABLE, pin) for pin in pins)):
            if wanted is not None and not here.startswith(wanted):
                raise PackageError(
                    f"{source}: it wants the package {package} with the hash {wanted}, but the one here has {here}; "
                    "install the same at every site and start again, or correct the hash",
                    here, wanted,
                )  # fmt: skip
        value = imported(self.name, self.field)
        home = _from_file(package).__name__ if is_file(package) else package
        if not callable(value) or str(getattr(value, "__module__", "")).partition(".")[0] != home:
            raise PackageError(f"{self.field}: {self.name} is no class or function that {package} itself defines")
        if not is_file(package):
            _imported[package] = here
        make: Callable[..., Any] = value
        return make


def home_of(name: str) -> str:
    """Return the package or the file that holds what is named."""
    module = name.partition(":")[0]
    return module if is_file(module) else module.partition(".")[0]


def is_file(home: str) -> bool:
    """Whether code is in a file that is named by its path."""
    return home.endswith(".py")


def is_own(data: str) -> bool:
    """Whether the name of a data set is a file or a function of the user's."""
    return data.endswith(".npz") or re.fullmatch(NAME, data) is not None


def announced(group: str) -> dict[str, str]:
    """Return what installed packages announce: the names of code by their own names."""
    return {entry.name: f"{entry.module}:{entry.attr}" for entry in entry_points(group=group)}


def permit(*entries: str) -> None:
    """Let configurations name what is in these packages and files, here and in processes that are started."""
    before = os.environ.get(VARIABLE, "").split(",")
    os.environ[VARIABLE] = ",".join(dict.fromkeys(filter(None, [*before, *entries])))


def allow(*entries: str) -> dict[str, str]:
    """Let configurations name what is in these packages, ``NAME`` or ``NAME=HASH``; return the hashes of all that are.

    It holds for this process and those that it starts.
    """
    permit(*entries)
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
                f"--allow ({VARIABLE}): {quoted(entry)} is no package; give its name, as mymodels, or a file, as "
                "nets.py, perhaps with at least 12 digits of its hash, as mymodels=0123456789ab"
            )
        yield known[1], known[2]


def fingerprint(package: str, field: str = f"--allow ({VARIABLE})") -> str:
    """Return the hash of a file, or of all files of a package but compiled and hidden ones, without importing it."""
    if is_file(package):
        if not Path(package).is_file():
            raise PackageError(f"{field}: there is no file {package} in {Path.cwd()}; correct it, or start elsewhere")
        return _digest({Path(package).name: Path(package)})
    _look_here()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None else spec.origin
    roots = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()][::-1]
    # Of two files of the same name in parts of a package, Python imports the one in the first part, which comes last.
    files = {path.relative_to(root).as_posix(): path for root in roots for path in root.rglob("*")}
    if not roots and origin is not None and Path(origin).is_file():
        files = {Path(origin).name: Path(origin)}
    if not any(path.is_file() for path in files.values()):
        raise PackageError(f"{field}: there is no package {package} here; install it")
    return _digest(files)


def _digest(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        if any(part.startswith(".") or part == "__pycache__" for part in Path(name).parts):
            continue
        if path.is_dir() and path.is_symlink():  # Python would import what is in it, and the hash would not tell
            raise PackageError(f"--allow ({VARIABLE}): {path} is a link; put the folder itself into the package")
        if path.is_file() and path.suffix not in COMPILED:
            with opened(path) as file:
                digest.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def imported(name: str, field: str) -> Any:
    """Import what a person named as ``package.module:name`` or ``file.py:name``; messages begin with ``field``."""
    module, _, attribute = name.partition(":")
    if is_file(module):
        fingerprint(module, field)
    elif module not in sys.modules:
        _look_here()
    try:
        return getattr(_from_file(module) if is_file(module) else importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        why = (
            f"{module} has no {attribute}" if isinstance(error, AttributeError) else f"{type(error).__name__}: {error}"
        )
        raise PackageError(
            f"{field}: {name} is not there ({why}); name it as package.module:name or file.py:name"
        ) from error


def _from_file(file: str) -> ModuleType:
    """Run a file as a module, once for as long as it stays the same; it may import its neighbours, as a script may.

    It is registered nowhere, so that what it defines travels to worker processes with its code.
    """
    path = Path(file).resolve()
    address = hashlib.sha256(f"{path}{fingerprint(file)}".encode()).hexdigest()[:12]
    name = re.sub(r"\W", "_", f"{path.stem}_{address}")
    if name not in _files:
        module = ModuleType(name)
        module.__file__ = str(path)
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        sys.modules[name] = module  # which dataclasses look for
        try:
            exec(compile(read_bytes(path), str(path), "exec"), vars(module))
        finally:
            del sys.modules[name]
        _files[name] = module
    return _files[name]


def _look_here() -> None:
    """Find modules in the working folder too, as for a script, but after those that are installed."""
    importlib.invalidate_caches()
    if "" not in sys.path:
        sys.path.append("")
