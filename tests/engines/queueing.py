"""Trainers that queue their work, as one does whose device is busy, and runs on them: what a GPU does, without one."""

from collections.abc import Callable, Iterator, Sequence

from fedbac.clustering import Fixed, LinUCB
from fedbac.config.experiment import Evaluation, Experiment, Method, Training
from fedbac.core.parts import Parts, Personalization
from fedbac.core.requests import Evaluate, Measured, Train, Trained, Trainer
from fedbac.core.state import State
from fedbac.core.world import World
from fedbac.data import planted_groups
from fedbac.engines import Prefetching, Simulator
from fedbac.engines.prefetch import QueueingTrainer
from fedbac.federation import Federation
from fedbac.local import LoopTrainer
from fedbac.personalization import Additive
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from fedbac.selection import Thompson
from tests.support import Record, poisoned, prepare, without

DATA, SHARDS, _ = planted_groups(3, 5, 2, train=6, validation=2, test=12)
TRAINING = Training(epochs=1, batch_size=4)


class Queueing:
    """A trainer that queues and goes on; it has room for so many clients, and finds that out as late as possible."""

    path = "queueing"

    def __init__(self, trainer: Trainer, room: int = 1000, error: Exception | None = None) -> None:
        self.trainer, self.room = trainer, room
        self.error = error or MemoryError("no room")
        self.sizes: list[int] = []
        self.device = trainer.device
        self.evaluate, self.close = trainer.evaluate, trainer.close

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        return self.queue(requests)[1]()

    def queue(self, requests: Sequence[Train]) -> tuple[list[Parts], Callable[[], list[Trained]]]:
        size = sum(len(request.clients) for request in requests)
        trained = self.trainer.train(requests)

        def finish() -> list[Trained]:
            if size > self.room:
                raise self.error
            self.sizes.append(size)
            return trained

        return [one.parts_C for one in trained], finish

    def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
        found = self.trainer.evaluate(requests)
        return lambda: found


class Diary(Queueing):
    """Writes down what it is told to do and what is waited for; and which measurements were begun while it trains."""

    def __init__(self, trainer: Trainer, breaks_in: int = 0, room: int = 1000) -> None:
        super().__init__(trainer, room)
        self.breaks_in = breaks_in
        self.lines: list[str] = []
        self.round = 0
        self.trains = False
        self.expected: list[int] = []
        """The rounds in which it measured before it was asked, and below those in which somebody asked."""
        self.used: list[int] = []

    def queue(self, requests: Sequence[Train]) -> tuple[list[Parts], Callable[[], list[Trained]]]:
        self.round = round_ = requests[0].round
        if round_ == self.breaks_in:
            raise ValueError("this round cannot begin")
        self.lines.append(f"begin {round_}")
        parts, finish = super().queue(requests)
        self.trains = True

        def finished() -> list[Trained]:
            self.trains = False
            self.lines.append(f"finish {round_}")
            return finish()

        return parts, finished

    def queue_evaluation(self, requests: Sequence[Evaluate]) -> Callable[[], list[Measured]]:
        finish, round_, scores = super().queue_evaluation(requests), self.round, requests[0].split == "test"
        if scores:
            self.lines.append("begin scores")
        early = self.trains and not scores
        if early:
            self.expected.append(round_)

        def read() -> list[Measured]:
            if scores:
                self.lines.append("read scores")
            if early:
                self.used.append(round_)
            return finish()

        return read


def setting(
    world: World | None = None, scheme: Personalization | None = None, broken: bool = False
) -> tuple[Experiment, Federation]:
    data = poisoned(DATA, SHARDS.train[2]) if broken else DATA
    scheme = scheme or Additive()
    clustering = LinUCB(period=2) if "cluster" in scheme.parts else Fixed(num_clusters=1)
    wanted = Method(name="tried", clustering=clustering, selection=Thompson(warmup=1), personalization=scheme)
    experiment, federation = prepare(wanted, data, SHARDS, training=TRAINING, num_rounds=6)
    task = experiment.task.model_copy(update={"world": world})
    # The other moment is scored in the last round only, so that those before it are scored once.
    return experiment.model_copy(update={"task": task, "evaluation": Evaluation(last_rounds=1)}), federation


def loop(experiment: Experiment, federation: Federation) -> LoopTrainer:
    return LoopTrainer(federation.network, experiment.method.personalization, federation.examples)


def edges_of(experiment: Experiment, federation: Federation, trainer: Trainer) -> Simulator:
    engine = Prefetching if isinstance(trainer, QueueingTrainer) else Simulator
    return engine(experiment, federation.sites, trainer)


def playing(
    experiment: Experiment, federation: Federation, trainer: Trainer, state: State | None = None
) -> Iterator[tuple[Record, State]]:
    """Play the rounds after a state as a run does, from the first when none is given."""
    state = state or start(experiment, federation.build, federation.sites)
    edges = edges_of(experiment, federation, trainer)
    if isinstance(edges, Prefetching):
        return edges.rounds(state)
    return rounds(experiment, federation.sites, edges, state)


def played(
    experiment: Experiment, federation: Federation, trainer: Trainer, state: State | None = None
) -> tuple[list[Record], list[State]]:
    """Return all records without what depends on the clock, and all states."""
    state = state or start(experiment, federation.build, federation.sites)
    records, states = zip(*playing(experiment, federation, trainer, state), strict=True)
    return without(records), [state, *states]
