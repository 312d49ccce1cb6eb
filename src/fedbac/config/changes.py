"""What changes while time passes: data that move from edge to edge, and clients and edges that come and go."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from fedbac.core.rng import Rng, stream
from fedbac.core.settings import MAX_CLIENTS, MAX_ROUNDS, BoolArray, IntArray, Settings

log = logging.getLogger(__name__)
Places = Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_CLIENTS)], ...], Field(min_length=1)]


class Change(Settings):
    """What changes in a round."""

    round: Annotated[int, Field(ge=2, le=MAX_ROUNDS)]
    """The first round in which it holds."""
    what: Literal["swap", "join", "leave"] = "swap"
    """Each of these edges takes over the data of the next (``swap``), or they take part only from this round on
    (``join``) or until it (``leave``)."""
    who: Literal["edges", "clients"] = "edges"
    """Edges, with all their clients, or clients."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """This share of all, drawn by the seed; 0.3 if ``which`` is not given either."""
    which: Places | None = None
    """Their numbers, instead of a share."""

    @field_validator("what", mode="before")
    @classmethod
    def _former(cls, what: object) -> object:
        if what != "exchange":
            return what
        _say_former()
        return "swap"


@cache
def _say_former() -> None:
    """Say it once: a run reads its configuration many times."""
    log.warning("task.changes: 'exchange' is now called 'swap'")


class Roster(NamedTuple):
    """Who is there in a round, and whose data of the first round each client and each edge has."""

    there_N: BoolArray
    data_N: IntArray
    test_M: IntArray


def held(changes: Sequence[Change], clients: Sequence[int], seed: int, round_: int) -> Roster:
    """Return who has what in a round, given how many clients each edge has. What is drawn concerns nobody that another
    change names, or has drawn before; to swap data, edges need equally many clients."""
    changes = sorted(changes, key=lambda change: change.round)
    edge_N = np.repeat(np.arange(len(clients)), clients)
    present_N = np.ones(edge_N.size, dtype=bool)
    data_N, test_M = np.arange(edge_N.size), np.arange(len(clients))
    free = {"edges": np.ones(len(clients), dtype=bool), "clients": np.ones(edge_N.size, dtype=bool)}
    came: set[int] = set()
    for change in changes:
        if change.which is not None:
            _mark(free, edge_N, change.who, _known(change, free))
    for place, change in enumerate(changes):
        chosen = _known(change, free)
        if change.which is None:
            chosen = _drawn(change, free[change.who], np.array(clients), stream(seed, "changes", place))
            _mark(free, edge_N, change.who, chosen)
        mine_N = np.isin(edge_N if change.who == "edges" else np.arange(edge_N.size), chosen)
        if change.what == "swap":
            _require_alike(change, chosen, clients)
            if change.round <= round_:
                own = [np.flatnonzero(edge_N == m) for m in chosen]
                data_N[np.concatenate(own)] = data_N[np.concatenate([*own[1:], own[0]])]
                test_M[chosen] = test_M[np.roll(chosen, -1)]
            continue
        first = mine_N & ~np.isin(np.arange(edge_N.size), list(came))
        came |= set(np.flatnonzero(mine_N).tolist())
        if change.round <= round_:
            present_N[mine_N] = change.what == "join"
        elif change.what == "join":
            present_N[first] = False  # who is to come, and has not been there before
    if not present_N.any():
        raise ValueError(f"changes: in round {round_} nobody is there; let somebody stay")
    return Roster(present_N, data_N, test_M)


def _known(change: Change, free: dict[str, BoolArray]) -> IntArray:
    chosen = np.array(change.which or (), dtype=np.int64)
    most = free[change.who].size
    if chosen.size and chosen.max() >= most:
        raise ValueError(
            f"changes: there is no {change.who[:-1]} {chosen.max()}; {change.who} are numbered from 0 to {most - 1}"
        )
    if np.unique(chosen).size < chosen.size:
        raise ValueError(f"changes: which = {chosen.tolist()} names one twice; name each once")
    return chosen


def _drawn(change: Change, free: BoolArray, clients_M: IntArray, rng: Rng) -> IntArray:
    fewest = 2 if change.what == "swap" else 1
    wanted = max(fewest, round((change.share or 0.3) * free.size))
    if change.what == "swap":  # among those of the most common size
        free = free & (clients_M == np.bincount(clients_M[free], minlength=1).argmax())
    among = rng.permutation(np.flatnonzero(free))
    if among.size < wanted:
        raise ValueError(
            f"changes: {wanted} {change.who} are to {change.what} from round {change.round} on, but only {among.size} "
            "can be drawn that no other change concerns; use a smaller share"
        )
    return among[:wanted]


def _mark(free: dict[str, BoolArray], edge_N: IntArray, who: str, chosen: IntArray) -> None:
    """Note that these are no longer to be drawn: neither an edge nor its clients."""
    mine_N = np.isin(edge_N if who == "edges" else np.arange(edge_N.size), chosen)
    free["clients"][mine_N] = False
    free["edges"][np.unique(edge_N[mine_N])] = False


def _require_alike(change: Change, chosen: IntArray, clients: Sequence[int]) -> None:
    if change.who == "clients":
        raise ValueError("changes: edges swap their data, with those of their clients; set who to edges")
    if chosen.size < 2:
        raise ValueError("changes: to swap data takes two edges; name another in which")
    if len({clients[m] for m in chosen}) > 1:
        raise ValueError(
            f"changes: edges {chosen.tolist()} have {[clients[m] for m in chosen]} clients; only edges with equally "
            "many can swap their data"
        )
