"""Pieces of messages that several of them have."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from fedbac.core import trees
from fedbac.core.links import DIRECTIONS, PURPOSES, TIERS, Direction, Ledger, Purpose, Tier
from fedbac.core.parts import Params, Parts, Scope
from fedbac.core.queries import Accuracy, Gram, Loss, Models, Query, Seconds, Slope, Split, Statistic
from fedbac.core.requests import Measured, Teachers
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import flatten, unflatten
from fedbac.deploy.wire import Message, WireError, as_array, checked_bank
from fedbac.errors import quoted

QUERIES: dict[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Loss, Accuracy, Statistic, Gram, Slope, Seconds)
}
MOST_MODELS = 1_000_000
ROUNDING = 1e-9
"""By so much a share may be more than the whole."""
LARGEST = 2**53


@dataclass(frozen=True)
class Owners:
    """Who owns which part: decides what is said and what stays."""

    scopes: Mapping[str, Scope]

    def without(self, parts: Parts, *kept: Scope) -> Parts:
        """Return the parts, but for those whose owners are of these kinds."""
        return {part: params for part, params in parts.items() if self.scopes[part] not in kept}

    def of_clusters(self, parts: Parts) -> Params:
        """Return what clusters own, or nothing; networks that teach are like it."""
        return next(iter(self.only(parts, "cluster").values()), {})

    def only(self, parts: Parts, *kept: Scope) -> Parts:
        """Return the parts whose owners are of these kinds."""
        return {part: params for part, params in parts.items() if self.scopes[part] in kept}


def are_shares(*arrays: FloatArray) -> bool:
    """Whether all numbers are from 0 to 1."""
    return all(bool(((values >= 0) & (values <= 1 + ROUNDING)).all()) for values in arrays)


def measured_in(message: Message, place: str, shape: tuple[int, int], most_G: IntArray) -> Measured:
    """Return what was measured of V models on G groups, each of at most so many examples; NaN stands for nothing."""
    loss_VG, accuracy_VG = (message.array(f"{place}{name}", np.float64, shape) for name in ("loss_VG", "accuracy_VG"))
    count_G = message.array(f"{place}count_G", np.int64, shape[1:])
    if (count_G < 0).any() or (count_G > most_G).any() or not are_shares(accuracy_VG[:, count_G > 0]):
        raise WireError(f"{message.kind}: {place}accuracy_VG or count_G holds what cannot be")
    return Measured(loss_VG, accuracy_VG, count_G)


def rows_in(rows: Mapping[str, IntArray], bank: Parts, kept: Parts) -> dict[str, IntArray]:
    """Return which networks models use, if all of them are there; those of ``kept`` follow those of the bank."""
    if not rows or any(row_V.ndim != 1 for row_V in rows.values()) or len({len(row_V) for row_V in rows.values()}) != 1:
        raise WireError("a measurement names no models, or not as many of every part")
    for part, row_V in rows.items():
        known = (trees.count(bank[part]) if part in bank else 0) + (trees.count(kept[part]) if part in kept else 0)
        good = row_V.dtype == np.int64 and 0 < row_V.size <= MOST_MODELS
        if not good or row_V.min() < 0 or row_V.max() >= known:
            raise WireError(f"a measurement points beyond the networks of part {quoted(part)}")
    return dict(rows)


def teachers_out(teachers: Teachers) -> dict[str, Any]:
    """Return what is sent of teachers."""
    bank = {f"bank/{name}": value for name, value in teachers.bank.items()}
    return bank | {"weight_CT": teachers.weight_CT, "share_C": teachers.share_C}


def teachers_in(message: Message, count: int, like: Params) -> Teachers | None:
    """Return the teachers of so many clients, if there are any; each is a network like the one given."""
    if message.head.get("temperature") is None:
        return None
    bank = checked_bank({"bank": message.under("teachers/bank")}, {"bank": like}, f"{message.kind}: teachers")["bank"]
    weight_CT = message.array("teachers/weight_CT", np.float64, (count, trees.count(bank)))
    share_C = message.array("teachers/share_C", np.float64, (count,))
    temperature = float(message.value("temperature", (float, int)))
    if not (are_shares(weight_CT, share_C) and 0 < temperature < LARGEST):
        raise WireError(f"{message.kind}: weights, shares or a temperature of teachers that cannot be")
    return Teachers(bank=bank, weight_CT=weight_CT, share_C=share_C, temperature=temperature)


def state_in(message: Message, template: Any) -> Any:
    """Return what a policy remembers; its arrays may grow, but not change their kind."""
    found, wanted = message.under("selection"), flatten(template)
    if set(found) != set(wanted):
        raise WireError(f"{message.kind}: it holds another selection policy's memory")
    for path, value in wanted.items():
        as_array(found[path], f"{message.kind}: selection/{path}")
        if found[path].dtype != value.dtype or found[path].dim() != value.dim():
            raise WireError(f"{message.kind}: selection/{path} is no memory of the selection policy")
    return unflatten(template, found)


def query_out(query: Query) -> dict[str, Any]:
    """Return a query as plain values."""
    return {"query": type(query).__name__.lower(), **asdict(query)}


def query_in(said: Any) -> Query:
    """Return the query that plain values stand for."""
    try:
        kind = QUERIES[said["query"]]
        query: Query = kind(**{name: value for name, value in said.items() if name != "query"})
        if isinstance(query, Loss | Accuracy):
            good = (
                query.of in get_args(Models) and query.on in (*get_args(Split), None) and isinstance(query.each, bool)
            )
            if not good:
                raise TypeError
    except (KeyError, TypeError) as error:
        raise WireError(f"{quoted(said)} is no query") from error
    return query


def ledger_out(ledger: Ledger) -> list[list[Any]]:
    """Return counted bytes as plain values."""
    return [[*key, count] for key, count in ledger.entries.items()]


def ledger_in(said: Any) -> Ledger:
    """Return the bytes that plain values count."""
    if not isinstance(said, list):
        raise WireError(f"traffic is {quoted(said)}; it must list bytes")
    entries: dict[tuple[Tier, Direction, Purpose], int] = {}
    for entry in said:
        good = isinstance(entry, list) and len(entry) == 4 and type(entry[3]) is int and 0 <= entry[3] <= LARGEST
        if not good or entry[0] not in TIERS or entry[1] not in DIRECTIONS or entry[2] not in PURPOSES:
            raise WireError(f"traffic holds {quoted(entry)}; it must be a tier, a direction, a purpose and bytes")
        entries[entry[0], entry[1], entry[2]] = entry[3]
    return Ledger(entries)


def names_in(message: Message, name: str, allowed: Sequence[str] | None) -> tuple[Any, ...]:
    """Return a list of names, each of which must be allowed; any where no list of them is given."""
    found = message.value(name, list)
    if not all(isinstance(one, str) and (allowed is None or one in allowed) for one in found):
        raise WireError(f"{message.kind}: {name} is {quoted(found)}, which is not allowed")
    return tuple(found)


def one_of(value: Any, allowed: Sequence[str]) -> Any:
    """Return a word that must be one of these."""
    if value not in allowed:
        raise WireError(f"{quoted(value)} is none of {', '.join(allowed)}")
    return value


def most_in(value: Any) -> int | None:
    """Return a cap on examples, or None."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST):
        raise WireError(f"max_samples is {quoted(value)}; it must be a number of examples")
    return value
