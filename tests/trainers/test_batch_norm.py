"""Batch normalization of many clients at once: statistics of each one's own examples, as one client after another."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.networks import Block
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbac.config.experiment import Runtime, Training
from fedbac.config.training import AdamW
from fedbac.core.parts import Personalization, Phase
from fedbac.core.requests import Teachers
from fedbac.errors import ConfigError
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, VmapTrainer, make_trainer
from fedbac.local.batch_norm import counting
from fedbac.local.folding import for_many
from fedbac.local.per_example import PerExample
from fedbac.personalization import Additive, Shared
from tests.covering import first
from tests.schemes import Branched, InTurns, Layered, Personal, Taught
from tests.support import NO_GPU, Regular, deal, distance, federate, on_test, question, start_of
from tests.trainers.reference import BASE, DATA, requests, with_momentum

SIZES = [[9, 8, 13], [8, 3], [9]]
"""Last batches of three or four examples: one alone has no statistics where a layer sees a number of it."""
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]
CPU = torch.device("cpu")


def setting(user: Callable[[], nn.Module], sizes: Any = SIZES, **options: Any) -> Federation:
    return federate(DATA, deal(DATA, sizes), training=Training(**BASE | options), user=user, seed=3)


def compare(federation: Federation, scheme: Personalization, device: str = "cpu", close: float = 1e-5) -> None:
    """Train and judge by both."""
    parts = federation.network, scheme, federation.examples
    loop, many = LoopTrainer(*parts), VmapTrainer(*parts, torch.device(device))
    asked = [with_momentum(request, None, federation) for request in requests(federation, scheme)]
    models = tuple(start_of(request, 0) for request in asked)
    owners = 2, 0, 4
    questions = [
        on_test(models, 1), question(models, "train", owners, paired=True), question(models, "train", owners)
    ]  # fmt: skip
    for found, right in zip(many.train(asked), loop.train(asked), strict=True):
        assert distance(found.parts_C, right.parts_C) < close
        if federation.examples.training.optimizer.kind == "sgd":  # another has none that persists
            assert distance(found.momentum or {}, right.momentum or {}) < 10 * close
        np.testing.assert_allclose(found.loss_C, right.loss_C, rtol=10 * close)
    for answer, expected in zip(many.evaluate(questions), loop.evaluate(questions), strict=True):
        np.testing.assert_allclose(answer.loss_VG, expected.loss_VG, rtol=10 * close)


KINDS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "rows": (nn.BatchNorm1d, 0),
    "lines": (lambda width: nn.BatchNorm1d(width, affine=False), 1),
    "images": (lambda width: nn.BatchNorm2d(width, momentum=0.3), 2),
    "mean of all": (lambda width: nn.BatchNorm2d(width, momentum=None), 2),
    "nothing gathered": (lambda width: nn.BatchNorm2d(width, track_running_stats=False), 2),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(
    counts=st.lists(st.sampled_from([0, 2, 3, 5]), min_size=1, max_size=3),
    more=st.integers(0, 2),
    width=st.integers(1, 3),
    sides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_padding_does_not_matter(
    kind: str, counts: list[int], more: int, width: int, sides: tuple[int, int], seed: int
) -> None:
    make, axes = KINDS[kind]
    torch.manual_seed(seed)
    layer = make(width).train()
    for value in layer.parameters():
        nn.init.normal_(value)
    x = 3 * torch.randn(len(counts), 5 + more, width, *sides[:axes]) + 2
    weight_AB = (torch.arange(x.shape[1]) < torch.tensor(counts)[:, None]).float()
    names = [name for name, _ in layer.named_parameters()]
    # Twice: what was gathered at first counts at the second time.
    params = {name: value.detach().clone().repeat(len(counts), *[1] * value.dim()) for name, value in
              [*layer.named_parameters(), *layer.named_buffers()]}  # fmt: skip
    leaves = [x.requires_grad_(), *(params[name].requires_grad_() for name in names)]
    many = for_many(layer)

    def run(params: Any, x: Tensor, weight: Tensor) -> Any:
        with counting(weight):
            functional_call(many, params, (x + 1,))
            return functional_call(many, params, (x,))

    found = vmap(run)(params, x, weight_AB)
    wave = torch.sin(torch.arange(x.numel())).reshape(x.shape) * weight_AB.reshape(*weight_AB.shape, *[1] * (axes + 1))
    gradients = torch.autograd.grad((found * wave).sum(), leaves)
    assert not gradients[0][weight_AB == 0].any()
    for c, count in enumerate(counts):
        own: Any = make(width).train()
        own.load_state_dict(layer.state_dict())
        mine = x[c, :count].detach().requires_grad_()
        if count:
            own(mine.detach() + 1)
            right = own(mine)
            each = torch.autograd.grad((right * wave[c, :count]).sum(), [mine, *own.parameters()])
            torch.testing.assert_close(found[c, :count], right, rtol=1e-4, atol=1e-5)
            for one, other in zip([gradients[0][c, :count], *(g[c] for g in gradients[1:])], each, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        for name, value in own.named_buffers():
            if name != "num_batches_tracked" or kind == "mean of all":
                torch.testing.assert_close(params[name][c], value, rtol=1e-5, atol=1e-5)


def residual() -> nn.Module:
    """Return the beginning of a ResNet-18: the whole, of so few small images, makes large numbers of rounding."""
    first = nn.Conv2d(1, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(*first, Block(4, 4, 1), Block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", first(1, [Shared(), Additive(l2_cluster=0.1)]), ids=lambda s: s.kind)
def test_a_residual_network_trains_and_is_judged_as_in_the_loop(scheme: Personalization, device: str) -> None:
    compare(setting(residual, clip_norm=0.5, epochs=3), scheme, device)


class Plain(nn.Module):
    """A convolution and a row of numbers, each normalized by batches; constants of both kinds; an activation that
    writes over what it is given."""

    place: Tensor
    mask: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv, self.images = nn.Conv2d(1, 3, 3, stride=2, bias=False), nn.BatchNorm2d(3, **options)
        self.wide, self.rows = nn.Linear(27, 6, bias=False), nn.BatchNorm1d(6, **options)
        self.out, self.act = nn.Linear(6, 4), nn.ReLU(inplace=True)
        self.register_buffer("place", torch.arange(6).flip(0))
        self.register_buffer("mask", torch.tensor([1.0, 1, 0, 1, 1, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.images(self.conv(x)))
        x = self.act(self.rows(self.wide(x.flatten(1))))
        logits: Tensor = self.out((x * self.mask)[:, self.place])
        return logits


class Calm(Plain):
    """Keeps the statistics of its images, as those do who tune a network that others have trained."""

    def train(self, mode: bool = True) -> "Calm":
        super().train(mode)
        self.images.eval()
        return self


def still(frozen: nn.Module) -> nn.Module:
    """Freeze the weights of a normalization, which still gathers."""
    frozen.get_submodule("images").requires_grad_(False)
    return frozen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "make",
    [
        Plain,
        lambda: Plain(momentum=None),
        lambda: Plain(affine=False, momentum=0.5),
        lambda: Plain(track_running_stats=False),
        Calm,
        lambda: still(Plain()),
    ],
    ids=["usual", "cumulative", "without weights", "without statistics", "at rest", "frozen weights"],
)
def test_every_kind_trains_and_is_judged_as_in_the_loop(make: Callable[[], nn.Module], device: str) -> None:
    federation = setting(make)
    before = {name: value.clone() for name, value in federation.network.state_dict().items()}
    compare(federation, Shared(), device)
    for name, value in federation.network.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} of the network itself was moved"


class Heads(Branched):
    """Both heads learn on a body that is held still, and whose statistics both networks gather."""

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("generic", "personal")), Phase(moves=("body", "personal"), terms=("personal",)))


@pytest.mark.covering
@pytest.mark.parametrize(
    "scheme",
    [
        Additive(l2_cluster=0.3), Shared(proximal=0.7), Layered(in_turns=True), InTurns(), Personal(), Heads(),
        Branched(in_turns=True),
    ],
    ids=lambda s: type(s).__name__,
)  # fmt: skip
@pytest.mark.parametrize("adam", [False, True])
def test_schemes_train_as_in_the_loop(scheme: Personalization, adam: bool) -> None:
    options = {"optimizer": AdamW(), "epochs": 1} if adam else {"clip_norm": 0.4}
    compare(setting(lambda: Plain(momentum=None), **options), scheme, close=1e-4 if adam else 1e-5)


@pytest.mark.parametrize("gathers", first(1, [True, False]))
def test_teachers_judge_by_what_they_know_or_by_the_batch_of_their_pupil(gathers: bool) -> None:
    scheme = Taught(which=(0, 1))
    federation = setting(lambda: Plain(track_running_stats=gathers))
    bank = {
        name: torch.cat([value, 1.3 * value]) for name, value in requests(federation, scheme)[0].bank["global"].items()
    }
    asked = [
        replace(request, teachers=Teachers(bank, np.array([[0.3, 0.7]] * n), np.array([0.6] * n), 2.0))
        for request in requests(federation, scheme)
        for n in [len(request.clients)]
    ]
    parts = federation.network, scheme, federation.examples
    for found, right in zip(VmapTrainer(*parts, CPU).train(asked), LoopTrainer(*parts).train(asked), strict=True):
        assert distance(found.parts_C, right.parts_C) < 1e-5


def test_coarse_precision_is_none_of_the_statistics() -> None:
    federation = setting(Plain, epochs=1)
    asked = requests(federation, Shared())
    parts = federation.network, Shared(), federation.examples
    for found, right in zip(
        VmapTrainer(*parts, CPU, "bf16").train(asked), LoopTrainer(*parts).train(asked), strict=True
    ):
        assert all(value.dtype == torch.float32 for value in found.parts_C["global"].values())
        assert 1e-6 < distance(found.parts_C, right.parts_C) < 0.05


def test_a_batch_of_one_is_refused_in_the_same_words_where_it_has_no_statistics() -> None:
    federation = setting(Plain, [[8, 6, 11], [8, 3], [10]], batch_size=5)
    asked, said = requests(federation, Shared()), []
    for trainer in (
        LoopTrainer(federation.network, Shared(), federation.examples),
        VmapTrainer(federation.network, Shared(), federation.examples, CPU),
    ):
        with pytest.raises(
            ConfigError, match=r"on a batch of 1 of client 1: .*task\.training\.drop_last=true"
        ) as error:
            trainer.train(asked)
        said.append(str(error.value))
    assert said[0] == said[1]
    compare(setting(lambda: Regular(norm=True), [[8, 6, 1], [8, 3], [10]]), Shared())  # of images there are several


class Counting(Regular):
    """Counts its batches."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return super().forward(x)


class Turned(Plain):
    """Puts another axis before that of the batch, where it is normalized."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(self.conv(x).flatten(1))
        logits: Tensor = self.out(self.rows(torch.stack([x, x + 1]).flatten(0, 1)).reshape(2, len(x), -1).sum(0))
        return logits


class Functional(Plain):
    """Normalizes by itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.batch_norm(self.conv(x), None, None, training=True)
        logits: Tensor = self.out(self.wide(x.flatten(1)))
        return logits


OBSTACLES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "counter": (Counting, "buffers seen change in training"),
    "other statistics": (
        lambda: nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), Regular()),
        "buffers 0.running_mean, 0.running_var change",
    ),
    "turned": (Turned, "sees 22 rows where a batch has 11 examples"),
    "functional": (Functional, "examples of a batch depend on those that only fill it"),
}  # fmt: skip


@pytest.mark.parametrize("name", OBSTACLES)
def test_others_are_refused_and_a_run_goes_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make, said = OBSTACLES[name]
    federation = setting(make)
    parts = federation.network, Shared(), federation.examples
    with pytest.raises(ConfigError, match=f"network: .*{said}.*; use --device cpu"):
        VmapTrainer(*parts, CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING, "fedbac"):
        trainer = make_trainer(*parts, Runtime(workers=1))
    assert isinstance(trainer, LoopTrainer)
    (line,) = [record.message for record in caplog.records]
    assert "training through torch (torch-loop)" in line
    assert said in line


def test_dropout_beside_it_is_no_obstacle_and_repeats_itself() -> None:
    federation = setting(lambda: Regular(dropout=0.5, norm=True))
    asked, parts = requests(federation, Shared()), (federation.network, Shared(), federation.examples)
    runs = [VmapTrainer(*parts, CPU).train(asked) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert distance(one.parts_C, other.parts_C) == 0


def test_gradients_of_single_examples_are_refused() -> None:
    federation = setting(Plain)
    with pytest.raises(ConfigError, match=r"has buffers .*so its examples have no gradients of their own"):
        VmapTrainer(federation.network, Shared(), federation.examples, CPU, gradients=PerExample(1.0, 1.0, 0))
