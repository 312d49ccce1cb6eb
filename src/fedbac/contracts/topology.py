"""What every topology promises."""

from typing import Any

from fedbac.contracts.common import check_settings, require
from fedbac.core.policies import Topology


def check_topology(topology: Any, num_edges: int = 6) -> None:
    """Hold a topology to its promises, with so many edges in the task."""
    who = check_settings("topology", topology, Topology)
    sites = topology.sites(num_edges)
    require(
        isinstance(sites, tuple) and all(isinstance(edges, tuple) and edges for edges in sites),
        f"{who}: sites() must return a tuple of the edges of each site, none without any, not {sites!r}",
    )
    found = sorted(edge for edges in sites for edge in edges)
    require(
        found == list(range(num_edges)),
        f"{who}: sites({num_edges}) must hold every edge from 0 to {num_edges - 1} exactly once, but it holds {found}",
    )
    require(topology.edge_rounds >= 1, f"{who}: edge_rounds must be at least 1, not {topology.edge_rounds}")
    require(topology.tiers in (2, 3), f"{who}: tiers must be 2 or 3, not {topology.tiers}")
    require(
        topology.tiers == 3 or len(sites) == 1,
        f"{who}: tiers is 2, so the only site is the cloud itself, but sites() returned {len(sites)}",
    )
