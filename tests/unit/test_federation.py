"""Data that a run cannot do with are refused before any work, and the error says what is missing."""

import pytest

from fedbac import ConfigError, Method
from fedbac.clustering import Merging
from fedbac.data import planted_groups
from fedbac.personalization import Additive
from fedbac.selection import Random, Thompson
from tests.support import deal, prepare

DATA, _, _GROUPS = planted_groups(2, 2, 2, train=10, validation=2, test=15)
MERGING = Method(name="merging", clustering=Merging(), selection=Random(), personalization=Additive())
ON_TRAINING_DATA = MERGING.model_copy(update={"clustering": Merging(reward_splits=("train",))})
THOMPSON = Method(name="thompson", selection=Thompson())
HIERFAVG = Method(name="hierfavg")


@pytest.mark.parametrize("method", [MERGING, THOMPSON], ids=lambda method: str(method.name))
def test_an_edge_without_validation_data_is_refused_where_they_are_used(method: Method) -> None:
    with pytest.raises(ConfigError, match="edge 0 has no validation examples"):
        prepare(method, DATA, deal(DATA, [[4], [4]]))
    prepare(method, DATA, deal(DATA, [[4], [4]], validation=1))


@pytest.mark.parametrize("method", [ON_TRAINING_DATA, HIERFAVG], ids=lambda method: str(method.name))
def test_and_not_where_nobody_asks_for_them(method: Method) -> None:
    prepare(method, DATA, deal(DATA, [[4], [4]]))


def test_an_edge_without_training_or_test_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="edge 1 has no training examples"):
        prepare(HIERFAVG, DATA, deal(DATA, [[4], [0]]))
    with pytest.raises(ConfigError, match="edge 1 has no test examples"):
        prepare(HIERFAVG, DATA, deal(DATA, [[4], [4]], test=[5, 0]))
