"""The order of the next round's visits, drawn while the device is busy with this one."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbac.core.requests import Train
from fedbac.local.examples import Examples

FEW = 4
"""Times the clients of this round up to which all clients are drawn for, as nobody knows yet who will train next."""


class Foresight:
    """What is drawn depends on its address alone: foreseen or not, the same order comes out."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self.drawn: dict[tuple[int, int, int, int], NDArray[np.int32]] = {}
        self.moment: tuple[int, int] | None = None
        """The round and edge round that was drawn for."""
        self.last_edge_round = 0
        """Of those seen so far."""

    def visits(self, client: int, round_: int, edge_round: int, epochs: int) -> NDArray[np.int32]:
        """Return the examples of a client in order of visit, as ``Examples`` draws them, as 32-bit numbers."""
        found = self.drawn.get((client, round_, edge_round, epochs))
        return self._draw(client, round_, edge_round, epochs) if found is None else found

    def look_ahead(self, requests: Sequence[Train], epochs: Collection[int]) -> None:
        """Draw for the moment that probably follows; to be called when the device has all its work."""
        round_, edge_round = requests[0].round, requests[0].edge_round
        self.last_edge_round = max(self.last_edge_round, edge_round)
        moment = (round_ + 1, 0) if edge_round == self.last_edge_round else (round_, edge_round + 1)
        if moment == self.moment:  # another chunk of the same clients
            return
        self.moment, self.drawn = moment, {}
        num_clients = len(self.examples.shards.train)
        if num_clients <= FEW * sum(len(request.clients) for request in requests):
            for client in range(num_clients):
                for count in epochs:
                    self.drawn[client, *moment, count] = self._draw(client, *moment, count)

    def _draw(self, client: int, round_: int, edge_round: int, epochs: int) -> NDArray[np.int32]:
        return self.examples.visits(client, round_, edge_round, epochs).astype(np.int32)
