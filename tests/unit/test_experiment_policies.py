"""Policies of the user's in a configuration, and what policies may ever ask for."""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest

from fedbac import (
    METHODS,
    SELECTION,
    SHARING,
    TASKS,
    ConfigError,
    Experiment,
    Fixed,
    Method,
    Perceptron,
    PersonalHead,
    Phase,
    Random,
    Settings,
    configure,
)
from fedbac.config.explain import parse
from fedbac.core.policies import NoState
from fedbac.core.queries import Accuracy, Ask, Evidence, Gram, Loss, Query
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray, IntArray
from fedbac.runs import play
from tests.unit.test_experiment import must_not_be_reached, through_yaml
from tests.unit.tiny import tiny_data, tiny_run, tiny_task

# ------------------------------------------------------------------------------------------ a policy of the user's


class Turns(NamedTuple):
    next: IntArray


class InTurn(Settings):
    """Clients take turns."""

    kind: Literal["in_turn"] = "in_turn"
    adaptive: ClassVar[bool] = False
    fraction: float = 0.4

    def needs(self) -> frozenset[Query]:
        return frozenset()

    def init(self, num_members: int) -> Turns:
        return Turns(np.zeros(1, np.int64))

    def ask(self, state: Turns, evidence: Evidence, rng: Rng) -> Ask:
        return Ask()

    def act(self, state: Turns, evidence: Evidence, rng: Rng) -> BoolArray:
        num = evidence.size_N.size
        return np.isin(np.arange(num), (state.next[0] + np.arange(int(self.fraction * num))) % num)

    def learn(self, state: Turns, evidence: Evidence, mask_N: BoolArray) -> Turns:
        return Turns(state.next + int(mask_N.sum()))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SELECTION, "kinds", dict(SELECTION.kinds))
    assert SELECTION.register(InTurn) is InTurn


def test_a_policy_of_the_users_runs_as_an_object() -> None:
    records = tiny_run(Method(name="mine", selection=InTurn()), task=tiny_task(rounds=3)).records
    assert [record["selected"][0] for record in records] == [[0, 1], [2, 3], [0, 4]]
    assert [record["selected"][1] for record in records] == [[5, 6], [7, 8], [5, 9]]


def test_a_policy_of_the_users_is_read_back_once_registered(registered: None) -> None:
    experiment = Experiment(task=tiny_task(), method=Method(name="mine", selection=InTurn(fraction=0.6)))
    assert experiment.model_dump(mode="json")["method"]["selection"] == {"kind": "in_turn", "fraction": 0.6}
    assert through_yaml(experiment) == experiment
    by_name = configure("hierfavg", tiny_task(), settings=["method.selection=in_turn"])
    assert by_name.method.selection == InTurn()


def test_an_unregistered_policy_cannot_be_read_back() -> None:
    experiment = Experiment(task=tiny_task(), method=Method(name="mine", selection=InTurn()))
    with pytest.raises(ConfigError, match=r"method\.selection: unknown kind 'in_turn'"):
        through_yaml(experiment)


@pytest.mark.parametrize(
    ("setting", "needle"),
    [("fractoin=0.5", ".*'fractoin'.*did you mean 'fraction'"), ("fraction=x", r"\.fraction: 'x' is not allowed")],
)
def test_a_registered_policy_is_checked_like_the_others(registered: None, setting: str, needle: str) -> None:
    settings = ["method.selection={kind: in_turn}", f"method.selection.{setting}"]
    with pytest.raises(ConfigError, match=rf"method\.selection{needle}"):
        configure("hierfavg", tiny_task(), settings=settings)


def test_a_kind_belongs_to_one_class_of_its_own_column() -> None:
    clash = type("Clash", (InTurn,), {"__annotations__": {"kind": Literal["thompson"]}, "kind": "thompson"})
    with pytest.raises(ConfigError, match="Thompson is called 'thompson' already"):
        SELECTION.register(clash)
    with pytest.raises(ConfigError, match="InTurn lacks active, which Sharing asks for"):
        SHARING.register(InTurn)
    assert "in_turn" not in SHARING.kinds
    with pytest.raises(ConfigError, match=r"has a verb ask\(\) that does not take .*: ask\(state, evidence, rng\)"):
        SELECTION.register(type("Astray", (Fixed,), {"fraction": 1.0, "__annotations__": {"fraction": float}}))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (InTurn(), "is no class that derives from fedbac.Settings; give the class"),
        (dict, "is no class that derives from fedbac.Settings"),
        (type("Nameless", (Settings,), {}), "Nameless has no field kind; give it one"),
    ],
)
def test_what_cannot_be_registered_is_refused_with_a_sentence(cls: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"register: .*{message}"):
        SELECTION.register(cls)


def test_a_number_is_no_choice() -> None:
    with pytest.raises(ConfigError, match=r"method\.sharing: 0\.1 is no choice; give a kind, such as 'apart'"):
        configure("fed-bac", "demo", settings=["method.sharing=0.1"])


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (Phase(moves=("body",)), "must return a tuple of at least one Phase"),
        ((Phase(moves=("heads",)),), "must move some of the parts body, head, not"),
        ((Phase(moves=("body",), epochs=-1),), "must train for at least 1 epoch"),
    ],
)
def test_a_scheme_that_cannot_train_is_refused_before_any_work(phases: Any, message: str) -> None:
    scheme = type("Wrong", (PersonalHead,), {"phases": lambda self: phases})
    with pytest.raises(ConfigError, match=rf"method\.personalization 'personal_head': .*{message}"):
        configure(Method(name="mine", personalization=scheme()), "demo")


def test_an_object_that_is_no_policy_is_refused() -> None:
    for stranger in (Perceptron(), tiny_data(), 3):
        with pytest.raises(ConfigError, match=r"selection"):
            parse(Method, {"name": "x", "selection": stranger})


# -------------------------------------------------------------------------------- what policies may ever ask for


class Later(Random):
    """Measures on validation data, but only from the third round on."""

    kind: Literal["later"] = "later"  # type: ignore[assignment]

    def needs(self) -> frozenset[Query]:
        return frozenset({Accuracy("trained", "validation")})

    def ask(self, state: NoState, evidence: Evidence, rng: Rng) -> Ask:
        return Ask(after=tuple(self.needs())) if evidence.round > 2 else Ask()


def test_what_is_asked_for_late_in_a_run_is_checked_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only what the first ask() names: the run would be lost in round 3, with an average over no data."""
    method = Method(name="mine", selection=Later())
    data = tiny_run(method, task=tiny_task(rounds=3)).config["measured_on"]
    assert data == {"method.clustering": [], "method.selection": ["validation"], "method.sharing": []}
    monkeypatch.setattr(play, "assemble", must_not_be_reached)
    with pytest.raises(ConfigError, match=r"method\.selection asks for validation data but .*validation_fraction is 0"):
        tiny_run(method, task=tiny_task(rounds=3, partition={"validation_fraction": 0.0}))


@pytest.mark.parametrize("preset", METHODS)
def test_all_that_a_preset_may_ask_for_can_be_answered(preset: str) -> None:
    """By whoever is asked, from data that every task holds; and each query says on which data."""
    for task in (task for task in TASKS.values() if task.loss.kind == "cross_entropy"):
        experiment = Experiment(task=task, method=METHODS[preset](task))
        for field, queries in experiment.method.needs.items():
            places = {
                "method.clustering": ("own", "unaveraged", "clusters", "occupied"),
                "method.selection": ("received", "trained"),
                "method.sharing": ("trained", "own", "others", "mean", "occupied"),
            }[field]
            for query in queries:
                if isinstance(query, Loss | Accuracy):
                    assert query.of in places
                    assert query.on in ("train", "validation", "test")
                    assert query.on != "test" or preset.startswith("paper-"), "only the paper measures on test data"


class Asking(Random):
    """Asks for what it is told to."""

    kind: Literal["asking"] = "asking"  # type: ignore[assignment]
    wish: ClassVar[Query]

    def needs(self) -> frozenset[Query]:
        return frozenset({self.wish})


@pytest.mark.parametrize(
    "wish",
    [Loss("clusters"), Loss("own", "train"), Accuracy("unaveraged"), Gram(), Loss("received", "test", each=True)],
)
def test_what_an_edge_cannot_know_is_refused(wish: Query) -> None:
    policy = type("Wishing", (Asking,), {"wish": wish, "__annotations__": {"wish": ClassVar[Query]}})
    with pytest.raises(ConfigError, match=r"method\.selection asks for .*cannot be measured at an edge"):
        configure(Method(name="mine", selection=policy()), "demo")


class Unmeasured(Fixed):
    """Wants to know how the edges' own models do, which the cloud does not have."""

    kind: Literal["unmeasured"] = "unmeasured"  # type: ignore[assignment]

    def needs(self) -> frozenset[Query]:
        return frozenset({Loss("trained")})


def test_what_the_cloud_cannot_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.clustering asks for .*'trained'.*cannot be measured by the cloud"):
        configure(Method(name="mine", clustering=Unmeasured(num_clusters=1)), "demo")
