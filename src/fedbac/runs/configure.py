"""Names, files and settings → an experiment, checked before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbac.config.experiment import Experiment, Method, Runtime, Task
from fedbac.config.explain import override, parse
from fedbac.config.text import read_yaml
from fedbac.core.settings import Settings
from fedbac.data import Dataset, Shards
from fedbac.errors import ConfigError, quoted, unknown
from fedbac.models import Custom, UserNetwork
from fedbac.presets import methods, tasks
from fedbac.runs.store import RunFolder, read_config


@dataclass(frozen=True)
class Inputs:
    """What a configuration cannot hold: data and networks handed over in Python, and where to look for data."""

    dataset: Dataset | None = None
    shards: Shards | None = None
    network: UserNetwork | None = None
    data_folder: Path | str | None = None


def configure(
    method: str | Method,
    task: str | Task | Path = tasks.DEFAULT_TASK,
    *,
    seed: int = 0,
    num_rounds: int | None = None,
    settings: Sequence[str] = (),
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
) -> Experiment:
    """Return the experiment that names, files and ``path=value`` settings describe, checked before any work."""
    if not isinstance(method, str | Method):
        raise ConfigError(f"method: {quoted(method)} is no method; give a name or a fedbac.Method")
    listed = isinstance(settings, Sequence) and not isinstance(settings, str)
    if not listed or not all(isinstance(setting, str) for setting in settings):
        raise ConfigError(f"settings: {quoted(settings)} is no list of 'path=value' texts")
    chosen = _task(task)
    changes: dict[str, Any] = {}
    if inputs.dataset is not None:
        if not isinstance(inputs.dataset, Dataset):
            kind = type(inputs.dataset).__name__
            raise ConfigError(f"dataset: use fedbac.Dataset.from_arrays or from_torch to make one of this {kind}")
        changes["dataset"] = inputs.dataset.name
    if inputs.shards is not None:
        if not isinstance(inputs.shards, Shards):
            raise ConfigError(f"shards: it must be fedbac.Shards, not {type(inputs.shards).__name__}")
        inputs.shards.checked()
        changes |= {
            "num_edges": len(inputs.shards.clients),
            "clients_per_edge": tuple(len(clients) for clients in inputs.shards.clients),
        }
    if inputs.network is not None:
        if not callable(inputs.network):
            kind = type(inputs.network).__name__
            raise ConfigError(f"network: it must be an nn.Module or a function that returns one, not {kind}")
        changes["network"] = Custom(name=getattr(inputs.network, "__name__", type(inputs.network).__name__))
    if num_rounds is not None:
        changes["rounds"] = num_rounds
    # Task settings come first: some methods look at the task.
    plain = chosen.model_dump(mode="json") | {
        key: value.model_dump() if isinstance(value, Custom) else value for key, value in changes.items()
    }
    own = [setting for setting in settings if setting.startswith("task.")]
    final_task = parse(Task, override({"task": plain}, own)["task"], "task")
    row = _checked(method) if isinstance(method, Method) else methods.method(method, final_task)
    tree = {"seed": seed, "task": final_task, "method": row}
    others = [setting for setting in settings if not setting.startswith("task.")]
    if not others:
        return parse(Experiment, tree)
    plain_tree = {"seed": seed, "task": final_task.model_dump(mode="json"), "method": row.model_dump(mode="json")}
    return parse(Experiment, override(plain_tree, others))


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
    if isinstance(task, str) and not task.endswith((".yaml", ".yml")):
        return tasks.task(task)
    if not isinstance(task, str | Path):
        raise ConfigError(f"task: {quoted(task)} is no task; give a name, a fedbac.Task, or the path of a .yaml file")
    return parse(Task, read_yaml(Path(task)), "task")


def read_experiment(
    path: Path | str, settings: Sequence[str] = (), with_data: bool = False
) -> tuple[Experiment, Runtime]:
    """Return the experiment, with settings changed, and the runtime of a ``config.yaml``."""
    return _experiment(read_config(Path(path)), Path(path), settings, with_data)


def experiment_in(folder: RunFolder, with_data: bool = False) -> tuple[Experiment, Runtime]:
    """Return the experiment and the runtime of the run in a folder."""
    return _experiment(folder.read_config(), folder.config_file, (), with_data)


def reached(runtime: Runtime, address: str | None, source: Path) -> Runtime:
    """Return the runtime with the address that a person gave; a file's own word is not enough to connect anywhere."""
    if runtime.engine == "ray" and runtime.address is not None and address is None:
        raise ConfigError(
            f"{source}: its runtime.address is {quoted(runtime.address)}, and a file does not decide to whom fedbac "
            "connects; give --address again (address=... in Python), or --engine simulator to run here"
        )
    return parse(Runtime, runtime.model_dump() | {"address": address}, "runtime")


def _experiment(
    config: Mapping[str, Any], source: Path, settings: Sequence[str], with_data: bool
) -> tuple[Experiment, Runtime]:
    if config.get("data", {}).get("given_in_python") and not with_data:
        raise ConfigError(
            f"{source}: the data of this run were given in Python; give them again, fedbac.resume(folder, dataset=...)"
        )
    experiment = parse(Experiment, override(config["experiment"], settings))
    return experiment, parse(Runtime, config.get("runtime", {}), "runtime")
