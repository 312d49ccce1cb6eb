"""What the cloud makes of the networks that its sites report: Eqs. 5 and 6 of the paper, by the owners of the parts."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedbac.config.experiment import Method
from fedbac.core import trees
from fedbac.core.aggregation import average_by_owner
from fedbac.core.parts import Params, Parts
from fedbac.core.queries import Moment
from fedbac.core.schemes import moving_parts
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.core.state import State
from fedbac.rounds.holdings import Holding
from fedbac.rounds.orders import Site, TrainReport


def averages(
    method: Method,
    moment: Moment,
    sites: Sequence[Site],
    held: Sequence[Mapping[str, Holding]],
    state: State,
    reports: Sequence[TrainReport],
) -> tuple[Parts, dict[str, BoolArray]]:
    """Return the parts after a round, and which of those that follow another have ever been trained.

    ``held`` is what each site holds in the state before it.
    """
    moving = moving_parts(method.personalization, moment)  # a mean of what keeps still would only round it
    parts, trained = {}, {}
    for part, stack in state.parts.items():
        rows, weight_R, owner_R = _contributions(method, part, sites, [own[part] for own in held], reports)
        parts[part] = average_by_owner(stack, rows, weight_R, owner_R) if part in moving else stack
        if part in state.trained:
            owners = np.arange(state.trained[part].size)
            trained[part] = state.trained[part] | np.isin(owners, owner_R[weight_R > 0])
    for part, trained_R in trained.items():
        leader = method.personalization.parts[part].follows
        assert leader is not None
        parts[part] = trees.fill(parts[part], ~trained_R, parts[leader])
    return parts, trained


def _contributions(
    method: Method, part: str, sites: Sequence[Site], held: Sequence[Holding], reports: Sequence[TrainReport]
) -> tuple[list[Params], FloatArray, IntArray]:
    """Return what was reported of a part: the rows of all sites, the weight and the owner of each."""
    weights, owners = [], []
    for site, own, report in zip(sites, held, reports, strict=True):
        trained_R = report.weight[part].astype(np.float64)
        weight_R = trained_R
        if method.cloud_weight == "total":
            weight_R = np.bincount(own.row_N, weights=site.size_N, minlength=own.owner_R.size).astype(np.float64)
        elif method.cloud_weight == "uniform":
            weight_R = np.ones_like(trained_R)
        weights.append(np.where(trained_R > 0, weight_R, 0.0))
        owners.append(own.owner_R)
    return [report.bank[part] for report in reports], np.concatenate(weights), np.concatenate(owners)
