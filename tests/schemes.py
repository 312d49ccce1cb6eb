"""Schemes of several phases, of parts that clients own, of layers and of parts that networks share: what trainers must
be able to do for any."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from fedbac.core import trees
from fedbac.core.parts import Anatomy, Part, Parts, Phase, Pull, Scope
from fedbac.core.settings import Settings
from fedbac.models import Build, weights
from fedbac.personalization import Additive


class InTurns(Settings):
    """Additive, but first h is trained with f held still and then f with h held still."""

    kind: Literal["in_turns"] = "in_turns"
    parts: ClassVar[Mapping[str, Part]] = Additive.parts
    terms: ClassVar[tuple[str, ...]] = Additive.terms

    def init(self, build: Build, owners: Mapping[Scope, int]) -> Parts:
        return Additive().init(build, owners)

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(moves=("global",)),
            Phase(moves=("cluster",), pull={"cluster": Pull(0.01, clipped=False)}),
        )


class Warmed(InTurns):
    """Additive, but h is first trained alone for a while: a part that moves in two phases."""

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(moves=("global",), epochs=1),
            Phase(moves=("global", "cluster"), pull={"cluster": Pull(0.1)}),
        )


class Personal(Settings):
    """A network for all and one of every client's own, trained apart; the own is pulled to the common one."""

    kind: Literal["personal"] = "personal"
    parts: ClassVar[Mapping[str, Part]] = {"global": Part("cloud", "global"), "personal": Part("client", "personal")}
    terms: ClassVar[tuple[str, ...]] = ("personal",)
    strength: float = 0.5

    def init(self, build: Build, owners: Mapping[Scope, int]) -> Parts:
        cluster = Additive().init(build, {"cluster": owners["client"]})
        return {"global": cluster["global"], "personal": cluster["cluster"]}

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(moves=("global",), terms=("global",)),
            Phase(moves=("personal",), terms=("personal",), pull={"personal": Pull(self.strength, to="global")}),
        )


class Layered(Settings):
    """One network whose head is every client's own. Both move together, or the head first and then the body."""

    kind: Literal["layered"] = "layered"
    parts: ClassVar[Mapping[str, Part]] = {
        "body": Part("cloud", "main", slice(None, -1)),
        "head": Part("client", "main", slice(-1, None)),
    }
    terms: ClassVar[tuple[str, ...]] = ("main",)
    in_turns: bool = False

    def init(self, build: Build, owners: Mapping[Scope, int]) -> Parts:
        whole = weights(build(0))
        head = {name for name in whole if name.rpartition(".")[0] == list(whole)[-1].rpartition(".")[0]}
        own = {name: whole[name].expand(owners["client"], *whole[name].shape).clone() for name in whole if name in head}
        return {"body": {name: value[None] for name, value in whole.items() if name not in head}, "head": own}

    def phases(self) -> tuple[Phase, ...]:
        if not self.in_turns:
            return (Phase(moves=("body", "head")),)
        return Phase(moves=("head",), epochs=1, pull={"head": Pull(0.1)}), Phase(moves=("body",))


class Branched(Settings):
    """A body under two heads: that of everybody is trained with it, then every client's own beside the first.

    In turns, the body goes on to learn under the second head.
    """

    kind: Literal["branched"] = "branched"
    parts: ClassVar[Mapping[str, Part]] = {
        "body": Part("cloud", ("generic", "personal"), slice(None, -1)),
        "generic": Part("cloud", "generic", slice(-1, None)),
        "personal": Part("client", "personal", slice(-1, None)),
    }
    terms: ClassVar[tuple[str, ...]] = ("generic", "personal")
    in_turns: bool = False

    def init(self, build: Build, owners: Mapping[Scope, int]) -> Parts:
        networks = {"generic": weights(build(0)), "personal": weights(build(1))}
        one = Anatomy(self, build(0)).split(networks)
        return {name: trees.stack([one[name]] * owners[part.scope]) for name, part in self.parts.items()}

    def phases(self) -> tuple[Phase, ...]:
        first = Phase(moves=("body", "generic"), terms=("generic",))
        if not self.in_turns:
            return first, Phase(moves=("personal",), epochs=1)
        held_back = {part: Pull(0.3, to=part) for part in ("body", "personal")}
        return first, Phase(moves=("body", "personal"), terms=("personal",), pull=held_back)


class Taught(InTurns):
    """The network of all learns from teachers, that of the cluster does not; or the other way round, or both."""

    kind: Literal["taught"] = "taught"  # type: ignore[assignment]
    which: tuple[int, ...] = (0,)

    def phases(self) -> tuple[Phase, ...]:
        return tuple(replace(phase, taught=number in self.which) for number, phase in enumerate(super().phases()))
