"""What opacus makes of a batch, kept in a file: its clipped gradients, and its noise multipliers.

To make it anew, where opacus is installed: python -m tests.golden.opacus_answers
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

FILE = Path(__file__).with_name("opacus.npz")
CLIP, RATE = 0.7, 0.5
BUDGETS = ((1.0, 1e-5, 20), (8.0, 1e-4, 300))
"""ε, δ and steps."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    x = (
        rng.standard_normal((12, 1, 4, 4), dtype=np.float32)
        * np.linspace(0.1, 3, 12, dtype=np.float32)[:, None, None, None]
    )
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 3, 12))


def main() -> None:
    from opacus import GradSampleModule
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.optimizers import DPOptimizer

    model, (x, y) = GradSampleModule(network()), batch()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=CLIP, expected_batch_size=len(x))
    F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    after = {name.removeprefix("_module."): value.detach().numpy() for name, value in model.named_parameters()}
    sigma = [
        get_noise_multiplier(target_epsilon=e, target_delta=d, sample_rate=1.0, steps=n, accountant="prv")
        for e, d, n in BUDGETS
    ]
    np.savez(FILE, sigma=sigma, **after)


if __name__ == "__main__":
    main()
