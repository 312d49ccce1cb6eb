"""Links between tiers: the only way from one to another, and the only place that counts bytes.

Tiers, each named by one of its ends: ``client`` (between clients and their edge) and ``cloud`` (between the cloud and
the tier below it: edges, unless a task has tiers between them: ``region`` is then between edges and regions, and
``country`` between regions and countries). Purposes: ``train``
(networks for training and their updates), ``evaluate`` (networks sent only to be measured), ``control`` (numbers).
What stays where it is, such as the state of a selection policy at its edge or a client's own parts, passes no link.
A network is counted each time that it is sent for another purpose: to be measured, and then to be trained.
Measuring the reported accuracy is not counted: it is the experimenter's instrument, not part of a method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from fedbac.core import trees
from fedbac.core.codecs import Broadcast, Chain, Chains, Changes, Passed, Senders, cost, nothing_left, passed
from fedbac.core.parts import Parts, Personalization, Scope, moved_parts, moving_parts
from fedbac.core.queries import Moment
from fedbac.core.schema import Some

Inner = Literal["region", "country"]
Tier = Literal["client", "cloud"] | Inner
Direction = Literal["down", "up"]
Purpose = Literal["train", "evaluate", "control"]
BYTES_PER_NUMBER = 4
TIERS: tuple[Tier, ...] = ("client", "region", "country", "cloud")
INNER: tuple[Inner, ...] = ("region", "country")
"""Those of nodes between edges and the cloud, from below: there may be none, or the first alone."""
OUTER: tuple[Tier, ...] = ("client", "cloud")
"""Those that are always there."""
DIRECTIONS: tuple[Direction, ...] = ("down", "up")
PURPOSES: tuple[Purpose, ...] = ("train", "evaluate", "control")
PASSES: Mapping[Tier, frozenset[Scope]] = {
    "client": frozenset({"cloud", "cluster", "country", "region", "edge"}),
    "region": frozenset({"cloud", "cluster", "country", "region"}),
    "country": frozenset({"cloud", "cluster", "country"}),
    "cloud": frozenset({"cloud", "cluster"}),
}
"""The owners whose parts pass a link: those that are not on its near side."""


@dataclass
class Ledger:
    """Bytes per (tier, direction, purpose)."""

    entries: Some[dict[tuple[Tier, Direction, Purpose], int]] = field(default_factory=dict)

    def add(self, tier: Tier, direction: Direction, purpose: Purpose, num_bytes: int) -> None:
        """Count bytes."""
        key = (tier, direction, purpose)
        self.entries[key] = self.entries.get(key, 0) + num_bytes

    def merge(self, other: "Ledger") -> None:
        """Count everything another ledger counted."""
        for key, num_bytes in other.entries.items():
            self.entries[key] = self.entries.get(key, 0) + num_bytes

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.entries.values())

    def nested(self, tiers: Sequence[Tier] = OUTER) -> dict[str, dict[str, dict[str, int]]]:
        """Return all entries of these tiers, zeros included, as tier → direction → purpose → bytes."""
        return {
            tier: {
                direction: {purpose: self.entries.get((tier, direction, purpose), 0) for purpose in PURPOSES}
                for direction in DIRECTIONS
            }
            for tier in tiers
        }


class Link:
    """One tier's link. Networks and numbers go through it and are counted on the way."""

    def __init__(
        self,
        tier: Tier,
        scheme: Personalization,
        moment: Moment | None = None,
        chains: Chains | None = None,
        seed: int = 0,
    ) -> None:
        self.tier, self.chains, self.seed = tier, chains or {}, seed
        self.traffic = Ledger()
        self._scheme, self._moment = scheme, moment
        self._row_bytes: dict[tuple[str, Direction, Purpose], int] = {}
        """What a network of each part costs, which is asked often and is always the same."""

    @cached_property
    def passing(self) -> Mapping[Direction, frozenset[str]]:
        """The parts that pass, by direction."""
        scheme, moment = self._scheme, self._moment
        # What has never moved is made by everybody from the seed; what does not move now need not come back.
        moving = moving_parts(scheme, moment)
        moved = moving if moment is None else moved_parts(scheme, moment)
        passing = frozenset(part for part, spec in scheme.parts.items() if spec.scope in PASSES[self.tier])
        twins = {part for part in passing if scheme.parts[part].returns_as in passing}
        return {"down": passing & moved, "up": (passing & moving) - twins}

    def chain(self, direction: Direction) -> Chain:
        """Return the transforms of a direction."""
        return self.chains.get(f"{self.tier}_{direction}", Chain())

    def again(self) -> "Link":
        """Return a link like this one that has counted nothing; what passes it and what that costs is known already."""
        link = Link(self.tier, self._scheme, self._moment, self.chains, self.seed)
        link.passing, link._row_bytes = self.passing, self._row_bytes
        return link

    def send(
        self, direction: Direction, purpose: Purpose, bank: Parts, receivers: int = 1, one_row: bool = False
    ) -> Parts:
        """Send every row of a bank, or of each part the one that a client uses; return what arrives. Each of so many
        receivers gets it. Parts whose owner is on the near side stay there and cost nothing."""
        each = self.num_bytes(direction, bank, one_row, purpose) if receivers else 0
        self.traffic.add(self.tier, direction, purpose, receivers * each)
        return bank

    def broadcast(
        self, bank: Parts, had: Parts, sender: int, edge_round: int = 0, receivers: int = 1, one_row: bool = False
    ) -> tuple[Parts, Parts, Broadcast | None]:
        """Send a bank for training as the difference to what the receivers have; return what they have then. Once as
        what arrives, once as what they ``had`` for the next time: the same, for the parts that pass. Also return how it
        is sent, if the link compresses."""
        self.send("down", "train", bank, receivers, one_row)
        if not self.chain("down"):
            return bank, had, None
        passed_on = self._pass("down", bank, had, nothing_left(had), (sender,), edge_round)
        arrived = bank | passed_on.arrived
        return arrived, {part: arrived[part] for part in had}, Broadcast(had, passed_on.sent)

    def upload(
        self, bank: Parts, start: Parts, left: Parts, senders: Sequence[int], edge_round: int = 0
    ) -> tuple[Parts, Parts, Changes]:
        """Make of a bank what arrives of it: the change from where it started, and of what was left. It is all of one
        sender, or a row of each. Return what arrives, what is left now, and how it is sent if the link compresses. Who
        receives it counts the bytes."""
        if not self.chain("up"):
            return bank, left, {}
        passed_on = self._pass("up", bank, start, left, senders, edge_round)
        return bank | passed_on.arrived, left | passed_on.left, passed_on.sent

    def _pass(
        self, direction: Direction, bank: Parts, start: Parts, left: Parts, senders: Sequence[int], edge_round: int
    ) -> Passed:
        round_ = 0 if self._moment is None else self._moment.round
        who = Senders(self.seed, f"{self.tier}_{direction}", round_, edge_round, senders)
        passing = {part: stack for part, stack in bank.items() if part in self.passing[direction]}
        return passed(self.chain(direction), passing, start, left, who)

    @cached_property
    def twins(self) -> Mapping[str, str]:
        """The parts that come back as another one, and as which."""
        back = {part: self._scheme.parts[part].returns_as for part in self.passing["down"]}
        return {part: one for part, one in back.items() if one is not None and one in self.passing["up"]}

    def with_twins(self, parts_C: Parts) -> Parts:
        """Return what arrives of clients, also where one of their parts stood for two."""
        return parts_C | {part: parts_C[one] for part, one in self.twins.items()}

    def num_bytes(self, direction: Direction, bank: Parts, one_row: bool = False, purpose: Purpose = "train") -> int:
        """Return what it costs to send a bank once, or of each part the row that a client uses."""
        total = 0
        for part in self.passing[direction]:
            if part in bank:
                if (key := (part, direction, purpose)) not in self._row_bytes:
                    codec = self.chain(direction).codec if purpose == "train" else None
                    self._row_bytes[key] = cost(codec, bank[part])
                total += self._row_bytes[key] * (1 if one_row else trees.count(bank[part]))
        return total

    def tell(self, direction: Direction, numbers: int, receivers: int = 1) -> None:
        """Send so many plain numbers."""
        self.traffic.add(self.tier, direction, "control", receivers * numbers * BYTES_PER_NUMBER)
