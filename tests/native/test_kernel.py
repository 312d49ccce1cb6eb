"""The native kernel equals PyTorch, is reproducible, and keeps a broken job to itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedbac import native
from fedbac.native import Images, Layers, Schedule, Sgd

if not native.available():
    pytest.skip(f"the native kernel cannot be used: {native.missing()}", allow_module_level=True)

MEAN, STD = (0.4, 0.5, 0.6, 0.3), (0.2, 0.25, 0.3, 0.5)
TINY = Layers(1, 13, 14, ((3, 3), (5, 2)), (9, 7))
NETWORKS = {
    "lenet5-1x28x28": native.lenet5(1, 28, 28),
    "lenet5-3x32x32": native.lenet5(3, 32, 32),
    "lenet5-wide": native.lenet5(3, 32, 32, 17, (8, 23, 169, 118)),
    "lenet5-odd": native.lenet5(2, 23, 19, 3, (7, 5, 13, 11)),
    "tiny": TINY,
    "one convolution": Layers(2, 9, 12, ((5, 4),), (6,)),
    "three convolutions": Layers(2, 31, 27, ((4, 3), (7, 2), (6, 3)), (5, 4)),
    "large kernels": Layers(1, 25, 24, ((2, 7), (3, 6)), (4,)),
    "kernel of one": Layers(3, 9, 8, ((4, 1), (13, 1)), (5,)),
    "perceptron": Layers(1, 3, 4, (), (19, 5)),
    "linear": Layers(2, 5, 5, (), (3,)),
}
SETS = native.instruction_sets()
torch.set_num_threads(1)  # the reference's steps are too small to share


def torch_network(layers: Layers) -> nn.Sequential:
    modules, channels, height, width = [], layers.channels, layers.height, layers.width
    for outputs, kernel in layers.convolutions:
        modules += [nn.Conv2d(channels, outputs, kernel), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = outputs, (height - kernel + 1) // 2, (width - kernel + 1) // 2
    modules.append(nn.Flatten())
    features = channels * height * width
    for outputs in layers.linears:
        modules += [nn.Linear(features, outputs), nn.ReLU()]
        features = outputs
    return nn.Sequential(*modules[:-1])


def flat(network: nn.Module) -> np.ndarray:
    return torch.cat([weight.detach().flatten() for weight in network.parameters()]).numpy()


def start_networks(layers: Layers, count: int, seed: int = 0) -> np.ndarray:
    torch.manual_seed(seed)
    return np.stack([flat(torch_network(layers)) for _ in range(count)]).astype(np.float32)


def load(layers: Layers, flat_weights: np.ndarray, dtype: torch.dtype) -> nn.Module:
    network = torch_network(layers).to(dtype)
    nn.utils.vector_to_parameters(torch.tensor(flat_weights, dtype=dtype), network.parameters())
    return network


def make_images(layers: Layers, count: int, *, is_float: bool = False, seed: int = 0) -> Images:
    rng = np.random.default_rng(seed)
    shape = (count, layers.channels, layers.height, layers.width)
    pixels = rng.normal(size=shape).astype(np.float32) if is_float else rng.integers(0, 256, shape, dtype=np.uint8)
    channels = layers.channels
    return Images(pixels, rng.integers(0, layers.linears[-1], count), MEAN[:channels], STD[:channels])


def make_schedule(images: Images, sizes: list[int], epochs: list[int], seed: int = 0) -> Schedule:
    rng = np.random.default_rng(seed)
    visits = [np.empty(0, np.int64)]
    for size, count in zip(sizes, epochs, strict=True):
        chosen = rng.choice(len(images.labels_N), size, replace=False)
        visits += [rng.permutation(chosen) for _ in range(count)]
    return Schedule(np.concatenate(visits), np.array(sizes), np.array(epochs))


def read(
    images: Images, visits: np.ndarray, crop: np.ndarray | None, flip: np.ndarray | None, dtype: torch.dtype
) -> torch.Tensor:
    raw = torch.from_numpy(images.pixels_NCHW[visits])
    height, width = raw.shape[2:]
    if crop is not None:
        padded = functional.pad(raw, (128, 128, 128, 128))
        raw = torch.stack(
            [
                one[:, 128 + dy : 128 + dy + height, 128 + dx : 128 + dx + width]
                for one, (dy, dx) in zip(padded, crop.astype(int), strict=True)
            ]
        )
    if flip is not None:
        raw = torch.where(torch.from_numpy(flip.astype(bool))[:, None, None, None], raw.flip(-1), raw)
    if raw.dtype == torch.float32:
        return raw.to(dtype)
    mean, std = (torch.tensor(value, dtype=dtype)[:, None, None] for value in (images.mean_C, images.std_C))
    return (raw.to(dtype) / 255 - mean) / std


def torch_train(
    layers: Any,
    images: Any,
    networks_TD: Any,
    start_JP: Any,
    schedule: Any,
    sgd: Any,
    *,
    velocity_JPD: Any = None,
    dtype: Any = torch.float64,
) -> Any:
    """Train job after job, step after step, with PyTorch's own optimizer and clipping."""
    num_parts = start_JP.shape[1]
    decay, l2, frozen = (np.broadcast_to(value, num_parts) for value in (sgd.weight_decay, sgd.l2, sgd.frozen))
    results, velocities, losses, at = [], [], [], 0
    for job, rows in enumerate(start_JP):
        parts = [load(layers, networks_TD[row], dtype) for row in rows]
        live = [p for p in range(num_parts) if not frozen[p]]
        optimizer = torch.optim.SGD(
            [{"params": list(parts[p].parameters()), "weight_decay": float(decay[p])} for p in live]
            or [torch.zeros(1)],
            lr=sgd.learning_rate,
            momentum=sgd.momentum,
        )
        if velocity_JPD is not None:
            for p in live:
                sizes = [weight.numel() for weight in parts[p].parameters()]
                for weight, start in zip(
                    parts[p].parameters(),
                    torch.from_numpy(velocity_JPD[job, p]).split(sizes),  # type: ignore[no-untyped-call]
                    strict=True,
                ):
                    optimizer.state[weight]["momentum_buffer"] = start.to(dtype).view_as(weight).clone()
        epochs = []
        for _ in range(schedule.num_epochs_J[job]):
            total, visited = 0.0, 0
            for begin in range(0, schedule.num_examples_J[job], sgd.batch_size):
                end = min(begin + sgd.batch_size, schedule.num_examples_J[job])
                if sgd.drop_last and begin > 0 and end - begin < sgd.batch_size:
                    continue
                rows_ = slice(at + begin, at + end)
                visits = schedule.examples_S[rows_]
                crop = None if schedule.crop_S2 is None else schedule.crop_S2[rows_]
                flip = None if schedule.flip_S is None else schedule.flip_S[rows_]
                x = read(images, visits, crop, flip, dtype)
                logits = sum(part(x) for part in parts)
                loss = functional.cross_entropy(logits, torch.from_numpy(images.labels_N[visits]))
                total, visited = total + loss.item() * (end - begin), visited + end - begin
                if not live:
                    continue
                optimizer.zero_grad()
                (loss + sum(float(l2[p]) / 2 * (w**2).sum() for p in live for w in parts[p].parameters())).backward()  # type: ignore[no-untyped-call]
                if sgd.max_norm:
                    scopes = [[p] for p in live] if sgd.clip_per_part else [live]
                    for scope in scopes:
                        nn.utils.clip_grad_norm_([w for p in scope for w in parts[p].parameters()], sgd.max_norm)
                optimizer.step()
            at += int(schedule.num_examples_J[job])
            epochs.append(total / visited if visited else 0.0)
        results.append([flat(part) for part in parts])
        losses.append(epochs)
        buffers = [
            [optimizer.state[w].get("momentum_buffer", torch.zeros_like(w)) for w in part.parameters()]
            for part in parts
        ]
        velocities.append([torch.cat([buffer.detach().flatten() for buffer in part]).numpy() for part in buffers])
    return np.array(results), np.array(velocities), losses


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Allow a few filters to be less close: of two pixels under a window that tie but for rounding, either may win."""
    error = np.abs(found - expected)
    assert np.mean(error > tolerance) < 1e-3
    assert error.max(initial=0) < 100 * tolerance


def assert_equals_torch(
    layers: Any,
    images: Any,
    networks: Any,
    start: Any,
    schedule: Any,
    sgd: Any,
    *,
    instruction_set: Any = None,
    tolerance: Any = 2e-6,
    velocity: Any = None,
) -> Any:
    found = native.train(
        layers,
        images,
        networks,
        start,
        schedule,
        sgd,
        velocity_JPD=velocity,
        return_velocity=True,
        num_threads=2,
        instruction_set=instruction_set,
    )
    expected, velocities, losses = torch_train(layers, images, networks, start, schedule, sgd, velocity_JPD=velocity)
    assert_close(found.parameters_JPD, expected, tolerance)
    if sgd.momentum:
        assert found.velocity_JPD is not None
        assert_close(found.velocity_JPD, velocities, 20 * tolerance)
    for job, epochs in enumerate(losses):
        np.testing.assert_allclose(found.loss_JE[job, : len(epochs)], epochs, rtol=1e-5, atol=1e-6)
        assert np.isnan(found.loss_JE[job, len(epochs) :]).all()
        np.testing.assert_allclose(found.loss_J[job], np.mean(epochs) if epochs else 0, rtol=1e-5, atol=1e-6)
    assert found.finite_J.all()
    return found


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_pytorch_for_every_network(name: Any, num_parts: Any, instruction_set: Any) -> None:
    layers = NETWORKS[name]
    images = make_images(layers, 60)
    networks = start_networks(layers, 3)
    start = np.array([[0, 1], [2, 0]])[:, :num_parts]
    schedule = make_schedule(images, [50, 19], [3, 2])
    sgd = Sgd(16, 0.02, 0.9, weight_decay=[1e-3, 1e-2][:num_parts], l2=[1e-2, 0][:num_parts], max_norm=1.0)
    assert_equals_torch(layers, images, networks, start, schedule, sgd, instruction_set=instruction_set)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("batch", [1, 7, 16, 32, 33, 64, 100, 101])
def test_any_batch_size(batch: Any, instruction_set: Any) -> None:
    images = make_images(TINY, 120)
    schedule = make_schedule(images, [100, 3, 0, 64], [2, 3, 4, 0])
    assert_equals_torch(
        TINY,
        images,
        start_networks(TINY, 1),
        np.zeros((4, 1), int),
        schedule,
        Sgd(batch, 0.01, 0.5, max_norm=2.0),
        instruction_set=instruction_set,
    )


@pytest.mark.parametrize("batch", [7, 32, 70])
def test_drop_last(batch: Any) -> None:
    images = make_images(TINY, 80)
    schedule = make_schedule(images, [64, 33], [3, 2])
    sgd = Sgd(batch, 0.05, drop_last=True)
    found = assert_equals_torch(TINY, images, start_networks(TINY, 1), np.zeros((2, 1), int), schedule, sgd)
    assert (found.loss_J > 0).all()  # an only batch is not dropped


@pytest.mark.parametrize(
    "change",
    [
        {}, {"momentum": 0.9}, {"max_norm": 0.05}, {"max_norm": 0.05, "clip_per_part": True}, {"max_norm": 100.0},
        {"weight_decay": (0.1, 0.0)}, {"weight_decay": 0.1, "momentum": 0.9, "max_norm": 0.05},
        {"l2": (0.0, 0.3), "max_norm": 0.05}, {"l2": (0.2, 0.3), "max_norm": 0.05, "clip_per_part": True}, {"l2": 0.1},
        {"frozen": (True, False), "max_norm": 0.05, "momentum": 0.5}, {"frozen": (False, True), "weight_decay": 0.1},
        {"frozen": True},
    ],
)  # fmt: skip
def test_hyperparameters_of_two_parts(change: Any) -> None:
    images = make_images(TINY, 70)
    networks = start_networks(TINY, 4)
    start = np.array([[0, 1], [2, 3], [0, 3]])
    schedule = make_schedule(images, [50, 21, 0], [3, 4, 1])
    found = assert_equals_torch(TINY, images, networks, start, schedule, Sgd(20, 0.05, **change))
    for part, frozen in enumerate(np.broadcast_to(change.get("frozen", False), 2)):
        if frozen:
            np.testing.assert_array_equal(found.parameters_JPD[:, part], networks[start[:, part]])


def test_momentum_goes_in_and_out() -> None:
    images = make_images(TINY, 64)
    networks, start = start_networks(TINY, 2), np.array([[0, 1]])
    sgd = Sgd(16, 0.05, 0.9, max_norm=1.0)
    whole = make_schedule(images, [64], [2])
    together = native.train(TINY, images, networks, start, whole, sgd, return_velocity=True)
    halves = [Schedule(visits, np.array([64]), np.array([1])) for visits in np.split(whole.examples_S, 2)]
    first = native.train(TINY, images, networks, start, halves[0], sgd, return_velocity=True)
    second = native.train(
        TINY,
        images,
        first.parameters_JPD[0],
        start,
        halves[1],
        sgd,
        velocity_JPD=first.velocity_JPD,
        return_velocity=True,
    )
    np.testing.assert_array_equal(together.parameters_JPD, second.parameters_JPD)
    np.testing.assert_array_equal(together.velocity_JPD, second.velocity_JPD)
    assert first.velocity_JPD is not None
    given = np.random.default_rng(0).normal(scale=0.1, size=first.velocity_JPD.shape).astype(np.float32)
    assert_equals_torch(TINY, images, networks, start, whole, sgd, velocity=given)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize(
    "layers", [TINY, NETWORKS["lenet5-odd"], NETWORKS["perceptron"]], ids=["tiny", "odd", "perceptron"]
)
def test_augmentation(layers: Any, is_float: Any, instruction_set: Any) -> None:
    images = make_images(layers, 40, is_float=is_float)
    schedule = make_schedule(images, [30, 11], [2, 3])
    rng = np.random.default_rng(1)
    visits = len(schedule.examples_S)
    crop = rng.integers(-4, 5, (visits, 2)).astype(np.int8)
    crop[0] = (-128, 127)
    flip = rng.integers(0, 2, visits).astype(bool)
    for change in ({"crop_S2": crop}, {"flip_S": flip}, {"crop_S2": crop, "flip_S": flip}):
        assert_equals_torch(
            layers,
            images,
            start_networks(layers, 1),
            np.zeros((2, 1), int),
            replace(schedule, **change),
            Sgd(8, 0.05),
            instruction_set=instruction_set,
        )


def test_float_images_are_read_as_they_are() -> None:
    images = make_images(TINY, 40, is_float=True)
    schedule = make_schedule(images, [40], [3])
    assert_equals_torch(TINY, images, start_networks(TINY, 1), np.zeros((1, 1), int), schedule, Sgd(16, 0.05))


def test_as_close_to_double_precision_as_pytorch_itself() -> None:
    layers = native.lenet5(1, 28, 28)
    images = make_images(layers, 100)
    networks, start = start_networks(layers, 2), np.array([[0, 1]])
    schedule = make_schedule(images, [100], [6])
    sgd = Sgd(32, 0.05, 0.9, weight_decay=1e-3, max_norm=1.0)
    exact = torch_train(layers, images, networks, start, schedule, sgd)[0]
    single = torch_train(layers, images, networks, start, schedule, sgd, dtype=torch.float32)[0]
    found = native.train(layers, images, networks, start, schedule, sgd).parameters_JPD
    np.testing.assert_allclose(found, single, rtol=0, atol=1e-5)
    assert np.abs(found - exact).max() < 2 * np.abs(single - exact).max() + 1e-7


@pytest.mark.parametrize("instruction_set", SETS)
def test_same_bits_for_any_number_of_threads_and_order_of_jobs(instruction_set: Any) -> None:
    layers = NETWORKS["lenet5-odd"]
    images = make_images(layers, 90)
    sizes, epochs = [40, 0, 17, 90, 5, 33], [2, 3, 1, 2, 4, 2]
    schedule = make_schedule(images, sizes, epochs)
    networks, start = start_networks(layers, 7), np.stack([np.arange(6), np.arange(6)[::-1] + 1], 1)
    sgd = Sgd(16, 0.05, 0.9, max_norm=0.5)
    one, two, four = (
        native.train(
            layers, images, networks, start, schedule, sgd, num_threads=threads, instruction_set=instruction_set
        )
        for threads in (1, 2, 4)
    )
    order = np.array([3, 5, 0, 4, 1, 2])
    pieces = np.split(schedule.examples_S, np.cumsum(np.multiply(sizes, epochs))[:-1])
    shuffled = Schedule(np.concatenate([pieces[i] for i in order]), np.array(sizes)[order], np.array(epochs)[order])
    other = native.train(
        layers, images, networks, start[order], shuffled, sgd, num_threads=2, instruction_set=instruction_set
    )
    for found in (two, four):
        assert found.parameters_JPD.tobytes() == one.parameters_JPD.tobytes()
        assert found.loss_JE.tobytes() == one.loss_JE.tobytes()
    assert other.parameters_JPD.tobytes() == one.parameters_JPD[order].tobytes()
    assert other.loss_J.tobytes() == one.loss_J[order].tobytes()


def test_empty_job_returns_its_start() -> None:
    images = make_images(TINY, 20)
    networks = start_networks(TINY, 2)
    found = native.train(
        TINY, images, networks, np.array([[1], [0]]), make_schedule(images, [0, 8], [3, 0]), Sgd(4, 0.1)
    )
    np.testing.assert_array_equal(found.parameters_JPD[:, 0], networks[[1, 0]])
    assert found.loss_J.tolist() == [0, 0]
    assert found.finite_J.all()
    nothing = native.train(TINY, images, networks, np.empty((0, 1), int), make_schedule(images, [], []), Sgd(4, 0.1))
    assert nothing.parameters_JPD.shape == (0, 1, TINY.num_parameters)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["image", "network", "learning rate"])
def test_a_job_that_is_not_finite_keeps_it_to_itself(bad: Any, where: Any, instruction_set: Any) -> None:
    images = make_images(TINY, 30, is_float=True)
    networks = start_networks(TINY, 2)
    visits = np.concatenate([np.arange(10), np.arange(10, 20), np.arange(20, 30)])
    schedule = Schedule(visits, np.array([10, 10, 10]), np.array([1, 1, 1]))
    start = np.array([[0], [1], [0]])
    sgd = Sgd(4, 0.1, max_norm=1.0)
    clean = native.train(TINY, images, networks, start, schedule, sgd, instruction_set=instruction_set)
    if where == "image":
        images.pixels_NCHW[13, 0, 5, 5] = bad
    elif where == "network":
        networks[1, 3] = bad
    else:
        found = native.train(
            TINY, images, networks, start, schedule, replace(sgd, learning_rate=bad), instruction_set=instruction_set
        )
        assert not found.finite_J.any()
        return
    found = native.train(TINY, images, networks, start, schedule, sgd, num_threads=2, instruction_set=instruction_set)
    assert found.finite_J.tolist() == [True, False, True]
    np.testing.assert_array_equal(found.parameters_JPD[[0, 2]], clean.parameters_JPD[[0, 2]])


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", ["lenet5-1x28x28", "lenet5-odd", "three convolutions", "perceptron"])
def test_evaluation_equals_pytorch(name: Any, num_parts: Any, instruction_set: Any) -> None:
    layers = NETWORKS[name]
    images = make_images(layers, 400)
    networks = start_networks(layers, 4)
    models = np.array([[0, 1], [0, 2], [3, 3], [2, 1]])[:, :num_parts]
    rng = np.random.default_rng(2)
    groups = [rng.permutation(400)[:size] for size in (400, 37, 0, 1, 256)]
    pairs = np.array([(model, group) for group in range(5) for model in range(4) if (model, group) != (2, 1)])
    found, again = (
        native.evaluate(
            layers, images, networks, models, groups, pairs, num_threads=threads, instruction_set=instruction_set
        )
        for threads in (2, 1)
    )
    assert found.loss.tobytes() == again.loss.tobytes()
    for row, (model, group) in enumerate(pairs):
        parts = [load(layers, networks[at], torch.float64) for at in models[model]]
        with torch.no_grad():
            logits = sum(part(read(images, groups[group], None, None, torch.float64)) for part in parts)
        labels = torch.from_numpy(images.labels_N[groups[group]])
        assert found.loss[row] == pytest.approx(
            float(functional.cross_entropy(logits, labels, reduction="sum")), rel=1e-6
        )
        assert found.correct[row] == int((logits.argmax(1) == labels).sum())
        assert found.count[row] == len(groups[group])


def test_the_lowest_class_wins_a_tie() -> None:
    images = Images(np.zeros((6, 1, 3, 4), np.uint8), np.array([0, 1, 0, 2, 3, 0]))
    layers = Layers(1, 3, 4, (), (4,))
    found = native.evaluate(
        layers,
        images,
        np.zeros((1, layers.num_parameters), np.float32),
        [[0]],  # type: ignore[arg-type]
        [np.arange(6)],
        [(0, 0)],  # type: ignore[arg-type]
    )
    assert (found.correct[0], found.count[0]) == (3, 6)
    assert found.loss[0] == pytest.approx(6 * np.log(4))


def test_number_of_parameters() -> None:
    assert native.lenet5(3, 32, 32).num_parameters == 62_006
    assert native.lenet5(1, 28, 28).num_parameters == 44_426


def test_environment_forces_the_instruction_set(monkeypatch: Any) -> None:
    images = make_images(TINY, 20)
    arguments = (
        TINY,
        images,
        start_networks(TINY, 1),
        np.zeros((1, 1), int),
        make_schedule(images, [20], [2]),
        Sgd(8, 0.1),
    )
    for name in SETS:
        monkeypatch.setenv("FEDBAC_NATIVE_ISA", name)
        forced = native.train(*arguments)
        asked = native.train(*arguments, instruction_set=name)
        assert forced.parameters_JPD.tobytes() == asked.parameters_JPD.tobytes()
    monkeypatch.setenv("FEDBAC_NATIVE_ISA", "v9")
    with pytest.raises(ValueError, match="v9"):
        native.train(*arguments)


def test_mistakes_are_named() -> None:
    images = make_images(TINY, 20)
    networks, start = start_networks(TINY, 1), np.zeros((1, 1), int)
    schedule, sgd = make_schedule(images, [20], [2]), Sgd(8, 0.1)
    with pytest.raises(ValueError, match="is no network"):
        native.train(Layers(1, 4, 4, ((3, 5),), (2,)), images, networks, start, schedule, sgd)
    with pytest.raises(ValueError, match="examples_S"):
        native.train(TINY, images, networks, start, replace(schedule, examples_S=schedule.examples_S + 5), sgd)
    with pytest.raises(ValueError, match="visits"):
        native.train(TINY, images, networks, start, replace(schedule, examples_S=schedule.examples_S[:-1]), sgd)
    with pytest.raises(ValueError, match="start_JP"):
        native.train(TINY, images, networks, start + 1, schedule, sgd)
    with pytest.raises(ValueError, match="networks_TD"):
        native.train(TINY, images, networks[:, 1:], start, schedule, sgd)
    with pytest.raises(ValueError, match="labels_N"):
        native.train(TINY, replace(images, labels_N=images.labels_N + 3), networks, start, schedule, sgd)
    with pytest.raises(ValueError, match="sum of 1 to 16"):
        native.train(TINY, images, networks, np.zeros((1, 17), int), schedule, sgd)
