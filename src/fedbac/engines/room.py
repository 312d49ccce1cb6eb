"""Whether the networks of all their owners fit into memory, before any of them is made."""

import torch

from fedbac.config.experiment import Experiment
from fedbac.core.bandits import budget
from fedbac.core.codecs import remembering
from fedbac.core.parts import Parts
from fedbac.engines.simulator import GIB, free_memory
from fedbac.errors import NotEnoughMemoryError
from fedbac.federation import Assembled
from fedbac.rounds.plan import combined_parts
from fedbac.rounds.rows import remembered
from fedbac.rounds.start import first_steps, owners_of


def check_room(experiment: Experiment, federation: Assembled) -> None:
    """Refuse an experiment whose networks are larger than the memory that is free: those that are kept between rounds,
    and those that an aggregation holds until it can combine them."""
    held, free = held_bytes(experiment, federation), free_memory(torch.device("cpu"))
    needed = kept_bytes(experiment, federation) + held
    if needed > free:
        method, owners = experiment.method, owners_of(experiment, federation.sites)
        links = remembering(method.links.chains)
        raise NotEnoughMemoryError(
            f"the networks of {owners['cluster']} clusters, {owners['edge']} edges and {owners['client']} clients take "
            f"{needed / GIB:.1f} GiB by method.personalization {method.personalization.kind!r}"
            + (f", method.step {method.step.kind!r}, which remembers networks," if method.step.active else "")
            + (f" and method.aggregation {method.aggregation.kind!r}, which holds all clients at once," if held else "")
            + (f" and method.links ({', '.join(links)}), which remember networks" if links else "")
            + f", and {free / GIB:.1f} GiB are free; use fewer of them, or a smaller task.network"
            + (", or method.aggregation=mean" if held else "")
            + (", or no method.links" if links else "")
        )


def kept_bytes(experiment: Experiment, federation: Assembled) -> int:
    """Return the size of all networks kept between rounds: of owners, momentum, steps' memory, and links."""
    method, sites, scheme = experiment.method, federation.sites, experiment.method.personalization
    trainable, one = {name for name, _ in federation.network.named_parameters()}, _one_of_each(experiment, federation)
    steps, owners = first_steps(method, one, trainable), owners_of(experiment, sites)
    in_links = remembered(method.links.chains, scheme, owners, sites)
    keeping = sum(len(site.clients) for site in sites) if experiment.task.training.momentum_state == "persist" else 0
    needed = 0
    for part, spec in scheme.parts.items():
        needed += (owners[spec.scope] + in_links[part]) * _bytes({part: one[part]})
        needed += owners[spec.scope] * _bytes(steps.get(part, {}))
        if spec.networks:
            needed += keeping * sum(value.nbytes for name, value in one[part].items() if name in trainable)
    return needed


def held_bytes(experiment: Experiment, federation: Assembled) -> int:
    """Return the size of the networks that edges hold at once to combine them: those of clients, and their changes."""
    combined, fraction = combined_parts(experiment.method), experiment.method.selection.fraction
    one = {part: row for part, row in _one_of_each(experiment, federation).items() if part in combined}
    return 2 * sum(budget(fraction, len(site.clients)) for site in federation.sites) * _bytes(one)


def _one_of_each(experiment: Experiment, federation: Assembled) -> Parts:
    """Return every part as a single owner has it."""
    one = dict.fromkeys(owners_of(experiment, federation.sites), 1)
    return experiment.method.personalization.init(federation.build, one)


def _bytes(parts: Parts) -> int:
    return sum(value.nbytes for params in parts.values() for value in params.values())
