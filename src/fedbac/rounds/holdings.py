"""Whose rows of the cloud's parts a site works with."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from fedbac.core import trees
from fedbac.core.parts import Params, Part, Parts
from fedbac.core.settings import IntArray
from fedbac.rounds.orders import Site

T = TypeVar("T", int, tuple[int, ...])


class Holding(NamedTuple):
    """The rows of one part that a site holds during a round."""

    owner_R: IntArray
    """The owner of each row: its place in the cloud's stack."""
    row_N: IntArray
    """The row that each client of the site uses."""


def holdings(parts: Mapping[str, Part], site: Site, label_C: IntArray) -> dict[str, Holding]:
    """Return what a site holds of each part: a row for all its clients, for each cluster among them, or for each."""
    shared = np.zeros(len(site.clients), dtype=np.int64)
    each, together = np.arange(len(site.clients)), label_C.size > 0 and bool((label_C == label_C[0]).all())
    by_scope = {
        "cloud": Holding(np.array([0]), shared),
        "cluster": Holding(label_C[:1], shared) if together else Holding(*np.unique(label_C, return_inverse=True)),
        "edge": Holding(np.array([site.index]), shared),
        "client": Holding(np.array(site.clients), each),
    }
    return {part: by_scope[spec.scope] for part, spec in parts.items()}


def distinct(values: Iterable[T]) -> tuple[list[T], IntArray]:
    """Return the different values in order, and the place of each among them: for a few, faster than numpy.unique."""
    given = list(values)
    different = sorted(set(given))
    place = {value: number for number, value in enumerate(different)}
    return different, np.array([place[value] for value in given], dtype=np.int64)


def compact(bank: Parts, row_V: Mapping[str, IntArray]) -> tuple[Parts, dict[str, IntArray]]:
    """Return only those rows of a bank that models use, each once, and where every model finds its own."""
    kept: Parts = {}
    places: dict[str, IntArray] = {}
    for part, rows in row_V.items():
        used, places[part] = distinct(rows.tolist())
        kept[part] = trees.select(bank[part], np.array(used, dtype=np.int64))
    return kept, places


def rows_of(bank: Parts, part: str, own: Holding, known: dict[tuple[str, bytes], Params]) -> Params:
    """Return a site's rows of a part; sites with the same rows get the same object, and an engine makes use of that."""
    if (key := (part, own.owner_R.tobytes())) not in known:
        known[key] = trees.select(bank[part], own.owner_R)
    return known[key]
