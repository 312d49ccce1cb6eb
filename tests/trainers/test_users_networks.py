"""Networks of the user's: dropout, batch normalization, weights held still."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from fedbac.core.parts import Personalization
from fedbac.errors import ConfigError
from fedbac.local import LoopTrainer, VmapTrainer
from fedbac.personalization import Additive, Shared
from tests.schemes import Branched, Layered
from tests.support import NO_GPU, Regular, distance, on_test, start_of
from tests.trainers.reference import check, make, requests, setting, with_momentum


def test_a_network_of_the_users_with_dropout() -> None:
    scheme = Additive()
    federation = setting(scheme, user=lambda: Regular(dropout=0.5))
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    before = torch.get_rng_state()
    asked = requests(federation, scheme)
    first = trainer.train(asked)
    torch.manual_seed(99)
    backwards = trainer.train(asked[::-1])[::-1]
    torch.set_rng_state(before)
    trainer.train(asked)
    assert torch.equal(torch.get_rng_state(), before), "training must leave torch's own generator alone"
    for request, one, other in zip(asked, first, backwards, strict=True):
        check(one, federation, scheme, request)
        assert distance(one.parts_C, other.parts_C) == 0
    calm = setting(scheme, user=Regular)
    without = LoopTrainer(calm.network, scheme, calm.examples).train(asked)
    assert distance(first[0].parts_C, without[0].parts_C) > 1e-3
    other_round = trainer.train(requests(federation, scheme, edge_round=1))
    assert distance(first[0].parts_C, other_round[0].parts_C) > 1e-3
    model = (start_of(asked[0], 0),)
    twice = [trainer.evaluate([on_test(model, 0)])[0].loss_VG for _ in range(2)]
    np.testing.assert_array_equal(twice[0], twice[1])


def test_vmap_trains_with_dropout_and_repeats_itself() -> None:
    scheme = Shared()
    federation = setting(scheme, user=lambda: Regular(dropout=0.5))
    asked = requests(federation, scheme)
    runs = [
        VmapTrainer(federation.network, scheme, federation.examples, torch.device("cpu")).train(asked) for _ in range(2)
    ]
    for one, other in zip(*runs, strict=True):
        assert distance(one.parts_C, other.parts_C) == 0
        assert np.isfinite(one.loss_C).all()
    calm = setting(scheme, user=Regular)
    without = LoopTrainer(calm.network, scheme, calm.examples).train(asked)
    assert distance(runs[0][0].parts_C, without[0].parts_C) > 1e-3


@pytest.mark.parametrize("path", ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)])
def test_batch_normalization_statistics_are_learned_and_belong_to_the_client(path: str) -> None:
    scheme = Additive()
    federation = setting(scheme, user=lambda: Regular(norm=True), batch_size=6)
    trainer = make(path, federation, scheme)
    asked = requests(federation, scheme)
    assert "norm.running_mean" in asked[0].bank["global"]
    first = trainer.train(asked)
    for request, trained in zip(asked, first, strict=True):
        check(trained, federation, scheme, request)
        moved = trained.parts_C["global"]["norm.running_mean"].cpu() - request.bank["global"]["norm.running_mean"]
        assert (moved.abs().amax(1) > 1e-3).all()
    trainer.evaluate([on_test((start_of(asked[1], 0),), 0)])
    for one, other in zip(first, trainer.train(asked[::-1])[::-1], strict=True):
        assert distance(one.parts_C, other.parts_C) == 0


def test_data_are_let_go_with_their_run() -> None:
    federation = setting(Shared())
    (request, *_) = requests(federation, Shared())
    LoopTrainer(federation.network, Shared(), federation.examples).train([request])
    examples = weakref.ref(federation.examples)
    del federation, request
    gc.collect()
    assert examples() is None


@pytest.mark.parametrize("path", ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)])
def test_batch_normalization_with_a_cumulative_average_does_not_depend_on_who_trained_before(path: str) -> None:
    def build() -> nn.Module:
        network = Regular(norm=True)
        assert isinstance(network.norm, nn.BatchNorm2d)
        network.norm.momentum = None
        return network

    scheme = Shared()
    federation = setting(scheme, user=build, batch_size=6)
    trainer = make(path, federation, scheme)
    asked = requests(federation, scheme)
    first = trainer.train(asked)
    for one, other in zip(first, trainer.train(asked[::-1])[::-1], strict=True):
        assert distance(one.parts_C, other.parts_C) == 0


@pytest.mark.covering
@pytest.mark.parametrize("path", ["loop", "vmap", pytest.param("vmap-cuda", marks=NO_GPU)])  # our kernels refuse it
@pytest.mark.parametrize("scope", ["joint", "per_network"])
@pytest.mark.parametrize("scheme", [Additive(), Layered(in_turns=True), Branched(in_turns=True)], ids=lambda s: s.kind)
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_weights_belong_to_no_part_and_all_networks_share_them(
    frozen: int, scheme: Personalization, scope: str, path: str
) -> None:
    def build() -> nn.Module:
        layers = [nn.Linear(64, 6), nn.Linear(6, 5), nn.Linear(5, 4)]
        layers[frozen].requires_grad_(False)
        return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])

    federation = setting(scheme, user=build, clip_norm=0.4, clip_scope=scope)
    held, free = (next(v for v in federation.build(i).parameters() if not v.requires_grad) for i in (0, 1))
    assert held is free, "networks of a run that start from other weights share those that are frozen"
    asked = [with_momentum(request, None, federation) for request in requests(federation, scheme)]
    number = (1, 3, 5)[frozen]
    for request, trained in zip(asked, make(path, federation, scheme).train(asked), strict=True):
        check(trained, federation, scheme, request)
        assert not any(name.startswith(f"{number}.") for part in trained.parts_C.values() for name in part)


@pytest.mark.parametrize("path", ["loop", "vmap"])
def test_a_trainer_with_several_networks_holds_frozen_weights_once(path: str) -> None:
    def build() -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 29), nn.ReLU(), nn.Linear(29, 4))
        network[1].requires_grad_(False)
        return network

    scheme = Additive()
    federation = setting(scheme, user=build)
    trainer = make(path, federation, scheme)
    trainer.train(requests(federation, scheme))
    gc.collect()
    found = [value for value in gc.get_objects() if type(value) is nn.Parameter and value.shape == (29, 64)]
    assert {value.data_ptr() for value in found} == {federation.network.get_parameter("1.weight").data_ptr()}


def test_a_part_of_which_all_is_frozen_is_refused() -> None:
    def build() -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 4))
        network[1].requires_grad_(False)
        return network

    scheme = Layered()
    federation = setting(Shared(), user=build)
    with pytest.raises(ConfigError, match="only 1 that are not frozen"):
        LoopTrainer(federation.network, scheme, federation.examples)
