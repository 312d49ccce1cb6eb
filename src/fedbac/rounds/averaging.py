"""What the cloud makes of the networks that its sites report: Eqs. 5 and 6 of the paper, by the owners of the parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedbac.config.experiment import Method
from fedbac.core import trees
from fedbac.core.aggregation import average_by_owner
from fedbac.core.answers import checked_step, consult
from fedbac.core.parts import Params, Parts
from fedbac.core.policies import Step
from fedbac.core.queries import Moment
from fedbac.core.schemes import moving_parts
from fedbac.core.settings import FloatArray, IntArray
from fedbac.core.state import State
from fedbac.rounds.holdings import Holding
from fedbac.rounds.orders import Site, TrainReport


def averages(
    method: Method,
    moment: Moment,
    sites: Sequence[Site],
    held: Sequence[Mapping[str, Holding]],
    state: State,
    sent: Parts,
    reports: Sequence[TrainReport],
) -> State:
    """Return the state with the parts after a round, which of them have ever been trained, and what steps remember.

    ``held`` is what each site holds in the state before it, and ``sent`` what its clients started from.
    """
    moving = moving_parts(method.personalization, moment)  # a mean of what keeps still would only round it
    rule = method.cloud_aggregation or method.aggregation
    parts, trained, steps = {}, {}, dict(state.steps)
    for part, stack in state.parts.items():
        own = [mine[part] for mine in held]
        rows, weight_R, owner_R = _contributions(method, part, sites, own, reports)
        parts[part] = stack
        if part in moving:
            parts[part] = average_by_owner(stack, rows, weight_R, owner_R, rule, sent[part])
        if part in moving and part in steps:
            share_K = _shares(part, trees.count(stack), sites, own, reports)
            parts[part], steps[part] = stepped(method.step, sent[part], parts[part], steps[part], share_K)
        if part in state.trained:
            owners = np.arange(state.trained[part].size)
            trained[part] = state.trained[part] | np.isin(owners, owner_R[weight_R > 0])
    for part, trained_R in trained.items():
        leader = method.personalization.parts[part].follows
        assert leader is not None
        parts[part] = trees.fill(parts[part], ~trained_R, parts[leader])
    return replace(state, round=state.round + 1, parts=parts, trained=trained, steps=steps)


def stepped(step: Step, sent_K: Params, combined_K: Params, memory: Parts, share_K: FloatArray) -> tuple[Params, Parts]:
    """Return a part after its owners' step, and what they remember; who heard of nobody keeps its row and memory.

    Weights that no gradient moves, such as statistics of batches, are none of the step's: they are taken as they are.
    """
    heard = np.flatnonzero(share_K > 0)
    names = next(iter(memory.values()), combined_K)
    device = next(iter(combined_K.values())).device

    def rows(tree_K: Params) -> Tensor:
        return trees.rows(trees.select({name: tree_K[name].to(device) for name in names}, heard))

    before_KD, combined_KD = rows(sent_K), rows(combined_K)
    known, share = {name: rows(stack) for name, stack in memory.items()}, trees.onto(share_K[heard], device)
    answer = consult("step", "a round", step.step, before_KD, combined_KD, known, share.to(before_KD.dtype))
    after_KD, learned = checked_step(step, answer, before_KD, known)

    def put(tree_K: Params, rows_KD: Tensor) -> Params:
        mine = {name: tree_K[name].to(device) for name in names}
        return trees.put(mine, heard, trees.shaped(rows_KD, mine))

    return combined_K | put(combined_K, after_KD), {name: put(memory[name], learned[name]) for name in memory}


def _shares(
    part: str, num_owners: int, sites: Sequence[Site], held: Sequence[Holding], reports: Sequence[TrainReport]
) -> FloatArray:
    """Return, by owner of a part, the examples of the clients that trained over those of all its clients."""
    trained_K, all_K = np.zeros(num_owners), np.zeros(num_owners)
    for site, own, report in zip(sites, held, reports, strict=True):
        np.add.at(trained_K, own.owner_R, report.weight[part])
        np.add.at(all_K, own.owner_R[own.row_N], site.size_N)
    return trained_K / np.maximum(all_K, 1)


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
