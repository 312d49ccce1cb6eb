"""Runs to look at in Python: short on a line, a table in a notebook, a frame, a figure, and models that predict."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fedbac.api import saving
from fedbac.api.rows import Per, rows
from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError, visible
from fedbac.models import UserNetwork
from fedbac.runs.configure import Inputs
from fedbac.runs.models import Models, Predictor
from fedbac.runs.play import saved_models
from fedbac.runs.store import Run as StoredRun
from fedbac.runs.store import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Run(StoredRun):
    """A run: its configuration, its records and its summary, and what can be made of them."""

    @classmethod
    def of(cls, run: StoredRun) -> "Run":
        """Return a run with all that can be made of it."""
        return cls(**{field.name: getattr(run, field.name) for field in fields(run)})

    def __repr__(self) -> str:
        """Say in one line what ran, how far, and what came out."""
        wanted = self.config["experiment"]["task"]["rounds"]
        rounds = f"{wanted} round{'s' * (wanted != 1)}"
        rounds = rounds if len(self.records) == wanted else f"{len(self.records)} of {rounds}"
        data = self.config["experiment"]["task"]["dataset"]
        score = f", accuracy {100 * self.summary['accuracy']:.1f} %" if self.records else ""
        place = "" if self.folder is None else f", in {self.folder}"
        return visible(f"Run({self.name} on {data}: {rounds}{score}{place})")

    def _repr_html_(self) -> str:
        return _html([self])

    def to_frame(self, per: Per = "round") -> "DataFrame":
        """Return the records as a pandas frame: a row per round, or per round and edge."""
        return _frame([self], [self.name], per)

    def plot(self, name: str = "accuracy") -> "Figure":
        """Return a figure of the report (accuracy, clusters, edges, bytes, assignment), a matplotlib one."""
        return _figure([self], name)

    def model(
        self,
        edge: int | None = None,
        *,
        client: int | None = None,
        dataset: Dataset | None = None,
        shards: Shards | None = None,
        network: UserNetwork | None = None,
        data_folder: Path | str | None = None,
    ) -> Predictor:
        """Return the model of an edge, ready to predict and to export: an ``nn.Module`` in eval mode, on the CPU.

        It takes raw examples, as they are in the data set: uint8 images are normalized inside; floats and tokens are
        used as they are. It returns logits, by which the edge was judged in the last complete round. (With the
        evaluation point ``edge_model`` edges are judged before the cloud averages; of that nothing is kept, and this
        is the model after it.) Where every client has a model of its own, name the ``client`` instead.

        A run that was loaded takes the weights from its last checkpoint. For that the data are read again; data,
        shards and a network that were given in Python are given again.
        """
        return self._models(Inputs(dataset, shards, network, data_folder)).of(edge, client)

    def save_model(self, path: Path | str, edge: int | None = None, *, client: int | None = None, **again: Any) -> Path:
        """Write the model of an edge, or of a client, into a file whose suffix says how.

        ``.safetensors`` holds its ``state_dict``. ``.pt2`` (torch.export) and ``.onnx`` hold all of it and run without
        fedbac. What ``model`` may need of a loaded run is given again here too: ``dataset=`` and the like.
        """
        models = self._models(Inputs(**again))
        return saving.save(models.of(edge, client), models.example, Path(path))

    def _models(self, inputs: Inputs) -> Models:
        if self.models is None:
            if self.folder is None:
                raise ConfigError("model: this run holds records only; play it again, or load it from its folder")
            object.__setattr__(self, "models", saved_models(RunFolder(self.folder), inputs))
        found: Models = self.models
        return found


class Runs(Sequence[Run]):
    """Several runs, such as those of a comparison or a sweep."""

    def __init__(self, runs: Iterable[StoredRun]) -> None:
        self._runs = [run if isinstance(run, Run) else Run.of(run) for run in runs]

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        """Say in a line each what ran."""
        return "Runs(\n" + "".join(f"  {run!r},\n" for run in self._runs) + ")"

    def _repr_html_(self) -> str:
        return _html(self._runs)

    @property
    def labels(self) -> list[str]:
        """A different name for every run: its method, its seed, and what else sets it apart."""
        from fedbac.report.groups import labels

        return labels(self._runs) if self._runs else []

    def to_frame(self, per: Per = "round") -> "DataFrame":
        """Return the records of all runs as one pandas frame: a row per run and round, or per run, round and edge."""
        return _frame(self._runs, self.labels, per)

    def plot(self, name: str = "accuracy") -> "Figure":
        """Return a figure of the report (accuracy, clusters, edges, bytes, assignment), a matplotlib one."""
        return _figure(self._runs, name)


def _frame(runs: Sequence[Run], labels: Sequence[str], per: Per) -> "DataFrame":
    found: DataFrame = saving.pandas().DataFrame(rows(runs, labels, per))
    return found


def _figure(runs: Sequence[Run], name: str) -> "Figure":
    from fedbac.report import figures  # matplotlib is slow to import

    drawn = figures(runs)
    if name not in drawn:
        raise ConfigError(f"plot: there is no figure {name!r} of these runs; there are {', '.join(drawn)}")
    return drawn[name]


def _html(runs: Sequence[Run]) -> str:
    """Return the final table of runs that have a round, and the outcome in words."""
    begun = [run for run in runs if run.records]
    if not begun:
        return f"<p>{len(runs)} runs, none with a complete round</p>"
    from fedbac.report import failures, final, outcome

    (header, lines), _ = final(begun)
    head = "".join(f"<th>{escape(title)}</th>" for title in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(visible(cell))}</td>" for cell in line) + "</tr>" for line in lines)
    said = escape(visible(" ".join([outcome(begun), *failures(begun)])))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{said}</p>"
