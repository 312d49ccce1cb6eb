"""Frozen weights: held once, in no part, on no link, and in no checkpoint but by their hash."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedbac
from fedbac.errors import ConfigError, RunFolderError
from tests.covering import first

FREE = 4 * (10 * 10 + 10)
"""Bytes of the layer that learns."""
TASK: dict[str, Any] = {
    "task.num_edges": 2,
    "task.clients_per_edge": 2,
    "task.data_fraction": 0.05,
    "task.training.epochs": 1,
    "task.training.learning_rate": 0.1,
}


class Encoder(nn.Module):
    """A pretrained body that the user froze, and a head to be learned."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(784, 10), nn.Linear(10, 10)
        with torch.no_grad():
            self.body.weight.copy_(torch.randn(10, 784, generator=torch.Generator().manual_seed(seed)) / 28)
            self.body.bias.zero_()
        self.body.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.head(torch.relu(self.body(x.flatten(1))))
        return logits


@pytest.mark.parametrize("method", first(1, ["fed-bac", "hierfavg"]))
def test_they_pass_no_link_and_are_in_no_checkpoint(method: str, tmp_path: Path) -> None:
    user = Encoder()
    run = fedbac.run(method, network=user, rounds=2, settings=TASK, out=tmp_path / "run")
    networks = 1 if method == "hierfavg" else 2
    first, second = run.records
    selected = sum(len(clients) for clients in second["selected"])
    assert second["bytes"]["client"]["up"]["train"] == selected * networks * FREE
    assert first["bytes"]["client"]["up"]["train"] % FREE == 0
    *_, file = sorted((tmp_path / "run").rglob("*.safetensors"))
    assert not [name for name in load_file(file) if "body" in name]
    found = {name: value for name, value in run.model(edge=1).state_dict().items() if "body.weight" in name}
    assert len(found) == networks
    for value in found.values():
        assert torch.equal(value, user.body.weight), "a pretrained weight is never initialized anew"


def test_a_run_resumes_with_the_frozen_weights_that_it_began_with_and_with_no_others(tmp_path: Path) -> None:
    whole = fedbac.run("hierfavg", network=Encoder(), rounds=3, settings=TASK)
    with fedbac.play("hierfavg", network=Encoder(), rounds=3, settings=TASK, out=tmp_path / "run") as playing:
        next(iter(playing))
    with pytest.raises(RunFolderError, match="frozen_weights"):
        fedbac.resume(tmp_path / "run", network=Encoder(seed=1))
    resumed = fedbac.resume(tmp_path / "run", network=Encoder())
    assert [record["accuracy_per_edge"] for record in resumed.records] == [
        record["accuracy_per_edge"] for record in whole.records
    ]


def test_patterns_freeze_weights_of_a_network_that_a_configuration_describes() -> None:
    run = fedbac.run("hierfavg", rounds=1, settings=TASK | {"task.frozen": ["0.*", "3.weight"]})
    whole = fedbac.run("hierfavg", rounds=1, settings=TASK)
    sent, all_sent = (r.records[0]["bytes"]["client"]["up"]["train"] for r in (run, whole))
    assert all_sent - sent == 4 * 4 * (6 * 25 + 6 + 16 * 6 * 25)  # four clients, four bytes a number


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["body.*"], r"'body\.\*' matches none of the weights 0\.weight"),
        (["*"], "every weight of the network is frozen"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedbac.run("hierfavg", rounds=1, settings=TASK | {"task.frozen": patterns})
