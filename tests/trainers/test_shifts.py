"""A constant that is added to the gradients of each client and part, on every trainer."""

from dataclasses import replace

import pytest
import torch

from fedbac.core import trees
from fedbac.core.parts import Parts
from fedbac.core.requests import Train
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, PoolTrainer, pool
from tests.support import distance
from tests.trainers.reference import OPTIONS, PATHS, SCHEMES, check, make, requests, setting

CASES = [
    (name, option)
    for name in ("shared", "additive", "warmed", "personal", "layered", "branched_in_turns")
    for option in ("plain", "clip_joint", "clip_per_network", "no_momentum")
]
SHIFTED = {"shared": "global", "layered": "head", "branched_in_turns": "body"}
"""One part of a scheme; that of all for the others."""


def shifted(asked: list[Train], part: str, strength: float = 0.3, seed: int = 5) -> list[Train]:
    """Return requests of which a part has a shift for every client, but for the last request."""
    generator = torch.Generator().manual_seed(seed)

    def shift(request: Train) -> Parts:
        stack = request.bank[part]
        drawn = {
            name: strength * torch.randn((len(request.clients), *value.shape[1:]), generator=generator)
            for name, value in stack.items()
        }
        return {part: drawn}

    return [*(replace(request, shift=shift(request)) for request in asked[:-1]), asked[-1]]


def with_shifts(name: str, option: str) -> tuple[Federation, list[Train]]:
    federation = setting(SCHEMES[name], **OPTIONS[option])
    return federation, shifted(requests(federation, SCHEMES[name]), SHIFTED.get(name, "global"))


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("name", "option"), CASES)
def test_it_is_added_after_clipping_and_before_momentum(path: str, name: str, option: str) -> None:
    federation, asked = with_shifts(name, option)
    for trained, request in zip(make(path, federation, SCHEMES[name]).train(asked), asked, strict=True):
        check(trained, federation, SCHEMES[name], request)


@pytest.mark.parametrize("path", PATHS)
def test_a_trainer_remembers_no_shift(path: str) -> None:
    federation, asked = with_shifts("additive", "clip_joint")
    plain = requests(federation, SCHEMES["additive"])
    used = make(path, federation, SCHEMES["additive"])
    used.train(asked)
    for after in (plain, shifted(plain, "cluster")):
        for one, other in zip(used.train(after), make(path, federation, SCHEMES["additive"]).train(after), strict=True):
            assert distance(one.parts_C, other.parts_C) == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_shift_of_some_weights_leaves_the_others_to_their_gradients(path: str) -> None:
    """A network of two layers whose last layer keeps its gradient in the first step."""
    federation = setting(SCHEMES["shared"], epochs=1, batch_size=64)
    (request, *_) = requests(federation, SCHEMES["shared"])
    name = next(iter(request.bank["global"]))
    shift = {"global": {name: torch.ones(3, *request.bank["global"][name].shape[1:])}}
    trainer = make(path, federation, SCHEMES["shared"])
    (plain,), (moved,) = trainer.train([request]), trainer.train([replace(request, shift=shift)])
    for weight, value in plain.parts_C["global"].items():
        expected = value - request.learning_rate if weight == name else value
        torch.testing.assert_close(moved.parts_C["global"][weight], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_workers_are_sent_the_shift_of_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "START_SECONDS", 0.0)
    federation, asked = with_shifts("additive", "clip_joint")
    trainer = PoolTrainer(federation.network, SCHEMES["additive"], federation.examples, workers=2)
    try:
        expected = LoopTrainer(federation.network, SCHEMES["additive"], federation.examples).train(asked)
        for one, other in zip(trainer.train(asked), expected, strict=True):
            assert distance(one.parts_C, other.parts_C) == 0
    finally:
        trainer.close()


def test_some_clients_of_a_request_keep_their_own_shift() -> None:
    _, (request, *_) = with_shifts("shared", "plain")
    kept = request.part(slice(1, 3)).shift["global"]
    assert (
        distance({"global": kept}, {"global": trees.select(request.shift["global"], torch.tensor([1, 2]).numpy())}) == 0
    )
