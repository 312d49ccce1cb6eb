"""Normalization and the step of SGD of many clients on a GPU, against torch's; emulated on a CPU too."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbac.gpu import update
from fedbac.gpu.batch_norm import BatchNorm
from fedbac.gpu.driver import Module
from fedbac.gpu.normalization import GroupNorm
from tests.emulator import NO_COMPILER, EmulatedModule
from tests.support import NO_GPU

WHERE = [pytest.param("cpu", marks=NO_COMPILER), pytest.param("cuda", marks=NO_GPU)]


def load(device: str) -> Any:
    return Module if device == "cuda" else EmulatedModule


@pytest.mark.covering
@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(4, 48), (1, 140), (9, 7), (40, 6)])
def test_groups_are_normalized(channels: int, size: int, half: bool, device: str) -> None:
    groups, batch, kind = 3, 2, torch.bfloat16 if half else torch.float32
    torch.manual_seed(0)
    x = (2 * torch.randn(batch, groups * channels, size) + 1).to(kind)
    scale, shift = torch.randn(2, groups * channels)
    gradient = torch.randn(x.shape).to(kind)
    exact = [value.double().requires_grad_() for value in (x, scale, shift)]
    right = F.group_norm(exact[0], groups, exact[1], exact[2], 1e-5)
    expected = torch.autograd.grad(right, exact, gradient.double())
    kernels = GroupNorm(channels, size, half, load(device))
    assert kernels.covered
    x, scale, shift, gradient = (value.to(device) for value in (x, scale, shift, gradient))
    found, moments = kernels.forward(x, scale, shift, 1e-5)
    gradients = kernels.back(x, scale, moments, gradient)
    for one, other in zip([found, *gradients], [right.detach(), *expected], strict=True):
        assert (one.double().cpu() - other).norm() < (5e-3 if half and one.dtype == kind else 1e-5) * other.norm()


def test_groups_that_no_block_can_hold_are_left_to_torch() -> None:
    assert not GroupNorm(32, 56 * 56, False).covered
    assert GroupNorm(8, 32 * 32, False).covered


@pytest.mark.covering
@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(4, 48), (1, 140), (9, 7), (2, 514)])
def test_batches_are_normalized_by_what_counts(channels: int, size: int, half: bool, device: str) -> None:
    counts, batch, kind = (5, 2, 4), 5, torch.bfloat16 if half else torch.float32
    torch.manual_seed(0)
    x = (2 * torch.randn(batch, 3 * channels, size) + 7).to(kind)
    scale, shift = torch.randn(2, 3 * channels)
    count_BA = (torch.arange(batch)[:, None] < torch.tensor(counts)).float()
    gradient = (torch.randn(x.shape) * count_BA.repeat_interleave(channels, 1)[..., None]).to(kind)
    kernels = BatchNorm(size, half, load(device))
    assert kernels.covered
    share_BA = (count_BA / count_BA.sum(0)).to(device)
    x_, scale_, shift_, gradient_ = (value.to(device) for value in (x, scale, shift, gradient))
    found, moments = kernels.forward(x_, share_BA, scale_, shift_, 1e-5)
    to_x, *others = kernels.back(x_, share_BA, scale_, moments, gradient_)
    for client, count in enumerate(counts):
        mine = slice(client * channels, (client + 1) * channels)
        exact = [value.double().requires_grad_() for value in (x[:count, mine], scale[mine], shift[mine])]
        right = F.batch_norm(exact[0], None, None, exact[1], exact[2], True, 0.0, 1e-5)
        expected = torch.autograd.grad(right, exact, gradient[:count, mine].double())
        here = [found[:count, mine], to_x[:count, mine], *(value[mine] for value in others)]
        for one, other in zip(here, [right.detach(), *expected], strict=True):
            assert (one.double().cpu() - other).norm() < (5e-3 if half and one.dtype == kind else 2e-5) * other.norm()
        variance, mean = torch.var_mean(exact[0].detach(), (0, 2), correction=0)
        torch.testing.assert_close(moments[:2, mine].double().cpu(), torch.stack([mean, variance]), rtol=1e-5, atol=0)
        assert not to_x[count:, mine].any()


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("joint", [False, True])
def test_a_step_clips_coasts_decays_and_pulls(joint: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the optimizer's, for every client by itself; one that has no examples stays as it is."""
    monkeypatch.setattr(update, "MOST", 2)  # several launches
    update._module.cache_clear()
    torch.manual_seed(0)
    sizes, clients = [(3, 4), (5,), (9001,)], 3

    def draw() -> list[Tensor]:
        return [torch.randn(clients, *size).to(device) for size in sizes]

    weights, velocities, gradients, anchors, shifts = draw(), draw(), draw(), draw(), draw()
    pulls = [(0.0, 0.0), (0.1, 0.5), (0.2, 0.3)]  # decay and penalty
    scopes = [0, 0, 0] if joint else [0, 1, 1]
    counts, rates = torch.tensor([4, 0, 2]).to(device), torch.tensor([0.1, 0.2, 0.3]).to(device)
    expected = [(weight.clone(), velocity.clone()) for weight, velocity in zip(weights, velocities, strict=True)]
    for client in (0, 2):
        pushed = [
            gradients[n][client] + penalty * (weights[n][client] - (anchors[n][client] if n == 1 else 0.0))
            for n, (_, penalty) in enumerate(pulls)
        ]
        for scope in set(scopes):
            mine = [n for n in range(3) if scopes[n] == scope]
            norm = torch.cat([pushed[n].flatten() for n in mine]).norm()
            for n in mine:
                weight, velocity = expected[n]
                velocity[client] *= 0.9
                velocity[client] += pushed[n] * min(1.0, 2.0 / (float(norm) + 1e-6)) + pulls[n][0] * weight[client]
                velocity[client] += shifts[n][client] if n == 2 else 0.0
                weight[client] -= rates[client] * velocity[client]
    update.step(
        [
            update.Weights(
                weights[n],
                velocities[n],
                gradients[n],
                anchors[n] if n == 1 else None,
                shifts[n] if n == 2 else None,
                *pulls[n],
                scopes[n],
            )
            for n in range(3)
        ],
        counts,
        rates,
        momentum=0.9,
        max_norm=2.0,
        load=load(device),
    )
    update._module.cache_clear()
    for n in range(3):
        torch.testing.assert_close(weights[n], expected[n][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(velocities[n], expected[n][1], rtol=1e-5, atol=1e-6)
