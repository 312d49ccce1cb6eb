"""Learning from teachers: what they predict for a batch, and the loss of those who learn it."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbac.core import trees
from fedbac.core.parts import Params
from fedbac.core.requests import Teachers, Train
from fedbac.core.settings import IntArray
from fedbac.local.examples import shares
from fedbac.models import duplicate


def distilled(
    loss: Tensor, logits: Tensor, mean: Callable[[Tensor], Tensor], target: Tensor, share: Tensor, temperature: Tensor
) -> Tensor:
    """Return the loss of a batch of one client, given its cross-entropy and what its teachers predict together. Σ_j
    β_j·KL(p_j ‖ q) is −Σ_k (Σ_j β_j p_jk)·log q_k and a number without a gradient, which is left out."""
    soft_B = -(target * torch.log_softmax(logits / temperature, -1)).sum(-1)
    return torch.where(share > 0, (1 - share) * loss + share * temperature**2 * mean(soft_B), loss)


class Targets:
    """The distillation targets of one client: what its teachers predict."""

    def __init__(self, network: nn.Module, teachers: Teachers, client: int) -> None:
        self.network = network
        weights = enumerate(teachers.weight_CT[client].tolist())
        self.teachers = [(weight, trees.take(teachers.bank, t)) for t, weight in weights if weight > 0]
        self.share, self.temperature = map(torch.tensor, (float(teachers.share_C[client]), float(teachers.temperature)))

    @classmethod
    def of(cls, network: nn.Module, request: Train, client: int) -> "Targets | None":
        """Return the targets of a client of a request, by networks at rest; None where it has no teachers."""
        teachers = request.teachers
        return cls(network, teachers, client) if teachers is not None and teachers.shares[client] else None

    def loss(self, loss: Tensor, logits: Tensor, x: Tensor) -> Tensor:
        """Return the loss of a batch, given its cross-entropy."""
        with torch.no_grad():
            scores = [(weight, functional_call(self.network, params, (x,))) for weight, params in self.teachers]
            target = torch.stack([weight * torch.softmax(z / self.temperature, -1) for weight, z in scores]).sum(0)
        return distilled(loss, logits, torch.mean, target, self.share, self.temperature)


class TeacherRows:
    """The teachers of all clients of a stack, in buffers that stay where they are."""

    def __init__(self, network: nn.Module, bank: Params, capacity: int, device: torch.device) -> None:
        self.network = at_rest(network)
        self.size = trees.count(bank)
        self.bank = {name: torch.zeros(value.shape, device=device) for name, value in bank.items()}
        self.weight_AT = torch.zeros((capacity, self.size), device=device)
        self.share_A, self.temperature_A = torch.zeros(capacity, device=device), torch.ones(capacity, device=device)

    def load(self, requests: Sequence[Train], bank: Params, order: IntArray) -> None:
        """Put the teachers of a round in place; ``order`` says which client of all requests each row is."""
        for name, value in self.bank.items():
            value.copy_(bank[name])
        weight_JT, share_J, temperature_J = np.zeros((order.size, self.size)), np.zeros(order.size), np.ones(order.size)
        first: dict[int, int] = {}  # where each bank begins among the teachers of all requests
        end = 0
        for request, mine in zip(requests, shares(requests), strict=True):
            if (teachers := request.teachers) is None:
                continue
            at = first.setdefault(id(teachers.bank), end)
            end = max(end, at + teachers.weight_CT.shape[1])
            weight_JT[mine, at : at + teachers.weight_CT.shape[1]] = teachers.weight_CT * (teachers.shares > 0)[:, None]
            share_J[mine], temperature_J[mine] = teachers.shares, teachers.temperature
        pairs = (self.weight_AT, weight_JT), (self.share_A, share_J), (self.temperature_A, temperature_J)
        for buffer, values in pairs:
            buffer[: order.size] = torch.from_numpy(values[order]).to(buffer.device)

    @torch.no_grad()
    def targets(self, x_AB: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the teachers of the first clients predict for their batches, with λ and τ of each."""
        rows = len(x_AB)
        temperature_A, target_AB = self.temperature_A[:rows], torch.zeros((), device=x_AB.device)
        for t in range(self.size):
            logits: Tensor = functional_call(self.network, trees.take(self.bank, t), (x_AB.flatten(0, 1),))
            score_AB = torch.softmax(logits.reshape(*x_AB.shape[:2], -1) / temperature_A[:, None, None], -1)
            weight_A = self.weight_AT[:rows, t, None, None]
            # One who is broken may have no weight: 0 · NaN is NaN.
            target_AB = target_AB + torch.where(weight_A > 0, weight_A * score_AB, 0.0)
        return target_AB, self.share_A[:rows], temperature_A


def joined_bank(requests: Sequence[Train]) -> Params | None:
    """Return the teachers of all requests, each bank once; None where nobody learns from them."""
    teachers = [request.teachers for request in requests if request.teachers is not None]
    if not any(one.shares.any() for one in teachers):
        return None
    return trees.join(list({id(one.bank): one.bank for one in teachers}.values()))


def at_rest(network: nn.Module) -> nn.Module:
    """Return a copy of a network that predicts and does not train: without dropout, by the statistics it has."""
    return duplicate(network).eval()
