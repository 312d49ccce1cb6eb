"""Tiers between the edges and the cloud: how many nodes each has, and what its nodes do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedbac.config.columns import AGGREGATION, CLOCK, SELECTION, STEP
from fedbac.core.links import INNER, Inner
from fedbac.core.policies import Aggregation, Clock, SelectionPolicy, Step
from fedbac.core.settings import Edges, Epochs, IntArray, Settings

Sizes = Edges | Annotated[tuple[Edges, ...], Field(min_length=1)]
"""How many nodes a tier has, or how many children each of them has."""
Tiers = Annotated[tuple[Sizes, ...], Field(max_length=len(INNER))]


class InnerTier(Settings, defer_build=True):
    """What every node of a tier between the edges and the cloud does with its children."""

    rounds: Epochs = 1
    """Averages of a node for each round of the tier above."""
    selection: Annotated[SelectionPolicy, SELECTION] = Field(default_factory=SELECTION.default)
    """The children that work in each of its rounds: all, by default. It may learn from the losses of training."""
    aggregation: Annotated[Aggregation, AGGREGATION] = Field(default_factory=AGGREGATION.default)
    """How it combines its children."""
    step: Annotated[Step, STEP] = Field(default_factory=STEP.default)
    """What it does with the combination, in each of its rounds."""
    clock: Annotated[Clock, CLOCK] = Field(default_factory=CLOCK.default)
    """When it ends a round."""


@dataclass(frozen=True, eq=False)
class Height:
    """A tier between the edges and the cloud."""

    name: Inner
    parent_C: IntArray
    """The node of each of its children, which are the nodes of the tier below."""
    does: InnerTier

    @property
    def num_nodes(self) -> int:
        """How many nodes it has."""
        return int(self.parent_C[-1]) + 1


def parents(tiers: Sequence[int | tuple[int, ...]], num_edges: int) -> list[IntArray]:
    """Return for each tier, from below, the node to which every child belongs; neighbours belong together."""
    found, num_children = [], num_edges
    for place, nodes in enumerate(tiers):
        below = (f"{INNER[place - 1]} nodes" if place else "edges") if num_children > 1 else "edge"
        if isinstance(nodes, int):
            if nodes > num_children:
                raise ValueError(
                    f"tiers: {nodes} {INNER[place]} nodes for {num_children} {below}; each needs one at least: use "
                    f"at most {num_children}"
                )
            nodes = tuple(len(children) for children in np.array_split(np.arange(num_children), nodes))
        if sum(nodes) != num_children:
            raise ValueError(
                f"tiers: the {INNER[place]} nodes have {sum(nodes)} children in all, but there are {num_children} "
                f"{below}; make them equal, or give the number of nodes"
            )
        found.append(np.repeat(np.arange(len(nodes)), nodes))
        num_children = len(nodes)
    return found
