"""Gradients of single examples: opacus' clipping, the noise that was promised, and the same bits in any company."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbac.config.training import Training
from fedbac.core.requests import Train
from fedbac.data import Dataset
from fedbac.local import VmapTrainer
from fedbac.local.per_example import PerExample
from fedbac.personalization import Shared
from fedbac.privacy import noise_for
from tests.golden.opacus_answers import BUDGETS, CLIP, FILE, RATE, batch, network
from tests.support import deal, federate
from tests.trainers.reference import SCHEMES, requests, setting

CPU = torch.device("cpu")


def flat(parts_C: Any) -> torch.Tensor:
    pieces = [value.flatten(1) for _, params in sorted(parts_C.items()) for value in params.values()]
    return torch.cat(pieces, 1)


def trained(gradients: PerExample | None, scheme: str = "shared", **options: Any) -> list[torch.Tensor]:
    federation = setting(SCHEMES[scheme], **options)
    trainer = VmapTrainer(federation.network, SCHEMES[scheme], federation.examples, CPU, gradients=gradients)
    return [flat(one.parts_C) for one in trainer.train(requests(federation, SCHEMES[scheme]))]


def test_clipping_is_that_of_opacus() -> None:
    answers, (x, y) = np.load(FILE), batch()
    data = Dataset("batch", x.numpy(), y.numpy(), x.numpy(), y.numpy(), 3)
    training = Training(epochs=1, batch_size=len(x), momentum=0, weight_decay=0, clip_norm=None)
    federation = federate(data, deal(data, [[len(x)]]), training=training, user=network)
    start = {name: value.detach()[None] for name, value in network().named_parameters()}
    request = Train((0,), {"global": start}, {"global": np.zeros(1, dtype=np.int64)}, 1, 0, RATE)
    gradients = PerExample(CLIP, 0.0, 0)
    (found,) = VmapTrainer(federation.network, Shared(), federation.examples, CPU, gradients=gradients).train([request])
    for name, value in found.parts_C["global"].items():
        torch.testing.assert_close(value[0], torch.from_numpy(answers[name]), rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, start[name])


@pytest.mark.parametrize(("budget", "sigma"), list(zip(BUDGETS, np.load(FILE)["sigma"], strict=True)))
def test_the_noise_is_what_opacus_would_add(budget: tuple[float, float, int], sigma: float) -> None:
    """Who looks for it only as near as a hundredth of epsilon."""
    assert noise_for(*budget) == pytest.approx(sigma, rel=0.02)


@pytest.mark.parametrize("scheme", ["shared", "additive", "in_turns"])
def test_without_noise_or_bound_it_is_plain_training(scheme: str) -> None:
    for one, other in zip(trained(PerExample(1e9, 0.0, 0), scheme), trained(None, scheme), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_noise_of_a_step_is_sigma_times_the_clip_over_its_examples() -> None:
    options: dict[str, Any] = {"epochs": 1, "batch_size": 64, "momentum": 0.0, "weight_decay": 0.0}
    quiet, loud = (trained(PerExample(0.3, sigma, 5), **options) for sigma in (0.0, 2.0))
    for moved, still, sizes in zip(loud, quiet, ((1, 7, 13), (8, 3), (10,)), strict=True):
        for each, plain, size in zip(moved, still, sizes, strict=True):
            noise = (each - plain) * size / (2.0 * 0.3 * 0.2)
            assert float(noise.std()) == pytest.approx(1.0, rel=0.1)


def test_a_client_has_the_same_noise_in_any_company_and_none_of_another_round() -> None:
    federation, scheme = setting(SCHEMES["shared"]), SCHEMES["shared"]
    asked = requests(federation, scheme)

    def by(*some: Train) -> list[torch.Tensor]:
        gradients = PerExample(0.3, 1.0, 5)
        trainer = VmapTrainer(federation.network, scheme, federation.examples, CPU, gradients=gradients)
        return [flat(one.parts_C) for one in trainer.train(some)]

    together = by(*asked)
    (alone,) = by(asked[0].part(slice(1, 2)))
    torch.testing.assert_close(alone[0], together[0][1], rtol=1e-5, atol=1e-6)
    (later,) = by(replace(asked[0], round=asked[0].round + 1))
    assert float((later - together[0]).abs().min()) > 0


def test_an_example_that_breaks_says_nothing() -> None:
    gradients = PerExample(1.0, 0.0, 0)
    broken = {"n": {"w": torch.tensor([[[3.0, 4.0], [torch.nan, 1.0], [0.3, 0.4]]])}}
    torch.testing.assert_close(gradients.summed(broken)["n"]["w"], torch.tensor([[0.9, 1.2]]))
