"""The protocols of policies: state goes in, a new one comes out."""

from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from fedbac.core.queries import Ask, Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, IntArray

PolicyState = NamedTuple
"""A named tuple of numpy arrays: explicit, so that it can be saved, replayed and compared."""


class NoState(NamedTuple):
    """The state of a policy that remembers nothing."""


@runtime_checkable
class ClusterPolicy(Protocol):
    """Assigns every member (edge) a cluster. State goes in, a new one comes out."""

    adaptive: ClassVar[bool]

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    def clusters(self, num_members: int) -> int:
        """Return the number of cluster models for this many members."""

    def start(self, num_members: int, rng: Rng) -> IntArray:
        """Return the labels before anything is known."""

    def init(self, num_members: int) -> Any:
        """Return the state before the first round."""

    def ask(self, state: Any, round_: int) -> Ask | None:
        """Say what must be measured after this round, or None when assignments are not due."""

    def learn(self, state: Any, evidence: Evidence) -> Any:
        """Return the state after seeing how the current labels did."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> tuple[Any, IntArray]:
        """Return the state and the new labels; members whose turn it is not keep theirs."""


@runtime_checkable
class SelectionPolicy(Protocol):
    """Picks the clients of one edge that train this round."""

    adaptive: ClassVar[bool]

    @property
    def kind(self) -> str:
        """The name by which configurations choose it."""

    @property
    def fraction(self) -> float:
        """p, the share of the members to select."""

    def init(self, num_members: int) -> Any:
        """Return the state before the first round."""

    def ask(self, state: Any, round_: int) -> Ask:
        """Say what must be measured in this round."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> BoolArray:
        """Return the mask of selected members."""

    def learn(self, state: Any, evidence: Evidence, mask_N: BoolArray) -> Any:
        """Return the state after seeing what the selected members achieved."""


@runtime_checkable
class Trusting(Protocol):
    """A selection policy that can say whose data to believe."""

    def trusted(self, state: Any) -> BoolArray:
        """Return the mask of members that nothing speaks against."""
