"""Local training as it is configured: learning rates from round to round, and what optimizers go with."""

import pytest
import torch

from fedbac import METHODS, AdamW, Experiment, Task, Training
from fedbac.config.explain import parse


@pytest.mark.parametrize(("warmup", "floor"), [(0, 0.0), (0, 0.1), (4, 0.0), (3, 0.25)])
def test_a_cosine_is_that_of_pytorch_after_a_linear_warm_up(warmup: int, floor: float) -> None:
    training = Training(schedule="cosine", learning_rate=0.4, warmup_rounds=warmup, floor=floor)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    wave = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12 - warmup, eta_min=0.4 * floor)
    expected = [0.4 * (t + 1) / (warmup + 1) for t in range(warmup)]
    while len(expected) < 12:
        expected += map(float, wave.get_last_lr())
        optimizer.step()
        wave.step()
    assert [training.rate(t, 12) for t in range(1, 13)] == pytest.approx(expected, rel=1e-6)
    assert all(training.rate(t, warmup) > 0 for t in range(1, warmup + 1)), "a run may end before the warm-up does"


def test_a_warm_up_puts_the_decay_off() -> None:
    training = Training(warmup_rounds=2)
    assert [training.rate(t, 9) for t in range(1, 5)] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01 * 0.995])


def test_adam_keeps_no_momentum_and_serves_no_hooks_that_count_on_sgd() -> None:
    with pytest.raises(ValueError, match="momentum_state=persist is for sgd; adamw begins anew: use reset"):
        Training(optimizer=AdamW(), momentum_state="persist")
    task = Task(training=Training(optimizer=AdamW()))
    with pytest.raises(ValueError, match=r"'two_heads' works with how far SGD moves a weight; use task.training.optim"):
        Experiment(task=task, method=METHODS["fedrod-edges"](task))
    assert parse(Training, {"optimizer": "adamw"}).optimizer == AdamW()
