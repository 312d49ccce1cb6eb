"""What differences cost: by seed, as the original has it less ours."""

import json
from pathlib import Path

from fedbac_paper import costs


def test_a_cost_is_the_mean_over_seeds_of_the_original_less_ours(tmp_path: Path) -> None:
    (difference,) = costs.DIFFERENCES["fedgwc"]
    runs = {}
    for task in costs.TASKS:
        for seed in costs.SEEDS:
            runs[costs.key("fedgwc", (), task, seed)] = 0.5
            runs[costs.key("fedgwc", difference.original, task, seed)] = 0.5 + 0.01 * seed
    file = tmp_path / costs.KEPT.name
    file.write_text(json.dumps({"runs": runs}))
    (told,) = costs.lines("fedgwc", tmp_path)
    assert told.endswith("not a tenth: +1.0, +1.0, +1.0.")
    del runs[costs.key("fedgwc", (), "demo", 1)]
    file.write_text(json.dumps({"runs": runs}))
    assert costs.lines("fedgwc", tmp_path) == [], "three seeds or nothing"
