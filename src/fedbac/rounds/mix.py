"""How clusters share what they know: what members are sent, learn from, and predict with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.answers import checked_exchange, consult
from fedbac.core.links import Link
from fedbac.core.parts import Personalization
from fedbac.core.policies import Exchange, Teaching
from fedbac.core.queries import Evidence, Query
from fedbac.core.requests import Teachers
from fedbac.core.settings import FloatArray
from fedbac.core.state import State
from fedbac.rounds.rows import Members


def evidence_of(
    experiment: Experiment, members: Members, state: State, round_: int, readings: Mapping[Query, FloatArray]
) -> Evidence:
    """Return what the policies of the cloud are told of a state."""
    return Evidence(
        round=round_,
        num_rounds=experiment.task.rounds,
        num_classes=members.sites[0].num_classes,
        size_N=members.size_N,
        readings=readings,
        label_N=state.label_N,
        used_K=state.used_K,
    )


def exchanged(experiment: Experiment, members: Members, state: State) -> Exchange:
    """Ask the sharing policy what clusters share before the round that follows a state."""
    policy = experiment.method.sharing
    evidence = evidence_of(experiment, members, state, state.round + 1, {})
    answer = consult("sharing", f"round {state.round + 1}", policy.act, state.sharing, evidence)
    return checked_exchange(policy, answer, state.num_clusters, members.count)


def mixed(scheme: Personalization, state: State, mix_KJ: FloatArray | None) -> State:
    """Return the state with the parts of clusters mixed, and what their steps remember of them alike."""
    if mix_KJ is None:
        return state
    owned = {part for part, spec in scheme.parts.items() if spec.scope == "cluster"}
    return replace(
        state,
        parts={part: trees.mix(stack, mix_KJ) if part in owned else stack for part, stack in state.parts.items()},
        steps={
            part: {name: trees.mix(stack, mix_KJ) for name, stack in memory.items()} if part in owned else memory
            for part, memory in state.steps.items()
        },
    )


def judged(experiment: Experiment, members: Members, state: State) -> State:
    """Return the state with the networks that members predict with: a mix, if sharing says so."""
    if not experiment.method.sharing.active:
        return state
    mix_KJ = exchanged(experiment, members, state).judged_KJ
    return mixed(experiment.method.personalization, state, mix_KJ)


@dataclass(frozen=True)
class TeacherRows:
    """The teachers of all members: whole networks, mixed from those of clusters."""

    part: str
    """Whose networks they are."""
    teachers: Teachers

    def at(self, m: int, members: Members, link: Link) -> Teachers:
        """Return the teachers of a site's clients, and send it those that one of them has."""
        mine, clients = members.at(m), members.sites[m].clients
        rows = mine if members.unit == "client" else mine * len(clients)
        used = np.flatnonzero((self.teachers.weight_CT[mine] > 0).any(0))
        link.send("down", "evaluate", {self.part: trees.select(self.teachers.bank, used)})
        return replace(self.teachers, weight_CT=self.teachers.weight_CT[rows], share_C=self.teachers.share_C[rows])


def teachers(scheme: Personalization, state: State, teaching: Teaching) -> TeacherRows:
    """Make the teachers that a sharing policy wants."""
    part = next(part for part, spec in scheme.parts.items() if spec.scope == "cluster")
    bank = trees.blend(state.parts[part], teaching.mix_TJ)
    return TeacherRows(part, Teachers(bank, teaching.weight_NT, teaching.share_N, teaching.temperature))
