"""Runs are known by what differs from the defaults, so a default that changes must change every hash.

When it does, choose another ``fedbac_paper.plan.SALT``, and write the file anew:

    python -m tests.golden.test_golden_defaults
"""

import json
from pathlib import Path
from typing import Any

from fedbac import data, models, topology
from fedbac.config.experiment import (
    CLUSTERING,
    PERSONALIZATION,
    SELECTION,
    Evaluation,
    Experiment,
    Measurement,
    Method,
    Task,
    Training,
)
from fedbac.core.settings import Settings
from fedbac_paper.plan import SALT

DEFAULTS = Path(__file__).with_name("defaults.json")
GROUPS: tuple[type[Settings], ...] = (
    Experiment,
    Evaluation,
    Task,
    Training,
    data.Partition,
    data.Noise,
    data.Augment,
    models.LeNet5,
    models.Perceptron,
    Method,
    Measurement,
    topology.Hierarchical,
    *CLUSTERING.kinds.values(),
    *SELECTION.kinds.values(),
    *PERSONALIZATION.kinds.values(),
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


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps({"salt": SALT, "defaults": defaults()}, indent=1, ensure_ascii=False) + "\n")
