"""What every policy and scheme promises, as checks for one of your own: ``from fedbac.contracts import check``.

A check plays made-up rounds, without data and without training. It returns nothing if all promises are kept, and else
raises an AssertionError that names the policy, the verb and what was expected.
"""

from collections.abc import Callable
from typing import Any

from fedbac.contracts.common import check_clock as check_clock
from fedbac.contracts.common import check_topology as check_topology
from fedbac.contracts.personalization import check_personalization as check_personalization
from fedbac.contracts.policies import check_clustering as check_clustering
from fedbac.contracts.policies import check_selection as check_selection
from fedbac.contracts.policies import check_sharing as check_sharing
from fedbac.contracts.tensors import check_aggregation as check_aggregation
from fedbac.contracts.tensors import check_step as check_step
from fedbac.contracts.tensors import check_transform as check_transform


def check(policy: Any) -> None:
    """Check a policy or scheme of any column, or a transform of links, by the verb or field that only these have."""
    if isinstance(policy, type):
        raise AssertionError(f"{policy.__name__} is a class: pass an instance, as in check({policy.__name__}())")
    column: dict[str, Callable[[Any], None]] = {
        "clusters": check_clustering,
        "phases": check_personalization,
        "sites": check_topology,
        "combine": check_aggregation,
        "step": check_step,
        "enough": check_clock,
        "active": check_sharing,
        "fraction": check_selection,
        "alter": check_transform,
        "pack": check_transform,
    }
    for name, chosen in column.items():
        if hasattr(policy, name):
            return chosen(policy)
    raise AssertionError(
        f"{type(policy).__name__} belongs to no column: clustering has clusters(), personalization phases(), topology "
        "sites(), aggregation combine(), step step(), clock enough(), sharing the field active, selection the field "
        "fraction, and a transform of links alter() or pack()"
    )
