"""Runs fluke on the examples, the network and the order of batches of a federation of ours."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from fluke import FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.nets import EncoderHeadNet
from fluke.server import Server
from fluke.utils import ClientObserver
from torch import Tensor, nn
from torchmetrics import Accuracy

from fedbac import Training
from fedbac.federation import Federation
from fedbac.local import Examples


class Visits(FastDataLoader):
    """A client's examples in the order in which ours visits them; each time it is asked, the next epoch's.

    Every phase of a round begins with the first epoch again, as in ours.
    """

    def __init__(self, examples: Examples, client: int, passes: int) -> None:
        self.examples, self.client, self.passes, self.begun = examples, client, passes, 0
        self.mine = examples.shards.train[client]
        pixels, labels = examples.source("train")
        super().__init__(
            examples.normalize(pixels[self.mine]),
            labels[self.mine],
            num_labels=examples.dataset.num_classes,
            batch_size=examples.training.batch_size,
            skip_singleton=False,
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epochs = self.examples.training.epochs
        round_, place = divmod(self.begun, self.passes)
        self.begun += 1
        order = self.examples.visits(self.client, round_ + 1, 0, epochs)[place % epochs]
        index = np.searchsorted(self.mine, order)  # shards are sorted
        x, y = self.tensors
        for batch in self.examples.batches(order.size):
            yield x[index[batch]], y[index[batch]]


class Marks(ClientObserver):
    """Each client's accuracy after the last round, as fluke measures it when it ends."""

    def __init__(self) -> None:
        self.accuracy: dict[int, float] = {}

    def client_evaluation(self, *, client_id: int, evals: Mapping[str, float], **when: Any) -> None:
        if when["round"] == -1:
            self.accuracy[client_id] = evals["accuracy"]


def network(federation: Federation) -> EncoderHeadNet:
    """Return the network that ours begins with, cut before its last layer."""
    layers = list(federation.build(0).children())
    return EncoderHeadNet(nn.Sequential(*layers[:-1]), layers[-1])


def optimizer(training: Training) -> OptimizerConfigurator:
    """Return SGD as in ours: momentum that clients keep from round to round, and a constant rate."""
    return OptimizerConfigurator(
        {
            "name": "SGD",
            "lr": training.learning_rate,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
        }
    )


@dataclass(frozen=True)
class Rival:
    """A method as fluke has it."""

    client: type[Client] = Client
    server: type[Server] = Server
    algorithm: type[CentralizedFL] = CentralizedFL
    only_encoder: bool = False
    """Whether the server holds the encoder alone."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its clients."""


class Outcome(NamedTuple):
    """What fluke has come to after the last round."""

    accuracy_C: list[float]
    """Every client's on its own test data, with what it has received after the last round."""
    shared: nn.Module
    """What the server has averaged."""


def run(federation: Federation, rival: Rival, rounds: int, passes: int) -> Outcome:
    """Run a method; ``passes`` are the epochs of all phases of a round."""
    examples = federation.examples
    num_classes = examples.dataset.num_classes
    FlukeENV().set_seed(examples.seed)
    metric = Accuracy(task="multiclass", num_classes=num_classes, top_k=1)
    FlukeENV().set_evaluator(ClassificationEval(rounds, num_classes, accuracy=metric))
    # When fluke ends, clients receive the last average once more and are measured "before" a training that never comes.
    FlukeENV().set_eval_cfg(pre_fit=True, post_fit=False, locals=False, server=False)
    first = network(federation)
    pixels, labels = examples.source("test")
    clients = [
        rival.client(
            index=index,
            model=deepcopy(first),
            train_set=Visits(examples, index, passes),
            test_set=FastDataLoader(
                examples.normalize(pixels[test]), labels[test], num_labels=num_classes, skip_singleton=False
            ),
            optimizer_cfg=optimizer(examples.training),
            loss_fn=nn.CrossEntropyLoss(),
            local_epochs=examples.training.epochs,
            **rival.options,
        )
        for index, test in enumerate(examples.client_test)
    ]
    server = rival.server(
        model=first.encoder if rival.only_encoder else first, test_set=None, clients=clients, weighted=True
    )
    federated = rival.algorithm(len(clients), None, {}, clients=clients, server=server)
    marks = Marks()
    federated.set_callbacks(marks)
    federated.run(rounds, 1)
    return Outcome([marks.accuracy[index] for index in range(len(clients))], server.model)
