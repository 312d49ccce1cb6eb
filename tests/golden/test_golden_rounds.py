"""Five rounds of every preset on a toy task, and Table I as text, as they were when they were last looked at.

A change that is meant to alter numbers regenerates both files, and the difference is read before it is committed:

    python -m tests.golden.test_golden_rounds
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac.config.experiment import Method, Task, Training
from fedbac.core.links import PURPOSES
from fedbac.data import Partition, partition, toy
from fedbac.local import VmapTrainer
from fedbac.models import Perceptron
from fedbac.presets import DEFAULT_TASK
from fedbac.presets.methods import METHODS
from fedbac.presets.tasks import task
from tests.covering import presets
from tests.support import play, prepare

ROUNDS = Path(__file__).with_name("rounds.json")
TABLE = Path(__file__).with_name("table_one.txt")
DATA = toy(size=16, num_classes=5, train=420, test=300)
SPREAD = Partition(dirichlet_server=0.3, dirichlet_client=1, min_client_samples=8, min_edge_test=30)
CLIENTS = (3, 4, 3, 3, 5, 3)
TRAINING = Training(epochs=1, batch_size=16, learning_rate=0.05)
NETWORK = Perceptron(hidden=(12,))
TASK = Task(dataset="toy", num_edges=6, clients_per_edge=CLIENTS, rounds=5, network=NETWORK, training=TRAINING)
SHARDS = partition(DATA.y_train, DATA.y_test, DATA.num_classes, CLIENTS, SPREAD, seed=7)
ACCURACY_TOLERANCE = 0.02
"""Rounding differs between processors; more than a few examples on the other side of a boundary does not."""


SOON = {"period": 2, "warmup": 1, "first_split": 2, "alone_rounds": 2, "last": 2, "ramp_rounds": 1, "patience": 1}
"""Within five rounds policies decide and selection learns only if these settings are at most this."""
STRONG = {"proximal": 1.0, "epsilon_1": 4.0}
"""And these are felt only if they are as large, where they are used at all."""


@cache
def variants() -> dict[str, Method]:
    """Return every preset, and those of which five rounds show little once more, in a hurry."""
    found = {}
    for name, preset in METHODS.items():
        found[name] = preset(TASK)
        plain = found[name].model_dump(mode="json")
        hurried = in_a_hurry(plain)
        if hurried != plain:
            found[f"{name}, in a hurry"] = Method.model_validate(hurried)
    return found


def in_a_hurry(settings: Any) -> Any:
    """Return settings with which five rounds show what the method does."""
    if not isinstance(settings, dict):
        return settings
    settings = {name: in_a_hurry(value) for name, value in settings.items()}
    early = {name: SOON[name] for name in settings.keys() & SOON.keys() if (settings[name] or 0) > SOON[name]}
    return settings | early | {name: STRONG[name] for name in settings.keys() & STRONG.keys() if settings[name]}


def by_purpose(ledgers: list[dict[str, dict[str, dict[str, int]]]]) -> dict[str, int]:
    """Return what rounds cost for each purpose, over tiers and directions."""
    ways = [way for ledger in ledgers for tier in ledger.values() for way in tier.values()]
    return {purpose: sum(way[purpose] for way in ways) for purpose in PURPOSES}


def five_rounds(method: Method) -> dict[str, Any]:
    """Return what five rounds show; all clients are trained at once, which is twice as fast as one after another."""
    options: dict[str, Any] = {"training": TRAINING, "num_rounds": 5, "network": method.network or NETWORK, "seed": 7}
    _, federation = prepare(method, DATA, SHARDS, **options)
    trainer = VmapTrainer(federation.network, method.personalization, federation.examples, torch.device("cpu"))
    played = play(method, DATA, SHARDS, trainer, **options)
    return {
        "accuracy": [round(record["accuracy"], 4) for record in played.records],
        "assignment": [record["assignment_next"] for record in played.records],
        "selected": [record["selected"] for record in played.records],
        "bytes": by_purpose([record["bytes"] for record in played.records]),
    }


def table_one() -> str:
    """Return the rows of choices that the presets are, on the default task."""
    titles = ("method", "topology", "clustering", "selection", "sharing", "personalization", "adaptive", "aggregation")
    rows = [titles]
    for name, preset in METHODS.items():
        row = preset(task(DEFAULT_TASK))
        period = getattr(row.clustering, "period", None)
        clusters = getattr(row.clustering, "num_clusters", None) or "M"
        rows.append(
            (
                name,
                row.topology.kind,
                f"{row.clustering.kind} K={clusters}" + (f" every {period}" if period else ""),
                f"{row.selection.kind} p={row.selection.fraction:g}",
                row.sharing.kind,
                row.personalization.kind,
                "yes" if row.adaptive else "no",
                f"{row.aggregation.kind}, {row.step.kind}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def golden() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(ROUNDS.read_text())
    return stored


def test_every_preset_has_its_golden_rounds() -> None:
    assert list(golden()) == list(variants())


def most_telling() -> list[Any]:
    """Return all variants as parameters; ``make test`` takes presets of every kind, in a hurry where they can be."""
    some = {preset for preset in presets() if isinstance(preset, str)}
    every = variants()
    telling = {hurried if (hurried := f"{name}, in a hurry") in every else name for name in some}
    return [name if name in telling else pytest.param(name, marks=pytest.mark.full) for name in every]


@pytest.mark.parametrize("name", most_telling())
def test_five_rounds_are_as_they_were(name: str) -> None:
    expected, found = golden()[name], five_rounds(variants()[name])
    assert found["assignment"] == expected["assignment"]
    assert found["selected"] == expected["selected"]
    assert found["bytes"] == expected["bytes"]
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=ACCURACY_TOLERANCE)


def test_the_golden_rounds_are_worth_keeping() -> None:
    """They learn something, they move, and no two presets that should differ are alike."""
    stored = golden()
    # The wide LeNet-5 is still at its beginning after five rounds of tiny images.
    assert all(run["accuracy"][-1] > 0.5 for name, run in stored.items() if name != "hierfavg-wide")
    moving = [name for name, run in stored.items() if run["assignment"][0] != run["assignment"][-1]]
    assert len(moving) >= 6
    hurried = [json.dumps(run) for name, run in stored.items() if name.endswith("hurry")]
    assert len(set(hurried)) == len(hurried) >= 12


def test_table_one_is_as_it_was() -> None:
    assert table_one() == TABLE.read_text()


def regenerate() -> None:
    """Write both files anew."""
    rows = [f"{json.dumps(name)}: {json.dumps(five_rounds(method))}" for name, method in variants().items()]
    ROUNDS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    TABLE.write_text(table_one())


if __name__ == "__main__":
    regenerate()
