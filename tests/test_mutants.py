"""Mistakes that tests must notice: each is made in a copy of the sources, and the tests named for it must fail."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A mistake in one place."""

    file: str
    old: str
    new: str
    tests: str
    """A test that fails then."""


CODECS = "tests/unit/test_codecs.py::test_networks_that_are_only_measured_are_sent_whole"
CHECKSUMS = (
    "tests/store/test_damage.py::test_a_manifest_without_a_checksum_is_not_believed_among_records_that_have_them"
)
WITHDRAWN = "tests/test_sweep.py::test_a_withdrawn_run_takes_nothing_along_that_was_there_before"
CHANCE = "tests/unit/test_statistics.py::test_equally_good_methods_are_seldom_told_apart"
CLOUD_SECONDS = "tests/unit/test_world.py::test_a_round_also_takes_what_the_links_to_the_cloud_take"
REJOINED = "tests/deploy/test_restarts.py::test_what_a_client_said_before_it_rejoined_does_not_count"
ROLLBACK = "tests/deploy/test_rollback.py"
OLD_BACKUP = "test_an_old_backup_of_the_cloud_stops_the_run_and_changes_nothing"
LOST_STATE = "test_a_site_that_lost_its_state_stops_the_run_until_it_is_back"
OF_REGIONS = "tests/deploy/test_tiers.py::test_rounds_are_those_of_the_simulator"
NEVER_CHOSEN = "tests/deploy/test_roles.py::test_three_rounds_are_those_of_the_simulator"

ROOM = "tests/engines/test_chunks.py::test_corrections_which_belong_to_no_network_take_as_much_room_as_one"
ORDER = "tests/unit/test_codecs.py::test_an_order_that_makes_no_sense_is_refused"
STREAMS = "tests/unit/test_robust.py::test_the_mean_holds_no_clients_and_other_rules_hold_all"
COMBINES = "test_the_cloud_combines_what_sites_report_for_an_owner_and_counts_changes_from_what_was_sent"
SPENT = "tests/deploy/test_privacy.py::test_a_round_is_answered_once_whatever_it_is_asked_again"
EXPECTED = "tests/unit/test_privacy.py::test_a_client_counts_as_many_examples_as_it_holds_up_to_what_was_declared"

WITH_ADAPTERS = "tests/deploy/test_adapters.py::test_sites_with_adapters_equal_the_simulator_and_all_train_in_batches"
MUTANTS = {
    "a site at which nobody starts loses what clients left out": Mutant(
        "rounds/privacy.py", "        left=dict(average.left),\n", "",
        "tests/identity/test_clocks.py::test_an_edge_at_which_nobody_can_start_keeps_what_clients_left_out",
    ),
    "an edge that its region did not select is asked for networks of the round": Mutant(
        "deploy/roles/edges.py", "if own and (not self.charter.experiment.heights or order.site in self.averaged):",
        "if own:", f"{OF_REGIONS}[what edges trained is measured, where they did]",
    ),
    "an edge that its region had not selected forgot what its clients have": Mutant(
        "deploy/roles/edge.py",
        " or (experiment.heights and not self.clients.expected.get(EDGE, Expected()).trained)", "",
        f"{OF_REGIONS}[edges whose clients have the first networks until they are selected]",
    ),
    "an edge that its region did not select has lost its state": Mutant(
        "deploy/roles/history.py", " for m, age in ages.items() if selected[m]}", " for m, age in ages.items()}",
        "tests/deploy/test_tiers.py::test_whoever_is_killed_at_any_point_gets_the_same_numbers"
        "[a head that an edge keeps, which is not always selected-3]",
    ),
    "a round of regions counts in which nobody answers who was selected": Mutant(
        "deploy/roles/edges.py", "            answered = 0  #", "            pass  #",
        "tests/deploy/test_tiers.py::test_a_round_in_which_nobody_answers_who_was_selected_is_played_again",
    ),
    "an edge whose clients count alike may count their examples": Mutant(
        "deploy/protocol/messages.py", "int(charter.experiment.method.counted(site.size_N).sum())", "site.size",
        "tests/deploy/test_lost_peers.py::test_an_edge_whose_clients_count_alike_cannot_count_their_examples",
    ),
    "clients that count alike get noise for many examples": Mutant(
        "config/experiment.py", 'privacy.model_copy(update={"most_examples": 1})', "privacy",
        "tests/unit/test_privacy.py::test_clients_that_count_alike_need_no_noise_for_more_examples",
    ),
    "memory that ran out is taken for a network that refuses graphs": Mutant(
        "local/captured.py", "if out_of_memory(error):", "if False:",
        "tests/trainers/test_batched.py::test_where_memory_runs_out_it_is_said_and_graphs_are_not_to_blame",
    ),
    "a site with test data alone finds no network whose clients may share a batch": Mutant(
        "local/batched.py", "        held = max(",
        '        if len(self.source["train"][0]) < 2:\n            return False\n        held = max(',
        f"{WITH_ADAPTERS}[cloud and cluster]",
    ),
    "clients that keep all that they train have sent nothing that could be used": Mutant(
        "deploy/roles/clients.py", "if parts and not trees", "if not trees", f"{WITH_ADAPTERS}[client]",
    ),
    "tiers that were looked at cannot be compared": Mutant(
        "config/tiers.py", "@dataclass(frozen=True, eq=False)", "@dataclass(frozen=True)",
        "tests/unit/test_topology.py::test_experiments_are_alike_whoever_has_looked_at_their_tiers",
    ),
    "a site that was not asked has no answers": Mutant(
        "rounds/tiers.py", 'whole.readings or (float("nan"),) * len(order.readings)', "whole.readings",
        "tests/identity/test_tiers.py::test_the_cloud_asks_those_who_train_in_the_last_round_of_a_region",
    ),
    "a round that nobody measured waits for nobody else": Mutant(
        "deploy/roles/edges.py", "self.under_way.came.keys() - self.unmeasured", "self.under_way.came",
        "tests/deploy/test_under_way.py::test_a_round_that_nobody_measured_waits_for_another_edge",
    ),
    "an edge is asked for networks of a round that it did not train": Mutant(
        "deploy/roles/edges.py", "return replace(order, bank={**order.bank, **bank}, kept={})", "return order",
        "tests/deploy/test_under_way.py::test_an_edge_that_comes_late_need_not_have_kept_what_the_cloud_asks_about",
    ),
    "a second answer to a round from other networks": Mutant(
        "deploy/roles/releases.py", "kept is None or kept[\"stamp\"] != stamp", "kept is None", SPENT
    ),
    "a sum over who came, which tells of who broke down": Mutant(
        "rounds/privacy.py", "/ total\n", "/ max(float(trained.weight[part][row]), 1)\n", EXPECTED
    ),
    "who keeps a network that follows another is not sent that": Mutant(
        "rounds/record.py", "measured = with_leaders(scheme, measured)", "pass",
        f"{NEVER_CHOSEN}[clients that were never chosen, and follow everybody]",
    ),
    "room for networks alone": Mutant(
        "engines/simulator.py", "for part, params in bank.items()}",
        'for part, params in bank.items() if part == "global"}', ROOM,
    ),
    "the mean holds all clients of an edge": Mutant(
        "rounds/edge.py", ' if method.aggregation.needs == "all" else ()', "", STREAMS
    ),
    "noise after a codec": Mutant(
        "core/codecs.py", "if last is not None:\n                return", "if False:\n                return", ORDER
    ),
    "changes from what was, not from what was sent": Mutant(
        "core/aggregation.py", "before_K if sent_K is None else sent_K", "before_K",
        f"tests/unit/test_robust.py::{COMBINES}",
    ),
    "measured networks at the codec's price": Mutant(
        "core/links.py", 'self.chain(direction).codec if purpose == "train" else None',
        "self.chain(direction).codec", CODECS,
    ),
    "one price for all purposes": Mutant(
        "core/links.py", "(key := (part, direction, purpose))", '(key := (part, direction, "train"))', CODECS
    ),
    "an unsigned manifest among signed records": Mutant(
        "runs/store.py", " or (found.signed and not manifest.signed)", "", CHECKSUMS
    ),
    "a withdrawn run takes along what was there": Mutant(
        "runs/store.py", "for path in (self.rounds_file, self.config_file):",
        "for path in (self.rounds_file, self.config_file, self.summary_file):", WITHDRAWN,
    ),
    "a policy that changed nothing has acted": Mutant(
        "report/guard.py", 'not any(record["moves"]', 'not any("moves" in record',
        "tests/test_report.py::test_a_policy_that_looks_and_changes_nothing_is_named",
    ),
    "a leader by one side": Mutant("statistics.py", "chance = 2 * float(", "chance = float(", CHANCE),
    "a leader of two seeds": Mutant("statistics.py", "FEWEST_SEEDS = 3", "FEWEST_SEEDS = 2", CHANCE),
    "a leader without a correction": Mutant("statistics.py", "<= LEVEL / left", "<= LEVEL", CHANCE),
    "no time to the cloud": Mutant(
        "rounds/cloud.py", "self.tree.seconds) + passing", "self.tree.seconds)", CLOUD_SECONDS
    ),
    "one link for all edges": Mutant(
        "rounds/cloud.py", "num_bytes / children / (MEGA", "num_bytes / (MEGA", CLOUD_SECONDS
    ),
    "a cloud link without edges": Mutant(
        "rounds/cloud.py", " if self.method.topology.tiers == 3 else 0", "", CLOUD_SECONDS
    ),
    "ready before it rejoined": Mutant(
        "deploy/roles/calls.py", "answers.keys() - reasons.keys() - self._rejoined", "answers.keys() - reasons.keys()",
        REJOINED,
    ),
    "unfit before it rejoined": Mutant("deploy/roles/calls.py", " if name not in self._rejoined}", "}", REJOINED),
    "rejoined for ever": Mutant("deploy/roles/calls.py", "self._rejoined -= set(new)", "pass", REJOINED),
    "an older list of revoked certificates than one that was copied": Mutant(
        "deploy/pki/credentials.py", "self.refresh()  # somebody", "pass  # somebody",
        "tests/deploy/test_kits.py::test_a_list_that_arrives_replaces_no_newer_one_that_was_copied_meanwhile",
    ),
    "an old backup of the cloud": Mutant(
        "deploy/roles/data_holder.py", "newest[0] > last + ROUNDS_BACK or found", "found", f"{ROLLBACK}::{OLD_BACKUP}"
    ),
    "a state that was lost": Mutant(
        "deploy/roles/data_holder.py", " or found < expected.trained", "", f"{ROLLBACK}::{LOST_STATE}"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    return Path(shutil.copytree(ROOT / "src", tmp_path_factory.mktemp("mutants") / "src", ignore=ignore))


def verdict(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests on the copy; return pytest's exit code, 1 if tests failed, and what it said."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_mistake_can_still_be_made_in_one_place() -> None:
    found = {name: (ROOT / "src/fedbac" / mutant.file).read_text(encoding="utf-8") for name, mutant in MUTANTS.items()}
    moved = [name for name, text in found.items() if text.count(MUTANTS[name].old) != 1]
    assert not moved, "their files have changed: say in MUTANTS what the mistakes would be now"


@pytest.mark.full
def test_the_copy_passes_without_a_mistake(copy: Path) -> None:
    code, said = verdict(copy, sorted({mutant.tests for mutant in MUTANTS.values()}))
    assert code == 0, said


@pytest.mark.full
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mistake_is_noticed(name: str, copy: Path) -> None:
    mutant = MUTANTS[name]
    file = copy / "fedbac" / mutant.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, said = verdict(copy, [mutant.tests])
    finally:
        file.write_text(text, encoding="utf-8")
    assert code == 1, said
