"""The state of a run before its first round."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.answers import checked_clusters, checked_init, checked_labels, checked_memory, checked_start, consult
from fedbac.core.links import PASSES, Tier
from fedbac.core.parts import Parts, Personalization, Scope
from fedbac.core.policies import Clock, ClusterPolicy, SelectionPolicy, Sharing, Step
from fedbac.core.queries import SINCE_START
from fedbac.core.rng import stream
from fedbac.core.state import InTransit, NodeState, State, Waiting
from fedbac.errors import ConfigError
from fedbac.rounds.messages import Site
from fedbac.rounds.rows import Members, first_memory, num_clients

BEFORE = "the beginning"


def start(experiment: Experiment, build: Callable[[int], nn.Module], sites: Sequence[Site]) -> State:
    """Return the state before the first round."""
    method = experiment.method
    num_members, owners = Members(method.unit, sites).count, owners_of(experiment, sites)
    num_clusters = owners["cluster"]
    chance = stream(experiment.seed, "clustering", 0)
    label_N = consult("clustering", BEFORE, method.clustering.start, num_members, chance)
    label_N = checked_labels(method.clustering, "start()", label_N, num_members, num_clusters)
    parts = checked_start(method.personalization, method.personalization.init(build, owners), owners)
    scopes = {part: spec.scope for part, spec in method.personalization.parts.items()}
    network = build(0)
    trainable = {name for name, _ in network.named_parameters()}
    if method.privacy is not None and any(True for _ in network.buffers()):
        raise ConfigError(
            "method.privacy: the network has statistics of batches, which nothing bounds; use one without buffers, "
            "such as with group normalization"
        )

    def momentum(site: Site) -> Parts | None:
        if experiment.task.training.momentum_state == "reset":
            return None
        count = len(site.clients)
        return {
            part: {n: v[:1].expand(count, *v.shape[1:]) * 0 for n, v in stacked.items() if n in trainable}
            for part, stacked in parts.items()
            if method.personalization.parts[part].networks
        }

    lowest = experiment.link_names[1]
    first = partial(first_memory, method.links.chains, method.personalization)
    above: list[tuple[Tier, Clock, int]] = [(h.name, h.does.clock, h.num_nodes) for h in experiment.heights]
    above.append(("cloud", method.cloud_clock, 1))
    return State(
        round=0,
        parts=parts,
        label_N=label_N,
        moved_N=np.zeros(num_members, dtype=bool),
        used_K=np.isin(np.arange(num_clusters), label_N),
        clustering=_first("clustering", method.clustering, num_members),
        sharing=_first("sharing", method.sharing, num_members),
        selection_M=tuple(_first("selection", method.selection, len(site.clients)) for site in sites),
        trained={
            part: np.zeros(owners[spec.scope], dtype=bool)
            for part, spec in method.personalization.parts.items()
            if spec.follows
        },
        momentum_M=tuple(momentum(site) for site in sites),
        waiting_M=tuple(Waiting.nobody(parts) for _ in sites) if method.clock.holds else (),
        sent=tuple(
            (InTransit.nobody({part: stack for part, stack in parts.items() if scopes[part] in PASSES[tier]}),) * count
            if clock.holds
            else ()
            for tier, clock, count in above
        ),
        links_M=tuple(first(parts, experiment.link_names[:2], len(site.clients)) for site in sites),
        steps=first_steps(method.step, method.personalization, parts, trainable),
        first={part: parts[part] for part, spec in method.personalization.parts.items() if spec.scope == "cluster"}
        if any(SINCE_START in queries for queries in method.needs.values())
        else {},
        stepped={
            part: tuple(mine) for part, mine in stepped_parts(method.personalization, parts, trainable, lowest).items()
        }
        if any(step.active for step in (method.step, *(height.does.step for height in experiment.heights)))
        else {},
        nodes=tuple(
            tuple(
                NodeState(
                    first(parts, (above,)),
                    first_steps(height.does.step, method.personalization, parts, trainable, height.name),
                    _first("selection", height.does.selection, int((height.parent_C == n).sum())),
                )
                for n in range(height.num_nodes)
            )
            for height, above in zip(experiment.heights, experiment.link_names[2:], strict=True)
        ),
        longest={
            part: np.zeros(owners[spec.scope])
            for part, spec in method.personalization.parts.items()
            if spec.scope in ("cloud", "cluster") and (method.cloud_aggregation or method.aggregation).needs == "all"
        },
    )


def stepped_parts(scheme: Personalization, parts: Parts, trainable: Collection[str], tier: Tier) -> Parts:
    """Return what is stepped with above a link: of the parts that pass it the weights that a gradient moves."""
    owned = [part for part, spec in scheme.parts.items() if spec.networks and spec.scope in PASSES[tier]]
    mine = {part: {name: value for name, value in parts[part].items() if name in trainable} for part in owned}
    return {part: params for part, params in mine.items() if params}


def first_steps(
    step: Step, scheme: Personalization, parts: Parts, trainable: Collection[str], tier: Tier = "cloud"
) -> dict[str, Parts]:
    """Return what is remembered of each owner of parts for a step, by the cloud or a node, before the first round."""
    steps: dict[str, Parts] = {}
    for part, mine in stepped_parts(scheme, parts, trainable, tier).items() if step.active else ():
        rows_KD = trees.rows(mine)
        memory = checked_memory(step, "init()", consult("step", BEFORE, step.init, rows_KD), rows_KD)
        steps[part] = {
            name: trees.shaped(value.clone(), mine) if value.shape == rows_KD.shape else {"": value.clone()}
            for name, value in memory.items()
        }
    return steps


def owners_of(experiment: Experiment, sites: Sequence[Site]) -> dict[Scope, int]:
    """Return how many owners there are of each scope: a part has a row for each of its own."""
    method, num_members = experiment.method, Members(experiment.method.unit, sites).count
    num_clusters = checked_clusters(method.clustering, method.clustering.clusters(num_members), num_members)
    owners: dict[Scope, int] = {"cloud": 1, "cluster": num_clusters, "edge": len(sites), "client": num_clients(sites)}
    return owners | {height.name: height.num_nodes for height in experiment.heights}


def _first(column: str, policy: ClusterPolicy | Sharing | SelectionPolicy, num_members: int) -> Any:
    return checked_init(column, policy, consult(column, BEFORE, policy.init, num_members))
