"""Gradients of single examples, clipped and noised (DP-SGD), for ``method.privacy`` of examples."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbac.config.experiment import Experiment
from fedbac.core.parts import Parts
from fedbac.core.requests import Train
from fedbac.core.rng import Rng, stream


@dataclass(frozen=True)
class PerExample:
    """How the sum of a batch is made private."""

    clip: float
    """C: the largest norm of one example's gradient, over all weights that are trained together."""
    noise_multiplier: float
    seed: int
    """Of the noise: the run's in a simulation, a client's own secret in a deployment."""

    def streams(self, request: Train) -> list[Rng]:
        """Return the noise of each client: the same however many are trained at once."""
        return [stream(self.seed, "noise", request.round, request.edge_round, client) for client in request.clients]

    def summed(self, gradient_AB: Parts) -> Parts:
        """Return Σ_b g_b · min(1, C / ‖g_b‖) for every client; of an example whose gradient is not finite nothing, or
        its client would fail and so tell of it."""
        each = [g.flatten(2) for params in gradient_AB.values() for g in params.values()]
        norm_AB = torch.stack([torch.linalg.vector_norm(one, dim=2) for one in each]).norm(dim=0)
        share_AB = torch.where(norm_AB.isfinite(), (self.clip / (norm_AB + 1e-6)).clamp(max=1.0), 0.0)

        def total(gradient: Tensor) -> Tensor:
            kept = torch.where(share_AB.reshape(*share_AB.shape, *[1] * (gradient.dim() - 2)) > 0, gradient, 0.0)
            return torch.einsum("ab,ab...->a...", share_AB, kept)

        return {network: {name: total(g) for name, g in params.items()} for network, params in gradient_AB.items()}

    def noised(self, total_A: Parts, noise_AD: Tensor, count_A: Tensor) -> Parts:
        """Return the mean gradient of each client: its sum with noise of σC in every weight, over its examples."""
        found: dict[str, dict[str, Tensor]] = {}
        begin = 0
        for network, params in total_A.items():
            found[network] = {}
            for name, total in params.items():
                end = begin + total[0].numel()
                noise = noise_AD[: len(total), begin:end].reshape(total.shape)
                size = count_A.clamp(min=1).reshape(-1, *[1] * (total.dim() - 1))
                found[network][name] = (total + self.noise_multiplier * self.clip * noise) / size
                begin = end
        return found


def per_example(experiment: Experiment, seed: int) -> PerExample | None:
    """Return how the gradients of an experiment are made private, if they are."""
    promise = experiment.promise
    if promise is None or promise.privacy.bounds_clients:
        return None
    return PerExample(promise.privacy.clip, promise.noise_multiplier, seed)


def drawn(streams: list[Rng], numbers: int) -> Tensor:
    """Return the noise of the next step of each client."""
    return torch.from_numpy(np.stack([rng.standard_normal(numbers, dtype=np.float32) for rng in streams]))
