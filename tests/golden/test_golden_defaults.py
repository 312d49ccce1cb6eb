"""Runs are known by what differs from the defaults, so a default that changes must change every hash.

When it does, choose another ``fedbac_paper.plan.SALT``, and write the file anew:

    python -m tests.golden.test_golden_defaults

Three defaults have changed that needed no other SALT, because under the new ones every run of the study has the numbers
that it had (tests below):

- ``Measurement.clients`` from ``all`` to ``trusted``: with a selection policy that cannot say whom it trusts, all are
  asked; and the runs whose selection can, and that left it at ``all``, measure nothing for the cloud. Those of merging
  said ``trusted`` already, and their hash has changed by their rule (``REVISIONS``).
- ``untrained_loss`` of merging and of credit from ln 10 to ln(number of classes): all data sets have ten.
- ``Method.sharing`` from 0 to ``apart``, ``Method.sharing_by`` and ``Method.newcomers`` to what the policies do, and
  ``Method.empty_cluster`` to the policies that can enter an empty cluster: other words for the same.
"""

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedbac import data, models
from fedbac.config.columns import AGGREGATION, CLUSTERING, PERSONALIZATION, SELECTION, SHARING, STEP, TOPOLOGY
from fedbac.config.experiment import Evaluation, Experiment, Measurement, Method, Task
from fedbac.config.training import AdamW, Training
from fedbac.core.policies import SelectionPolicy, Trusting
from fedbac.core.settings import Settings
from fedbac.data.catalog import SOURCES
from fedbac.rounds.measure import clients_to_ask
from fedbac.rounds.messages import Site
from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.plan import REVISIONS, SALT, Pass, experiment_of

DEFAULTS = Path(__file__).with_name("defaults.json")
GROUPS: tuple[type[Settings], ...] = (
    Experiment,
    Evaluation,
    Task,
    Training,
    AdamW,
    data.Partition,
    data.Noise,
    data.Augment,
    models.LeNet5,
    models.Perceptron,
    Method,
    Measurement,
    *TOPOLOGY.kinds.values(),
    *CLUSTERING.kinds.values(),
    *SELECTION.kinds.values(),
    *SHARING.kinds.values(),
    *PERSONALIZATION.kinds.values(),
    *AGGREGATION.kinds.values(),
    *STEP.kinds.values(),
)


def defaults() -> dict[str, Any]:
    """Return the default of every setting that has one."""
    found = {}
    for group in GROUPS:
        for name, field in group.model_fields.items():
            if not field.is_required():
                value = field.get_default(call_default_factory=True)
                plain = type(value).__name__ if isinstance(value, Settings) else value  # its own defaults are listed
                found[f"{group.__name__}.{name}"] = json.loads(json.dumps(plain))
    return found


def test_no_default_changes_under_the_same_hashes() -> None:
    recorded = json.loads(DEFAULTS.read_text())
    now = defaults()
    changed = {name: (value, now[name]) for name, value in recorded["defaults"].items() if now.get(name) != value}
    assert not changed, f"choose another SALT, then see above: {changed}"
    assert recorded["salt"] == SALT


@pytest.mark.parametrize("kind", SELECTION.kinds)
def test_all_are_asked_where_selection_cannot_say_whom_it_trusts(kind: str) -> None:
    policy = SELECTION.kinds[kind]()
    assert isinstance(policy, SelectionPolicy)
    site = Site(0, (4, 5, 6), np.array([9, 9, 9]), np.array([1, 1, 1]), 10)
    doubted = policy.init(3)
    if isinstance(policy, Trusting):
        doubted = doubted._replace(fail_N=np.array([0.0, 2.0, 0.0]))
    asked = {
        clients: clients_to_ask(
            Method(name=kind, selection=policy, measurement=Measurement(clients=clients)), site, doubted, (5,)
        )
        for clients in get_args(Measurement.model_fields["clients"].annotation)
    }
    assert asked == {
        "trusted": (4, 6) if isinstance(policy, Trusting) else (4, 5, 6),
        "all": (4, 5, 6),
        "selected": (5,),
    }


def test_no_run_of_the_study_has_other_numbers_under_the_defaults_of_today() -> None:
    assert Measurement().clients == "trusted"
    assert math.log(10) == 2.302585092994046
    for artefact in ARTEFACTS.values():
        for cell in artefact.cells:
            experiment = experiment_of(cell, 0, Pass())
            method = experiment.method
            assert SOURCES[experiment.task.dataset].num_classes == 10
            if isinstance(method.selection, Trusting) and method.clustering.kind not in REVISIONS:
                assert not method.needs["method.clustering"] | method.needs["method.sharing"], cell


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps({"salt": SALT, "defaults": defaults()}, indent=1, ensure_ascii=False) + "\n")
