"""Whether the networks of all their owners fit into memory, before any of them is made."""

import torch

from fedbac import models
from fedbac.config.experiment import Experiment
from fedbac.core.codecs import remembering
from fedbac.core.parts import Anatomy
from fedbac.engines.chunks import GIB, free_memory
from fedbac.errors import NotEnoughMemoryError
from fedbac.federation import Assembled
from fedbac.rounds.beginning import owners_of
from fedbac.rounds.memory import remembered


def check_room(experiment: Experiment, federation: Assembled) -> None:
    """Refuse an experiment whose networks, as they are kept between rounds, are larger than the memory that is free."""
    needed, free = kept_bytes(experiment, federation), free_memory(torch.device("cpu"))
    if needed > free:
        method, owners = experiment.method, owners_of(experiment, federation.sites)
        links = remembering(method.links.chains)
        raise NotEnoughMemoryError(
            f"the networks of {owners['cluster']} clusters, {owners['edge']} edges and {owners['client']} clients take "
            f"{needed / GIB:.1f} GiB by method.personalization {method.personalization.kind!r}"
            + (f" and method.links ({', '.join(links)}), which remember networks" if links else "")
            + f", and {free / GIB:.1f} GiB are free; use fewer of them, or a smaller task.network"
            + (", or no method.links" if links else "")
        )


def kept_bytes(experiment: Experiment, federation: Assembled) -> int:
    """Return the size of all networks that are kept between rounds: of owners, their momentum, and what links have."""
    method, network, sites = experiment.method, federation.network, federation.sites
    size = {name: value.numel() * value.element_size() for name, value in models.weights(network).items()}
    anatomy, owners = Anatomy(method.personalization, network), owners_of(experiment, sites)
    in_links = remembered(method.links.chains, method.personalization, owners, sites)
    keeping = sum(len(site.clients) for site in sites) if experiment.task.training.momentum_state == "persist" else 0
    needed = 0
    for part, spec in method.personalization.parts.items():
        needed += (owners[spec.scope] + in_links[part]) * sum(size[name] for name in anatomy.weights[part])
        needed += keeping * sum(size[name] for name in anatomy.weights[part] if name not in anatomy.buffers)
    return needed
