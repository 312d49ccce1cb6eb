"""The models of a federation's run as its sites have them: without data, a network or a running process."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedbac.deploy.roles.enrolment import FILE, Enrolled, stored
from fedbac.deploy.roles.models import ELSEWHERE, kept_models
from fedbac.deploy.settings import SiteConfig, edge_name
from fedbac.errors import ConfigError, DeployError
from fedbac.runs.checkpoints import newest
from fedbac.runs.models import Models, Predictor
from fedbac.runs.play import saved_models
from fedbac.runs.store import RunFolder
from fedbac.version import __version__


class Given(NamedTuple):
    """A model, an example to trace it with, and what its card says of it."""

    model: Predictor
    example: Tensor
    said: dict[str, Any]


def cloud_models(folder: Path, enrolled: Enrolled | None = None) -> Models:
    """Return the models in the run folder of a cloud; parts of edges and clients are with them."""
    run = RunFolder(folder)
    if not newest(run.checkpoints):
        raise DeployError(f"{folder}: no round of a run is finished here; a model comes with the first")
    if (enrolled := enrolled or stored(folder)) is None:
        raise DeployError(f"{folder / FILE}: the file is missing, without which no model can be built; restore it")
    return saved_models(run, federation=enrolled, elsewhere=ELSEWHERE)


def give(site: SiteConfig, place: Path, edge: int | None, client: int | None) -> Given:
    """Return a model that a site has: ``place`` is the run folder of a cloud, or what an edge or a client keeps."""
    if site.role == "client" and not (edge is None and client in (None, site.number)):
        raise ConfigError(f"{site.name} has no model but its own; leave out --edge and --client")
    if site.role == "cloud":
        enrolled = stored(place)
        models = cloud_models(place, enrolled)
        assert enrolled is not None  # else there are no models
        charter = enrolled.charter
    else:
        assert site.edge is not None
        charter, models = kept_models(place, site.edge, site.number if site.role == "client" else None)
        if site.role == "client":
            client = site.number
        elif client is None and edge is None:
            edge = site.edge
    model = models.of(edge, client)
    said = {
        "model": edge_name(edge or 0) if client is None else charter.names[client],
        "method": charter.experiment.method.name,
        "round": models.round,
        "rounds": charter.experiment.task.rounds,
        "run": charter.run,
        "charter": charter.id,
        "data": hashlib.sha256(json.dumps(dict(charter.commitments), sort_keys=True).encode()).hexdigest(),
        "shape": charter.shape,
        "dtype": charter.dtype,
        "classes": charter.num_classes,
        "fedbac": __version__,
        "torch": torch.__version__,
    }
    return Given(model, models.example, said)
