"""Who has come back: NVFlare takes no site into a job that runs, so one that was lost needs a new job."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any


class Returning:
    """Follows the sites of one job, by the status of its cloud and by when NVFlare last heard of each.

    ``missing`` were not there when the job began. Of all others only one that was in the job can come back: a new job
    would refuse again whom this one has refused. ``patience`` is the seconds within which the job itself takes a site
    again that only froze.
    """

    def __init__(self, edges: Mapping[str, Sequence[str]], missing: Collection[str], patience: float) -> None:
        self.edges, self.patience = edges, patience
        self._known = set(missing)
        """Sites that a new job would take, as far as anybody knows."""
        self._lost: dict[str, float] = {}
        """When the job was first without a site."""
        self._again: dict[str, float] = {}
        """When NVFlare heard of it after that."""

    def back(self, status: Mapping[str, Any], heard: Mapping[str, float]) -> list[str]:
        """Return the sites that are there but not in the job, and will not be."""
        found = []
        for name, here, when in self._seen(status):
            if here:
                self._known.add(name)
                self._lost.pop(name, None)
                self._again.pop(name, None)
            elif name in self._known:
                lost = self._lost.setdefault(name, when)
                if heard.get(name, 0.0) > lost:
                    again = self._again.setdefault(name, heard[name])
                    if when > again + self.patience:
                        found.append(name)
        return found

    def _seen(self, status: Mapping[str, Any]) -> Iterator[tuple[str, bool, float]]:
        """Yield sites, whether each is in the job, and when that was so. Of an absent edge's clients nobody knows."""
        for edge, clients in self.edges.items():
            here = bool(status.get("edges", {}).get(edge, {}).get("present"))
            yield edge, here, float(status["at"])
            if here and edge in status.get("spoke", {}):
                for client in clients:
                    yield client, client in status["clients"][edge], float(status["spoke"][edge])
