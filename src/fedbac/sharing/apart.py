"""Clusters that share nothing but what the cloud owns; and what all policies have in common that learn nothing."""

from typing import ClassVar, Literal

from fedbac.core.policies import Exchange, NoState
from fedbac.core.queries import Evidence, Moment, Query
from fedbac.core.settings import Settings


class Unlearned(Settings):
    """A sharing policy that measures nothing and remembers nothing."""

    adaptive: ClassVar[bool] = False

    def needs(self) -> frozenset[Query]:
        """Need nothing."""
        return frozenset()

    def init(self, num_members: int) -> NoState:
        """Return the empty state."""
        return NoState()

    def ask(self, state: NoState, moment: Moment) -> tuple[Query, ...]:
        """Need nothing."""
        return ()

    def learn(self, state: NoState, evidence: Evidence) -> NoState:
        """Learn nothing."""
        return state


class Apart(Unlearned):
    """Every cluster sends its own network."""

    kind: Literal["apart"] = "apart"
    active: ClassVar[bool] = False

    def act(self, state: NoState, evidence: Evidence) -> Exchange:
        """Exchange nothing."""
        return Exchange()
