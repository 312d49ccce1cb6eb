"""What every personalization scheme promises the loop and the trainers, and the trainers every scheme."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedbac import PERSONALIZATION, Additive, ConfigError, Experiment, Fixed, Method, Runtime, Training, native
from fedbac.core import trees
from fedbac.core.parts import Apply, Parts, Personalization, Phase, Scope
from fedbac.core.requests import Evaluate, Train, Trainer
from fedbac.core.settings import Settings
from fedbac.federation import Federation, assemble
from fedbac.local import LoopTrainer, VmapTrainer, make_trainer
from fedbac.models import builder, weights
from tests.contracts.variants import refuses_change, variants
from tests.unit.tiny import tiny_data, tiny_task

SCHEMES = variants(PERSONALIZATION)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
K = 3
TASK = tiny_task(training=Training(epochs=1, batch_size=1000, momentum=0.0, clip_norm=None, weight_decay=0.01))
build = builder(TASK.network, None, (1, 8, 8), 10, seed=0)


class Contrast(Settings):
    """A scheme of the user's that is no plain sum: ŷ = h(x) − 2 f(x)."""

    kind: Literal["contrast"] = "contrast"
    scopes: ClassVar[Mapping[str, Scope]] = Additive.scopes
    sums_logits: ClassVar[bool] = False

    def init(self, build: Any, num_clusters: int) -> Parts:
        return Additive(cluster_init="distinct").init(build, num_clusters)

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        return apply("global", x) - 2 * apply("cluster", x)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("global", "cluster"), decay={}, penalty={}),)


class Mirrored(Contrast):
    """One whose second network looks at the mirror image: ŷ = h(x) + f(mirrored x)."""

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        return apply("global", x) + apply("cluster", x.flip(-1))


USERS: dict[str, Any] = {"a user's scheme": Contrast(), "a user's scheme with its own view": Mirrored()}
TRAINERS = ["loop", "vmap", "native"]
every_trainer = pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        pytest.param(kind, scheme, id=f"{kind}-{name}")
        for kind in TRAINERS
        for name, scheme in (SCHEMES | USERS).items()
        if kind != "native" or scheme.sums_logits
    ],
)


def predict(scheme: Any, model: Parts, x: Tensor) -> Tensor:
    """Run a scheme's prediction with plain calls of the network."""
    logits: Tensor = scheme.predict(lambda part, z: functional_call(build(0), model[part], (z,)), x)
    return logits


def model_of(scheme: Any, parts: Parts, cluster: int) -> Parts:
    return {
        part: trees.take(parts[part], cluster if scope == "cluster" else 0) for part, scope in scheme.scopes.items()
    }


def shaken(parts: Parts) -> Parts:
    """Return parts whose rows are all different and whose outputs are not zero."""
    generator = torch.Generator().manual_seed(0)
    return {
        part: {name: v + 0.1 * torch.randn(v.shape, generator=generator) for name, v in params.items()}
        for part, params in parts.items()
    }


@every_scheme
def test_it_is_a_frozen_scheme_of_its_kind(scheme: Any) -> None:
    assert PERSONALIZATION.kinds[scheme.kind] is type(scheme)
    assert isinstance(scheme, Personalization)
    assert refuses_change(scheme)


@every_scheme
def test_parts_are_those_of_the_scopes_stacked_by_scope(scheme: Any) -> None:
    parts = scheme.init(build, K)
    assert list(parts) == list(scheme.scopes)
    template = weights(build(0))
    for part, scope in scheme.scopes.items():
        assert scope in ("cloud", "cluster")
        assert list(parts[part]) == list(template)
        for name, value in parts[part].items():
            assert value.shape == ((1 if scope == "cloud" else K), *template[name].shape)
            assert torch.isfinite(value).all()


@every_scheme
def test_parts_start_the_same_every_time_and_share_no_memory(scheme: Any) -> None:
    """Stacks are written to row by row: rows that shared memory would move together."""
    first, second = scheme.init(build, K), scheme.init(build, K)
    for part, params in first.items():
        for name, value in params.items():
            assert torch.equal(value, second[part][name])
            before = value[-1].clone()
            value[0] += 1
            assert value.shape[0] == 1 or torch.equal(value[-1], before)


@pytest.mark.parametrize("scheme", (SCHEMES | USERS).values(), ids=SCHEMES | USERS)
def test_prediction_is_the_sum_of_the_parts_logits_exactly_if_it_says_so(scheme: Any) -> None:
    """The native kernel trusts ``sums_logits`` and never calls ``predict``."""
    parts = shaken(scheme.init(build, K))
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for k in range(K):
        model = model_of(scheme, parts, k)
        total = sum(functional_call(build(0), params, (x,)) for params in model.values())
        assert torch.allclose(predict(scheme, model, x), total, atol=1e-6) == scheme.sums_logits


@every_scheme
def test_phases_move_every_part_and_no_other(scheme: Any) -> None:
    phases = scheme.phases()
    assert {part for phase in phases for part in phase.moves} == set(scheme.scopes)
    for phase in phases:
        for pull in (phase.decay, phase.penalty):
            assert set(pull) <= set(phase.moves)
            assert all(value >= 0 for value in pull.values())


# ------------------------------------------------------------------------------------ the trainers keep to the scheme


@pytest.fixture(scope="module")
def federation() -> Federation:
    experiment = Experiment(task=TASK, method=Method(name="x", clustering=Fixed(), personalization=Additive()))
    return assemble(experiment, dataset=tiny_data())


def trainer(kind: str, scheme: Any, federation: Federation) -> Trainer:
    if kind == "loop":
        return LoopTrainer(build(0), scheme, federation.examples)
    if kind == "vmap":
        return VmapTrainer(build(0), scheme, federation.examples, torch.device("cpu"))
    if not native.available():
        pytest.skip("the native kernel was not built")
    runtime = Runtime(device="cpu", trainer="native")
    return make_trainer(build(0), scheme, federation.examples, runtime)


@pytest.mark.parametrize("scheme", USERS.values(), ids=USERS)
def test_a_scheme_that_is_no_sum_is_kept_from_the_native_kernel(scheme: Any, federation: Federation) -> None:
    chosen = make_trainer(build(0), scheme, federation.examples, Runtime(device="cpu", workers=1))
    assert isinstance(chosen, LoopTrainer)
    with pytest.raises(ConfigError, match=r"runtime\.trainer"):
        make_trainer(build(0), scheme, federation.examples, Runtime(device="cpu", trainer="native"))


@every_trainer
def test_evaluation_is_by_the_schemes_prediction(kind: str, scheme: Any, federation: Federation) -> None:
    """Loss and accuracy of every model on every client's data, as plain calls of ``predict`` give them."""
    parts = shaken(scheme.init(build, K))
    models = tuple(model_of(scheme, parts, k) for k in (0, 2, 1))
    request = Evaluate(models, "train", edge=0, clients=(3, 0))
    got = trainer(kind, scheme, federation).evaluate([request])[0]
    x_all, y_all = federation.examples.source("train")
    for g, client in enumerate(request.clients):
        index = torch.from_numpy(federation.shards.train[client])
        x, y = federation.examples.normalize(x_all[index]), y_all[index]
        assert got.count_G[g] == len(y)
        for v, model in enumerate(models):
            logits = predict(scheme, model, x)
            assert got.loss_VG[v, g] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
            assert got.accuracy_VG[v, g] == pytest.approx(float((logits.argmax(1) == y).double().mean()))


@every_trainer
def test_one_step_follows_the_gradient_of_the_schemes_loss(kind: str, scheme: Any, federation: Federation) -> None:
    """θ ← θ − η (∇ loss + (weight decay + the phase's pull) θ), for every part, when one batch is the whole epoch."""
    model = model_of(scheme, shaken(scheme.init(build, K)), 1)
    kept = {part: {name: value.clone() for name, value in params.items()} for part, params in model.items()}
    clients, rate = (1, 4), 0.1
    got = trainer(kind, scheme, federation).train([Train(clients, model, round=1, edge_round=0, learning_rate=rate)])[0]
    x_all, y_all = federation.examples.source("train")
    assert len(scheme.phases()) == 1
    phase = scheme.phases()[0]
    for c, client in enumerate(clients):
        index = torch.from_numpy(federation.shards.train[client])
        x, y = federation.examples.normalize(x_all[index]), y_all[index]

        def loss(model: Parts, x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.cross_entropy(predict(scheme, model, x), y)

        gradient = grad(loss)(kept)
        assert got.loss_C[c] == pytest.approx(float(loss(kept)), rel=1e-5)
        for part, params in kept.items():
            pull = 0.01 + phase.decay.get(part, 0.0) + phase.penalty.get(part, 0.0)
            for name, value in params.items():
                expected = value - rate * (gradient[part][name] + pull * value)
                np.testing.assert_allclose(got.parts_C[part][name][c], expected, atol=1e-6)
                assert torch.equal(model[part][name], value)  # what was sent is not written to
