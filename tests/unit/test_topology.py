"""Where clients meet: at their edge, or all at the cloud."""

from fedbac import Flat, Hierarchical


def test_every_edge_is_a_site_of_its_own() -> None:
    assert Hierarchical().sites(3) == ((0,), (1,), (2,))
    assert (Hierarchical().tiers, Hierarchical(edge_rounds=4).edge_rounds) == (3, 4)


def test_flat_is_one_site_with_everybody() -> None:
    assert Flat().sites(3) == ((0, 1, 2),)
    assert (Flat().tiers, Flat().edge_rounds) == (2, 1)
