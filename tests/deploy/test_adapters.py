"""Adapters in a federation of sites: the simulator's numbers, up to the rounding of larger and smaller batches."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbac.deploy.models import give
from tests.covering import first
from tests.deploy.small import FIRST, compared, small

ADAPTERS = ("method.personalization=adapters", "method.personalization.rank=2")
CASES: dict[str, tuple[str, ...]] = {
    "cloud and cluster": ("fed-bac", *ADAPTERS),
    "client": ("hierfavg", *ADAPTERS, "method.personalization.owners=[client]"),
    "cluster and edge": ("fed-bac", *ADAPTERS, "method.personalization.owners=[cluster, edge]"),
    "cloud and client": ("hierfavg", *ADAPTERS, "method.personalization.owners=[cloud, client]"),
    "cloud and a head": (
        "hierfavg", *ADAPTERS, "method.personalization.owners=[cloud]", 'method.personalization.target=["1"]',
        "method.personalization.train=b", 'method.personalization.whole={"edge": ["3.*"]}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", first(2, CASES))
def test_sites_with_adapters_equal_the_simulator_and_all_train_in_batches(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An edge, too, which has test data alone, finds that its network takes the examples of a batch one by one."""
    run = small(*CASES[case], rounds=2)
    federation = run.federation(tmp_path)
    with caplog.at_level(logging.WARNING, "fedbac"):
        played = federation.run(tmp_path / "run")
    assert "slower" not in caplog.text
    simulated = run.simulated()
    at_home = played.records[-1]["accuracy_global"] is None
    for mine, expected in zip(compared(played.records), compared(simulated.records), strict=True):
        assert mine.pop("loss") == pytest.approx(expected.pop("loss"), abs=1e-5)
        assert mine == expected | ({"accuracy_global": None} if at_home else {})
    found = give(federation.sites[FIRST], tmp_path / "state" / FIRST, None, None)
    who: dict[str, Any] = {"edge": None, "client": 0} if simulated.models.own else {"edge": 0, "client": None}
    x = torch.from_numpy(run.dataset.x_test[:7])
    torch.testing.assert_close(found.model(x), simulated.models.of(**who)(x), rtol=1e-5, atol=1e-5)
