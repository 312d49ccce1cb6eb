"""Configurations: what is refused and how it is said, and that nothing is lost on the way to a file and back."""

import json
from functools import reduce
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from fedbac import (
    METHODS,
    TASKS,
    Additive,
    Augment,
    ConfigError,
    CreditThompson,
    Experiment,
    Fixed,
    LeNet5,
    LinUCB,
    Merging,
    Method,
    OnceOverfitted,
    Perceptron,
    Task,
    Training,
    configure,
    run,
)
from fedbac.config.experiment import Runtime
from fedbac.config.explain import changes_of, override, parse
from fedbac.core.parts import Adjusting
from fedbac.models import Custom
from fedbac.presets.methods import RENAMED
from fedbac.runs import play
from fedbac.runs.configure import with_settings
from tests.covering import presets
from tests.unit.tiny import tiny_run, tiny_task

# ------------------------------------------------------------------------------------------- what is refused

BAD = [
    # setting, what the message must hold: the field, the value, what is allowed
    (["method.clustering.perod=3"], ["method.clustering.perod", "'perod'", "did you mean 'period'"]),
    (["task.training.bach_size=3"], ["task.training.bach_size", "did you mean 'batch_size'"]),
    (["task.roundz=3"], ["task.roundz", "did you mean 'rounds'"]),
    (["task.network.widht=2"], ["task.network.widht", "did you mean 'width'"]),
    (["evaluation.pont=x"], ["evaluation.pont", "did you mean 'point'"]),
    (["task.augment.flp=true"], ["task.augment.flp", "did you mean 'flip'"]),
    (["method.selection.fraction=0"], ["method.selection.fraction", "0 is not allowed", "greater than 0"]),
    (["method.selection.fraction=1.5"], ["method.selection.fraction", "1.5 is not allowed", "less than or equal to 1"]),
    (["method.selection.fraction=-0.1"], ["method.selection.fraction", "-0.1 is not allowed", "greater than 0"]),
    (["method.selection.fraction=.nan"], ["method.selection.fraction", "nan is not allowed", "finite"]),
    (["method.selection.fraction=most"], ["method.selection.fraction", "'most' is not allowed", "number"]),
    (["method.clustering.num_clusters=13"], ["method.clustering.num_clusters", "13", "12 edges", "at most 12"]),
    (["method.clustering.num_clusters=0"], ["method.clustering.num_clusters", "0 is not allowed", "greater than 0"]),
    (["method.clustering.period=0"], ["method.clustering.period", "0 is not allowed", "greater than 0"]),
    (["method.clustering.period=1.5"], ["method.clustering.period", "1.5 is not allowed", "integer"]),
    (["method.clustering.discount=0"], ["method.clustering.discount", "0 is not allowed", "greater than 0"]),
    (["method.clustering.ucb_alpha=.inf"], ["method.clustering.ucb_alpha", "inf is not allowed", "finite"]),
    (["method.clustering.tie=first"], ["clustering.tie", "'first' is not allowed", "'random', 'lowest' or 'stay'"]),
    (["method.clustering=linuc"], ["method.clustering", "'linuc'", "did you mean 'linucb'", "lowest_loss"]),
    (["method.clustering.kind=nonsense"], ["method.clustering", "'nonsense'", "fixed, ", "linucb, lowest_loss"]),
    (["method.selection.kind=thomson"], ["method.selection", "'thomson'", "did you mean 'thompson'"]),
    (["method.personalization.kind=aditive"], ["method.personalization", "did you mean 'additive'"]),
    (["method.personalization=shared"], ["method.personalization", "'shared'", "method.clustering", "one cluster"]),
    (["method.topology.edge_rounds=0"], ["method.topology.edge_rounds", "0 is not allowed", "greater than 0"]),
    (["method.topology.edge_rounds=2", "method.topology.kind=flatt"], ["method.topology", "did you mean 'flat'"]),
    (["method.topology={kind: flat, edge_rounds: 2}"], ["method.topology.edge_rounds", "'edge_rounds'", "known: kind"]),
    (["method.topology=flat", "method.clustering={kind: fixed, num_clusters: 5}"],
     ["method.clustering.num_clusters is 5", "method.topology 'flat'", "1 site", "choose 1", "hierarchical"]),
    (["method.topology=flat"], ["method.clustering 'linucb' needs several edges", "use hierarchical"]),
    (["method.topology=flat", "method.clustering=fixed", "method.personalization=personal_head"],
     ["method.personalization 'personal_head', which gives every edge a part", "method.topology 'flat'", "use hier"]),
    (["method.personalization=personal", "method.clustering={kind: fixed, num_clusters: 1}",
      "method.selection.reward_split=test"],
     ["method.selection", "every client has a model of its own", "use training or validation data"]),
    (["method.clustering.empty_cluster=drop"],
     ["method.clustering.empty_cluster", "'drop' is not allowed", "'keep' or 'clone'"]),
    (["method.clustering=lowest_loss", "method.clustering.empty_cluster=zero"],
     ["method.clustering.empty_cluster", "'zero' is not allowed", "'keep' or 'clone'"]),
    (["method.measurement.clients=trust"],
     ["method.measurement.clients", "'trust' is not allowed", "'trusted', 'all' or 'selected'"]),
    (["method.sharing=1.5"], ["method.sharing: 1.5 is no choice"]),
    (["method.sharing=towards_men"], ["method.sharing", "did you mean 'towards_mean'", "apart, once_overfitted"]),
    (["method.sharing={kind: towards_mean, share: 1.5}"],
     ["method.sharing.share", "1.5 is not allowed", "less than or equal to 1"]),
    (["method.sharing.share=0.5"], ["method.sharing.share", "unknown field 'share'"]),
    (["method.sharing_by=overfitting"], ["method.sharing_by", "did you mean 'sharing'"]),
    (["method.sharing=towards_mean", "method.personalization=shared",
      "method.clustering={kind: fixed, num_clusters: 1}"],
     ["method.sharing is 'towards_mean'", "'shared' has no part per cluster", "choose 'apart'"]),
    (["method.sharing=once_overfitted", "method.selection=random", "task.partition.validation_fraction=0"],
     ["method.sharing asks for validation data", "validation_fraction is 0", "hold out some"]),
    (["method.personalization=personal", "method.clustering={kind: lowest_loss, num_clusters: 1}"],
     ["method.clustering asks for Loss(of='clusters'", "'personal' every client has a model of its own",
      "such as fixed"]),
    (["method.personalization={kind: personal_head, owner: client, head_layers: 0}"],
     ["method.personalization.head_layers", "0 is not allowed", "greater than 0"]),
    (["method.clustering=merging", "method.selection=random", "task.partition.validation_fraction=0"],
     ["method.clustering asks for validation data", "validation_fraction is 0", "hold out some"]),
    (["method.selection.warmup=-1"], ["method.selection.warmup", "-1 is not allowed", "greater than or equal to 0"]),
    (["method.measurement.split=tset"],
     ["method.measurement.split", "'tset' is not allowed", "'train', 'validation' or 'test'"]),
    (["task.num_edges=0"], ["task.num_edges", "0 is not allowed", "greater than 0"]),
    (["task.num_edges=2", "task.clients_per_edge=[3, 0]"], ["clients_per_edge", "edge 1", "at least 1"]),
    (["task.num_edges=2", "task.clients_per_edge=[3, 1, 1]"], ["clients_per_edge", "3", "num_edges is 2"]),
    (["task.tiers=[13]"], ["task", "tiers: 13 region nodes for 12 edges", "use at most 12"]),
    (["task.tiers=[[6, 5]]"], ["task", "tiers: the region nodes have 11 children in all", "12 edges", "make them"]),
    (["task.tiers=[4, 5]"], ["task", "tiers: 5 country nodes for 4 region nodes", "use at most 4"]),
    (["task.tiers=[4, 2, 1]"], ["task.tiers", "at most 2"]),
    (["method.region.rounds=2"], ["method.region is for the tier 'region'", "task.tiers has 0 tiers; give it 1"]),
    (["task.tiers=[3]", "method.links.country_up=top_k"],
     ["method.links.country_up is for the tier 'country'", "task.tiers has 1 tiers; give it 2", "or leave this out"]),
    (["task.tiers=[3]", "method.region.rounds=2", "method.topology=flat", "method.clustering=fixed"],
     ["method.region is for", "method.topology 'flat'", "leave it out"]),
    (["task.tiers=[3]", "task.world={}", "method.region.clock=deadline"],
     ["method.region.clock 'deadline' is for edges", "set it as method.clock"]),
    (["task.tiers=[3]", "task.world={}", "method.region.clock=buffered", "method.unit=client"],
     ["method.region.clock 'buffered' does not go with method.unit=client"]),
    (["task.tiers=[3]", "method.region.clock=asynchronous"],
     ["method.region.clock 'asynchronous' needs to know how long clients take", "set task.world"]),
    (["task.tiers=[3]", "method.clustering=cosine_splits"],
     ["method.clustering compares updates of single edges", "only averages of its region nodes"]),
    (["task.tiers=[6]", "method.region.aggregation={kind: krum, faulty: 1}"],
     ["method.region.aggregation 'krum' cannot combine 2 edges", "faulty=1 of 2"]),
    (["task.tiers=[3]", "method.personalization=group_corrections", "method.clustering=fixed",
      "method.clustering.num_clusters=1", "method.region.rounds=2"],
     ["method.personalization 'group_corrections'", "method.region.rounds", "set it to 1", "edge_rounds"]),
    (["method.personalization={kind: personal_head, owner: region}", "method.clustering=fixed",
      "method.clustering.num_clusters=1"],
     ["method.personalization 'personal_head' gives every region a part (head)", "give task.tiers 1", "another owner"]),
    (["task.tiers=[3]", "method.region.selection=thompson"],
     ["method.region.selection 'thompson' asks for Accuracy", "a region knows only with what loss", "choose random"]),
    (["task.tiers=[3]", "method.region.aggregation={kind: mean, secret: true}"],
     ["method.region.aggregation.secret: it sees averages", "method.aggregation alone"]),
    (["task.rounds=0"], ["task.rounds", "0 is not allowed", "greater than 0"]),
    (["task.rounds=[1]"], ["task.rounds", "[1] is not allowed", "integer"]),
    (["task.targets=[0.5, 1.5]"], ["task.targets.1", "1.5 is not allowed", "less than 1"]),
    (["task.training.learning_rate=-0.01"], ["task.training.learning_rate", "-0.01 is not allowed", "greater than 0"]),
    (["task.training.learning_rate=.nan"], ["task.training.learning_rate", "nan is not allowed", "finite"]),
    (["task.training.learning_rate_decay=1.1"],
     ["task.training.learning_rate_decay", "1.1 is not allowed", "less than or equal to 1"]),
    (["task.training.momentum=1"], ["task.training.momentum", "1 is not allowed", "less than 1"]),
    (["task.training.weight_decay=.inf"], ["task.training.weight_decay", "inf is not allowed", "finite"]),
    (["task.training.drop_last=maybe"], ["task.training.drop_last", "'maybe' is not allowed", "boolean"]),
    (["task.partition.dirichlet_server=0"], ["task.partition.dirichlet_server", "0 is not allowed"]),
    (["task.partition.dirichlet_client=.nan"], ["task.partition.dirichlet_client", "nan is not allowed", "finite"]),
    (["task.partition.validation_fraction=1"],
     ["task.partition.validation_fraction", "1 is not allowed", "less than 1"]),
    (["task.partition.validation_fraction=0"],
     ["method.selection", "validation data", "validation_fraction is 0", "choose another split"]),
    (["task.partition.validation_fraction=0", "method.selection=random", "method.measurement.split=validation"],
     ["method.clustering asks for validation data", "validation_fraction is 0", "choose another split"]),
    (["seed=-1"], ["seed", "-1 is not allowed", "greater than or equal to 0"]),
    (["seed=x"], ["seed", "'x' is not allowed", "integer"]),
    (["task=3"], ["task: 3 is not allowed"]),
    (["nothing=3"], ["nothing", "known: evaluation, method, seed, task"]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "needles"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_a_bad_setting_is_refused_before_any_work(
    settings: list[str], needles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "assemble", must_not_be_reached)
    with pytest.raises(ConfigError) as caught:
        run("fed-bac", "demo", settings=settings)
    for needle in needles:
        assert needle in str(caught.value)


@pytest.mark.parametrize("name", ["shared", "empty_cluster", "newcomers"])
def test_fields_of_earlier_versions_are_unknown_and_not_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"method\.{name}: unknown field '{name}'"):
        configure("fed-bac", "demo", settings=[f"method.{name}=keep"])


def must_not_be_reached(*args: object, **kwargs: object) -> None:
    raise AssertionError("work began")


def test_several_mistakes_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        configure("fed-bac", "demo", settings=["task.rounds=0", "task.training.momentum=2", "task.num_edgs=1"])
    for needle in ("task.rounds", "task.training.momentum", "did you mean 'num_edges'"):
        assert needle in str(caught.value)


@pytest.mark.parametrize(
    ("name", "task", "needles"),
    [
        ("fedbac", "demo", ["method", "'fedbac'", "did you mean 'fed-bac'? fedbac methods lists all"]),
        ("fed-bac", "cifar", ["task", "'cifar'", "did you mean 'cifar10'"]),
        ("fed-bac", "nowhere.yaml", ["nowhere.yaml", "cannot be read"]),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, task: str, needles: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(name, task)
    for needle in needles:
        assert needle in str(caught.value)


def test_more_clusters_than_edges_is_refused_for_every_policy() -> None:
    for name in ("fed-bac", "ifca-edges", "singletons"):
        with pytest.raises(ConfigError, match=r"num_clusters is 4.*3 edges.*at most 3"):
            configure(name, Task(num_edges=3), settings=["method.clustering.num_clusters=4"])


def test_a_network_that_does_not_fit_the_classes_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "start", must_not_be_reached)
    with pytest.raises(ConfigError, match=r"10 classes.*\[2, 3\]"):
        tiny_run("hierfavg", network=lambda: Perceptron().build((1, 8, 8), 3))
    with pytest.raises(ConfigError, match=r"16×16.*\[1, 8, 8\]"):
        tiny_run("hierfavg", task=tiny_task(network=LeNet5()))


def test_runtime_settings_are_checked_too() -> None:
    for settings, needle in (({"device": "gpu"}, "'auto', 'cpu' or 'cuda'"), ({"workers": 0}, "greater than 0")):
        with pytest.raises(ConfigError, match=needle) as caught:
            parse(Runtime, settings, "runtime")
        assert "runtime." in str(caught.value)


def test_a_policy_made_in_python_is_checked_as_well() -> None:
    with pytest.raises(ValidationError, match=r"period\n.*greater than 0"):
        LinUCB(period=0)


@pytest.mark.parametrize("name", ["random", "fixed", "method.shared", "task.mlp", "task.lenet5.width"])
def test_an_unknown_field_may_be_called_like_a_kind(name: str) -> None:
    """``--set task.lenet5.width=2`` is an easy mistake; the message must name that field."""
    with pytest.raises(ConfigError) as caught:
        configure("fed-bac", "demo", settings=[f"{name}=2"])
    field = name.removesuffix(".width").rpartition(".")[2]
    assert f"unknown field {field!r}" in str(caught.value)


def test_a_kind_must_be_a_name() -> None:
    with pytest.raises(ConfigError, match=r"method\.clustering"):
        configure("fed-bac", "demo", settings=["method.clustering.kind=[linucb]"])


def test_an_unknown_network_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"task\.network.*did you mean 'lenet5'"):
        configure("fed-bac", "demo", settings=["task.network.kind=lenet"])


def test_an_unknown_field_of_a_methods_own_network_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"method\.network\.widht.*did you mean 'width'"):
        configure("hierfavg-wide", "demo", settings=["method.network.widht=2"])


@pytest.mark.parametrize("setting", ["task.clients_per_edge=0", "task.network.width=-1", "task.network.width=[1, 2]"])
def test_a_field_that_takes_two_forms_is_named_as_the_user_wrote_it(setting: str) -> None:
    """No trace of the validator's own names (``constrained-int``, ``tuple[...]``) in the path."""
    with pytest.raises(ConfigError) as caught:
        configure("fed-bac", "demo", settings=[setting])
    assert setting.partition("=")[0] in str(caught.value)
    assert "constrained" not in str(caught.value)
    assert "tuple[" not in str(caught.value)


# ---------------------------------------------------------------------------------------------- to a file and back


def through_yaml(experiment: Experiment) -> Experiment:
    return parse(Experiment, yaml.safe_load(yaml.safe_dump(experiment.model_dump(mode="json"))))


def unfit_for_adamw_and_tokens(row: Method) -> str | None:
    if isinstance(row.personalization, Adjusting):
        return "works with how far SGD moves a weight"
    return "teaches classes" if getattr(row.sharing, "teaches", False) else None


@pytest.mark.covering
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", presets())
def test_every_preset_on_every_task_survives_a_file(preset: str, task: str) -> None:
    if task == "udhr-smollm2" and (unfit := unfit_for_adamw_and_tokens(METHODS[preset](TASKS[task]))):
        with pytest.raises(ConfigError, match=unfit):
            configure(preset, task, seed=3)
        return
    experiment = configure(preset, task, seed=3)
    assert through_yaml(experiment) == experiment
    assert parse(Experiment, json.loads(json.dumps(experiment.model_dump(mode="json")))) == experiment
    assert experiment.method.name == preset
    assert experiment.task == TASKS[task]


def test_unusual_settings_survive_a_file() -> None:
    task = Task(
        num_edges=3,
        clients_per_edge=(1, 4, 2),
        network=LeNet5(width=(1, 2, 3, 4)),
        augment=Augment(),
        training=Training(clip_norm=None, momentum_state="persist", learning_rate=1e-5),
        targets=(),
    )
    method = Method(name="x", clustering=Fixed(start_labels="random"), personalization="additive", network=Perceptron())
    experiment = Experiment(seed=2**40, task=task, method=method)
    again = through_yaml(experiment)
    assert again == experiment
    assert again.task.clients() == (1, 4, 2)
    assert again.method.clustering == Fixed(start_labels="random")
    custom = configure("fed-bac", Task(network=Custom(name="mine")))
    assert through_yaml(custom) == custom


def test_fedbac_plus_is_four_values_and_a_name() -> None:
    assert METHODS["fedbac-plus"](TASKS["demo"]) == Method(
        name="fedbac-plus",
        clustering=Merging(),
        selection=CreditThompson(),
        sharing=OnceOverfitted(share=0.1),
        personalization=Additive(),
    )


def test_presets_differ_and_are_what_their_names_say() -> None:
    task = TASKS["cifar10"]
    rows = {name: preset(task) for name, preset in METHODS.items()}
    assert len({json.dumps(row.model_dump(mode="json") | {"name": ""}) for row in rows.values()}) == len(rows)
    dumps: dict[str, dict[str, Any]] = {name: row.model_dump(mode="json") for name, row in rows.items()}
    flagship = dumps["fed-bac"]
    assert (
        flagship["clustering"] | {"kind": "linucb", "period": 20, "tie": "random", "num_clusters": None}
        == (flagship["clustering"])
    )
    assert flagship["clustering"]["start_labels"] == "round_robin"
    assert flagship["selection"] | {"kind": "thompson", "fraction": 0.8, "warmup": 10} == flagship["selection"]
    assert flagship["selection"]["reward_split"] == "validation"
    assert dumps["paper-text"]["clustering"]["period"] == 20
    figures = dumps["paper-figures"]
    assert (figures["clustering"]["period"], figures["clustering"]["tau_norm"]) == (1, 20)
    assert figures["selection"]["reward_split"] == "test"
    assert not figures["selection"]["skip_after_move"]
    for name in ("paper-text", "paper-figures"):
        starts = [
            METHODS[name](TASKS[t]).model_dump()["clustering"]["start_labels"] for t in ("cifar10", "fashion-mnist")
        ]
        assert starts == ["round_robin", "uniform"]
    ifca = dumps["ifca-paper"]["clustering"]
    assert (ifca["num_clusters"], ifca["period"], ifca["threshold"]) == (5, 20, 0.95)
    assert dumps["ifca-paper"]["selection"]["fraction"] == dumps["hierfavg"]["selection"]["fraction"] == 1.0
    assert dumps["hierfavg"]["clustering"]["num_clusters"] == 1


def test_a_former_name_of_a_preset_serves_and_says_the_new_one(caplog: pytest.LogCaptureFixture) -> None:
    assert configure("ifca-original", "demo") == configure("ifca-edges", "demo")
    assert caplog.messages == ["method 'ifca-original' is now called 'ifca-edges'"]
    assert not RENAMED.keys() & METHODS.keys()


def test_fedfork_sums_two_networks_but_one_lstm() -> None:
    def networks(*settings: str) -> int:
        return len(configure("fedfork", "demo", settings=settings).method.personalization.parts)

    assert [networks(f"task.network={kind}") for kind in ("lenet5", "mlp", "resnet", "transformer")] == [2] * 4
    assert networks("task.network=lstm") == 1
    assert networks("task.network=lstm", "method.personalization.networks=2") == 2


def test_learning_rate_decays_from_the_second_round() -> None:
    """C.5: η_t = 0.01 · 0.995^(t−1)."""
    training = Training()
    assert training.rate(1, 100) == 0.01
    assert training.rate(3, 100) == 0.01 * 0.995**2
    assert Training(schedule="constant").rate(100, 100) == 0.01


# -------------------------------------------------------------------------------------------------------- override


def test_override_reads_values_as_yaml_and_makes_missing_groups() -> None:
    tree = {"a": {"b": 1, "c": 2}, "d": None}
    out = override(tree, changes_of(["a.b=0.1", "d.e=true", "f.g.h=[1, 2]", "a.c=null", "x=p=q"]))
    assert out == {"a": {"b": 0.1, "c": None}, "d": {"e": True}, "f": {"g": {"h": [1, 2]}}, "x": "p=q"}
    assert tree == {"a": {"b": 1, "c": 2}, "d": None}


def test_the_last_of_two_settings_wins() -> None:
    assert override({}, changes_of(["a=1", "a=2"])) == {"a": 2}


def test_actors_are_refused_where_nothing_is_dealt_to_them() -> None:
    settings = ["runtime.actors=2"]
    assert with_settings(Runtime(engine="ray"), settings).actors == 2
    assert with_settings(Runtime(actors=2), ["runtime.workers=1"]).actors == 2, "of a run that went on elsewhere"
    with pytest.raises(ConfigError, match=r"runtime\.actors has no effect.*--engine ray.*set runtime\.workers"):
        with_settings(Runtime(), settings)


@pytest.mark.parametrize(
    ("column", "preset"),
    [
        ("clustering", "fed-bac"), ("selection", "fed-bac-random"), ("sharing", "phe-fl-kd"), ("topology", "mtgc"),
        ("personalization", "ditto-edges"), ("links.client_up", "abad"), ("network", "hierfavg-wide"),
    ],
)  # fmt: skip
def test_naming_the_kind_that_is_there_changes_nothing(column: str, preset: str) -> None:
    """A preset's own settings, and a period that fits the run, stay; a group in braces brings its defaults."""
    plain = configure(preset, "demo")
    chosen: Any = reduce(getattr, column.split("."), plain.method)
    (one,) = chosen if isinstance(chosen, tuple) else (chosen,)
    assert configure(preset, "demo", settings=[f"method.{column}={one.kind}"]) == plain
    assert configure(preset, "demo", settings=[f"method.{column}={{kind: {one.kind}}}"]) != plain


@pytest.mark.parametrize("assignment", ["task.rounds", "=3", ""])
def test_a_setting_must_be_an_assignment(assignment: str) -> None:
    with pytest.raises(ConfigError, match="path=value"):
        override({}, changes_of([assignment]))


def test_a_value_is_not_a_group() -> None:
    with pytest.raises(ConfigError, match=r"'rounds' is a value"):
        configure("fed-bac", "demo", settings=["task.rounds.x=3"])


@pytest.mark.parametrize("value", ["[1", "{a: ", "'open", "a: b: c", "0x_"])
def test_a_value_that_is_no_yaml_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"--set .task\.rounds.*not readable YAML"):
        override({}, changes_of([f"task.rounds={value}"]))


def test_settings_reach_the_experiment() -> None:
    settings = [
        "task.training.learning_rate=1e-3",
        "task.num_edges=4",
        "method.clustering.period=7",
        "evaluation.last_rounds=2",
    ]
    experiment = configure("fed-bac", "demo", seed=5, rounds=9, settings=settings)
    assert experiment.seed == 5
    assert (experiment.task.rounds, experiment.task.num_edges) == (9, 4)
    assert experiment.task.training.learning_rate == 1e-3
    assert experiment.method.clustering.model_dump()["period"] == 7  # type: ignore[attr-defined]
    assert experiment.evaluation.last_rounds == 2
    assert experiment.task.partition == TASKS["demo"].partition


def test_a_task_comes_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 7\npartition: {dirichlet_server: 0.3}\nnetwork: {kind: mlp, hidden: [5]}\n")
    task = configure("fed-bac", str(file)).task
    assert (task.rounds, task.partition.dirichlet_server, task.network) == (7, 0.3, Perceptron(hidden=(5,)))
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match="list"):
        configure("fed-bac", str(file))
    file.write_text("rounds: 7\npartition: {a: 1\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: not readable YAML \(line 3, column 1"):
        configure("fed-bac", str(file))
    file.write_bytes(b"rounds: \xff\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*UTF-8"):
        configure("fed-bac", str(file))
