"""Whether the networks of all their owners fit into memory, before any of them is made."""

import torch

from fedbac.config.experiment import Experiment
from fedbac.core.parts import Anatomy
from fedbac.engines.chunks import GIB, free_memory
from fedbac.errors import NotEnoughMemoryError
from fedbac.federation import Assembled


def check_room(experiment: Experiment, federation: Assembled) -> None:
    """Refuse an experiment whose networks, as they are kept between rounds, are larger than the memory that is free."""
    method, network = experiment.method, federation.network
    size = {name: value.numel() * value.element_size() for name, value in network.state_dict().items()}
    num_sites, num_clients = len(federation.sites), sum(len(site.clients) for site in federation.sites)
    owners = {"cloud": 1, "cluster": method.clustering.clusters(num_sites), "edge": num_sites, "client": num_clients}
    keeping = num_clients if experiment.task.training.momentum_state == "persist" else 0
    needed = sum(
        (owners[spec.scope] + keeping) * sum(size[name] for name in names)
        for spec, names in zip(
            method.personalization.parts.values(),
            Anatomy(method.personalization, network).weights.values(),
            strict=True,
        )
    )
    free = free_memory(torch.device("cpu"))
    if needed > free:
        raise NotEnoughMemoryError(
            f"the networks of {owners['cluster']} clusters, {num_sites} edges and {num_clients} clients take "
            f"{needed / GIB:.1f} GiB by method.personalization {method.personalization.kind!r}, and {free / GIB:.1f} "
            "GiB are free; use fewer of them, or a smaller task.network"
        )
