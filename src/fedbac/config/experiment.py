"""The configuration tree: an experiment is a task, a method, how it is judged, and a seed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fedbac.clustering import Fixed, LinUCB, LowestLoss, Merging
from fedbac.config.choices import Choice
from fedbac.core.parts import Personalization
from fedbac.core.policies import ClusterPolicy, SelectionPolicy, Trusting
from fedbac.core.queries import Split
from fedbac.core.settings import Settings
from fedbac.data import Augment, Noise, Partition
from fedbac.errors import ConfigError, unknown
from fedbac.models import LeNet5, NetworkChoice
from fedbac.personalization import Additive, PerCluster, Shared
from fedbac.selection import CreditThompson, Random, Thompson
from fedbac.topology import Hierarchical

CLUSTERING = Choice(ClusterPolicy, Fixed, LowestLoss, LinUCB, Merging)
SELECTION = Choice(SelectionPolicy, Random, Thompson, CreditThompson)
PERSONALIZATION = Choice(Personalization, Shared, PerCluster, Additive)

CHOSEN: dict[str, Collection[str]] = {
    "clustering": CLUSTERING.kinds,
    "selection": SELECTION.kinds,
    "personalization": PERSONALIZATION.kinds,
    "network": ("lenet5", "mlp", "custom"),
}
"""The fields whose value is chosen by its kind."""

S = TypeVar("S", bound=Settings)


class Training(Settings):
    """Local SGD, the same for every method."""

    epochs: PositiveInt = 5
    """E, passes over the client's data per round."""
    batch_size: PositiveInt = 32
    """Not given in the paper (C.1)."""
    drop_last: bool = False
    """Leave out a last batch that is not full, unless it is the only one."""
    learning_rate: PositiveFloat = 0.01
    """η of the first round."""
    learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = 0.995
    """η_t = η · decay^(t−1), constant within a round (C.5)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of SGD, as in PyTorch."""
    momentum_state: Literal["reset", "persist"] = "reset"
    """A fresh optimizer every round, or a momentum buffer that each client keeps (C.2)."""
    weight_decay: NonNegativeFloat = 5e-4
    """Of SGD, on every network."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest norm of a gradient; null does not clip."""
    clip_scope: Literal["per_network", "joint"] = "per_network"
    """A norm for each network, so that a method of two steps as far with each as a method of one, or one over all that
    are trained (C.3)."""

    def rate(self, round_: int) -> float:
        """Return η_t."""
        return self.learning_rate * self.learning_rate_decay ** (round_ - 1)


class Task(Settings):
    """What is learned, from which data, spread how, with which network and local training."""

    dataset: str = "fashion-mnist-mini"
    """Name of a data set (see: fedbac data list), or of the one handed over in Python."""
    data_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of every class, in training and test data, that is used at all; below 1 for a quick look."""
    num_edges: PositiveInt = 10
    """M."""
    clients_per_edge: PositiveInt | tuple[NonNegativeInt, ...] = 10
    """N_m: one number, or one per edge."""
    rounds: PositiveInt = 100
    """T, cloud rounds."""
    partition: Partition = Partition()
    """How the data are spread over edges and clients."""
    noise: Noise | None = None
    """Wrong labels at some clients; none by default."""
    augment: Augment | None = None
    """Random crops and flips; none by default (C.6)."""
    network: NetworkChoice = LeNet5()
    """The network, of which a method may use several."""
    training: Training = Training()
    """Local SGD."""
    targets: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.5, 0.6, 0.7, 0.8)
    """Accuracies for which rounds and bytes to reach them are reported."""

    def clients(self) -> tuple[int, ...]:
        """Return N_m for every edge."""
        if isinstance(self.clients_per_edge, tuple):
            return self.clients_per_edge
        return (self.clients_per_edge,) * self.num_edges

    @model_validator(mode="after")
    def _every_edge_has_clients(self) -> "Task":
        if len(self.clients()) != self.num_edges:
            raise ValueError(
                f"clients_per_edge lists {len(self.clients())} edges but num_edges is {self.num_edges}; make them equal"
            )
        for edge, count in enumerate(self.clients()):
            if count == 0:
                raise ValueError(f"clients_per_edge: edge {edge} has no clients; every edge needs at least 1")
        return self


class Measurement(Settings):
    """How the loss L_m^(k) of a cluster's model on an edge's data is measured (C.19, C.39)."""

    split: Split = "train"
    clients: Literal["all", "selected", "trusted"] = "all"
    """All clients of the edge, those that trained in this round, or those whom the selection policy trusts (all, where
    it trusts nobody)."""
    max_samples_per_client: PositiveInt | None = 256
    """Cap, by a fixed subset; null uses all."""
    location: Literal["clients", "edge"] = "clients"
    """Who holds the training and validation data that are measured on: decides which bytes are counted."""


class Method(Settings):
    """A row of Table I: one choice per column."""

    name: str
    topology: Hierarchical = Hierarchical()
    clustering: Annotated[ClusterPolicy, CLUSTERING] = Fixed(num_clusters=1)
    selection: Annotated[SelectionPolicy, SELECTION] = Random()
    personalization: Annotated[Personalization, PERSONALIZATION] = Shared()
    cloud_weight: Literal["total", "selected", "uniform"] = "total"
    """Weight of an edge at the cloud: all its examples, those of the clients that trained, or 1 (C.41)."""
    empty_cluster: Literal["keep", "clone", "zero"] = "keep"
    """The network that an edge finds in an empty cluster: what was left there, a copy of the network it comes with,
    or one whose output is zero (C.17)."""
    newcomers: Literal["adopt", "average"] = "adopt"
    """When an edge enters a cluster, it adopts the network it finds there (in an empty cluster: see above), or all
    members of the cluster start from the mean of the networks they come with, weighted by their data."""
    sharing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How far the networks of clusters are drawn towards their mean, weighted by data, before they are sent down: 0 is
    not at all, 1 all the way. Those that are kept, measured and judged are not drawn."""
    sharing_by: Literal["constant", "overfitting"] = "constant"
    """Whether they always are, or only after they have overfitted in the first half of a run, from then on to its end.
    They have when V − T > min(T, 0.25) by a running mean over rounds. V is the loss of the edges' models on validation
    data of the clients that measure (see below), T that of the clients that trained, while they trained (in all edge
    rounds); both are means over the edges that measured, weighted by data."""
    measurement: Measurement = Measurement()
    network: NetworkChoice | None = None
    """A network to use instead of the task's, for studies of capacity."""

    @property
    def adaptive(self) -> bool:
        """Whether clustering or selection learns during training (a derived column of Table I)."""
        return self.clustering.adaptive or self.selection.adaptive

    @property
    def shared(self) -> tuple[str, ...]:
        """What clusters share (the derived column "knowledge sharing" of Table I): parts, or a share of them."""
        by = "" if self.sharing_by == "constant" else " once overfitted"
        drawn = {"cloud": "", "cluster": f" ({self.sharing:g}{by})"}
        scopes = self.personalization.scopes.items()
        return tuple(part + drawn[scope] for part, scope in scopes if scope == "cloud" or self.sharing)

    @property
    def splits(self) -> dict[str, tuple[Split, ...]]:
        """The splits that are measured on, by the field that decides it."""
        asked = self.clustering.ask(self.clustering.init(1), 0)
        rewarded = self.selection.ask(self.selection.init(1), 1).accuracy
        return {
            "method.measurement.split": (self.measurement.split,),
            "method.selection": (rewarded,) if rewarded else (),
            "method.clustering": asked.alone if asked else (),
        }


class Evaluation(Settings):
    """How a run is judged (C.13, C.14, C.33, C.37)."""

    point: Literal["pre_reassign", "post_reassign", "edge_model"] = "pre_reassign"
    """Distributed accuracy after cloud aggregation with the labels of the round, with the new labels, or of the edges'
    own averages before the cloud's (C.14)."""
    last_rounds: PositiveInt = 10
    """The final accuracy is the mean over this many last rounds."""
    target_patience: PositiveInt = 3
    """A target counts as reached in the first of this many consecutive rounds at or above it."""


class Experiment(Settings):
    """Everything that decides the numbers of a run."""

    seed: NonNegativeInt = 0
    task: Task
    method: Method
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        num_edges = self.task.num_edges
        num_clusters = self.method.clustering.clusters(num_edges)
        if num_clusters > num_edges:
            raise ValueError(
                f"method.clustering.num_clusters is {num_clusters} but there are only {num_edges} edges to cluster; "
                f"choose at most {num_edges}"
            )
        clusters_matter = "cluster" in self.method.personalization.scopes.values()
        if num_clusters > 1 and not clusters_matter:
            raise ValueError(
                f"method.personalization {self.method.personalization.kind!r} has no part per cluster, so "
                f"method.clustering must have one cluster, not {num_clusters}"
            )
        if self.method.measurement.clients == "trusted" and not isinstance(self.method.selection, Trusting):
            raise ValueError(
                f"method.measurement.clients is 'trusted' but method.selection {self.method.selection.kind!r} cannot "
                "say whom it trusts; choose 'all' or 'selected', or 'credit_thompson' as selection"
            )
        if self.method.sharing and not clusters_matter:
            raise ValueError(
                f"method.sharing is {self.method.sharing:g} but method.personalization "
                f"{self.method.personalization.kind!r} has no part per cluster to share; leave it at 0"
            )
        splits = self.method.splits
        untold = "validation" not in splits["method.selection"]
        if self.method.sharing and self.method.sharing_by == "overfitting" and untold:
            raise ValueError(
                f"method.sharing_by is 'overfitting' but method.selection {self.method.selection.kind!r} measures "
                "nothing on validation data; choose 'constant', or a selection that is rewarded on validation data, "
                "as 'thompson' and 'credit_thompson' are by default"
            )
        for field, asked in splits.items():
            if "validation" in asked and self.task.partition.validation_fraction == 0:
                raise ValueError(
                    f"{field} asks for validation data but task.partition.validation_fraction is 0; hold out some data "
                    "(0.1 is usual) or choose another split"
                )
        return self


class Runtime(Settings):
    """Where and how the work is done. None of it changes what is computed, but for rounding and dropout's own draws."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: PositiveInt | None = None
    """Threads or processes on the CPU; one per core when not given."""
    memory_gib: PositiveFloat | None = None
    """Memory for the clients that are trained at once, about; Ray's edges share it equally. When not given, a quarter
    of what is free, and on a CPU at most half a GiB per core."""
    trainer: Literal["auto", "torch", "native"] = "auto"
    """Our own kernels (``native``, for CPU and GPU) where they know the network, else torch; or one of them by name."""
    engine: Literal["simulator", "ray"] = "simulator"
    """All edges in this process, or every edge an actor of Ray."""
    address: str | None = None
    """The Ray cluster to join (``auto`` for the one this machine belongs to); a local one when not given."""


def parse(cls: type[S], data: Any, where: str = "") -> S:
    """Return the settings in plain data, or raise a ConfigError that names field, value and what is allowed."""
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        lines = [_explain(cls, detail, where) for detail in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def override(tree: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the tree with each ``path=value`` set; values are read as YAML, so 0.1, true, null and [1, 2] work."""
    out = _copy(tree)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {assignment!r}: write it as path=value, for example task.training.batch_size=64")
        *parents, leaf = path.split(".")
        node = out
        for parent in parents:
            child = node.get(parent)
            if child is None:
                child = node[parent] = {}
            if isinstance(child, str) and parent in CHOSEN:
                child = node[parent] = {"kind": child}
            if not isinstance(child, dict):
                raise ConfigError(f"--set {assignment!r}: {parent!r} is a value, not a group of settings")
            node = child
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {assignment!r}: {text!r} is not readable YAML ({error})") from error
        if leaf == "kind" and value != node.get("kind"):
            node.clear()  # the settings of one kind mean nothing to another
        node[leaf] = value
    return out


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _explain(cls: type[Settings], detail: Any, parent: str) -> str:
    # A choice puts its kind into the path; the user never wrote it there.
    # A field that takes two forms puts the form's own name into the path, as in clients_per_edge.constrained-int.
    path = [parent] * bool(parent)
    for step in map(str, detail["loc"]):
        if not (path and step in CHOSEN.get(path[-1], ())) and not step.startswith(("constrained-", "tuple[")):
            path.append(step)
    where, value, message = ".".join(path) or cls.__name__.lower(), detail["input"], detail["msg"]
    if detail["type"] == "extra_forbidden":
        return f"{where}: " + unknown("field", path[-1], _fields_at(cls, detail["loc"][:-1]))
    if detail["type"] == "union_tag_invalid":
        return f"{where}: " + unknown("kind", detail["ctx"]["tag"], CHOSEN[path[-1]])
    if detail["type"] in {"value_error", "unknown_kind", "missing"}:
        return f"{where}: {message.removeprefix('Value error, ')}" if path else message.removeprefix("Value error, ")
    return f"{where}: {value!r} is not allowed: {message[0].lower()}{message[1:]}"


def _fields_at(cls: type[Settings], path: Sequence[object]) -> list[str]:
    """Return the field names of the settings at a path of a validation error."""
    schema: dict[str, Any] = cls.model_json_schema()
    node: dict[str, Any] = schema
    for step in path:
        node = _resolve(schema, node)
        if step in node.get("properties", {}):
            node = node["properties"][step]
        elif "discriminator" in node:
            node = {"$ref": node["discriminator"]["mapping"][step]}
    return list(_resolve(schema, node).get("properties", {}))


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in node.get("anyOf", ()) if "$ref" in option or "discriminator" in option]
    if len(options) == 1:  # an optional group of settings
        node = options[0]
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node
