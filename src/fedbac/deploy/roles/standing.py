"""What a parent thinks of its children: how much their updates usually change, and who is left out for a while."""

import json
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fedbac.core.parts import Parts
from fedbac.deploy import log
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.transports.base import NO_ANSWER, Child
from fedbac.errors import OutputError
from fedbac.files import make_folder, read_json, write_whole

ENOUGH = 3
"""Norms that must be known before one of them can be called far from the others."""
REMEMBERED = 64
"""Norms of earlier rounds that count beside those of this one."""
SMALL = 0.01
"""Of the norm of what was sent: a change that is usual is taken to be so large at least."""
ENORMOUS = 1e6
"""Times the norm of what was sent: a change that large is refused, even where nothing is known yet."""
LONGEST_REST = 32
"""Rounds."""
STANDING = "standing.json"
"""The file of a run in which a parent keeps it."""


@dataclass(frozen=True)
class Drift:
    """How far a child has moved the networks that it was sent."""

    norm: float
    sent: float
    """The norm of what it was sent."""
    unit: float = 1.0
    """What norms are compared by: the learning rate, and more where there are more examples than usual."""

    @classmethod
    def of(cls, after: Parts, before: Parts, unit: float = 1.0) -> "Drift | None":
        """Measure a change; None if it is not finite, which has consequences of its own."""
        pairs = [(after[part][name], value) for part in after for name, value in before[part].items()]
        pairs = [(one, other) for one, other in pairs if one.is_floating_point()]
        if not all(bool(torch.isfinite(one).all()) for one, _ in pairs):
            return None
        moved = [torch.linalg.vector_norm(one.double() - other, dtype=torch.float64) for one, other in pairs]
        sent = [torch.linalg.vector_norm(other, dtype=torch.float64) for _, other in pairs]
        return cls(float(np.linalg.norm(moved)), float(np.linalg.norm(sent)), unit or 1.0)


@dataclass
class Standing:
    """The standing of children, by their names. With a file it outlives the parent's process."""

    factor: float
    """As ``deploy.outlier_factor``."""
    file: Path | None = None
    round: int = 0
    """The round that was tried last."""
    edge_round: int = 0
    """How far that was when children were asked last: where there are regions, they are asked several times."""
    turn: int = 0
    """Rounds that were tried so far; one that is played again counts again, or nobody would come back."""
    strikes: dict[str, int] = field(default_factory=dict)
    back: dict[str, int] = field(default_factory=dict)
    """The last turn without a child."""
    news: dict[str, str] = field(default_factory=dict)
    """By child, why it takes no part in this round."""
    known: dict[Hashable, deque[float]] = field(default_factory=dict)
    """By what was trained, the norms of accepted changes per unit."""

    @classmethod
    def kept(cls, factor: float, file: Path) -> "Standing":
        """Return what was kept in a file, or a clean record for everybody."""
        try:
            said = read_json(file) if file.exists() else {"known": []}
            known = {tuple(of) if isinstance(of, list) else of: norms for of, norms in said.pop("known")}
            return cls(factor, file, known={of: deque(norms, REMEMBERED) for of, norms in known.items()}, **said)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read (%s); every site begins with a clean record", file, error)
            return cls(factor, file)

    def keep(self) -> None:
        """Write it to the file."""
        if self.file is None:
            return
        known = [[of, list(norms)] for of, norms in self.known.items()]
        said = {name: getattr(self, name) for name in ("round", "edge_round", "turn", "strikes", "back", "news")} | {
            "known": known
        }
        try:
            make_folder(self.file.parent)
            write_whole(self.file, json.dumps(said), mode=0o600)
        except OutputError as error:  # no reason to lose the round
            log.warning("%s; until then a restart forgets which sites misbehaved", error)

    def begin(self, round_: int, edge_round: int = 0) -> None:
        """Begin a round, or go on with it after so many averages of edges. If the cloud went back, what was learned
        since then counts no more."""
        if round_ < self.round:
            self.turn = 0
            for each in (self.strikes, self.back, self.news, self.known):
                each.clear()
        goes_on = round_ == self.round and edge_round > self.edge_round
        self.round, self.edge_round = round_, edge_round
        if goes_on:
            return
        self.turn += 1
        for name in [name for name, last in self.back.items() if last < self.turn]:
            del self.back[name]
            log.info("%s may take part again", name)
        self.news = {name: why for name, why in self.news.items() if name in self.back}

    def strike(self, name: str, failure: Failure, *numbers: int, detail: str = "") -> str:
        """Leave a child out of the next rounds, of twice as many each time; return what may be told of it."""
        self.strikes[name] = self.strikes.get(name, 0) + 1
        rest = min(2 ** (self.strikes[name] - 1), LONGEST_REST)
        self.back[name] = self.turn + rest
        error = SiteError(failure, *numbers, detail=detail)
        self.news[name] = f"{error.public}; it sits out {rest} round{'s' * (rest > 1)}"
        log.warning("%s is left out, and sits out %d round(s): %s", name, rest, error)
        self.keep()
        return self.news[name]

    def strike_late(self, reasons: dict[Child, str], names: Callable[[Child], str]) -> None:
        """Leave out those whose reason is that they were late."""
        for child, why in reasons.items():
            if NO_ANSWER in why or Failure.BUSY.value in why:
                reasons[child] = self.strike(names(child), Failure.LATE, detail=why)

    def trust(self, name: str) -> None:
        """Note that a child did well, which makes up for one time that it did not."""
        self.strikes[name] = max(self.strikes.get(name, 0) - 1, 0)

    def outliers(self, of: Hashable, changes: Mapping[str, Drift]) -> dict[str, int]:
        """Return whose changes are far from the usual, and how many times as large as is allowed; remember the others.

        Usual is the median of this round, where it is one, or of it and earlier rounds, whichever is larger.
        """
        if not self.factor:
            return {}
        before = self.known.setdefault(of, deque(maxlen=REMEMBERED))
        now = [change.norm / change.unit for change in changes.values()]
        medians = [float(np.median(values)) for values in (now, [*before, *now]) if len(values) >= ENOUGH]
        far: dict[str, int] = {}
        for name, change in changes.items():
            most = ENORMOUS * max(change.sent, 1.0)
            if medians:
                most = self.factor * max(max(medians) * change.unit, SMALL * change.sent)
            if change.norm > most:
                far[name] = int(min(np.ceil(change.norm / max(most, 1e-300)), 1e9))
            else:
                before.append(change.norm / change.unit)
        return far
