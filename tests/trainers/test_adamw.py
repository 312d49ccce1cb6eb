"""Local training by AdamW, on the trainers that know it; the others hand over."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.config.experiment import Runtime
from fedbac.config.training import AdamW
from fedbac.errors import ConfigError
from fedbac.local import LoopTrainer, PoolTrainer, VmapTrainer, make_trainer
from tests.support import NO_GPU, NO_KERNEL, distance
from tests.trainers.reference import SCHEMES, check, make, requests, setting
from tests.trainers.test_shifts import shifted

PATHS = ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)]
ADAM = AdamW(beta1=0.8, beta2=0.95, epsilon=1e-3)
"""With an ε that keeps weights of no gradient from being decided by rounding."""
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip_joint": {"clip_norm": 0.4, "clip_scope": "joint"},
    "clip_per_network": {"clip_norm": 0.4},
    "no_decay": {"weight_decay": 0.0},
    "slow": {"optimizer": AdamW(epsilon=1e-3)},
}


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", CASES)
@pytest.mark.parametrize("name", ["shared", "additive", "additive_loss", "warmed", "proximal", "branched"])
def test_it_is_that_of_pytorch(path: str, name: str, option: str) -> None:
    """It begins anew with every phase."""
    federation = setting(SCHEMES[name], **{"optimizer": ADAM} | CASES[option])
    asked = [replace(request, learning_rate=0.02) for request in requests(federation, SCHEMES[name])]
    for trained, request in zip(make(path, federation, SCHEMES[name]).train(asked), asked, strict=True):
        check(trained, federation, SCHEMES[name], request, close=1e-5 if path == "vmap-cuda" else 1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_a_shift_is_part_of_the_gradient_whose_moments_it_keeps(path: str) -> None:
    federation = setting(SCHEMES["shared"], optimizer=ADAM, clip_norm=0.4)
    asked = shifted([replace(r, learning_rate=0.02) for r in requests(federation, SCHEMES["shared"])], "global")
    for trained, request in zip(make(path, federation, SCHEMES["shared"]).train(asked), asked, strict=True):
        check(trained, federation, SCHEMES["shared"], request, close=1e-5 if path == "vmap-cuda" else 1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_a_trainer_remembers_no_moments(path: str) -> None:
    federation = setting(SCHEMES["additive"], optimizer=ADAM)
    used, asked = make(path, federation, SCHEMES["additive"]), requests(federation, SCHEMES["additive"])
    used.train(asked[1:])
    for one, other in zip(used.train(asked), make(path, federation, SCHEMES["additive"]).train(asked), strict=True):
        assert distance(one.parts_C, other.parts_C) == 0
        np.testing.assert_array_equal(one.loss_C, other.loss_C)


def test_a_single_step_of_one_weight_by_hand() -> None:
    """The first step of Adam goes by η whatever the gradient; decoupled decay takes η·decay of the weight."""
    federation = setting(SCHEMES["shared"], optimizer=AdamW(epsilon=1e-30), epochs=1, batch_size=64, weight_decay=0.5)
    (request, *_) = requests(federation, SCHEMES["shared"])
    (trained,) = LoopTrainer(federation.network, SCHEMES["shared"], federation.examples).train([request])
    for name, value in trained.parts_C["global"].items():
        start = request.bank["global"][name][0] * (1 - 0.5 * request.learning_rate)
        moved = (value[0] - start).abs()
        far = moved > 1e-5  # others had no gradient at all
        assert far.any()
        torch.testing.assert_close(moved[far], torch.full_like(moved[far], request.learning_rate), rtol=1e-4, atol=0)


@NO_KERNEL
def test_the_native_kernel_hands_over_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    federation = setting(SCHEMES["shared"], optimizer=ADAM)
    with caplog.at_level(logging.WARNING, "fedbac"):
        alone, many = (
            make_trainer(federation.network, SCHEMES["shared"], federation.examples, Runtime(device="cpu", workers=n))
            for n in (1, 2)
        )
    assert isinstance(alone, LoopTrainer)
    assert isinstance(many, PoolTrainer)
    many.close()
    assert alone.path == "torch-loop"
    reason = "task.training.optimizer 'adamw' is not in our kernels; sgd would be"
    said = [record.message for record in caplog.records]
    assert said == [f"training through torch (torch-loop), which is slower than our kernels: {reason}"]
    runtime = Runtime(device="cpu", trainer="native")
    with pytest.raises(ConfigError, match=f"runtime.trainer: the native kernel cannot be used: {reason}; use torch"):
        make_trainer(federation.network, SCHEMES["shared"], federation.examples, runtime)


@NO_GPU
def test_the_gpu_kernels_hand_over() -> None:
    federation = setting(SCHEMES["shared"], optimizer=ADAM)
    trainer = make_trainer(federation.network, SCHEMES["shared"], federation.examples, Runtime(device="cuda"))
    assert isinstance(trainer, VmapTrainer)
    assert trainer.path == "torch-vmap-cuda"
