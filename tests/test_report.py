"""The report's words and numbers: they come from the records."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbac
from fedbac.errors import ConfigError
from fedbac.presets.methods import METHODS
from fedbac.report import final, outcome, table, warnings
from fedbac.report.figures import figures
from fedbac.report.groups import edge_accuracy, edge_names, groups, labels
from fedbac.report.outcome import LEAK, caveats, failures, leaks
from fedbac.report.paper import paper_table
from fedbac.report.sections import facts
from fedbac.report.table import human_bytes, ledger_table
from fedbac.runs.configure import configure
from fedbac.runs.store import StoredRun
from fedbac.runs.summary import long_periods
from tests.made_up_runs import TOP, fake, renamed, with_task

FAKES = (("ifca-edges", "fed-bac"), ("fedavg", "hierfavg"))


@pytest.fixture(scope="module")
def three() -> list[StoredRun]:
    return [fake(name) for name in TOP]


# ------------------------------------------------------------------------------------------------- numbers


def test_table_shows_the_numbers_of_the_records(three: list[StoredRun]) -> None:
    header, rows = table(three)
    run = three[0]
    last = [record["accuracy_per_edge"] for record in run.records[-10:]]
    row = dict(zip(header, rows[0], strict=True))
    mean_T = np.mean(last, axis=1)
    assert row["method"] == "fed-bac"
    assert row["accuracy (%)"] == f"{100 * mean_T.mean():.1f} ± {100 * mean_T.std():.1f}"
    assert row["σ over edges (points)"] == f"{100 * np.mean(last, axis=0).std():.1f}"
    assert row["worst edge (%)"] == f"{100 * np.mean(last, axis=0).min():.1f}"
    assert row["last round (%)"] == f"{100 * run.records[-1]['accuracy']:.1f}"
    assert row["training bytes"] == "63.0 MB"  # 12 rounds of 5 × 1 MB and 0.25 MB
    assert row["total bytes"] == "63.5 MB"
    assert (row["moves"], row["clusters"], row["seconds"]) == ("5", "5", "6.0")
    assert int(row["rounds to 60 %"]) == 1 + next(t for t, a in enumerate(run.records) if a["accuracy"] >= 0.6)
    assert [r[header.index("rounds to 85 %")] for r in rows][1:] == ["–", "–"]
    assert all(len(r) == len(header) for r in rows)


def test_only_common_targets_are_columns(three: list[StoredRun]) -> None:
    other = replace(three[1], summary={**three[1].summary, "rounds_to_target": {"0.7": 3, "0.9": None}})
    header, rows = table([three[0], other])
    assert [title for title in header if title.startswith("rounds to")] == ["rounds to 70 %"]
    assert rows[1][header.index("rounds to 70 %")] == "3"


def test_missing_or_old_summary_is_made_anew(three: list[StoredRun]) -> None:
    cut_off = replace(three[0], summary={})
    old = replace(three[0], summary={**three[0].summary, "rounds": 3, "accuracy": 0.1})
    assert table([cut_off]) == table([old]) == table([three[0]])


def test_bytes_for_people() -> None:
    shown = [human_bytes(n) for n in (0, 999, 1000, 999_499, 999_999, 12_345_678, 3.2e12, 5e15)]
    assert shown == ["–", "999 B", "1.00 kB", "999 kB", "1.00 MB", "12.3 MB", "3.20 TB", "5,000 TB"]


def test_nothing_to_report_is_an_error(three: list[StoredRun], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no runs"):
        table([])
    empty = replace(three[1], records=[], summary={})
    with pytest.raises(ValueError, match="'ifca-edges' has no complete round"):
        figures([empty])
    with pytest.raises(ConfigError, match="no complete round yet in ifca-edges; try again after the first round"):
        fedbac.report([empty], tmp_path / "page.html")


def test_runs_without_a_round_are_left_out_by_name(
    three: list[StoredRun], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = fedbac.report([three[0], replace(three[1], records=[], summary={})], tmp_path / "page.html")
    assert "fed-bac</span> reaches" in page.read_text()
    assert caplog.messages == ["Left out, as no round is complete yet: ifca-edges"]


# ------------------------------------------------------------------------------------------------- outcome


def seeds(name: str, *scores: float, first: int = 0) -> list[StoredRun]:
    """Return made-up runs of a method with these accuracies, one per seed."""
    made = [fake(name, seed=first + seed) for seed in range(len(scores))]
    return [replace(run, summary=run.summary | {"accuracy": score}) for run, score in zip(made, scores, strict=True)]


BEST, NEAR, FAR = (0.8, 0.82, 0.81), (0.81, 0.8, 0.8), (0.5, 0.52, 0.515)


def test_outcome_names_the_leader_and_its_distance() -> None:
    runs = [*seeds("hierfavg", *FAR), *seeds("fed-bac", *BEST), *seeds("ifca-edges", 0.7, 0.72, 0.715)]
    assert outcome(runs) == (
        "fed-bac leads with 81.0 % distributed accuracy, 9.8 points above ifca-edges (71.2 %) and 29.8 above hierfavg "
        "(51.2 %)."
    )
    assert final(runs)[1] == {1}


def test_outcome_admits_a_tie() -> None:
    runs = [*seeds("hierfavg", *FAR), *seeds("fed-bac", *BEST), *seeds("ifca-edges", *NEAR)]
    assert outcome(runs) == (
        "No clear winner: fed-bac (81.0 ± 1.0 %) is highest, but ifca-edges (80.3 ± 0.6 %) is not significantly lower; "
        "it is 29.8 points above hierfavg (51.2 %). ± is over 3 seeds."
    )
    assert final(runs)[1] == {1, 2}, "who ties is bold together"


def test_fewer_than_three_seeds_in_common_name_nobody(three: list[StoredRun]) -> None:
    first, second, third = (100 * run.summary["accuracy"] for run in three)
    assert outcome(three[::-1]) == (
        "Too few seeds to name a leader (methods are compared on 3 or more that they share): fed-bac has "
        f"{first:.1f} % distributed accuracy, {first - second:.1f} points above ifca-edges ({second:.1f} %) and "
        f"{first - third:.1f} above hierfavg ({third:.1f} %)."
    )
    for runs in (three, [*seeds("fed-bac", *BEST), *seeds("ifca-edges", *FAR, first=1)]):
        assert outcome(runs).startswith("Too few seeds")
        assert not final(runs)[1]


def test_outcome_does_not_compare_different_tasks(three: list[StoredRun]) -> None:
    other = with_task(three[1], dataset="svhn")
    assert "leads" not in outcome([three[0], other])
    assert "The runs differ in dataset." in caveats([three[0], other])
    assert "Too few seeds" in outcome([three[0], with_task(three[1], rounds=99, targets=[0.1])])


def test_what_limits_the_outcome_is_said(three: list[StoredRun]) -> None:
    *_, note = caveats(three)
    assert note.startswith("Each method ran once")
    short = with_task(fake("ifca-edges", rounds=5), rounds=12)
    assert {"ifca-edges stopped after 5 of 12 rounds.", "The runs are not equally long."} <= set(
        caveats([three[0], short])
    )
    assert any("different seeds" in note for note in caveats([three[0], fake("ifca-edges", seed=1)]))


def test_a_run_whose_clients_diverged_is_no_success() -> None:
    diverged = fake("hierfavg", failed=[0, 1, 2, 3])
    (note, *_) = caveats([diverged])
    assert note == (
        "48 of 60 client trainings failed (weights or losses were not finite), so this says little; lower "
        "task.training.learning_rate or task.training.clip_norm."
    )
    assert failures([diverged]) == [note]
    training = diverged.config["experiment"]["task"]["training"] | {"clip_norm": None}
    (free,) = failures([fake("ifca-edges"), with_task(diverged, training=training)])
    assert free.startswith("hierfavg: 48 of 60 client trainings failed")
    assert free.endswith("or set task.training.clip_norm.")
    few = fake("hierfavg")
    few.records[0]["failed"] = [0, 1, 2, 3, 4]
    assert failures([few]) == []


def test_a_spread_says_what_it_is_over_and_one_round_has_none() -> None:
    assert "% distributed accuracy (± over the last 10 rounds); its edges range" in outcome([fake("ifca-edges")])
    named = fake("ifca-edges")
    named.config["edge_names"] = [
        "Oslo",
        "Rome",
        "Li\x1bma",
        "Pune",
        "a name longer than a line of a terminal has room",
    ]
    ends = sorted(zip(edge_accuracy(named), edge_names(named), strict=True))
    assert f"% ({ends[0][1]}) to " in outcome([named])
    assert outcome([named]).endswith(f"% ({ends[-1][1]}).")
    assert edge_names(named)[2:] == ["Li ma", "Pune", "a name longer than a line of a"]
    assert "the mean over 2 seeds ± its deviation over them." in outcome(
        [fake("ifca-edges", seed=seed) for seed in (0, 1)]
    )
    one = with_task(fake("ifca-edges", rounds=1), rounds=1)
    assert (
        f"ifca-edges reaches {100 * one.summary['accuracy']:.1f} % distributed accuracy in its last round;"
        in outcome([one])
    )
    assert "±" not in "".join([*table([one])[1][0], *caveats([one])])


def at(run: StoredRun, before: float, after: float, point: str = "pre_reassign") -> StoredRun:
    experiment = run.config["experiment"] | {"evaluation": run.config["experiment"]["evaluation"] | {"point": point}}
    both = {"before_training": {"accuracy": before}, "after_training": {"accuracy": after}}
    return replace(run, config=run.config | {"experiment": experiment}, summary=run.summary | both)


def test_the_other_moment_is_a_column_and_a_caveat_where_it_names_another(three: list[StoredRun]) -> None:
    one, other, _ = three
    told = [at(one, 0.7, 0.8), at(other, 0.6, 0.9)]
    assert "The moment decides who is highest: fed-bac before local training, ifca-edges after it." in caveats(told)
    header, rows = table(told)
    assert [row[header.index("after training (%)")] for row in rows] == ["80.0", "90.0"]
    assert not any("moment" in note for note in caveats([at(one, 0.7, 0.9), at(other, 0.6, 0.8)]))
    mixed = [at(one, 0.7, 0.8), at(other, 0.6, 0.9, "edge_model")]
    assert any("judged at different moments" in note for note in caveats(mixed))


# --------------------------------------------------------------------------------------------------- guard


def deciding(name: str, *after: int, of: StoredRun | None = None, **changes: Any) -> StoredRun:
    """Return a made-up run of twelve rounds in which clusters are chosen after these."""
    run = of or fake(name)
    for record in run.records:
        record["decided"] = [one for one in after if max(one, 1) == record["round"]]
    config = {**run.config, "measured_on": {}, **changes}
    return replace(run, config=config, summary=run.summary | {"decisions": sum(one < 12 for one in after)})


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ((), "fed-bac chose clusters in none of its 12 rounds."),
        ((12,), "fed-bac chose clusters only after its last round, so no round used them."),
        ((6, 12), "fed-bac chose clusters once, after round 6 of 12 rounds."),
        ((0,), "fed-bac chose clusters once, before the first of 12 rounds."),
        ((4, 8), None),
    ],
)
def test_a_policy_that_does_not_act_is_named(after: tuple[int, ...], said: str | None) -> None:
    run = deciding("fed-bac", *after)
    assert warnings([run]) == ([said] if said else [])
    assert (said or "") in " ".join(caveats([run]))
    assert warnings([fake("fed-bac")]) == [], "of old runs nothing is known"
    assert warnings([deciding("hierfavg")]) == [], "there is nothing to choose"


def unmoved(run: StoredRun, labels: int) -> StoredRun:
    """Return a run in which nobody moves in time for another round."""
    records = [record | {"moves": 0, "active_clusters": labels} for record in run.records]
    records[-1]["moves"] = 5
    return replace(run, records=records)


@pytest.mark.parametrize(
    ("method", "after", "labels", "said"),
    [
        ("fedgwc-edges", range(1, 12), 1, "looked for clusters 11 times and never split the one that all are in."),
        ("fed-bac", (6,), 5, "looked for clusters once and never moved an edge."),
        ("cfl", (4, 8), 3, "looked for clusters 2 times and never moved a client (clustering.first_split=20)."),
        ("ifca-edges", range(13), 5, "looked for clusters 12 times and never moved an edge after its first choice."),
    ],
)
def test_a_policy_that_looks_and_changes_nothing_is_named(
    method: str, after: Sequence[int], labels: int, said: str
) -> None:
    run = unmoved(deciding(method, *after), labels)
    assert warnings([run]) == [f"{method} {said}"]
    assert f"{method} {said}" in caveats([run])
    assert f"{method} {said}" in paper_table([run]).notes


def test_who_changed_nothing_has_not_looked_most() -> None:
    idle, other, once = unmoved(deciding("cfl-edges", *range(1, 12)), 1), deciding("fed-bac", 4, 8), deciding("ifca", 0)
    assert warnings([idle, other, once])[:3] == [
        "cfl-edges looked for clusters 11 times and never split the one that all are in (clustering.first_split=20).",
        "ifca chose clusters once, before the first of 12 rounds.",
        "They do not look for clusters equally often: fed-bac 2 times, ifca once.",
    ]


def test_of_a_policy_that_is_idle_with_some_seeds_it_is_said_with_how_many() -> None:
    runs = [fake("fed-bac", seed=seed) for seed in range(3)]
    runs = [deciding("fed-bac", *after, of=run) for run, after in zip(runs, ((4, 8), (4,), (4, 8)), strict=True)]
    assert warnings([runs[0], unmoved(runs[1], 5), unmoved(runs[2], 5)]) == [
        "fed-bac looked for clusters 1 to 2 times and never moved an edge, in 2 of 3 runs."
    ]


@pytest.mark.parametrize(("alone_rounds", "named"), [(11, False), (12, True), (15, True)])
def test_sharing_that_leaves_no_round_to_share_in_is_named(alone_rounds: int, named: bool) -> None:
    run = fake("fedavg-ft")
    run.config["experiment"]["method"]["sharing"]["alone_rounds"] = alone_rounds
    said = f"fedavg-ft never shared: all 12 rounds are alone (sharing.alone_rounds={alone_rounds})."
    assert warnings([run]) == [said] * named


@pytest.mark.parametrize(("share", "labels", "named"), [(0.0, 3, True), (0.0, 1, False), (0.05, 3, False)])
def test_sharing_that_measures_and_never_shares_is_named(share: float, labels: int, named: bool) -> None:
    """In one cluster there is nothing to share."""
    run = fake("fedbac-plus", active_clusters=labels, notes={"mean_share": 0.0})
    run.records[7]["notes"] = {"mean_share": share}
    assert warnings([run]) == ["fedbac-plus measured and never shared (mean_share=0)."] * named


@pytest.mark.parametrize(("rounds", "period"), [(4, 1), (20, 4), (99, 19), (100, 20), (200, 20)])
def test_presets_have_a_period_that_fits_the_run(rounds: int, period: int) -> None:
    """The paper's for runs of its length, however the rounds are given; others keep theirs. Only the paper's own text
    is warned of."""
    by_setting = [f"task.rounds={rounds}"]
    for name, wanted in (
        ("fed-bac", period),
        ("ifca-paper", period),
        ("fed-bac-full", period),
        ("ifca", 1),
        ("fedfork", min(period, 5)),
        ("feddrift", min(period, 5)),
        ("cflhkd", period),
        ("paper-text", 20),
    ):
        for experiment in (configure(name, "demo", rounds=rounds), configure(name, "demo", settings=by_setting)):
            plain = experiment.model_dump(mode="json")
            assert plain["method"]["clustering"]["period"] == wanted
    experiments = (configure(name, "demo", rounds=rounds).model_dump(mode="json") for name in METHODS)
    assert {one["method"]["name"] for one in experiments if long_periods(one)} <= {"paper-text"}


@pytest.mark.parametrize(("rounds", "set_to"), [(20, 4), (99, 19), (100, None)])
def test_a_period_longer_than_a_fifth_of_the_rounds_warns(rounds: int, set_to: int | None) -> None:
    told = long_periods(configure("paper-text", "demo", rounds=rounds).model_dump(mode="json"))
    assert [f"method.clustering.period=20 is longer than a fifth of the {rounds} rounds" in one for one in told] == (
        [] if set_to is None else [True]
    )
    assert all(f"set it to {set_to} or less" in one for one in told)
    assert not long_periods(configure("ifca-edges", "demo", rounds=2).model_dump(mode="json")), (
        "every round is often enough"
    )


def test_a_run_says_so_before_its_first_round(caplog: pytest.LogCaptureFixture) -> None:
    small = {"task.network": "mlp", "task.training.epochs": 1, "task.num_edges": 4, "task.clients_per_edge": 2}
    run = fedbac.run("paper-text", "demo", rounds=2, settings=small, workers=1, progress=False)
    assert any("method.clustering.period=20" in message for message in caplog.messages)
    assert "paper-text chose clusters in none of its 2 rounds." in warnings([run])
    assert run.config["weights"] > 0


def test_runs_too_short_for_their_rules_say_so_themselves() -> None:
    """CFL looks after each round and may split from round 20 on; fine-tuning takes the last ten rounds."""
    small = {"task.network": "mlp", "task.training.epochs": 1, "task.num_edges": 4, "task.clients_per_edge": 2}
    runs = fedbac.compare(["cfl-edges", "fedavg-ft"], "demo", rounds=3, settings=small, workers=1, progress=False)
    assert warnings(runs) == [
        "cfl-edges looked for clusters 2 times and never split the one that all are in (clustering.first_split=20).",
        "fedavg-ft never shared: all 3 rounds are alone (sharing.alone_rounds=10).",
    ]


def test_seeds_of_a_comparison_say_it_once(caplog: pytest.LogCaptureFixture) -> None:
    small = {"task.network": "mlp", "task.training.epochs": 1, "task.num_edges": 4, "task.clients_per_edge": 2}
    for _ in range(2):  # a second comparison says it again
        caplog.clear()
        fedbac.compare(["paper-text"], "demo", rounds=2, seed=[0, 1], settings=small, workers=1, progress=False)
        assert sum("method.clustering.period=20" in message for message in caplog.messages) == 1


def test_a_selection_that_never_leaves_its_warm_up_is_named() -> None:
    run = deciding("fed-bac", 2, 4)
    assert warnings([run]) == []
    run.config["experiment"]["method"]["selection"]["warmup"] = 12
    assert warnings([run]) == ["fed-bac never selected clients by what it learned: all 12 rounds were warm-up."]


def test_who_looks_sends_weighs_or_holds_out_more_is_named_in_a_line_each() -> None:
    one, other, plain = (
        deciding("fed-bac", 4, 8, weights=200),
        deciding("ifca-edges", *range(13), weights=100),  # after the last round no round is left
        fake("hierfavg"),
    )
    one.config["measured_on"] = {"method.selection": ["validation"]}
    one = replace(one, summary=one.summary | {"bytes_total": 3 * other.summary["bytes_total"]})
    assert warnings([one, other]) == [
        "They do not look for clusters equally often: ifca-edges 12 times, fed-bac 2 times.",
        "fed-bac sent 3.0 times the bytes of ifca-edges.",
        "fed-bac predicts with 2.0 times the weights of ifca-edges.",
        "Data held out for validation are used by fed-bac only; no other method trains on them.",
    ]
    elsewhere = with_task(other, dataset="svhn")
    assert warnings([one, elsewhere]) == [], "methods on different tasks are not compared"
    assert warnings([other, plain]) == []
    header, rows = table([one, other])
    assert [row[header.index("decisions")] for row in rows] == ["2", "12"]


# -------------------------------------------------------------------------------------------------- groups


def test_a_command_ends_with_one_row_per_method_when_there_are_several_seeds() -> None:
    runs = [fake(name, seed=seed) for seed in (0, 1) for name in ("ifca-edges", "fed-bac")]
    (header, rows), chosen = final(runs)
    assert [row[0] for row in rows] == ["ifca-edges", "fed-bac"]
    assert not chosen, "two seeds are too few"
    mine = dict(zip(header, rows[1], strict=True))
    accuracy = [runs[i].summary["accuracy"] for i in (1, 3)]
    reached = [runs[i].summary["rounds_to_target"]["0.7"] for i in (1, 3)]
    assert mine["seeds"] == "2"
    assert mine["accuracy (%)"] == f"{100 * np.mean(accuracy):.1f} ± {100 * np.std(accuracy, ddof=1):.1f}"
    assert mine["rounds to 70 %"] == f"{np.mean(reached):g}"
    thirds = [fake("ifca-edges", seed=seed, active_clusters=count) for seed, count in enumerate((3, 3, 2))]
    (header, rows), _ = final(thirds)
    assert dict(zip(header, rows[0], strict=True))["clusters"] == "2.7"
    never = [fake("ifca-edges", seed=0), fake("ifca-edges", seed=1, top=0.3)]
    (header, rows), chosen = final(never)
    assert dict(zip(header, rows[0], strict=True))["rounds to 70 %"] == "–", "a seed that never gets there has no mean"
    assert not chosen, "one method has nothing to be better than"
    assert final(runs[:2]) == (table(runs[:2]), frozenset())


def test_a_seed_that_all_share_is_not_in_their_labels() -> None:
    runs = [fake(name, seed=7) for name in ("fed-bac", "hierfavg")]
    assert labels(runs) == [group.label for group in groups(runs)] == ["fed-bac", "hierfavg"]
    mixed = [fake("fed-bac", seed=7), fake("hierfavg", seed=8)]
    assert labels(mixed) == [group.label for group in groups(mixed)] == ["fed-bac (seed 7)", "hierfavg (seed 8)"]
    assert labels(runs[:1]) == ["fed-bac"]


def test_same_method_with_other_settings_is_another_line(three: list[StoredRun]) -> None:
    method_ = three[0].config["experiment"]["method"] | {"cloud_weight": "uniform"}
    other = replace(three[0], config={"experiment": {**three[0].config["experiment"], "method": method_}})
    two = groups([three[0], other])
    assert [group.label for group in two] == ["fed-bac [cloud_weight=total]", "fed-bac [cloud_weight=uniform]"]
    assert two[0].look != two[1].look
    folders = [replace(run, folder=Path("runs") / name) for run, name in zip((three[0], other), "ab", strict=True)]
    assert labels(folders) == ["fed-bac [cloud_weight=total]", "fed-bac [cloud_weight=uniform]"]
    same = [replace(three[0], folder=Path("runs") / name / "x") for name in "ab"]
    assert labels(same) == ["fed-bac [x] [runs/a/x]", "fed-bac [x] [runs/b/x]"], "nothing else tells them apart"
    own = [replace(run, folder=Path("runs") / name) for run, name in zip(same, ("mine", "fed-bac"), strict=True)]
    assert labels(own) == ["fed-bac [mine]", "fed-bac"], "not by its own name"
    assert len(set(labels([three[0]] * 3))) == 3
    assert not any("#" in label for label in (*labels(folders), *labels(same), *labels([three[0]] * 3)))


def test_no_leader_is_named_before_the_final_accuracy_is_one() -> None:
    short = [with_task(fake(name, rounds=9), rounds=9) for name in ("fed-bac", "ifca-edges")]
    assert outcome(short) == (
        "Too early to name a leader: the final accuracy is the mean over the last 10 rounds "
        "(evaluation.last_rounds), and the shortest run has 9 rounds."
    )
    assert not final(short)[1], "nor is one printed in bold"
    assert outcome(short[:1]).startswith("fed-bac reaches")
    assert "Too few seeds" in outcome([fake(name, rounds=10) for name in ("fed-bac", "ifca-edges")])


def test_samples_of_different_seeds_are_one_task() -> None:
    """Each seed draws its own fraction of the data, as it spreads them in its own way."""
    runs = [with_task(fake("ifca-edges", seed=seed), data_fraction=0.1) for seed in (0, 1)]
    whole = {"source_sha256": "all of them"}
    runs = [replace(run, config=run.config | {"data": whole | {"sha256": run.name}}) for run in runs]
    (header, rows), _ = final(runs)
    assert dict(zip(header, rows[0], strict=True))["seeds"] == "2"
    assert "different tasks" not in outcome(runs)
    other = replace(runs[1], config=runs[1].config | {"data": {"source_sha256": "others", "sha256": "x"}})
    assert "different tasks" in outcome([runs[0], other])


def test_colour_of_a_method_does_not_depend_on_company(three: list[StoredRun]) -> None:
    alone = groups([three[1]])[0].look
    among = groups([renamed(three[0], "new"), *three[::-1], renamed(three[2], "newer")])
    assert next(group.look for group in among if group.label == "ifca-edges") == alone
    assert len({group.look for group in among}) == 5
    many = groups([renamed(three[0], f"method {i}") for i in range(20)])
    assert len({(group.look.colour, group.look.dash) for group in many}) == 20


# --------------------------------------------------------------------------------------- where policies measured


def measuring(name: str, *settings: str, stated: bool = True) -> StoredRun:
    """Return a made-up run of a preset with settings, as today's version writes its folder, or as earlier ones did."""
    experiment = configure(name, "demo", rounds=2, settings=settings)
    splits = {field: sorted(experiment.method.splits(field)) for field in experiment.method.needs}
    config: dict[str, Any] = {"experiment": experiment.model_dump(mode="json"), "measured_on": splits}
    if not stated:
        del config["measured_on"], config["experiment"]["method"]["topology"]
        config["experiment"]["method"] |= {"sharing": 0.1, "sharing_by": "overfitting", "empty_cluster": "keep"}
    return replace(fake(name, rounds=2), config=config)


@pytest.mark.parametrize("stated", [True, False], ids=["today", "an old folder"])
def test_what_policies_measure_on_is_said(stated: bool) -> None:
    """Also of policies within others: selection by credit learns from the reward of another one."""
    said = {name: facts(measuring(name, stated=stated))["Policies measure on"] for name in ("fedbac-plus", "fed-bac")}
    shared = "; sharing: validation" if stated else ""  # which came with the field
    assert said["fedbac-plus"] == "clustering: train, validation; selection: validation" + shared
    assert said["fed-bac"] == "clustering: train; selection: validation"
    for name in ("hierfavg", "fedavg", "ditto"):
        assert facts(measuring(name, stated=stated))["Policies measure on"].startswith("nothing: no policy needs")


@pytest.mark.parametrize("stated", [True, False], ids=["today", "an old folder"])
@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ([], []),
        (["method.selection.shared.reward_split=test"], ["selection"]),
        (["method.clustering.reward_splits=[train, test]"], ["clustering"]),
        (["method.measurement.split=test"], ["clustering"]),
        (
            ["method.selection.shared.reward_split=test", "method.clustering.reward_splits=[test]"],
            ["clustering", "selection"],
        ),
    ],
)
def test_every_way_of_test_data_into_training_is_a_leak(settings: list[str], columns: list[str], stated: bool) -> None:
    found = leaks(measuring("fedbac-plus", *settings, stated=stated))
    assert [text.split()[1] for text in found] == columns
    assert all(LEAK in text for text in found)


def test_a_flat_run_is_in_the_ledger_under_its_own_name() -> None:
    names = {fakes: {row[0] for row in ledger_table([fake(name) for name in fakes])[1]} for fakes in FAKES}
    assert names[FAKES[0]] == {"client and edge", "edge and cloud", "total"}
    assert names[FAKES[1]] == {"client and edge (flat: and cloud)", "edge and cloud", "total"}
