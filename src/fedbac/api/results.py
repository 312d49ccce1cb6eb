"""Runs to look at in Python: short on a line, a table in a notebook, a frame, a figure, and models that predict."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError, quoted, visible
from fedbac.models import UserNetwork
from fedbac.rounds.metrics import JUDGED_AT
from fedbac.runs.configure import Inputs
from fedbac.runs.models import Models, Predictor, save
from fedbac.runs.play import saved_models
from fedbac.runs.provenance import in_words
from fedbac.runs.store import RunFolder, StoredRun

TableRow = dict[str, Any]
Per = Literal["round", "edge"]

PLAIN = (
    "accuracy", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_weighted", "accuracy_global", "loss",
    "active_clusters", "moves", "simulated_seconds", "seconds",
)  # fmt: skip
"""Numbers of a record that are columns as they are."""


def rows(runs: Sequence[StoredRun], labels: Sequence[str], per: Per = "round") -> list[TableRow]:
    """Return the rows of runs, which their labels tell apart."""
    if per not in ("round", "edge"):
        raise ConfigError(f"per: {quoted(per)} is neither 'round' nor 'edge'")
    make = _of_round if per == "round" else _of_edges
    found = []
    for run, label in zip(runs, labels, strict=True):
        experiment = run.config["experiment"]
        who = {"run": label, "method": experiment["method"]["name"], "seed": experiment["seed"]}
        for record in run.records:
            by = run.computed_by(record["round"])
            found += [who | row | ({"computed_by": in_words(by)} if by else {}) for row in make(run, record)]
    return found


def _of_round(run: StoredRun, record: TableRow) -> list[TableRow]:
    numbers = {key: record.get(key) for key in PLAIN}
    for moment in set(JUDGED_AT).intersection(record):
        numbers[f"accuracy_{moment}"] = (record[moment] or {}).get("accuracy")
    counts = {f"num_{key}": len(record.get(key, ())) for key in ("failed", "dropped", "late", "absent")}
    selected = sum(map(len, record.get("selected", ())))
    sent = [by for tier in record["bytes"].values() for by in tier.values()]
    moved = {f"bytes_{use}": sum(int(by.get(use, 0)) for by in sent) for use in ("train", "evaluate", "control")}
    notes = {f"note_{name}": value for name, value in record.get("notes", {}).items()}
    return [{"round": record["round"], **numbers, "num_selected": selected, **counts, **moved, **notes}]


def _of_edges(run: StoredRun, record: TableRow) -> list[TableRow]:
    """Return a row per edge; where clients are clustered one by one, or all meet at one site, edges have no cluster."""
    accuracy, labels, selected = record["accuracy_per_edge"], record["assignment"], record.get("selected", ())
    of_edges = run.config["experiment"]["method"].get("unit", "edge") == "edge" and len(labels) == len(accuracy)
    return [
        {
            "round": record["round"],
            "edge": edge,
            "accuracy": value,
            "cluster": labels[edge] if of_edges else None,
            "num_selected": len(selected[edge]) if len(selected) == len(accuracy) else None,
        }
        for edge, value in enumerate(accuracy)
    ]


def pandas() -> Any:
    """Return pandas, which is an extra."""
    try:
        import pandas as found
    except ImportError as error:
        raise ConfigError("frames need pandas, which is not installed: pip install 'fedbac[frames]'") from error
    return found


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
        return Runs([self])._repr_html_()

    def to_frame(self, per: Per = "round") -> "DataFrame":
        """Return the records as a pandas frame: a row per round, or per round and edge."""
        return Runs([self]).to_frame(per)

    def plot(self, name: str = "accuracy") -> "Figure":
        """Return a figure of the report (accuracy, clusters, edges, bytes, assignment), a matplotlib one."""
        return Runs([self]).plot(name)

    def model(
        self,
        edge: int | None = None,
        *,
        client: int | None = None,
        dataset: Dataset | str | None = None,
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
        shards and a network that were given in Python are given again. A federation's run needs no data; parts that
        edges or clients keep are at their sites (``fedbac model``).
        """
        return self._models(Inputs(dataset, shards, network, data_folder)).of(edge, client)

    def save_model(self, path: Path | str, edge: int | None = None, *, client: int | None = None, **again: Any) -> Path:
        """Write the model of an edge, or of a client, into a file whose suffix says how.

        ``.safetensors`` holds the ``state_dict`` of ``model(…).merged()``, which your own class loads; where several
        networks predict together, that of ``model(…)``. Its metadata have ``normalization``, the mean and std of images
        as JSON. ``.peft`` is a folder that ``peft`` loads. ``.pt2`` (torch.export) and ``.onnx`` hold all of it and run
        without fedbac. What ``model`` may need of a loaded run is given again here too: ``dataset=`` and the like.
        """
        models = self._models(Inputs(**again))
        return save(models.of(edge, client), models.example, Path(path))

    def _models(self, inputs: Inputs) -> Models:
        if self.models is None:
            if self.folder is None:
                raise ConfigError("model: this run holds records only; play it again, or load it from its folder")
            if self.config.get("runtime", {}).get("engine") == "federation":
                from fedbac.deploy.models import cloud_models

                found = cloud_models(self.folder)
            else:
                found = saved_models(RunFolder(self.folder), inputs)
            object.__setattr__(self, "models", found)
        models: Models = self.models
        return models


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

    def __repr__(self) -> str:
        """Say in a line each what ran."""
        return "Runs(\n" + "".join(f"  {run!r},\n" for run in self._runs) + ")"

    def _repr_html_(self) -> str:
        """Return the final table of runs that have a round, and the outcome in words."""
        begun = [run for run in self if run.records]
        if not begun:
            return f"<p>{len(self)} runs, none with a complete round</p>"
        from fedbac.report import final, outcome, warnings

        (header, lines), _ = final(begun)
        head = "".join(f"<th>{escape(title)}</th>" for title in header)
        rows = ("".join(f"<td>{escape(visible(cell))}</td>" for cell in line) for line in lines)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        words = escape(visible(" ".join([outcome(begun), *warnings(begun)])))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{words}</p>"

    @property
    def labels(self) -> list[str]:
        """A different name for every run: its method, its seed, and what else sets it apart."""
        from fedbac.report.groups import labels

        return labels(self._runs) if self._runs else []

    def to_frame(self, per: Per = "round") -> "DataFrame":
        """Return the records of all runs as one pandas frame: a row per run and round, or per run, round and edge."""
        return pandas().DataFrame(rows(self, self.labels, per))

    def to_table(
        self,
        columns: Sequence[str] = ("accuracy", "worst_edge"),
        rows: Sequence[str] = ("method",),
        by: Sequence[str] = ("task",),
        form: Literal["latex", "markdown", "csv"] = "markdown",
        digits: int = 1,
    ) -> str:
        """Return a table for a paper, as ``fedbac table`` writes it."""
        from fedbac.report.paper import paper_table

        text: str = getattr(paper_table(self._runs, columns, rows, by, digits), form)()
        return text

    def plot(self, name: str = "accuracy") -> "Figure":
        """Return a figure of the report (accuracy, clusters, edges, bytes, assignment), a matplotlib one."""
        from fedbac.report.figures import figures  # matplotlib is slow to import

        drawn = figures(self._runs)
        if name not in drawn:
            raise ConfigError(f"plot: there is no figure {name!r} of these runs; there are {', '.join(drawn)}")
        return drawn[name]
