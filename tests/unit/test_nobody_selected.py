"""A policy that selects nobody is told so, before anybody trains."""

import numpy as np
import pytest
import torch

import fedbac
from fedbac import PolicyError
from fedbac.core.policies import NoState
from fedbac.core.queries import Evidence
from fedbac.core.requests import Average
from fedbac.core.rng import Rng
from fedbac.core.settings import BoolArray
from fedbac.rounds.edge import serve
from fedbac.rounds.messages import Site, TrainOrder
from tests.unit.tiny import tiny_task


class Nobody(fedbac.Random):
    """Selects nobody in even rounds."""

    def act(self, state: NoState, evidence: Evidence, rng: Rng) -> BoolArray:
        if evidence.round % 2 == 0:
            return np.zeros(evidence.size_N.size, dtype=bool)
        return super().act(state, evidence, rng)


def test_selecting_nobody_is_an_error_that_names_the_policy() -> None:
    method = fedbac.Method(name="x", selection=Nobody())
    experiment = fedbac.Experiment(task=tiny_task(), method=method)
    site = Site(0, (5, 6, 7), np.array([10, 20, 5]), np.array([1, 1, 1]), num_classes=2)
    bank = {"global": {"w": torch.zeros(1, 2)}}
    for round_ in (1, 2):
        order = TrainOrder(0, round_, bank, {"global": np.zeros(3, dtype=np.int64)}, NoState(), moved=False)
        work = serve(order, site, experiment)
        if round_ == 1:
            request = next(work)
            assert isinstance(request, Average)
            assert request.train.clients == (5, 6, 7)
        else:
            with pytest.raises(PolicyError, match=r"method\.selection 'random': act\(\) selected none of 3 clients"):
                next(work)
