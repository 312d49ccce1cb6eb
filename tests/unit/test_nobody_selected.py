"""A round in which a policy selects nobody changes nothing and goes on."""

from typing import Any

import numpy as np

import fedbac
from fedbac.core.queries import Evidence
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray
from fedbac.data import toy
from tests.store import worker


class Nobody(fedbac.Random):
    """Selects nobody in even rounds."""

    def act(self, state: Any, evidence: Evidence, rng: Rng) -> BoolArray:
        if evidence.round % 2 == 0:
            return np.zeros(evidence.size_N.size, dtype=bool)
        return super().act(state, evidence, rng)


def test_a_round_without_anybody_keeps_the_model() -> None:
    method = fedbac.method("hierfavg", worker.TASK).model_copy(update={"selection": Nobody()})
    for trainer in ("torch", "native"):
        run = fedbac.run(
            method, worker.TASK, num_rounds=4, dataset=toy(size=8), workers=1, device="cpu", trainer=trainer
        )
        assert [record["loss"] is None for record in run.records] == [False, True, False, True]
        assert run.records[0]["accuracy_per_edge"] == run.records[1]["accuracy_per_edge"]
        assert all(not selected for selected in run.records[1]["selected"])
        assert run.records[1]["bytes"]["client"]["down"]["train"] == 0
