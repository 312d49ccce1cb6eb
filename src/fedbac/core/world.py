"""Devices and links of clients: how fast they are, who takes part in a round to its end, and how long it takes."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedbac.core.liars import Liars
from fedbac.core.rng import Rng, stream
from fedbac.core.settings import BoolArray, FloatArray, IntArray, NonNegative, Positive, Settings

BITS = 8
MEGA = 1e6
Share = Annotated[float, Field(ge=0, le=1)]


class Profile(NamedTuple):
    """What is known of the clients of a site and their links."""

    speed_N: FloatArray
    """Examples that go forward and backward in a second."""
    down_N: FloatArray
    """Megabits in a second, from the edge to the client."""
    up_N: FloatArray
    """Megabits in a second, from the client to the edge."""

    def seconds(self, examples_N: FloatArray, down_bytes: float, up_bytes: float) -> FloatArray:
        """Return how long each client takes to receive a model, train on so many examples, and send its update."""
        receiving_N = down_bytes * BITS / (MEGA * self.down_N)
        sending_N = up_bytes * BITS / (MEGA * self.up_N)
        return receiving_N + examples_N / self.speed_N + sending_N


class World(Settings):
    """Clients as devices. A client's speed and bandwidths, drawn once by the seed, are the median times e^(spread · z)
    with a standard normal z."""

    examples_per_second: Positive = 1000.0
    """Median speed of training."""
    speed_spread: NonNegative = 0.5
    """0: all equal; 0.5: the fastest of ten is about five times as fast as the slowest."""
    megabits_down: Positive = 20.0
    """Median bandwidth from edge to client."""
    megabits_up: Positive = 5.0
    """Median bandwidth from client to edge."""
    bandwidth_spread: NonNegative = 0.5
    """Of both bandwidths."""
    megabits_cloud: Positive = 1000.0
    """Bandwidth between edge and cloud."""
    stragglers: Share = 0.0
    """Chance of a client to be a straggler, for the whole run."""
    slowdown: Annotated[float, Field(ge=1, le=1_000_000)] = 10.0
    """How many times as long a straggler trains."""
    availability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Chance that a client is there in a round; at least one is."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the selected clients that drop out while they train; one stays."""
    deadline: Positive | None = None
    """Seconds an edge waits for updates; the fastest counts."""
    over_selection: Annotated[float, Field(ge=1, le=1_000_000)] = 1.0
    """Select this many times as many clients, the spare ones at random; the first to finish count."""
    liars: Liars | None = None
    """Clients or edges that lie on purpose."""

    def profile(self, seed: int, clients: tuple[int, ...]) -> Profile:
        """Return the devices and links of these clients."""
        return _profile(self, seed, clients)

    def available(self, seed: int, clients: tuple[int, ...], size_N: IntArray, *address: int) -> BoolArray:
        """Return who is there at a moment, among those with data; never nobody."""
        if self.availability == 1:
            return size_N > 0
        chance_N = stream(seed, "availability", *address).random(len(clients))
        there_N: BoolArray = (size_N > 0) & (chance_N <= self.availability)
        if not there_N.any() and size_N.any():
            there_N[np.where(size_N > 0, chance_N, np.inf).argmin()] = True
        return there_N


EQUAL = World(speed_spread=0.0, bandwidth_spread=0.0)
"""What policies are told of devices where a task says nothing of them: all are the same."""


@lru_cache(maxsize=4096)
def _profile(world: World, seed: int, clients: tuple[int, ...]) -> Profile:
    if world.speed_spread == world.bandwidth_spread == 0:  # nothing need be drawn, of however many clients
        z_N3 = np.zeros((len(clients), 3))
    else:
        z_N3 = np.array([stream(seed, "device", client).normal(size=3) for client in clients])
    speed_N = world.examples_per_second * np.exp(world.speed_spread * z_N3[:, 0])
    if world.stragglers > 0:
        chance_N = np.array([stream(seed, "straggler", client).random() for client in clients])
        speed_N = np.where(chance_N < world.stragglers, speed_N / world.slowdown, speed_N)
    return Profile(
        speed_N,
        world.megabits_down * np.exp(world.bandwidth_spread * z_N3[:, 1]),
        world.megabits_up * np.exp(world.bandwidth_spread * z_N3[:, 2]),
    )


@dataclass(frozen=True)
class Participants:
    """The clients of one round at a site, as places."""

    present: IntArray
    """Those whose update counts."""
    dropped: IntArray
    late: IntArray
    seconds: float
    """How long the site waits."""

    @cached_property
    def started(self) -> IntArray:
        """All that were given the model."""
        return np.sort(np.concatenate([self.present, self.dropped, self.late]))


def everybody(mask_N: BoolArray, seconds_N: FloatArray) -> Participants:
    """Return that all selected clients come home."""
    nobody = np.zeros(0, dtype=np.int64)
    return Participants(np.flatnonzero(mask_N), nobody, nobody, float(seconds_N[mask_N].max()))


def extended(world: World, mask_N: BoolArray, able_N: BoolArray, rng: Rng) -> BoolArray:
    """Return a selection with as many more clients, drawn at random, as over-selection asks for."""
    wanted = int(np.ceil(world.over_selection * mask_N.sum())) - int(mask_N.sum())
    spare = np.flatnonzero(able_N & ~mask_N)
    more_N = mask_N.copy()
    more_N[rng.permutation(spare)[:wanted]] = True
    return more_N


def on_time(world: World, chosen: IntArray, wanted: int, seconds_N: FloatArray, rng: Rng) -> Participants:
    """Return who of the chosen clients is home in time, ``wanted`` of them at most: the first to finish. Somebody
    always is: where all would drop out or be late, one stays, or the fastest is waited for."""
    order = rng.permutation(chosen)
    num_dropped = min(round(world.dropout * chosen.size), chosen.size - 1)
    dropped, left = order[:num_dropped], order[num_dropped:]
    left = left[np.argsort(seconds_N[left], kind="stable")]
    in_time = left if world.deadline is None else left[seconds_N[left] <= world.deadline]
    present = (in_time if in_time.size else left[:1])[:wanted]
    late = np.setdiff1d(left, present)
    waited = float(seconds_N[present].max())
    # An edge knows that it needs no more only when it has enough; else it waits for those who do not come.
    if world.deadline is not None and present.size < wanted:
        waited = max(waited, world.deadline)
    return Participants(np.sort(present), np.sort(dropped), late, waited)
