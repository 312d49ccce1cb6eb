"""What every personalization scheme promises the loop and the trainers, and the trainers every scheme."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedbac import PERSONALIZATION, Additive, ConfigError, Runtime, Shared, Training, native
from fedbac.core import trees
from fedbac.core.parts import (
    Adjusting,
    Anatomy,
    Apply,
    Extending,
    Part,
    Parts,
    Personalization,
    Phase,
    Predicting,
    Pull,
    Scope,
    Stepping,
    extension,
    predict,
)
from fedbac.core.requests import Evaluate, Trainer
from fedbac.core.settings import Settings
from fedbac.data import partition
from fedbac.engines.adjusting import adjusted
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, VmapTrainer, make_trainer
from fedbac.local.stages import stages_of
from fedbac.models import Build, builder, weights
from tests.contracts.variants import refuses_change, variants
from tests.schemes import Branched, InTurns, Layered, Personal
from tests.support import federate, order
from tests.unit.tiny import tiny_data, tiny_task

SCHEMES = variants(PERSONALIZATION) | {"shared-proximal": Shared(proximal=0.3)}
OTHERS = {
    "personal": Personal(),
    "layered": Layered(),
    "layers in turns": Layered(in_turns=True),
    "in turns": InTurns(),
    "branched": Branched(),
    "branched in turns": Branched(in_turns=True),
}
"""Forms that no scheme here has yet."""
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
K = 3
TASK = tiny_task(training=Training(epochs=1, batch_size=1000, momentum=0.0, clip_norm=None, weight_decay=0.01))


class Contrast(Settings):
    """A scheme of the user's that is no plain sum: ŷ = h(x) − 2 f(x)."""

    kind: Literal["contrast"] = "contrast"
    parts: ClassVar[Mapping[str, Part]] = Additive.parts
    terms: ClassVar[None] = None

    def init(self, build: Any, owners: Mapping[Scope, int]) -> Parts:
        return Additive(cluster_init="distinct").init(build, owners)

    def predict(self, apply: Apply, x: Tensor) -> Tensor:
        return apply("global", x) - 2 * apply("cluster", x)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(moves=("global", "cluster")),)


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
        for name, scheme in (SCHEMES | OTHERS | USERS).items()
        if kind != "native"
        or not (
            scheme.terms is None
            or isinstance(scheme, Stepping | Extending)
            or any(phase.taught for phase in scheme.phases())
        )
    ],
)


OWNERS: dict[Scope, int] = {"cloud": 1, "cluster": K, "country": K, "region": K + 1, "edge": K + 1, "client": K + 2}


BUILT: dict[str, tuple[Build, nn.Module]] = {}


def built(scheme: Any) -> Build:
    return _built(scheme)[0]


def _built(scheme: Any) -> tuple[Build, nn.Module]:
    if repr(scheme) not in BUILT:
        build = builder(TASK.network, None, (1, 8, 8), 10, seed=0, extend=extension(scheme))
        BUILT[repr(scheme)] = build, build(0)
    return BUILT[repr(scheme)]


def anatomy(scheme: Any) -> Anatomy:
    return Anatomy(scheme, built(scheme)(0))


def logits_of(scheme: Any, model: Parts, x: Tensor, terms: tuple[str, ...] | None) -> Tensor:
    """Run a scheme's prediction, or the sum of some of its networks, with plain calls."""

    def apply(network: str, z: Tensor) -> Tensor:
        template = _built(scheme)[1]  # none can be made while gradients are taken
        logits: Tensor = functional_call(template, Anatomy(scheme, template).assemble(model, network), (z,))
        return logits

    return predict(scheme, terms, apply, x)


def row_of(scheme: Any, part: str, owner: int) -> int:
    return min(owner, OWNERS[scheme.parts[part].scope] - 1)


def model_of(scheme: Any, parts: Parts, owner: int) -> Parts:
    """Return the parts of one owner's networks; those that have fewer owners are shared."""
    return {p: trees.take(parts[p], row_of(scheme, p, owner)) for p, spec in scheme.parts.items() if spec.networks}


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
def test_parts_hold_their_layers_a_row_for_each_owner(scheme: Any) -> None:
    parts, template = scheme.init(built(scheme), OWNERS), weights(built(scheme)(0))
    assert list(parts) == list(scheme.parts)
    for part, spec in scheme.parts.items():
        assert tuple(parts[part]) == (anatomy(scheme).weights[part] if spec.networks else tuple(parts[part]))
        for name, value in parts[part].items():
            assert len(value) == OWNERS[spec.scope]
            assert value.shape[1:] == (template[name].shape if spec.networks else value.shape[1:])
            assert torch.isfinite(value).all()


@every_scheme
def test_parts_start_the_same_every_time_and_share_no_memory(scheme: Any) -> None:
    """Stacks are written to row by row: rows that shared memory would move together."""
    first, second = scheme.init(built(scheme), OWNERS), scheme.init(built(scheme), OWNERS)
    for part, params in first.items():
        for name, value in params.items():
            assert torch.equal(value, second[part][name])
            before = value[-1].clone()
            value[0] += 1
            assert value.shape[0] == 1 or torch.equal(value[-1], before)


@pytest.mark.parametrize("scheme", (SCHEMES | USERS).values(), ids=SCHEMES | USERS)
def test_a_scheme_says_which_networks_it_sums_or_how_it_predicts(scheme: Any) -> None:
    if scheme.terms is None:
        assert isinstance(scheme, Predicting)
    else:
        assert set(scheme.terms) <= set(anatomy(scheme).networks)
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    parts = shaken(scheme.init(built(scheme), OWNERS))
    one, other = (logits_of(scheme, model_of(scheme, parts, k), x, scheme.terms) for k in (0, 1))
    assert one.shape == (7, 10)
    assert torch.equal(one, other) == all(spec.scope == "cloud" for spec in scheme.parts.values() if spec.networks)


@every_scheme
def test_phases_move_every_part_and_no_other(scheme: Any) -> None:
    phases = scheme.phases()
    assert {part for phase in phases for part in phase.moves} == {p for p, s in scheme.parts.items() if s.networks}
    for phase in phases:
        assert set(phase.pull) <= set(phase.moves)
        assert all(pull.strength >= 0 and pull.to in (None, *scheme.parts) for pull in phase.pull.values())
    assert len(stages_of(anatomy(scheme), TASK.training)) == len(phases)


# ------------------------------------------------------------------------------------ the trainers keep to the scheme


@pytest.fixture(scope="module")
def federation() -> Federation:
    data = tiny_data()
    shards = partition(data.y_train, data.y_test, data.num_classes, TASK.clients(), TASK.partition, seed=0)
    return federate(data, shards, training=TASK.training, network=TASK.network)


def trainer(kind: str, scheme: Any, federation: Federation) -> Trainer:
    if kind == "loop":
        return LoopTrainer(built(scheme)(0), scheme, federation.examples)
    if kind == "vmap":
        return VmapTrainer(built(scheme)(0), scheme, federation.examples, torch.device("cpu"))
    if native.missing() is not None:
        pytest.skip("the native kernel was not built")
    runtime = Runtime(device="cpu", trainer="native")
    return make_trainer(built(scheme)(0), scheme, federation.examples, runtime)


@pytest.mark.parametrize("scheme", USERS.values(), ids=USERS)
def test_a_scheme_that_is_no_sum_is_kept_from_the_native_kernel(scheme: Any, federation: Federation) -> None:
    chosen = make_trainer(built(scheme)(0), scheme, federation.examples, Runtime(device="cpu", workers=1))
    assert isinstance(chosen, LoopTrainer)
    with pytest.raises(ConfigError, match=r"runtime\.trainer"):
        make_trainer(built(scheme)(0), scheme, federation.examples, Runtime(device="cpu", trainer="native"))


@pytest.mark.covering
@every_trainer
def test_evaluation_is_by_the_schemes_prediction(kind: str, scheme: Any, federation: Federation) -> None:
    """Loss and accuracy of every model on every client's data, as plain calls of the prediction give them."""
    parts = shaken(scheme.init(built(scheme), OWNERS))
    owners = (0, 2, 1)
    row_V = {part: np.array([row_of(scheme, part, owner) for owner in owners]) for part in parts}
    request = Evaluate(parts, row_V, "train", (3, 0))
    got = trainer(kind, scheme, federation).evaluate([request])[0]
    x_all, y_all = federation.examples.source("train")
    for g, client in enumerate(request.owners):
        index = torch.from_numpy(federation.shards.train[client])
        x, y = federation.examples.normalize(x_all[index]), y_all[index]
        assert got.count_G[g] == len(y)
        for v, owner in enumerate(owners):
            logits = logits_of(scheme, model_of(scheme, parts, owner), x, scheme.terms)
            assert got.loss_VG[v, g] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
            assert got.accuracy_VG[v, g] == pytest.approx(float((logits.argmax(1) == y).double().mean()))


@pytest.mark.covering
@every_trainer
def test_one_step_follows_the_gradient_of_the_schemes_loss(kind: str, scheme: Any, federation: Federation) -> None:
    """θ ← θ − η (∇ loss + weight decay · θ + pull), for every part that moves, when a batch is the whole epoch."""
    if isinstance(scheme, Stepping):
        pytest.skip("it takes steps of its own, which tests/identity compares with its paper")
    model = model_of(scheme, shaken(scheme.init(built(scheme), OWNERS)), 1)
    kept = {part: {name: value.clone() for name, value in params.items()} for part, params in model.items()}
    clients, rate = (1, 4), 0.1
    learner = trainer(kind, scheme, federation)
    if not isinstance(scheme, Adjusting):  # pulls that are not clipped come with the hooks
        learner = adjusted(learner, scheme)
    got = learner.train([order(clients, model, rate=rate)])[0]
    x_all, y_all = federation.examples.source("train")
    for c, client in enumerate(clients):
        index = torch.from_numpy(federation.shards.train[client])
        x, y = federation.examples.normalize(x_all[index]), y_all[index]
        now, losses = kept, []
        for phase in scheme.phases():
            terms = phase.terms or scheme.terms

            def loss(model: Parts, x: Tensor = x, y: Tensor = y, terms: tuple[str, ...] | None = terms) -> Tensor:
                return F.cross_entropy(logits_of(scheme, model, x, terms), y)

            for _ in range(phase.epochs or TASK.training.epochs):
                gradient = grad(loss)(now)
                losses.append(float(loss(now)))
                after = dict(now)
                for part in phase.moves:
                    pull = phase.pull.get(part, Pull(0.0))
                    after[part] = {}
                    for name, value in now[part].items():
                        away = value if pull.to is None else value - kept[pull.to][name]
                        step = gradient[part][name] + 0.01 * value + pull.strength * away
                        after[part][name] = value - rate * step
                now = after
        assert got.loss_C[c] == pytest.approx(np.mean(losses), rel=1e-5)
        for part, params in now.items():
            for name, value in params.items():
                np.testing.assert_allclose(got.parts_C[part][name][c], value, atol=1e-6)
                assert torch.equal(model[part][name], kept[part][name])  # what was sent is not written to
