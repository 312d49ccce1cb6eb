"""A body that two networks share: every trainer as plain PyTorch, from phase to phase and from round to round."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac import Method
from fedbac.core.parts import Phase
from fedbac.local import LoopTrainer
from tests.schemes import Branched
from tests.support import Regular, deal, order, play, question
from tests.trainers.reference import (
    DATA,
    PATHS,
    RATE,
    SIZES,
    check,
    make,
    naive_batches,
    requests,
    setting,
    starts,
    with_momentum,
)

HIDDEN, LAST = ("1.weight", "1.bias"), ("3.weight", "3.bias")
"""The two layers of the network."""


def logits(body: list[Tensor], head: list[Tensor], x: Tensor) -> Tensor:
    return F.linear(torch.relu(F.linear(x.flatten(1), *body)), *head)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_under_two_heads_learns_as_written_down_in_torch(path: str) -> None:
    """Phase 1: the body and the first head. Phase 2: the second head by the sum of both, on the body as it is then."""
    federation, scheme = setting(momentum=0.0, weight_decay=0.0), Branched()
    start, client = starts(federation, scheme)[0], 2
    trained = make(path, federation, scheme).train([order((client,), start, 2, 0, RATE)])[0].parts_C
    body = [start["body"][name].clone().requires_grad_() for name in HIDDEN]
    generic = [start["generic"][name].clone().requires_grad_() for name in LAST]
    personal = [start["personal"][name].clone().requires_grad_() for name in LAST]
    for _, x, y in naive_batches(federation, (2, 0, client), federation.examples.training.epochs):
        moving = [*body, *generic]
        for weight, slope in zip(
            moving, torch.autograd.grad(F.cross_entropy(logits(body, generic, x), y), moving), strict=True
        ):
            weight.data -= RATE * slope
    for _, x, y in naive_batches(federation, (2, 0, client), 1):
        score = logits(body, generic, x) + logits(body, personal, x)
        for weight, slope in zip(personal, torch.autograd.grad(F.cross_entropy(score, y), personal), strict=True):
            weight.data -= RATE * slope
    for part, names, values in (("body", HIDDEN, body), ("generic", LAST, generic), ("personal", LAST, personal)):
        for name, value in zip(names, values, strict=True):
            torch.testing.assert_close(trained[part][name][0].cpu(), value.detach(), rtol=1e-5, atol=1e-5)
    model = {part: {name: value[0].cpu() for name, value in params.items()} for part, params in trained.items()}
    measured = make(path, federation, scheme).evaluate([question((model,), "train", (client,))])[0]
    mine = torch.from_numpy(federation.shards.train[client])
    x, y = federation.examples.normalize(torch.from_numpy(DATA.x_train)[mine]), torch.from_numpy(DATA.y_train)[mine]
    score = logits(body, generic, x) + logits(body, personal, x)
    assert measured.loss_VG[0, 0] == pytest.approx(F.cross_entropy(score, y).item(), rel=1e-4)


def convolutional() -> nn.Module:
    head = (nn.Flatten(), nn.Linear(27, 5), nn.ReLU(), nn.Linear(5, 4))
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), *head)


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.full
def test_a_body_of_convolutions_is_handed_on_with_its_momentum(path: str, in_turns: bool) -> None:
    """Kernels lay networks out as they like: what one takes over from the other must be the same layers."""
    federation, scheme = setting(user=convolutional, clip_norm=0.5), Branched(in_turns=in_turns)
    trainer = make(path, federation, scheme)
    first = [with_momentum(request, None, federation) for request in requests(federation, scheme, 1)]
    done = trainer.train(first)
    second = [with_momentum(r, t.momentum, federation) for r, t in zip(first, done, strict=True)]
    for request, trained in zip([*first, *second], [*done, *trainer.train(second)], strict=True):
        check(trained, federation, scheme, request)


class HeadAlone(Branched):
    """The second head learns by itself, on a body that keeps still but for the statistics that its layers gather."""

    def phases(self) -> tuple[Phase, ...]:
        return super().phases()[0], Phase(moves=("personal",), terms=("personal",))


def test_statistics_of_a_shared_body_are_one_too() -> None:
    """Batch normalization gathers them in whichever network runs."""
    for scheme in (HeadAlone(), Branched(in_turns=True)):
        federation = setting(scheme, user=lambda: Regular(norm=True), batch_size=6, drop_last=True)
        trainer = LoopTrainer(federation.network, scheme, federation.examples)
        (request, *_) = requests(federation, scheme)
        check(trainer.train([request])[0], federation, scheme, request)


def test_a_run_with_a_shared_body_counts_it_once() -> None:
    scheme = Branched()
    played = play(Method(name="branched", personalization=scheme), DATA, deal(DATA, SIZES), num_rounds=2)
    sent = sum(value[0].numel() for part in ("body", "generic") for value in played.end.parts[part].values())
    clients = sum(len(edge) for edge in SIZES)
    assert played.records[0]["bytes"]["client"]["up"]["train"] == 4 * clients * sent
    for part, rows in (("body", 1), ("generic", 1), ("personal", clients)):
        assert {len(value) for value in played.end.parts[part].values()} == {rows}
        assert all(not torch.equal(v, played.states[0].parts[part][n]) for n, v in played.end.parts[part].items())
