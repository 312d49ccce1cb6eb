"""Networks: their sizes, their initial weights, and what is refused."""

import pytest
import torch
from torch import Tensor, nn

from fedbac import Additive, ConfigError, LeNet5, Perceptron, PerCluster, Shared
from fedbac.core import trees
from fedbac.core.parts import Params, Scope
from fedbac.local.kernel import layers_of
from fedbac.models import Custom, builder, weights, zero_last_layer
from tests.unit.tiny import tiny_run, tiny_task

SHAPE, CLASSES = (1, 8, 8), 10
OWNERS: dict[Scope, int] = {"cloud": 1, "cluster": 3, "edge": 4, "client": 7}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def equal(left: Params, right: Params) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("shape", "expected"), [((3, 32, 32), 62_006), ((1, 28, 28), 44_426)])
def test_lenet5_has_the_papers_number_of_weights(shape: tuple[int, int, int], expected: int) -> None:
    network = LeNet5().build(shape, 10)
    assert count(network) == expected == sum(value.numel() for value in weights(network).values())
    assert network(torch.zeros(2, *shape)).shape == (2, 10)


def test_wide_lenet5_has_as_many_weights_as_two() -> None:
    wide = LeNet5(width=1.41)
    assert wide.widths() == (8, 23, 169, 118)
    assert count(wide.build((3, 32, 32), 10)) == 123_825


def test_lenet5_with_given_widths() -> None:
    network = LeNet5(width=(2, 3, 5, 7)).build((1, 16, 20), 4)
    assert [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)] == [2, 3]
    assert [m.out_features for m in network.modules() if isinstance(m, nn.Linear)] == [5, 7, 4]
    assert network(torch.zeros(1, 1, 16, 20)).shape == (1, 4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 15), (784,)])
def test_lenet5_refuses_what_it_cannot_read(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"16×16") as caught:
        LeNet5().build(shape, 10)
    assert str(list(shape)) in str(caught.value)


def test_perceptron_layers() -> None:
    assert count(Perceptron(hidden=()).build((1, 2, 3), 4)) == 6 * 4 + 4
    assert count(Perceptron(hidden=(5, 7)).build((6,), 4)) == 6 * 5 + 5 + 5 * 7 + 7 + 7 * 4 + 4


def test_networks_of_a_run_are_reproducible_and_independent() -> None:
    def build(index: int, seed: int = 0) -> Params:
        return weights(builder(Perceptron(), None, SHAPE, CLASSES, seed)(index))

    torch.manual_seed(1)
    first = build(0)
    torch.manual_seed(2)
    assert equal(first, build(0))
    assert not any(torch.equal(first[name], build(1)[name]) for name in first)
    assert not any(torch.equal(first[name], build(0, seed=1)[name]) for name in first)


def test_building_does_not_move_the_global_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    builder(Perceptron(), None, SHAPE, CLASSES, 0)(5)
    assert torch.equal(torch.rand(3), expected)


def user_network(classes: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, classes))


def test_user_module_is_initialized_anew_each_time() -> None:
    mine = user_network()
    before = weights(mine)
    build = builder(Custom(name="mine"), mine, SHAPE, CLASSES, 0)
    assert equal(weights(mine), before)
    assert not torch.equal(weights(build(0))["1.weight"], before["1.weight"])
    assert not torch.equal(weights(build(0))["1.weight"], weights(build(1))["1.weight"])
    assert equal(weights(build(1)), weights(build(1)))


def test_user_function_is_called_for_each_network() -> None:
    build = builder(Custom(name="f"), user_network, SHAPE, CLASSES, 0)
    assert equal(weights(build(2)), weights(build(2)))
    assert not torch.equal(weights(build(2))["1.weight"], weights(build(3))["1.weight"])


@pytest.mark.parametrize("network", [user_network(), user_network])
def test_user_networks_are_trained(network: nn.Module) -> None:
    run = tiny_run("fed-bac", network=network, task=tiny_task(rounds=3))
    assert run.config["experiment"]["task"]["network"]["kind"] == "custom"
    losses = [record["loss"] for record in run.records]
    assert losses[-1] < losses[0]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.linear = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1)) * self.scale
        return out


def test_a_module_that_cannot_be_reset_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"Scaled.*reset_parameters.*function"):
        builder(Custom(name="mine"), Scaled(), SHAPE, CLASSES, 0)
    assert count(builder(Custom(name="mine"), Scaled, SHAPE, CLASSES, 0)(0)) == 651


def test_a_wrong_number_of_classes_is_refused_naming_both() -> None:
    with pytest.raises(ConfigError, match=r"10 classes.*\[2, 7\]"):
        builder(Custom(name="mine"), user_network(7), SHAPE, CLASSES, 0)
    with pytest.raises(ConfigError, match=r"10 classes.*\[2, 7\]"):
        tiny_run("hierfavg", network=user_network(7))


def test_a_network_for_other_examples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \[1, 9, 9\]"):
        builder(Custom(name="mine"), user_network(), (1, 9, 9), CLASSES, 0)


def test_a_network_of_the_users_must_be_given_again() -> None:
    with pytest.raises(ConfigError, match=r"'mine'.*network="):
        builder(Custom(name="mine"), None, SHAPE, CLASSES, 0)


class WithBuffers(nn.Module):
    """The last layer is a Linear, though batch normalization before it has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(x.flatten(1)))))
        return out


def test_weights_are_parameters_and_floating_buffers() -> None:
    names = set(weights(WithBuffers()))
    assert names == {
        "first.weight", "first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
        "last.weight", "last.bias",
    }  # fmt: skip


@pytest.mark.parametrize(
    "network",
    [Perceptron().build(SHAPE, CLASSES), Perceptron(hidden=()).build(SHAPE, CLASSES), user_network(), WithBuffers()],
    ids=["mlp", "linear", "layer norm", "batch norm"],
)
def test_zero_last_layer_gives_zero_output_and_can_learn(network: nn.Module) -> None:
    network.eval()
    before = weights(network)
    after = zero_last_layer(before)
    logits = torch.func.functional_call(network, after, (torch.randn(5, *SHAPE),))
    assert torch.equal(logits, torch.zeros(5, CLASSES))
    assert equal(before, weights(network))
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        f"{linear}.weight",
        f"{linear}.bias",
    }


def test_cluster_networks_start_alike_or_each_on_its_own() -> None:
    """C.16: shared, all are one; distinct, no two are."""
    build = builder(Perceptron(), None, SHAPE, CLASSES, 0)
    for scheme in (PerCluster, Additive):
        shared = scheme(cluster_init="shared").init(build, OWNERS)["cluster"]
        distinct = scheme(cluster_init="distinct").init(build, OWNERS)["cluster"]
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert equal(trees.take(shared, i), trees.take(shared, j))
            assert not torch.equal(distinct["1.weight"][i], distinct["1.weight"][j])


@pytest.mark.parametrize("cluster_init", ["shared", "distinct"])
@pytest.mark.parametrize("residual_init", ["independent", "zero_last_layer"])
def test_the_two_terms_never_start_as_copies(cluster_init: str, residual_init: str) -> None:
    """C.15: equal h and f would receive equal gradients and stay copies."""
    build = builder(Perceptron(), None, SHAPE, CLASSES, 0)
    scheme = Additive.model_validate({"cluster_init": cluster_init, "residual_init": residual_init})
    parts = scheme.init(build, OWNERS)
    for k in range(3):
        for name, value in parts["cluster"].items():
            assert not torch.equal(parts["global"][name][0], value[k])
    if residual_init == "zero_last_layer":
        last = list(parts["cluster"])[-1]
        assert not parts["cluster"][last].any()
        assert parts["global"][last].any()


def test_schemes_start_their_first_network_alike() -> None:
    """HierFAVG, IFCA with shared models and h of Fed-BAC begin with the same network, so that curves compare."""
    build = builder(Perceptron(), None, SHAPE, CLASSES, 0)
    first = trees.take(Shared().init(build, OWNERS)["global"], 0)
    assert equal(first, trees.take(PerCluster().init(build, OWNERS)["cluster"], 1))
    assert equal(first, trees.take(Additive().init(build, OWNERS)["global"], 0))


def test_lenet_of_other_activations_and_pooling() -> None:
    """As many weights, other numbers; the kernels for a GPU, which know ReLU and maxima only, leave them to torch."""
    shape, x = (1, 28, 28), torch.rand(2, 1, 28, 28)
    plain = LeNet5().build(shape, 10)
    assert layers_of(plain, shape) is not None
    for changed in (LeNet5(activation="tanh"), LeNet5(pooling="average")):
        other = changed.build(shape, 10)
        other.load_state_dict(plain.state_dict())
        assert not torch.allclose(other(x), plain(x))
        assert layers_of(other, shape) is None
