"""What a round is for all sites alike, worked out once however many there are."""

from functools import cached_property

from fedbac.config.experiment import Experiment
from fedbac.core.links import Link
from fedbac.core.parts import measured_parts
from fedbac.core.queries import Moment
from fedbac.core.schemes import moving_parts, running_phases


class Common:
    """A round as the experiment has it, whatever happens at a site."""

    def __init__(self, experiment: Experiment, round_: int) -> None:
        scheme, training = experiment.method.personalization, experiment.task.training
        self.moment = Moment(round_, experiment.task.rounds)
        self.clients = Link("client", scheme, self.moment, experiment.method.links)
        """The link of a site to its clients; each counts on one of its own, made by ``again``."""
        self.cloud = Link("cloud", scheme, self.moment, experiment.method.links)
        self.moving = moving_parts(scheme, self.moment)
        self.phases = running_phases(scheme, self.moment)
        self.passes = sum(
            training.epochs if phase.epochs is None else phase.epochs
            for phase in scheme.phases()
            if phase.runs(self.moment)
        )
        """Over the examples of a client."""
        self.rate = training.rate(round_)
        self._scheme = scheme

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """The parts that whoever measures a model must have."""
        return measured_parts(self._scheme)
