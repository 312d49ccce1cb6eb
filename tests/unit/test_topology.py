"""Where clients meet: at their edge, or all at the cloud; and the nodes between edges and the cloud."""

import fedbac
from fedbac import Flat, Hierarchical
from fedbac.config.tiers import parents


def test_every_edge_is_a_site_of_its_own() -> None:
    assert Hierarchical().sites(3) == ((0,), (1,), (2,))
    assert (Hierarchical().tiers, Hierarchical(edge_rounds=4).edge_rounds) == (3, 4)


def test_flat_is_one_site_with_everybody() -> None:
    assert Flat().sites(3) == ((0, 1, 2),)
    assert (Flat().tiers, Flat().edge_rounds) == (2, 1)


def test_neighbours_belong_to_one_node_and_are_spread_evenly_or_as_said() -> None:
    assert [one.tolist() for one in parents((4, 2), 10)] == [[0, 0, 0, 1, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1]]
    assert [one.tolist() for one in parents(((1, 4), 1), 5)] == [[0, 1, 1, 1, 1], [0, 0]]
    assert parents((), 5) == []


def test_every_edge_knows_the_nodes_above_it_and_how_often_they_meet() -> None:
    settings = [
        "task.tiers=[4,2]",
        "method.region.rounds=2",
        "method.country.rounds=3",
        "method.topology.edge_rounds=5",
    ]
    experiment = fedbac.configure("hierfavg", settings=settings)
    assert [experiment.above(edge) for edge in (0, 5, 9)] == [(0, 0), (1, 0), (3, 1)]
    assert (experiment.edge_rounds, experiment.link_names) == (30, ("client", "region", "country", "cloud"))


def test_experiments_are_alike_whoever_has_looked_at_their_tiers() -> None:
    settings = ["task.num_edges=10", "task.tiers=[4,2]"]
    one, other = (fedbac.configure("hierfavg", settings=settings) for _ in range(2))
    assert len(one.heights) == len(other.heights) == 2
    assert one == other
    assert one != fedbac.configure("hierfavg", settings=["task.num_edges=10", "task.tiers=[4,3]"])
