"""Names, files and settings → an experiment, checked before any work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbac import data, packages
from fedbac.config.experiment import Experiment, Method, Runtime, Task
from fedbac.config.explain import Override, changes_of, override, parse
from fedbac.config.text import read_yaml
from fedbac.core.settings import Settings
from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError, quoted, unknown
from fedbac.files import as_path
from fedbac.local import check_device
from fedbac.models import Custom, UserNetwork
from fedbac.presets import DEFAULT_TASK, methods, tasks
from fedbac.runs.store import RunFolder, differences, read_config
from fedbac.runs.summary import leaves
from fedbac.runs.tracking import check_tracker

SHOWN_DIFFERENCES = 3
RUNTIME = "runtime."
"""How settings begin that are no part of an experiment."""


@dataclass(frozen=True)
class Inputs:
    """What a configuration cannot hold: data and networks handed over in Python, and where to look for data."""

    dataset: Dataset | str | None = None
    shards: Shards | None = None
    network: UserNetwork | None = None
    data_folder: Path | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, Dataset | str | None):
            kind = type(self.dataset).__name__
            raise ConfigError(f"dataset: use fedbac.Dataset.from_arrays or from_torch to make one of this {kind}")
        if not isinstance(self.shards, Shards | None):
            raise ConfigError(f"shards: it must be fedbac.Shards, not {type(self.shards).__name__}")
        if not (self.network is None or isinstance(self.network, str) or callable(self.network)):
            kind = type(self.network).__name__
            raise ConfigError(f"network: it must be an nn.Module or a function that returns one, not {kind}")
        if self.data_folder is not None:
            as_path("data_folder", self.data_folder)
        for field, named in (("network", self.network), ("dataset", self.dataset)):
            if isinstance(named, str) and ":" in named:
                _typed(field, named)

    @property
    def with_data(self) -> bool:
        """Whether the data were handed over."""
        return isinstance(self.dataset, Dataset)


Changes = Mapping[str, Any] | Sequence[str]
"""Settings to change: ``{"task.training.epochs": 2}``, or ``["task.training.epochs=2"]``."""


def configure(
    method: str | Method | Path,
    task: str | Task | Path | None = None,
    *,
    seed: int | None = None,
    rounds: int | None = None,
    settings: Changes = (),
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    beside: Path | str | None = None,
) -> Experiment:
    """Return the experiment that names, files and settings describe, checked before any work.

    A method may be a file that ``fedbac show`` wrote, or a run's ``config.yaml``: it has its task and seed, and how it
    is judged. ``beside`` is such a file to take these from for a method given by its name.
    """
    if not isinstance(method, str | Method | Path):
        raise ConfigError(f"method: {quoted(method)} is no method; give a name, a file or a fedbac.Method")
    wanted = [change for change in changes_of(settings) if not change.path.startswith(RUNTIME)]
    _refuse_contradictions(wanted, {"seed": seed, "task.rounds": rounds})
    for change in wanted:
        if change.path.partition(".")[0] not in Experiment.model_fields and (meant := called(change.path)):
            raise ConfigError(
                f"{change.source}: there is no setting {quoted(change.path)}; did you mean {' or '.join(meant)}?"
            )
    file = method if is_file(method) else beside
    base = _stored(Path(str(file)), inputs) if file is not None else {}
    if task is not None and "task" in base:
        raise ConfigError(f"--task: {file} has its task already; change it with --set task.… (settings=)")
    seed = base.get("seed", 0) if seed is None else seed
    chosen = parse(Task, base["task"], "task") if "task" in base else _task(DEFAULT_TASK if task is None else task)
    changes: dict[str, Any] = {}
    if isinstance(inputs.dataset, str):
        changes["dataset"] = inputs.dataset
    elif inputs.dataset is not None:
        changes["dataset"] = inputs.dataset.name
    if inputs.shards is not None:
        inputs.shards.checked()
        clients = inputs.shards.clients
        changes |= {"num_edges": len(clients), "clients_per_edge": tuple(map(len, clients))}
    if isinstance(inputs.network, str):
        changes["network"] = inputs.network
    elif inputs.network is not None:
        name = getattr(inputs.network, "__name__", type(inputs.network).__name__)
        changes["network"] = Custom(name=name).model_dump()
    if rounds is not None:
        changes["rounds"] = rounds
    # Task settings come first: some methods look at the task.
    plain = chosen.model_dump(mode="json") | changes
    own = [change for change in wanted if change.path.startswith("task.")]
    final_task = parse(Task, override({"task": plain}, own)["task"], "task")
    if isinstance(method, Method):
        row = _checked(method)
    elif is_file(method):
        row = parse(Method, base.get("method"), "method")
    else:
        row = methods.method(str(method), final_task)
    tree = {**base, "seed": seed, "task": final_task, "method": row}
    others = [change for change in wanted if not change.path.startswith("task.")]
    plain_tree = {**tree, "task": final_task.model_dump(mode="json"), "method": row.model_dump(mode="json")}
    experiment = parse(Experiment, override(plain_tree, others) if others else tree)
    if inputs.network is not None and (kept := experiment.method.network) is not None:
        raise ConfigError(
            f"--network: {experiment.method.name} has a network of its own (method.network, {kept.kind}), which would "
            "take its place; leave this method out, or set method.network=null"
        )
    for field, named in experiment.packages.items():
        if {field, f"{field}.name"} & {change.path for change in wanted}:
            _typed(field, named.name)
    return experiment


def called(name: str) -> list[str]:
    """Return the paths of the settings of that name, as far as every task and method has them."""
    name = {"lr": "learning_rate"}.get(name, name)
    tree = {"task": tasks.task(DEFAULT_TASK), "method": methods.method("fed-bac", tasks.task(DEFAULT_TASK))}
    paths = leaves(parse(Experiment, tree).model_dump(mode="json"))
    runtime = [f"{RUNTIME}{field}" for field in Runtime.model_fields]
    return [path for path in (*paths, *runtime) if f".{path}".endswith(f".{name}")]


def _typed(field: str, name: str) -> None:
    """Allow code whose name a person typed; the word of a configuration is not enough."""
    home = packages.home_of(name)
    packages.fingerprint(home, field)  # which says what is missing
    packages.permit(home)


def is_file(name: object) -> bool:
    """Whether a method or a task is given as a file."""
    return isinstance(name, Path) or (isinstance(name, str) and name.endswith((".yaml", ".yml")))


def common_file(names: Sequence[object], inputs: Inputs = Inputs()) -> Path | None:  # noqa: B008 (frozen)
    """Return the file whose task and evaluation all methods of a comparison take; all files must agree on them."""
    files = [Path(str(name)) for name in names if is_file(name)]
    judged = [{key: _stored(file, inputs).get(key) for key in ("task", "evaluation")} for file in files]
    for file, found in zip(files, judged, strict=True):
        if found != judged[0]:
            raise ConfigError(
                f"{files[0]} and {file}: they have different tasks or evaluations "
                f"({'; '.join(differences(judged[0], found)[:SHOWN_DIFFERENCES])}); make them alike to compare them"
            )
    return files[0] if files else None


def _refuse_contradictions(wanted: Sequence[Override], given: Mapping[str, int | None]) -> None:
    for path, value in given.items():
        other = next((change for change in wanted if change.path == path), None)
        if value is not None and other is not None:
            name = path.rpartition(".")[2]
            raise ConfigError(f"{name} is given twice, as {value} and by {other.source}; leave one of them out")


def _stored(path: Path, inputs: Inputs) -> dict[str, Any]:
    """Return the experiment in a file."""
    config = read_config(path)
    _refuse_lost_data(config, path, inputs.with_data)
    return dict(config["experiment"])


def _checked(method: Method) -> Method:
    """Check a method handed over in Python: ``model_copy(update=...)`` looks at nothing."""
    strange = sorted(set(vars(method)) - set(Method.model_fields))
    if strange:
        raise ConfigError(f"method: {unknown('field', strange[0], Method.model_fields)}")
    fields = {name: getattr(method, name) for name in Method.model_fields}
    for name, value in fields.items():
        if isinstance(value, Settings):
            fields[name] = parse(type(value), value.model_dump(warnings=False), f"method.{name}")
    return parse(Method, fields, "method")


def _task(task: str | Task | Path) -> Task:
    if isinstance(task, Task):
        return task
    if not isinstance(task, str | Path):
        raise ConfigError(f"task: {quoted(task)} is no task; give a name, a fedbac.Task, or the path of a .yaml file")
    if not is_file(task):
        return tasks.task(str(task))
    tree = read_yaml(Path(task))
    if isinstance(tree.get("experiment"), dict):  # a whole experiment, of which this is a part
        tree = tree["experiment"].get("task", {})
    return parse(Task, tree, "task")


def with_settings(runtime: Runtime, settings: Changes) -> Runtime:
    """Return the runtime with those of the settings that are its own."""
    own = [change for change in changes_of(settings) if change.path.startswith(RUNTIME)]
    if not own:
        return runtime
    found = parse(Runtime, override({"runtime": runtime.model_dump()}, own)["runtime"], "runtime")
    if found.engine != "ray" and found.actors != runtime.actors:
        raise ConfigError(
            "runtime.actors has no effect here: only fedbac run and compare with --engine ray deal edges to "
            "actors; set runtime.workers for the cores of this process"
        )
    return found


def refuse_runtime(option: str, paths: Iterable[str]) -> None:
    """Refuse to vary what no number depends on."""
    for path in paths:
        if path.startswith(RUNTIME):
            raise ConfigError(f"{option} {path}: it is the same for all runs; give it with --set (settings=)")


def runtime_in(path: Path | str) -> Runtime:
    """Return where and how the experiment in a file is to run."""
    return parse(Runtime, read_config(Path(path)).get("runtime", {}), "runtime")


def experiment_in(folder: RunFolder, with_data: bool = False) -> tuple[Experiment, Runtime]:
    """Return the experiment and the runtime of the run in a folder."""
    config = folder.read_config()
    _refuse_lost_data(config, folder.config_file, with_data)
    return parse(Experiment, config["experiment"]), parse(Runtime, config.get("runtime", {}), "runtime")


def refuse_federation(runtime: Runtime, source: str) -> None:
    """Refuse a run that only the cloud of a federation can play; messages begin with ``source``."""
    if runtime.engine == "federation":
        raise ConfigError(
            f"{source}: the data of a federation's run are elsewhere; start its cloud, which plays and resumes it: "
            "fedbac cloud KIT"
        )


def refuse_another(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse a folder that holds another experiment, and say what differs, or the run of a federation."""
    if not folder.has_run():
        return
    config = folder.read_config()
    refuse_federation(parse(Runtime, config.get("runtime", {}), "runtime"), str(folder.path))
    there = parse(Experiment, config["experiment"])
    if there != experiment:
        changed = differences(there.model_dump(mode="json"), experiment.model_dump(mode="json"))
        if there.method.name != experiment.method.name:  # whose settings all differ
            changed = [line for line in changed if not line.startswith("method.")]
            changed.insert(0, f"method: {there.method.name} is now {experiment.method.name}")
        more = [f"{len(changed) - SHOWN_DIFFERENCES} more"] * (len(changed) > SHOWN_DIFFERENCES)
        raise ConfigError(
            f"{folder.path}: another run is in this folder ({'; '.join(changed[:SHOWN_DIFFERENCES] + more)}); "
            "choose another --out (out= in Python), or replace it with --overwrite (overwrite=True)"
        )


def reached(runtime: Runtime, address: str | None, source: Path) -> Runtime:
    """Return the runtime with the address that a person gave; a file's own word is not enough to connect anywhere."""
    if runtime.engine == "ray" and runtime.address is not None and address is None:
        raise ConfigError(
            f"{source}: its runtime.address is {quoted(runtime.address)}, and a file does not decide to whom fedbac "
            "connects; give --address again (address=... in Python), or --engine simulator to run here"
        )
    return parse(Runtime, runtime.model_dump() | {"address": address}, "runtime")


def _refuse_lost_data(config: Mapping[str, Any], source: Path, with_data: bool) -> None:
    if config.get("data", {}).get("given_in_python") and not with_data:
        raise ConfigError(
            f"{source}: the data of this run were given in Python; give them again there with dataset=..."
        )


def check_ready(experiments: Iterable[Experiment], runtime: Runtime, inputs: Inputs) -> None:
    """Refuse runs whose device, tracker or data are not here; each data set is looked for once."""
    if runtime.engine == "simulator":
        check_device(runtime)
    check_tracker(runtime.track)
    if not inputs.with_data and runtime.engine != "federation":  # whose data are elsewhere
        data.check(dict.fromkeys(experiment.task.dataset for experiment in experiments), inputs.data_folder)
