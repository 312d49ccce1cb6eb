"""The models that a run ends with: for each edge, or client, the network that it is judged by."""

import copy
import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from fedbac.config.experiment import Experiment
from fedbac.core import trees
from fedbac.core.parts import (
    Anatomy,
    Params,
    Parts,
    Personalization,
    Scope,
    measured_parts,
    predict,
    predicting,
    with_leaders,
)
from fedbac.core.state import State
from fedbac.errors import ConfigError
from fedbac.federation import Assembled
from fedbac.files import make_folder, write_whole
from fedbac.language import Logits
from fedbac.lowrank import for_peft, merged
from fedbac.rounds.messages import Site
from fedbac.rounds.mix import judged
from fedbac.rounds.record import by_clients
from fedbac.rounds.rows import Members


class Predictor(nn.Module):
    """All networks that make a prediction together, from raw examples to logits.

    Inputs are examples as they are in the data set: images as uint8 (or the same numbers, 0 to 255, as floats), which
    are normalized here as they were for training; floating-point examples and tokens as they are.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        scheme: Personalization,
        networks: Mapping[str, nn.Module],
        normalization: tuple[NDArray[np.float32], NDArray[np.float32]] | None,
    ) -> None:
        super().__init__()
        self.scheme = scheme
        self.names = {network: f"{re.sub('[^0-9a-zA-Z_]', '_', network)}_network" for network in networks}
        for network, module in networks.items():
            self.add_module(self.names[network], module)
        statistics = (None, None) if normalization is None else normalization
        for name, value in zip(("mean", "std"), statistics, strict=True):
            self.register_buffer(name, None if value is None else torch.from_numpy(value.reshape(-1, 1, 1).copy()))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of examples."""
        if self.mean is not None and self.std is not None:
            x = (x.float() / 255 - self.mean) / self.std
        elif x.is_floating_point():
            x = x.float()
        return predict(self.scheme, self.scheme.terms, lambda name, x: self.get_submodule(self.names[name])(x), x)

    def merged(self) -> nn.Module:
        """Return the network itself, as it was before a scheme extended it: every low-rank product is added to its
        layer's weight, and names are those of your own network. It takes examples that are normalized already."""
        return merged(self._one_network())

    def _one_network(self) -> nn.Module:
        if len(self.names) > 1:
            raise ConfigError("model: it is made of several networks, so there is none that has learned it all")
        (network,) = (self.get_submodule(name) for name in self.names.values())
        return network.inner if isinstance(network, Logits) else network


@dataclass(frozen=True, eq=False)
class Models:
    """What the models of a run are made of."""

    scheme: Personalization
    network: nn.Module
    parts: Parts
    """Stacked, as they are kept: those that make a prediction, and those that such ones follow."""
    rows: Sequence[Mapping[str, NDArray[np.int64]]]
    """For each site, the row of every part that each of its clients uses."""
    sites: Sequence[Site]
    own: bool
    """Whether clients of one edge may predict with different models."""
    normalization: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    example: Tensor
    """One example of the data, to trace a model with."""
    round: int
    """After which they are."""
    elsewhere: frozenset[Scope] = frozenset()
    """Owners whose parts never leave them: what is here of those is as it was before the first round."""

    def of(self, edge: int | None, client: int | None) -> Predictor:
        """Return the model of an edge, or of a client."""
        site, place = self._find(edge, client)
        one = slice(place, place + 1)
        kept = {part: trees.select(stack, self.rows[site][part][one]) for part, stack in self.parts.items()}
        chosen = {part: trees.to(trees.take(row, 0), "cpu") for part, row in predicting(self.scheme, kept).items()}
        anatomy = Anatomy(self.scheme, self.network)
        networks = {}
        for name in anatomy.judged:
            networks[name] = copy.deepcopy(self.network).cpu()
            _load(networks[name], anatomy.assemble(chosen, name))
        return Predictor(self.scheme, networks, self.normalization)

    def _find(self, edge: int | None, client: int | None) -> tuple[int, int]:
        clients = sorted(found for site in self.sites for found in site.clients)
        self._refuse_elsewhere(edge, client)
        if client is None:
            if self.own:
                raise ConfigError(
                    f"model: with personalization {self.scheme.kind!r} every client has a model of its own; give "
                    f"client={clients[0]} to {clients[-1]} (--client), and no edge"
                )
            _check("edge", edge, sorted(found for site in self.sites for found in site.edges))
            return next((m, 0) for m, site in enumerate(self.sites) if edge in site.edges)
        if edge is not None:
            raise ConfigError("model: give edge=... or client=..., not both")
        _check("client", client, clients)
        return next((m, site.clients.index(client)) for m, site in enumerate(self.sites) if client in site.clients)

    def _refuse_elsewhere(self, edge: int | None, client: int | None) -> None:
        """Refuse a model of which a part is with its owner, and say who that is."""
        away = [part for part in measured_parts(self.scheme) if self.scheme.parts[part].scope in self.elsewhere]
        if not away:
            return
        part = max(away, key=lambda part: self.scheme.parts[part].scope == "client")  # a client is sent all others
        scope = self.scheme.parts[part].scope
        who = f"every {scope}" if edge is None or scope == "client" else f"edge-{edge}"
        edge_of = {number: int(m) for site in self.sites for number, m in zip(site.clients, site.edge_N, strict=True)}
        if client is not None and client in edge_of:
            m = edge_of[client]
            mine = [number for number, at in edge_of.items() if at == m]
            who = f"edge-{m}-client-{mine.index(client)}" if scope == "client" else f"edge-{m}"
        raise ConfigError(
            f"model: part {part!r} of {who} never leaves it; take the model from its own kit, where it runs: "
            "fedbac model KIT"
        )


def models_of(
    experiment: Experiment,
    federation: Assembled,
    state: State,
    records: Sequence[Mapping[str, Any]],
    elsewhere: frozenset[Scope] = frozenset(),
) -> Models:
    """Return the models of a run after its last complete round; ``elsewhere`` are owners that keep their parts."""
    scheme, members = experiment.method.personalization, Members(experiment.method.unit, federation.sites)
    state = as_judged(experiment, state, records)
    if not experiment.judged_after_training:  # what clusters give each other then is where the next training begins
        state = judged(experiment, members, state)
    parts = with_leaders(scheme, measured_parts(scheme))
    held = members.site_rows(scheme.parts, state.label_N)
    return Models(
        scheme=scheme,
        network=federation.network,
        parts={part: state.parts[part] for part in parts},
        rows=[{part: own[part].owner_R[own[part].row_N] for part in parts} for own in held],
        sites=federation.sites,
        own=by_clients(experiment.method),
        normalization=federation.normalization,
        example=federation.example,
        round=state.round,
        elsewhere=elsewhere,
    )


def as_judged(experiment: Experiment, state: State, records: Sequence[Mapping[str, Any]]) -> State:
    """Return the state with the clusters by which its last round was judged: unless the evaluation says otherwise,
    those that members trained in, though they may have been given others since."""
    if experiment.evaluation.point == "post_reassign" or not records:
        return state
    used = {cluster for record in records for cluster in record["assignment"]}
    return replace(
        state,
        label_N=np.array(records[-1]["assignment"], dtype=state.label_N.dtype),
        used_K=np.isin(np.arange(state.num_clusters), sorted(used)),
    )


def save(model: Predictor, example: Tensor, path: Path) -> Path:
    """Write a model into a file whose suffix says how; an example of the data is to trace it with."""
    ways = {".safetensors": _weights, ".pt2": _program, ".onnx": _onnx}
    if path.suffix == ".peft":
        return _adapter(model, path)
    if path.suffix not in ways:
        raise ConfigError(f"{path}: a model is saved as {', '.join(ways)} or .peft; end the name with one of them")
    write_whole(path, ways[path.suffix](model, example))
    return path


def _weights(model: Predictor, example: Tensor) -> bytes:
    own = model.merged() if len(model.scheme.terms or ()) == 1 else model  # a network's own names load into its class
    statistics = {name: getattr(model, name) for name in ("mean", "std")}
    # One entry, as the order of several is another in every file.
    numbers = {name: value.flatten().tolist() for name, value in statistics.items() if value is not None}
    metadata = {"normalization": json.dumps(numbers)} if numbers else None
    # Copies, as tied weights are one tensor under two names.
    return to_safetensors({name: value.contiguous().clone() for name, value in own.state_dict().items()}, metadata)


def _adapter(model: Predictor, folder: Path) -> Path:
    """Write a folder that ``peft`` reads."""
    settings, weights = for_peft(model._one_network())
    make_folder(folder)
    write_whole(folder / "adapter_model.safetensors", to_safetensors(weights))
    write_whole(folder / "adapter_config.json", (json.dumps(settings, indent=2) + "\n").encode())
    return folder


def _program(model: Predictor, example: Tensor) -> bytes:
    several = torch.cat([example, example])  # a dimension of 1 would be taken for fixed
    try:
        program = torch.export.export(model, (several,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # whatever it meets in the user's code
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ConfigError(
            f"network: torch.export cannot follow it ({why}), for which its steps must not depend on the data; save "
            "its weights as .safetensors"
        ) from error
    content = io.BytesIO()
    torch.export.save(program, content)
    return bytes(content.getvalue())


def _onnx(model: Predictor, example: Tensor) -> bytes:
    try:
        import onnx  # noqa: F401 (torch needs it)
    except ImportError as error:
        raise ConfigError("ONNX needs a package that is not installed: pip install onnx") from error
    content: Any = io.BytesIO()  # torch says that it wants a path
    axes = {"examples": {0: "batch"}, "logits": {0: "batch"}}
    with warnings.catch_warnings():  # of torch, about its own exporters
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (example,), content, dynamo=False,
            input_names=["examples"], output_names=["logits"], dynamic_axes=axes,
        )  # fmt: skip
    return bytes(content.getvalue())


def _load(network: nn.Module, params: Params) -> None:
    """Copy weights and averaged buffers in; others, such as counters, stay."""
    with torch.no_grad():
        for name, value in [*network.named_parameters(), *network.named_buffers()]:
            if name in params:
                value.copy_(params[name])


def _check(what: str, number: int | None, known: Sequence[int]) -> None:
    if number not in known:
        given = f"model: {what}= (--{what}) is not given;" if number is None else f"{what}={number}:"
        raise ConfigError(f"{given} there are {what}s {known[0]} to {known[-1]}; name one of them")
