"""The round in pfl (Apple's pfl-research): its FederatedAveraging and simulated backend, on a GPU or a process per core
(``round.py`` starts it through torchrun), one thread each.
"""

import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F
from work import CLIP, DECAY, MOMENTUM, RATE, Outcome, Work

ALL_AT_ONCE = 10**9
"""The batch size by which evaluation is told from training: pfl measures in its first round, which is the warm-up."""


class Visits(Dataset):
    """A client's data in the order of visit: each time it is asked for batches, the next epoch's."""

    def __init__(self, work: Work, client: int) -> None:
        x, y = work.source(work.place)
        mine = work.examples.shards.train[client]
        super().__init__((x[mine], y[mine]), user_id=client)
        self.epochs = iter(work.epochs_of(client, work.place))

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        yield from iter([self.raw_data]) if batch_size == ALL_AT_ONCE else next(self.epochs)


class Watch(TrainingProcessCallback):
    """Times the rounds and keeps the network after the first."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.first: dict[str, Tensor] = {}

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.ticks.append(time.perf_counter())
        if not self.first:
            self.first = {name: value.clone() for name, value in model.pytorch_model.state_dict().items()}
        return False, Metrics()


def contest(work: Work) -> Outcome | None:
    torch.set_num_threads(1)
    network: Any = work.start()
    network.loss = lambda x, y: F.cross_entropy(network(x), y)
    network.metrics = lambda x, y: {"examples": Weighted(len(y), len(y))}
    model = PyTorchModel(
        network,
        local_optimizer_create=lambda weights, lr: torch.optim.SGD(
            weights, lr=lr, momentum=MOMENTUM, weight_decay=DECAY
        ),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),  # the new network is the clients' mean
    )
    users = list(range(work.clients))
    data = FederatedDataset(lambda client: Visits(work, client), get_user_sampler("minimize_reuse", users))
    watch = Watch()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=2,
            evaluation_frequency=2,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=RATE,
            local_batch_size=work.batch,
            local_max_grad_norm=CLIP,
        ),
        NNEvalHyperParams(local_batch_size=ALL_AT_ONCE),
        [watch],
        send_metrics_to_platform=False,
    )
    distributed = get_default_framework_module().distributed
    if distributed.global_rank != 0:
        return None
    seconds = watch.ticks[1] - watch.ticks[0]
    first = {name: value.cpu() for name, value in watch.first.items()}
    return Outcome(f"pfl {version('pfl')}, {distributed.world_size} processes on {work.place.type}", seconds, first)
