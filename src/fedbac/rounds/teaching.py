"""Clusters that teach each other: the networks that are sent beside those to be trained, and to whom."""

from dataclasses import dataclass, replace

import numpy as np

from fedbac.core import trees
from fedbac.core.links import Link
from fedbac.core.parts import Personalization
from fedbac.core.policies import Teaching
from fedbac.core.requests import Teachers
from fedbac.core.state import State
from fedbac.rounds.members import Members


@dataclass(frozen=True)
class Faculty:
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


def teachers(scheme: Personalization, state: State, teaching: Teaching) -> Faculty:
    """Make the teachers that a sharing policy wants."""
    part = next(part for part, spec in scheme.parts.items() if spec.scope == "cluster")
    bank = trees.blend(state.parts[part], teaching.mix_TJ)
    return Faculty(part, Teachers(bank, teaching.weight_NT, teaching.share_N, teaching.temperature))
