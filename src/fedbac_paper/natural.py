"""Data whose tiers are natural, as ``tools/make_natural.py`` writes them: schools in authorities, roles in plays."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbac.config.experiment import Task, Training
from fedbac.data import Dataset, Shards
from fedbac.data.readers import reading
from fedbac.models import UserNetwork
from fedbac_paper import confirmed, tables

CONTEXT = 32
"""Characters before the one to be told."""
STRIDE = 3
"""One in this many characters is to be told: neighbours say much the same."""
SPLITS = (0.7, 0.8)
"""Where in a role's text validation begins, and where the test does."""


@dataclass(frozen=True)
class Natural:
    """A task with its data, who holds which, and a network for it."""

    task: Task
    dataset: Dataset
    shards: Shards
    network: UserNetwork


class NextCharacter(nn.Module):
    """An embedding, a small LSTM and a linear layer."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_characters, 8)
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, num_characters)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next character."""
        out: Tensor = self.head(self.lstm(self.embedding(tokens))[0][:, -1])
        return out


def read(path: Path) -> Natural:
    """Return the task in a file."""
    with reading(path), path.open("rb") as opened:  # numpy would leave a damaged file open
        with np.load(opened) as file:
            arrays = dict(file)
        return _roles(path.stem, arrays) if "text" in arrays else _pupils(path.stem, arrays)


def _pupils(name: str, arrays: dict[str, NDArray[Any]]) -> Natural:
    training = Training(epochs=2, batch_size=8, learning_rate=0.05)
    dataset, shards = _dealt(name, *(arrays[key] for key in ("x", "y", "client", "edge", "split")))
    num_features, num_classes = arrays["x"].shape[1], dataset.num_classes

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(num_features, 32), nn.ReLU(), nn.Linear(32, num_classes))

    return Natural(_task(name, shards, training, rounds=60), dataset, shards, network)


def _roles(name: str, arrays: dict[str, NDArray[Any]]) -> Natural:
    """Cut examples from each role's text; those for the test come last in it."""
    x, client, place = [], [], []
    ends = np.cumsum(arrays["length"].astype(np.int64))
    for number, (end, length) in enumerate(zip(ends, arrays["length"].astype(np.int64), strict=True)):
        windows = np.lib.stride_tricks.sliding_window_view(arrays["text"][end - length : end], CONTEXT + 1)[::STRIDE]
        x.append(windows)
        client.append(np.full(len(windows), number))
        place.append(np.arange(len(windows)) / len(windows))
    text = np.concatenate(x).astype(np.int64)
    split = np.digitize(np.concatenate(place), SPLITS)
    dataset, shards = _dealt(name, text[:, :-1], text[:, -1], np.concatenate(client), arrays["edge"], split)
    num_characters = len(arrays["known"])
    training = Training(epochs=1, batch_size=16, learning_rate=0.5, momentum=0.9)
    return Natural(_task(name, shards, training, rounds=60), dataset, shards, lambda: NextCharacter(num_characters))


def _dealt(
    name: str, x: NDArray[Any], y: NDArray[Any], client: NDArray[Any], edge: NDArray[Any], split: NDArray[Any]
) -> tuple[Dataset, Shards]:
    """Return the data and who holds which; clients are in the order of their edges."""
    learned, tested = np.flatnonzero(split < 2), np.flatnonzero(split == 2)
    dataset = Dataset.from_arrays(
        name, x[learned], y[learned].astype(np.int64), x[tested], y[tested].astype(np.int64),
        num_classes=int(y.max()) + 1,
    )  # fmt: skip
    train, validation = (
        tuple(np.flatnonzero((client[learned] == one) & (split[learned] == part)) for one in range(edge.size))
        for part in (0, 1)
    )
    begin = np.searchsorted(edge, np.arange(int(edge.max()) + 2))
    clients = tuple(range(one, other) for one, other in itertools.pairwise(begin.tolist()))
    test = tuple(np.flatnonzero(edge[client[tested]] == m) for m in range(len(clients)))
    return dataset, Shards(train, validation, test, clients)


def _task(name: str, shards: Shards, training: Training, rounds: int) -> Task:
    counts = tuple(len(clients) for clients in shards.clients)
    return Task(dataset=name, num_edges=len(counts), clients_per_edge=counts, rounds=rounds, training=training)


TITLES = {
    "chem97": "Chem97: pupils, schools, authorities",
    "shakespeare": "Shakespeare: lines, roles, plays",
}


def table(file: Path) -> str:
    """Return what ``benchmarks/natural.py`` found: by method the means over seeds, best first in the first data set."""
    rows = confirmed.read(file)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["method"], row["data"]), []).append(row)
    shown = [data for data in TITLES if any(row["data"] == data for row in rows)]
    methods = sorted({row["method"] for row in rows}, key=lambda method: -_mean(found.get((method, shown[0]), [])))
    lines = [[f"`{method}`", *(_cell(found.get((method, data), [])) for data in shown)] for method in methods]
    return f"\n{tables.table(['', *(TITLES[data] for data in shown)], lines)}\n\n"


def _mean(rows: list[dict[str, Any]], name: str = "accuracy") -> float:
    return float(np.mean([100 * row[name] for row in rows])) if rows else 0.0


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "–"
    seeds = f"{len(rows)} seed{'s' if len(rows) > 1 else ''}"
    return f"{_mean(rows):.1f} / {_mean(rows, 'edge_min'):.1f} ({seeds})"
