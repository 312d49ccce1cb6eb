"""The trainers against a naive one: fresh modules, torch's own optimizer and clipping, one image at a time."""

import copy
import gc
import weakref
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.config.experiment import Method, Training
from fedbac.core.parts import Params, Parts, Personalization
from fedbac.core.requests import Evaluate, Train, Trained, Trainer
from fedbac.core.rng import stream, torch_seed
from fedbac.data import Augment, Dataset, toy
from fedbac.errors import ConfigError
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, NativeTrainer, PoolTrainer, VmapTrainer
from fedbac.local.kernel import layers_of
from fedbac.personalization import Additive, PerCluster, Shared
from tests.support import (
    NO_GPU,
    NO_KERNEL,
    ON_GPU,
    InTurns,
    OnlyClusterMoves,
    OnlyGlobalMoves,
    Regular,
    Warmed,
    deal,
    distance,
    on_gpu,
    prepare,
)

DATA = toy(num_classes=4, train=50, test=30)
MEAN, STD = float((DATA.x_train / 255).mean()), float((DATA.x_train / 255).std())
SIZES = [[1, 7, 13], [8, 3], [10]]
"""A client with a single example, one smaller than a batch, ragged ones, one of whole batches."""
CLIENTS = ((0, 1, 2), (3, 4), (5,))
RATE = 0.2
SCHEMES: dict[str, Personalization] = {
    "shared": Shared(),
    "per_cluster": PerCluster(),
    "additive": Additive(l2_cluster=0.3),
    "additive_loss": Additive(l2_cluster=0.3, l2_form="loss"),
    "frozen_cluster": OnlyGlobalMoves(),
    "frozen_global": OnlyClusterMoves(),
    "in_turns": InTurns(),
    "warmed": Warmed(),
}
BASE: dict[str, Any] = {"epochs": 2, "batch_size": 5, "weight_decay": 0.02, "momentum": 0.8, "clip_norm": None}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_momentum": {"momentum": 0},
    "whole_batches": {"batch_size": 4},
    "large_batch": {"batch_size": 64},
    "drop_last": {"drop_last": True},
    "clip_joint": {"clip_norm": 0.4, "clip_scope": "joint"},
    "clip_per_network": {"clip_norm": 0.4, "clip_scope": "per_network"},
    "three_epochs": {"epochs": 3},
    "augment": {"augment": Augment(crop_padding=2)},
}
PATHS = ["loop", "vmap", pytest.param("native", marks=NO_KERNEL), *ON_GPU]
CASES = [(name, option) for name in ("shared", "per_cluster", "additive") for option in OPTIONS] + [
    (name, option)
    for name in ("additive_loss", "frozen_cluster", "frozen_global", "in_turns", "warmed")
    for option in ("plain", "clip_joint", "clip_per_network")
]


def setting(scheme: Personalization, user: Callable[[], nn.Module] | None = None, **options: Any) -> Federation:
    values = BASE | options
    augment = values.pop("augment", None)
    method = Method(name="test", personalization=scheme)
    training = Training(**values)
    return prepare(method, DATA, deal(DATA, SIZES), training=training, user=user, augment=augment, seed=3)[1]


def starts(federation: Federation, scheme: Personalization) -> list[Parts]:
    """Return a different start for each request."""
    parts = scheme.init(federation.build, 1)
    return [
        {part: {name: value[0] * (1 + 0.2 * edge) for name, value in p.items()} for part, p in parts.items()}
        for edge in range(len(CLIENTS))
    ]


def requests(federation: Federation, scheme: Personalization, round_: int = 2, edge_round: int = 0) -> list[Train]:
    parts = starts(federation, scheme)
    return [Train(clients, p, round_, edge_round, RATE) for clients, p in zip(CLIENTS, parts, strict=True)]


# ------------------------------------------------------------------------------------------- the reference


def naive_image(dataset: Dataset, index: int, shift: tuple[int, int] | None, flip: bool, padding: int) -> Tensor:
    image = torch.from_numpy(dataset.x_train[index]).float()
    if shift is not None:
        row, column = shift
        height, width = image.shape[1:]
        image = F.pad(image, (padding,) * 4)[:, row : row + height, column : column + width]
        image = image.flip(2) if flip else image
    return (image / 255 - MEAN) / STD


Outcome = tuple[dict[str, Params], float, dict[str, Params]]


def naive(federation: Federation, scheme: Personalization, request: Train, row: int, template: nn.Module) -> Outcome:
    """Train one client as anybody would write it down; return weights, mean loss and momentum."""
    client = request.clients[row]
    examples, training = federation.examples, federation.examples.training
    address = (request.round, request.edge_round, client)
    order, draws = stream(examples.seed, "batches", *address), stream(examples.seed, "augment", *address)
    mine = federation.shards.train[client]
    num_epochs = training.epochs * len(scheme.phases())
    visits = [order.permutation(mine.size) for _ in range(num_epochs)]
    shifts: list[Any] = [None] * (num_epochs * mine.size)
    flips = [False] * len(shifts)
    padding = 0
    if examples.augment is not None:
        padding = examples.augment.crop_padding
        drawn = examples.augment.draw(draws, len(shifts))
        shifts, flips = [(int(r), int(c)) for r, c in drawn[0]], drawn[1].tolist()
    modules = {part: copy.deepcopy(template) for part in scheme.scopes}
    for part, module in modules.items():
        module.load_state_dict(request.start[part], strict=False)
        module.train()
    total, seen = 0.0, 0
    velocity = {
        part: {
            name: torch.zeros_like(p) if request.momentum is None else request.momentum[part][name][row].cpu()
            for name, p in module.named_parameters()
        }
        for part, module in modules.items()
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(examples.seed, "dropout", *address))
        for number, phase in enumerate(scheme.phases()):
            groups = [
                {
                    "params": list(modules[part].parameters()),
                    "weight_decay": training.weight_decay + phase.decay.get(part, 0.0),
                }
                for part in phase.moves
            ]
            optimizer = torch.optim.SGD(groups, lr=request.learning_rate, momentum=training.momentum)
            if training.momentum:
                for part in phase.moves:
                    for name, p in modules[part].named_parameters():
                        optimizer.state[p]["momentum_buffer"] = velocity[part][name].clone()
            for epoch in range(number * training.epochs, (number + 1) * training.epochs):
                x = torch.stack(
                    [
                        naive_image(DATA, int(mine[v]), shifts[i], flips[i], padding)
                        for i, v in enumerate(visits[epoch], start=epoch * mine.size)
                    ]
                ).float()
                y = torch.from_numpy(DATA.y_train[mine[visits[epoch]]])
                for first in range(0, mine.size, training.batch_size):
                    size = min(training.batch_size, mine.size - first)
                    if training.drop_last and size < training.batch_size and first > 0:
                        continue
                    batch = slice(first, first + size)
                    for module in modules.values():
                        module.zero_grad()
                    loss = F.cross_entropy(scheme.predict(lambda part, x: modules[part](x), x[batch]), y[batch])
                    total, seen = total + loss.item() * size, seen + size
                    for part, strength in phase.penalty.items():
                        loss = loss + strength / 2 * sum(p.square().sum() for p in modules[part].parameters())
                    loss.backward()  # type: ignore[no-untyped-call]
                    if training.clip_norm is not None:
                        moving = [list(modules[part].parameters()) for part in phase.moves]
                        scopes = [[*chain(*moving)]] if training.clip_scope == "joint" else moving
                        for parameters in scopes:
                            nn.utils.clip_grad_norm_(parameters, training.clip_norm)
                    optimizer.step()
            if training.momentum:
                for part in phase.moves:
                    for name, p in modules[part].named_parameters():
                        velocity[part][name] = optimizer.state[p]["momentum_buffer"]
    weights = {
        part: {name: module.state_dict()[name] for name in request.start[part]} for part, module in modules.items()
    }
    return weights, total / seen, velocity


def check(
    trained: Trained,
    federation: Federation,
    scheme: Personalization,
    request: Train,
    known: list[Outcome] | None = None,
) -> None:
    template = federation.network
    for row in range(len(request.clients)):
        weights, loss, velocity = known[row] if known else naive(federation, scheme, request, row, template)
        for part, params in weights.items():
            assert set(trained.parts_C[part]) == set(params)
            for name, value in params.items():
                torch.testing.assert_close(trained.parts_C[part][name][row].cpu(), value, rtol=1e-5, atol=1e-5)
        assert trained.loss_C[row] == pytest.approx(loss, rel=1e-5)
        if request.momentum is not None:
            assert trained.momentum is not None
            for part, params in velocity.items():
                for name, value in params.items():
                    torch.testing.assert_close(trained.momentum[part][name][row].cpu(), value, rtol=1e-5, atol=1e-5)


def with_momentum(request: Train, momentum: Parts | None, federation: Federation) -> Train:
    """Return the request with these momentum buffers, or with zeros."""
    names = [name for name, _ in federation.network.named_parameters()]
    zeros = {
        part: {name: torch.zeros(len(request.clients), *params[name].shape) for name in names}
        for part, params in request.start.items()
    }
    return Train(request.clients, request.start, request.round, request.edge_round, RATE, momentum or zeros)


# --------------------------------------------------------------------------------------------------- tests


def make(path: str, federation: Federation, scheme: Personalization) -> Trainer:
    if path == "loop":
        return LoopTrainer(federation.network, scheme, federation.examples)
    if path == "vmap":
        return VmapTrainer(federation.network, scheme, federation.examples, torch.device("cpu"))
    if path in ("emulated", "fused", "vmap-cuda"):
        return on_gpu(path, federation, scheme)
    layers = layers_of(federation.network, DATA.x_train.shape[1:])
    assert layers is not None
    return NativeTrainer(federation.network, scheme, federation.examples, layers, threads=2)


@lru_cache
def expected(name: str, option: str) -> tuple[Federation, list[Train], list[list[Outcome]]]:
    """Return the answer of the naive reference, found once for all trainers."""
    scheme = SCHEMES[name]
    federation = setting(scheme, **OPTIONS[option])
    asked = requests(federation, scheme)
    template = federation.network
    outcomes = [[naive(federation, scheme, r, row, template) for row in range(len(r.clients))] for r in asked]
    return federation, asked, outcomes


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("name", "option"), CASES)
def test_trainers_train_as_the_naive_reference(path: str, name: str, option: str) -> None:
    federation, asked, outcomes = expected(name, option)
    results = make(path, federation, SCHEMES[name]).train(asked)
    for trained, train, known in zip(results, asked, outcomes, strict=True):
        check(trained, federation, SCHEMES[name], train, known)


@pytest.mark.parametrize("path", PATHS)
def test_a_trainer_remembers_nothing_of_what_it_did_before(path: str) -> None:
    """Neither other clients, nor longer or shorter rounds, nor an evaluation in between may leave a trace."""
    scheme = SCHEMES["additive"]
    federation = setting(scheme, clip_norm=0.5, augment=Augment(crop_padding=2))
    used, small = make(path, federation, scheme), [Train((0, 4), starts(federation, scheme)[0], 7, 1, RATE)]
    asked = requests(federation, scheme)
    used.train(asked[1:])
    used.train(requests(federation, scheme, round_=5))
    used.evaluate([Evaluate((asked[0].start,), "train", 0, (1, 2))])
    used.train(small)
    for after in (asked, small, asked[::-1]):
        for one, other in zip(used.train(after), make(path, federation, scheme).train(after), strict=True):
            assert distance(one.parts_C, other.parts_C) == 0
            np.testing.assert_array_equal(one.loss_C, other.loss_C)


@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "plain"])
def test_every_option_changes_what_is_learned(option: str) -> None:
    """Otherwise the comparisons above would compare nothing."""
    scheme = SCHEMES["additive"]
    plain, other = setting(scheme), setting(scheme, **OPTIONS[option])
    results = [LoopTrainer(f.network, scheme, f.examples).train(requests(f, scheme))[0].parts_C for f in (plain, other)]
    assert distance(*results) > 1e-3


def test_schemes_differ_where_they_should() -> None:
    def learned(scheme: Personalization, **options: Any) -> Parts:
        federation = setting(scheme, **options)
        return (
            LoopTrainer(federation.network, scheme, federation.examples).train(requests(federation, scheme))[0].parts_C
        )

    none, decay, loss = Additive(l2_cluster=0), SCHEMES["additive"], SCHEMES["additive_loss"]
    assert distance(learned(none), learned(decay)) > 1e-3
    assert distance(learned(decay), learned(loss)) < 1e-5, "without clipping the two forms are one"
    assert distance(learned(decay, clip_norm=0.4), learned(loss, clip_norm=0.4)) > 1e-3
    joint, per_network = (learned(decay, clip_norm=0.4, clip_scope=scope) for scope in ("joint", "per_network"))
    assert distance(joint, per_network) > 1e-3


def test_rounds_and_edge_rounds_visit_in_another_order() -> None:
    scheme = Shared()
    federation = setting(scheme)
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    results = [trainer.train(requests(federation, scheme, r, e))[0].parts_C for r, e in ((1, 0), (2, 0), (1, 1))]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert distance(results[one], results[other]) > 1e-4
    for request in requests(federation, scheme, 1, 1):
        check(trainer.train([request])[0], federation, scheme, request)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("loop", "shared"),
        ("loop", "additive"),
        ("loop", "frozen_global"),
        ("loop", "in_turns"),
        ("vmap", "shared"),
        ("vmap", "additive"),
        ("vmap", "in_turns"),
        pytest.param("native", "additive", marks=NO_KERNEL),
        pytest.param("native", "in_turns", marks=NO_KERNEL),
        pytest.param("fused", "additive", marks=NO_GPU),
        pytest.param("fused", "in_turns", marks=NO_GPU),
    ],
)
def test_momentum_that_persists_over_two_rounds(path: str, name: str) -> None:
    scheme = SCHEMES[name]
    federation = setting(scheme, momentum_state="persist", clip_norm=0.5)
    trainer = make(path, federation, scheme)
    first = [with_momentum(request, None, federation) for request in requests(federation, scheme, 1)]
    after_first = trainer.train(first)
    for request, trained in zip(first, after_first, strict=True):
        check(trained, federation, scheme, request)
    second = [
        with_momentum(request, trained.momentum, federation)
        for request, trained in zip(requests(federation, scheme, 2), after_first, strict=True)
    ]
    fresh = LoopTrainer(federation.network, scheme, federation.examples).train(requests(federation, scheme, 2))
    for request, trained, forgetful in zip(second, trainer.train(second), fresh, strict=True):
        check(trained, federation, scheme, request)
        assert distance(trained.parts_C, forgetful.parts_C) > 1e-3


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
    model = (asked[0].start,)
    twice = [trainer.evaluate([Evaluate(model, "test", 0, ())])[0].loss_VG for _ in range(2)]
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


def test_batch_normalization_statistics_are_learned_and_belong_to_the_client() -> None:
    scheme = Additive()
    federation = setting(scheme, user=lambda: Regular(norm=True), batch_size=6)
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    asked = requests(federation, scheme)
    assert "norm.running_mean" in asked[0].start["global"]
    first = trainer.train(asked)
    for request, trained in zip(asked, first, strict=True):
        check(trained, federation, scheme, request)
        moved = trained.parts_C["global"]["norm.running_mean"] - request.start["global"]["norm.running_mean"]
        assert (moved.abs().amax(1) > 1e-3).all()
    trainer.evaluate([Evaluate((asked[1].start,), "test", 0, ())])
    for one, other in zip(first, trainer.train(asked[::-1])[::-1], strict=True):
        assert distance(one.parts_C, other.parts_C) == 0


def test_vmap_refuses_a_network_with_buffers_before_any_work() -> None:
    federation = setting(Shared(), user=lambda: Regular(norm=True))
    with pytest.raises(ConfigError, match="batch normalization"):
        VmapTrainer(federation.network, Shared(), federation.examples, torch.device("cpu"))


def test_data_are_let_go_with_their_run() -> None:
    federation = setting(Shared())
    (request, *_) = requests(federation, Shared())
    LoopTrainer(federation.network, Shared(), federation.examples).train([request])
    examples = weakref.ref(federation.examples)
    del federation, request
    gc.collect()
    assert examples() is None


def test_batch_normalization_with_a_cumulative_average_does_not_depend_on_who_trained_before() -> None:
    def build() -> nn.Module:
        network = Regular(norm=True)
        assert isinstance(network.norm, nn.BatchNorm2d)
        network.norm.momentum = None
        return network

    scheme = Shared()
    federation = setting(scheme, user=build, batch_size=6)
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    asked = requests(federation, scheme)
    first = trainer.train(asked)
    for one, other in zip(first, trainer.train(asked[::-1])[::-1], strict=True):
        assert distance(one.parts_C, other.parts_C) == 0


def test_weights_that_the_users_network_holds_still_stay() -> None:
    def build() -> nn.Module:
        network = Regular()
        network.conv.requires_grad_(False)
        return network

    federation = setting(Shared(), user=build)
    (request, *_) = requests(federation, Shared())
    trained = LoopTrainer(federation.network, Shared(), federation.examples).train([request])[0]
    conv = trained.parts_C["global"]["conv.weight"]
    torch.testing.assert_close(conv, request.start["global"]["conv.weight"].expand_as(conv))


def test_the_pool_computes_what_the_loop_computes_bit_for_bit() -> None:
    scheme = SCHEMES["additive_loss"]
    options = {"momentum_state": "persist", "clip_norm": 0.5, "augment": Augment(crop_padding=2)}
    federation = setting(scheme, user=None, **options)
    loop = LoopTrainer(federation.network, scheme, federation.examples)
    pool = PoolTrainer(federation.network, scheme, federation.examples, workers=2)
    try:
        asked = [with_momentum(request, None, federation) for request in requests(federation, scheme)]
        for one, other in zip(loop.train(asked), pool.train(asked), strict=True):
            assert distance(one.parts_C, other.parts_C) == 0
            np.testing.assert_array_equal(one.loss_C, other.loss_C)
            assert one.momentum is not None
            assert other.momentum is not None
            assert distance(one.momentum, other.momentum) == 0
        models = (
            asked[0].start,
            asked[1].start,
            {"global": asked[0].start["global"], "cluster": asked[2].start["cluster"]},
        )
        questions = [Evaluate(models, "test", 1, ()), Evaluate(models, "train", 0, (2, 0), max_samples=5)]
        for one_answer, other_answer in zip(loop.evaluate(questions), pool.evaluate(questions), strict=True):
            np.testing.assert_array_equal(one_answer.loss_VG, other_answer.loss_VG)
            np.testing.assert_array_equal(one_answer.accuracy_VG, other_answer.accuracy_VG)
            np.testing.assert_array_equal(one_answer.count_G, other_answer.count_G)
    finally:
        pool.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_client_without_examples_comes_back_as_it_went(path: str) -> None:
    scheme = SCHEMES["additive"]
    method = Method(name="test", personalization=scheme)
    federation = prepare(method, DATA, deal(DATA, [[0, 5], [7, 0]]), training=Training(**BASE), seed=3)[1]
    start = starts(federation, scheme)[0]
    trainer = make(path, federation, scheme)
    asked = [Train((0, 1), start, 1, 0, RATE), Train((2, 3), start, 1, 0, RATE)]
    for trained, empty in zip(trainer.train(asked), (0, 1), strict=True):
        assert trained.loss_C[empty] == 0
        for part, params in start.items():
            for name, value in params.items():
                torch.testing.assert_close(trained.parts_C[part][name][empty].cpu(), value, rtol=0, atol=0)
                assert not torch.equal(trained.parts_C[part][name][1 - empty].cpu(), value)
    only_empty = trainer.train([Train((0,), start, 1, 0, RATE)])[0]
    assert (
        distance(
            {"cluster": {n: v[0] for n, v in only_empty.parts_C["cluster"].items()}}, {"cluster": start["cluster"]}
        )
        == 0
    )
