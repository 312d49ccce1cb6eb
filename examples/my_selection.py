"""A selection policy of your own, in twenty lines: the clients with the most data, with a little chance mixed in.

python examples/my_selection.py
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

import fedbac
from fedbac import Ask, Evidence, NoState, Settings
from fedbac.contracts import check
from fedbac.core.bandits import budget, top
from fedbac.core.queries import Query
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray


class LargestFirst(Settings):
    """Take the clients with the most examples; ``noise`` above 0 lets others in now and then."""

    kind: Literal["largest_first"] = "largest_first"
    adaptive: ClassVar[bool] = False
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    noise: NonNegativeFloat = 0.1

    def needs(self) -> frozenset[Query]:
        """Need nothing measured, ever: the sizes of clients are always told."""
        return frozenset()

    def init(self, num_members: int) -> NoState:
        """Return the empty state: this policy learns nothing."""
        return NoState()

    def ask(self, state: NoState, evidence: Evidence, rng: Rng) -> Ask:
        """Need nothing measured in this round."""
        return Ask()

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        """Rank clients by their share of the edge's data plus noise."""
        size_N = evidence.size_N
        score_N = size_N / size_N.sum() + self.noise * rng.random(size_N.size)
        return top(score_N, budget(self.fraction, size_N.size), size_N > 0, rng)

    def learn(self, state: NoState, evidence: Evidence, mask_N: BoolArray) -> NoState:
        """Learn nothing."""
        return state


if __name__ == "__main__":
    check(LargestFirst())  # that it keeps all promises of a selection policy: before any training, in a second
    fedbac.SELECTION.register(LargestFirst)  # so that a saved configuration that names it can be read again
    task = fedbac.task("demo")
    method = fedbac.method("fed-bac", task).model_copy(update={"name": "largest-first", "selection": LargestFirst()})
    run = fedbac.run(method, task, rounds=3)
    for record in run.records:
        print(f"round {record['round']}: accuracy {record['accuracy']:.3f}, edge 0 trained {record['selected'][0]}")
