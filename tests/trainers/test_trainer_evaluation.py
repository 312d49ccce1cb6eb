"""What trainers measure, against a direct computation."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbac.clustering import LowestLoss
from fedbac.config.experiment import Measurement, Method
from fedbac.core import trees
from fedbac.core.parts import Anatomy, Parts, Personalization, predict
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Measured, Trainer
from fedbac.core.settings import IntArray
from fedbac.data import toy
from fedbac.engines import Simulator
from fedbac.federation import Federation
from fedbac.local import LoopTrainer, NativeTrainer, VmapTrainer
from fedbac.local.kernel import layers_of
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from tests.schemes import Layered, Personal
from tests.support import NO_KERNEL, ON_GPU, deal, federate, on_gpu, on_test, prepare, question

DATA = toy(num_classes=4, train=80, test=21)
SHARDS = deal(DATA, [[1, 20], [9, 14]], validation=3, test=[5, 16])
Make = Callable[[Federation, Personalization], Trainer]
PATHS: dict[str, Make] = {
    "loop": lambda f, scheme: LoopTrainer(f.network, scheme, f.examples),
    "vmap": lambda f, scheme: VmapTrainer(f.network, scheme, f.examples, torch.device("cpu")),
    "native": lambda f, scheme: native_trainer(f, scheme),
    "emulated": lambda f, scheme: on_gpu("emulated", f, scheme),
    "fused": lambda f, scheme: on_gpu("fused", f, scheme),
    "vmap-cuda": lambda f, scheme: on_gpu("vmap-cuda", f, scheme),
}
ALL_PATHS = ["loop", "vmap", pytest.param("native", marks=NO_KERNEL), *ON_GPU]


def native_trainer(federation: Federation, scheme: Personalization) -> Trainer:
    layers = layers_of(federation.network, DATA.x_train.shape[1:])
    assert layers is not None
    return NativeTrainer(federation.network, scheme, federation.examples, layers, threads=2)


def setting(scheme: Personalization, seed: int = 5) -> Federation:
    return federate(DATA, SHARDS, seed=seed)


def some_models(federation: Federation, scheme: Personalization, num: int = 3) -> tuple[Parts, ...]:
    """Return models that share their networks of scope cloud."""
    parts = scheme.init(federation.build, {"cloud": 1, "cluster": num, "edge": num, "client": num})
    shared = {part: trees.take(parts[part], 0) for part, spec in scheme.parts.items() if spec.scope == "cloud"}
    own = {part: params for part, params in parts.items() if part not in shared}
    return tuple(
        shared | {part: {name: value[k] * (1 + k) for name, value in params.items()} for part, params in own.items()}
        for k in range(num)
    )


def direct(federation: Federation, scheme: Personalization, model: Parts, split: Split, rows: IntArray) -> list[float]:
    """Return mean loss and accuracy, computed plainly."""
    x, y = (DATA.x_test, DATA.y_test) if split == "test" else (DATA.x_train, DATA.y_train)
    scale = DATA.x_train / 255
    seen = torch.from_numpy((x[rows] / 255 - scale.mean()) / scale.std()).float()
    anatomy, modules = Anatomy(scheme, federation.network), {}
    for network in anatomy.judged:
        modules[network] = federation.build(0)
        modules[network].load_state_dict(anatomy.assemble(model, network))
    with torch.no_grad():
        logits = predict(scheme, scheme.terms, lambda network, x: modules[network](x), seen)
        loss = F.cross_entropy(logits, torch.from_numpy(y[rows]))
        return [loss.item(), float((logits.argmax(1).numpy() == y[rows]).mean())]


@pytest.mark.covering
@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("scheme", [Shared(), PerCluster(), Additive(), Personal(), Layered()], ids=lambda s: s.kind)
@pytest.mark.parametrize("chunk", [4, 4096])
def test_losses_and_accuracies_are_those_of_a_direct_computation(
    path: str, scheme: Personalization, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbac.local.loop.EVALUATION_BATCH", chunk)
    monkeypatch.setattr("fedbac.local.vmapped.EVALUATION_BATCH", chunk)
    federation = setting(scheme)
    models = some_models(federation, scheme)
    trainer = PATHS[path](federation, scheme)
    edges, own = SHARDS.test, federation.examples.client_test
    questions: list[tuple[Sequence[Parts], Evaluate, Sequence[IntArray]]] = [
        (models, on_test(models, 1), [edges[1]]),
        (models, question(models, "test", (0, 1), level="edge"), list(edges)),
        (models, question(models, "train", (0, 1)), [SHARDS.train[0], SHARDS.train[1]]),
        (models[1:], question(models[1:], "train", (3,)), [SHARDS.train[3]]),
        (models, question(models, "validation", (3, 2)), [SHARDS.validation[3], SHARDS.validation[2]]),
        (models, question(models, "test", (1, 2)), [own[1], own[2]]),
    ]
    for (asked, request, groups), answer in zip(questions, trainer.evaluate([q for _, q, _ in questions]), strict=True):
        assert answer.count_G.tolist() == [group.size for group in groups]
        assert answer.loss_VG.shape == answer.accuracy_VG.shape == (len(asked), len(groups))
        for v, model in enumerate(asked):
            for g, group in enumerate(groups):
                loss, accuracy = direct(federation, scheme, model, request.split, group)
                assert answer.loss_VG[v, g] == pytest.approx(loss, rel=1e-5)
                assert answer.accuracy_VG[v, g] == pytest.approx(accuracy)


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("scheme", [Additive(cluster_init="distinct"), Personal(), Layered()], ids=lambda s: s.kind)
def test_paired_models_meet_their_own_group_only(path: str, scheme: Personalization) -> None:
    """The diagonal of what all models make of all groups, whatever is asked beside it."""
    federation = setting(scheme)
    models, trainer = some_models(federation, scheme), PATHS[path](federation, scheme)
    for split, owners in (("train", (3, 0, 2)), ("test", (1, 3, 2))):
        whole = question(models, split, owners)  # type: ignore[arg-type]
        paired = replace(whole, paired=True)
        full, own, _ = trainer.evaluate([whole, paired, on_test(models, 0)])
        assert own.loss_VG.shape == own.accuracy_VG.shape == (1, 3)
        np.testing.assert_allclose(own.loss_VG[0], np.diagonal(full.loss_VG), rtol=1e-6)
        np.testing.assert_array_equal(own.accuracy_VG[0], np.diagonal(full.accuracy_VG))
        np.testing.assert_array_equal(own.count_G, full.count_G)
    with pytest.raises(ValueError, match="3 models cannot be paired with 2 groups"):
        trainer.evaluate([question(models, "train", (0, 1), paired=True)])


def test_edges_own_test_data_only() -> None:
    federation = setting(Shared())
    asked = question(some_models(federation, Shared(), num=1), "train", (0,), level="edge")
    with pytest.raises(ValueError, match="edges own test data only"):
        LoopTrainer(federation.network, Shared(), federation.examples).evaluate([asked])


@pytest.mark.parametrize("path", ALL_PATHS)
def test_parts_that_make_no_prediction_may_be_missing(path: str) -> None:
    federation, scheme = setting(Personal()), Personal()
    models = [{"personal": model["personal"]} for model in some_models(federation, scheme)]
    answer = PATHS[path](federation, scheme).evaluate([question(models, "train", (1,))])[0]
    loss, _ = direct(federation, scheme, models[2], "train", SHARDS.train[1])
    assert answer.loss_VG[2, 0] == pytest.approx(loss, rel=1e-5)


class Counted(nn.Module):
    """A linear network that counts how often it is run."""

    runs = 0

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        Counted.runs += 1
        logits: Tensor = self.out(x.flatten(1))
        return logits


def test_a_network_that_models_share_is_run_once_and_gives_the_same_numbers() -> None:
    scheme = Additive(cluster_init="distinct")
    federation = federate(DATA, SHARDS, user=Counted)
    trainer = LoopTrainer(federation.network, scheme, federation.examples)
    shared = some_models(federation, scheme, num=3)
    copies = tuple(
        {part: {n: v.clone() for n, v in params.items()} for part, params in model.items()} for model in shared
    )
    answers, runs = [], []
    for models in (shared, copies):
        Counted.runs = 0
        answers.append(trainer.evaluate([question(models, "train", (0, 1))])[0])
        runs.append(Counted.runs)
    assert runs == [2 * (1 + 3), 2 * (3 + 3)], "two groups, and one network fewer per model after the first"
    np.testing.assert_array_equal(answers[0].loss_VG, answers[1].loss_VG)
    np.testing.assert_array_equal(answers[0].accuracy_VG, answers[1].accuracy_VG)
    assert len(set(answers[0].loss_VG[:, 1])) == 3


@pytest.mark.parametrize("path", ALL_PATHS)
def test_the_cap_takes_a_fixed_subset_of_each_client(path: str) -> None:
    federation = setting(Shared())
    models = some_models(federation, Shared(), num=1)
    asked = question(models, "train", (0, 1), max_samples=6)
    groups = federation.examples.groups(asked)
    assert [group.size for group in groups] == [1, 6]
    assert np.isin(groups[1], SHARDS.train[1]).all()
    assert np.unique(groups[1]).size == 6
    answer = PATHS[path](federation, Shared()).evaluate([asked])[0]
    assert answer.loss_VG[0, 1] == pytest.approx(
        direct(federation, Shared(), models[0], "train", groups[1])[0], rel=1e-5
    )
    np.testing.assert_array_equal(groups[1], setting(Shared()).examples.groups(asked)[1])
    other_seed = setting(Shared(), seed=6).examples.groups(asked)[1]
    assert not np.array_equal(groups[1], other_seed)
    assert not np.array_equal(groups[1] - SHARDS.train[1][0], np.arange(6)), "a subset, not the first examples"


class Watched:
    """A trainer that writes down which examples it was asked to measure on."""

    path = "watched"
    device = torch.device("cpu")

    def __init__(self, inner: LoopTrainer) -> None:
        self.inner = inner
        self.train = inner.train
        self.seen: list[list[list[int]]] = []

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        if requests[0].split == "train":
            self.seen.append([g.tolist() for r in requests for g in self.inner.examples.groups(r)])
        return self.inner.evaluate(requests)

    def close(self) -> None:
        pass


def test_the_capped_subset_is_the_same_in_every_round() -> None:
    method = Method(
        name="test",
        clustering=LowestLoss(num_clusters=2, period=1),
        personalization=PerCluster(),
        measurement=Measurement(max_samples_per_client=5),
    )
    experiment, federation = prepare(method, DATA, SHARDS, num_rounds=3)
    watched = Watched(LoopTrainer(federation.network, method.personalization, federation.examples))
    edges = Simulator(experiment, federation.sites, watched)
    state = start(experiment, federation.build, federation.sites)
    for _ in rounds(experiment, federation.sites, edges, state):
        pass
    assert len(watched.seen) == 3
    assert [len(group) for group in watched.seen[0]] == [1, 5, 5, 5]
    assert watched.seen[0] == watched.seen[1] == watched.seen[2]


@pytest.mark.parametrize("path", ALL_PATHS)
def test_a_group_without_examples_has_no_rate(path: str) -> None:
    shards = replace(SHARDS, validation=tuple(v[:0] if i == 1 else v for i, v in enumerate(SHARDS.validation)))
    federation = federate(DATA, shards)
    models = some_models(federation, Shared(), num=2)
    answer = PATHS[path](federation, Shared()).evaluate([question(models, "validation", (0, 1))])[0]
    assert answer.count_G.tolist() == [3, 0]
    assert np.isnan(answer.loss_VG).tolist() == np.isnan(answer.accuracy_VG).tolist() == [[False, True]] * 2


@pytest.mark.parametrize("path", ALL_PATHS)
def test_no_group_at_all_gives_no_column(path: str) -> None:
    federation = setting(Shared())
    models = some_models(federation, Shared(), num=2)
    answer = PATHS[path](federation, Shared()).evaluate([question(models, "validation", ())])[0]
    assert answer.loss_VG.shape == answer.accuracy_VG.shape == (2, 0)
    assert answer.count_G.size == 0
