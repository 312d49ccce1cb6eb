"""Finding, reading and downloading the data sets that fedbac knows by name."""

import os
import tarfile
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from fedbac.data.catalog import MINI, SOURCES, Download, Layout, Source
from fedbac.data.datasets import Dataset
from fedbac.data.readers import reading
from fedbac.errors import ConfigError, DataNotFoundError, OutputError, unknown
from fedbac.files import make_folder, write_whole

Folder = str | os.PathLike[str]


class Available(NamedTuple):
    """A known data set and the folder it was found in, if any."""

    name: str
    where: Path | None
    description: str
    licence: str


def load(name: str, folder: Folder | None = None) -> Dataset:
    """Read a data set from the first place that has it.

    The places are ``folder``, the folder named by ``FEDBAC_DATA``, the download cache, and for Fashion-MNIST the
    folder of Debian's package. Each may hold an ``.npz`` file or torchvision's layout. ``fashion-mnist-mini`` is part
    of the package.
    """
    source = _source(name)
    _refuse_absent(folder)
    place = _found(name, folder)
    layout = _layout_in(source, place)
    if place is None or layout is None:
        raise _not_found(name, folder)
    paths = [place / file for file in layout.files]
    arrays = layout.read(paths)
    with reading(paths[0]):
        return Dataset.from_arrays(name, *arrays, num_classes=source.num_classes)


def check(names: Iterable[str], folder: Folder | None = None) -> None:
    """Refuse data sets that ``load`` would not find, all of them in one message."""
    _refuse_absent(folder)
    missing = [name for name in names if _found(name, folder) is None]
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
    if name == MINI:
        return _embedded()
    target = Path(folder) if folder is not None else _cache()
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
    return [Available(name, _found(name, folder), s.description, s.licence) for name, s in SOURCES.items()]


def _found(name: str, folder: Folder | None) -> Path | None:
    source = _source(name)
    if name == MINI:
        return _embedded()
    return next((place for _, place in _places(source, folder) if _layout_in(source, place)), None)


def _not_found(name: str, folder: Folder | None) -> DataNotFoundError:
    source = SOURCES[name]
    tried = [f"  {label}: {_what_is_missing(source, place)}" for label, place in _places(source, folder)]
    ways = f"To get it, run `fedbac data get {name}`, or {_by_hand(source)}."
    return DataNotFoundError("\n".join([f"data set {name!r} is in none of the places tried:", *tried, ways]))


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ConfigError(unknown("data set", name, SOURCES))
    return SOURCES[name]


def _embedded() -> Path:
    return Path(str(resources.files("fedbac.data").joinpath("embedded")))


def _cache() -> Path:
    import pooch  # slow to import, and needed only to find or fill the cache

    return Path(os.environ.get("FEDBAC_CACHE") or pooch.os_cache("fedbac"))


def _refuse_absent(folder: Folder | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"--data {folder} (data_folder= in Python): there is no such folder; name one that is there")


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


def _unpack(archive: Path, target: Path, members: tuple[str, ...]) -> None:
    """Write the named members of an archive below a folder, each one moved into place when it is complete."""
    with tarfile.open(archive) as tar:
        for member in members:
            content = tar.extractfile(member)
            if content is None:
                raise ValueError(f"{archive} holds no file {member}")
            make_folder((target / member).parent)
            write_whole(target / member, content.read())
