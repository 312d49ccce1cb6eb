"""The hooks of a scheme around local training: what its clients start from, and what is made of what they learned."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from torch import nn

from fedbac.core import trees
from fedbac.core.answers import checked_outcome, checked_start_of_clients
from fedbac.core.parts import Adjusting, Blending, LocalRun, Parts, Personalization, Start, Stepping, predicting
from fedbac.core.requests import Evaluate, Measured, Train, Trained, Trainer
from fedbac.local.own_steps import OwnSteps
from fedbac.local.stages import adamw_of


def adjusted(trainer: Trainer, scheme: Personalization) -> Trainer:
    """Return the trainer, with the scheme's hooks around it where it has some, and pulls that are not clipped."""
    hooked = isinstance(scheme, Adjusting | Blending) or free_pulls(scheme)
    return AdjustedTrainer(trainer, scheme) if hooked else trainer


def free_pulls(scheme: Personalization) -> list[tuple[str, str, float]]:
    """Return the pulls that are added to gradients after clipping: of which part, to which, and how strong."""
    pulls = [(part, pull) for phase in scheme.phases() for part, pull in phase.pull.items()]
    return [(part, pull.to, pull.strength) for part, pull in pulls if pull.to is not None and not pull.clipped]


class AdjustedTrainer:
    """Has a trainer train what the scheme makes of the clients' parts, so that any trainer serves any scheme."""

    more_copies = 3
    """Of every client's parts: as received, as started and as they come back."""

    def __init__(self, trainer: Trainer, scheme: Any) -> None:
        self.trainer, self.scheme = trainer, scheme
        self.adjusts = isinstance(scheme, Adjusting)
        self.path, self.device = trainer.path, trainer.device
        self.examples = trainer.examples  # type: ignore[attr-defined]
        self.pulls = free_pulls(scheme) if adamw_of(self.examples.training) is None else []
        self.bytes_per_client: int = getattr(trainer, "bytes_per_client", 0)

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests."""
        if not (self.adjusts or self.pulls):
            return self.trainer.train(requests)
        received = [
            {
                part: trees.to(trees.select(stack, request.row_C[part]), self.device)
                for part, stack in request.bank.items()
            }
            for request in requests
        ]
        runs = [self._run(request) for request in requests]
        started = []
        orders = []
        for request, received_C, run in zip(requests, received, runs, strict=True):
            answer = self.scheme.before(received_C, run) if self.adjusts else Start()
            start = checked_start_of_clients(self.scheme, answer, received_C)
            started.append(start.parts)
            orders.append(self._order(request, received_C, start))
        results = []
        for found, received_C, started_C, run in zip(self.trainer.train(orders), received, started, runs, strict=True):
            trained_C = {part: found.parts_C.get(part, received_C[part]) for part in self.scheme.parts}
            answer = self.scheme.after(received_C, started_C, trained_C, run) if self.adjusts else {}
            outcome_C = checked_outcome(self.scheme, answer, received_C, started_C, trained_C)
            results.append(replace(found, parts_C=outcome_C))
        return results

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests, as the scheme blends them."""
        if not isinstance(self.scheme, Blending):
            return self.trainer.evaluate(requests)
        made: dict[tuple[tuple[str, int, bytes], ...], Parts] = {}
        return self.trainer.evaluate([self._blended(request, made) for request in requests])

    def _blended(self, request: Evaluate, made: dict[tuple[tuple[str, int, bytes], ...], Parts]) -> Evaluate:
        """Return the request with a row for each of its models; the same models are made once."""
        key = tuple((part, id(request.bank[part]), rows.tobytes()) for part, rows in request.row_V.items())
        if key not in made:
            kept_V = {part: trees.select(request.bank[part], rows) for part, rows in request.row_V.items()}
            made[key] = predicting(self.scheme, kept_V)
        return replace(request, bank=made[key], row_V=dict.fromkeys(made[key], np.arange(request.num_models)))

    def close(self) -> None:
        """Release the trainer, and what takes gradients if any were."""
        self.trainer.close()
        if "own" in vars(self):
            self.own.close()

    def _order(self, request: Train, received_C: Parts, start: Start) -> Train:
        """Return the request in terms of what is trained; a part that starts as received stays where it is."""
        bank, row_C, each = {}, {}, np.arange(len(request.clients))
        for part, spec in self.scheme.parts.items():
            if not spec.networks and not isinstance(self.scheme, Stepping):
                continue
            kept = start.parts[part] is received_C[part]
            bank[part] = request.bank[part] if kept else start.parts[part]
            row_C[part] = request.row_C[part] if kept else each
        scales = {
            phase: np.asarray(scale_C) * request.rate_scale.get(phase, 1.0)
            for phase, scale_C in start.rate_scale.items()
        }
        scales, shift = {**request.rate_scale, **scales}, dict(start.shift)
        for part, to, strength in self.pulls:  # of λ(w − w_to), the optimizer adds λw as it decays weights
            already = shift.get(part, {})
            shift[part] = {n: already.get(n, 0.0) - strength * value for n, value in received_C[to].items()}
        return replace(request, bank=bank, row_C=row_C, rate_scale=scales, shift=shift)

    @cached_property
    def own(self) -> OwnSteps:
        """Takes gradients for ``before``, where it wants some; on a CPU of one client after another."""
        network: nn.Module = self.trainer.network  # type: ignore[attr-defined]
        return OwnSteps(network, self.scheme, self.examples, self.device, together=self.device.type == "cuda")

    def _run(self, request: Train) -> LocalRun:
        examples, training = self.examples, self.examples.training
        mine = [examples.shards.train[client] for client in request.clients]
        per_epoch_C = np.array([len(examples.batches(rows.size)) for rows in mine], dtype=np.int64)
        phases = self.scheme.phases()
        epochs_F = [
            (phase.epochs or training.epochs) if request.phases is None or number in request.phases else 0
            for number, phase in enumerate(phases)
        ]
        steps: list[list[int]] = np.outer(epochs_F, per_epoch_C).tolist()
        momenta_F = [training.momentum if phase.momentum is None else phase.momentum for phase in phases]
        rate, decay = request.learning_rate, training.weight_decay
        return LocalRun(
            count_CK=examples.class_counts(request.clients),
            travel_FC=np.array([[rate * reach(n, m) for n in row] for row, m in zip(steps, momenta_F, strict=True)]),
            left_FC=np.array(
                [[decayed(n, rate, m, decay) for n in row] for row, m in zip(steps, momenta_F, strict=True)]
            ),
            round=request.round,
            edge_round=request.edge_round,
            edge_rounds=request.edge_rounds,
            share=request.share,
            local=lambda: self.own.before(request),
        )


def reach(steps: int, momentum: float) -> float:
    """Return how far SGD goes by so many steps of a gradient of 1 at a rate of 1, from rest: Σ_s (1 − m^s)/(1 − m)."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@lru_cache(maxsize=4096)
def decayed(steps: int, rate: float, momentum: float, decay: float) -> float:
    """Return what weight decay leaves of a weight of 1 that has no gradient: v ← m·v + d·w, w ← w − η·v."""
    weight, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + decay * weight
        weight -= rate * velocity
    return weight
