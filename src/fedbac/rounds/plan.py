"""What a round is for all sites alike, worked out once however many there are."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fedbac.config.experiment import Experiment, Method
from fedbac.core.links import Link
from fedbac.core.parts import measured_parts, moving_parts, running_phases
from fedbac.core.queries import Moment
from fedbac.core.rng import Rng, stream
from fedbac.core.settings import FloatArray
from fedbac.core.world import EQUAL
from fedbac.rounds.messages import Site


def combined_parts(method: Method) -> frozenset[str]:
    """Return the parts of which a site must hold all clients before it can combine them: of those it shares."""
    shared = {part for part, spec in method.personalization.parts.items() if spec.scope != "client"}
    return frozenset(shared if method.aggregation.needs == "all" else ())


def passes(experiment: Experiment, moment: Moment) -> int:
    """Return how often a client that is selected passes over its examples, in all phases of one training."""
    usual, phases = experiment.task.training.epochs, experiment.method.personalization.phases()
    return sum(usual if phase.epochs is None else phase.epochs for phase in phases if phase.runs(moment))


def moment_of(experiment: Experiment, sites: Sequence[Site], round_: int) -> Moment:
    """Return a round as policies of the cloud know it, with the batches that a client trains on."""
    moment = Moment(round_, experiment.task.rounds)
    in_all = passes(experiment, moment) * experiment.method.topology.edge_rounds
    in_one = experiment.task.training.steps(np.concatenate([site.size_N for site in sites]))
    return moment._replace(steps=in_all * float(in_one.mean()))


class Common:
    """A round as the experiment has it, whatever happens at a site."""

    def __init__(self, experiment: Experiment, round_: int) -> None:
        scheme, chains = experiment.method.personalization, experiment.method.links.chains
        self.round = round_
        self.moment = Moment(round_, experiment.task.rounds)
        self.clients = Link("client", scheme, self.moment, chains, experiment.seed)
        """The link of a site to its clients; each counts on one of its own, made by ``again``."""
        self.cloud = Link("cloud", scheme, self.moment, chains, experiment.seed)
        self.moving = moving_parts(scheme, self.moment)
        self.rules = dict.fromkeys(combined_parts(experiment.method) & self.moving, experiment.method.aggregation)
        """By part, how a site combines its clients where it must hold them all."""
        self.phases = running_phases(scheme, self.moment)
        self.passes = passes(experiment, self.moment)
        self.rate = experiment.rate(round_)
        self._experiment, self._scheme = experiment, scheme

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """The parts that whoever measures a model must have."""
        return measured_parts(self._scheme)

    def stream(self, purpose: str, edge_round: int, site: int) -> Rng:
        """Return the generator for a purpose at a site."""
        return stream(self._experiment.seed, purpose, self.round, edge_round, site)

    def seconds(self, site: Site, down: int, up: int) -> FloatArray:
        """Return how long every client of a site would take for so many bytes and its training."""
        profile = (self._experiment.task.world or EQUAL).profile(self._experiment.seed, site.clients)
        return profile.seconds(self.passes * site.size_N.astype(np.float64), down, up)
