"""Networks between a bank and our kernels: as rows of a table, from phase to phase, and back as parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params, Parts
from fedbac.core.requests import Train
from fedbac.core.settings import IntArray
from fedbac.local.stages import Copy, Stage


class NetworkTable:
    """The distinct networks of many requests as rows of one matrix, so that each is held and run once."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        self.known: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
        """The row of a network, by the banks of its parts and their rows. Banks outlive a table: it serves one call."""
        self.size = 0
        self.blocks: list[Tensor] = []

    def rows(self, bank: Parts, row_V: Mapping[str, IntArray], network: str) -> IntArray:
        """Return in which row each model finds this network, adding those that are new."""
        parts = self.anatomy.parts[network]
        known = self.known.setdefault(tuple(id(bank[part]) for part in parts), {})
        wanted = list(zip(*(row_V[part].tolist() for part in parts), strict=True))
        new = [rows for rows in dict.fromkeys(wanted) if rows not in known]
        if new:
            known |= {rows: self.size + i for i, rows in enumerate(new)}
            self.size += len(new)
            chosen = {
                part: trees.select(bank[part], np.array([rows[p] for rows in new])) for p, part in enumerate(parts)
            }
            self.blocks.append(trees.rows(self.anatomy.assemble(chosen, network)))
        return np.array([known[rows] for rows in wanted], dtype=np.int64)

    def stacked(self) -> Tensor:
        """Return all rows."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks)


@dataclass
class Fleet:
    """The networks of all jobs from phase to phase: those that have moved, and the others as they were received."""

    table_TD: Tensor
    row_J: Mapping[str, IntArray]
    """By network, the rows of the table that the jobs received."""
    velocity_JD: dict[str, Tensor]
    shift_JD: Mapping[str, Tensor]
    moved_JD: dict[str, Tensor] = field(default_factory=dict)

    def start(self, networks: Sequence[str]) -> tuple[Tensor, IntArray]:
        """Return a table, and its rows where the jobs find each of these networks as they are now."""
        row_JP = np.stack([self.row_J[network] for network in networks], 1)
        if not any(network in self.moved_JD for network in networks):
            return self.table_TD, row_JP
        now_JPD = torch.stack([self.now(network) for network in networks], 1)
        return now_JPD.flatten(0, 1), np.arange(row_JP.size).reshape(row_JP.shape)

    def now(self, network: str) -> Tensor:
        """Return a network of every job."""
        if network in self.moved_JD:
            return self.moved_JD[network]
        return self.table_TD[torch.as_tensor(self.row_J[network], device=self.table_TD.device)]

    def velocity(self, networks: Sequence[str]) -> Tensor | None:
        """Return the momentum of these networks; None where all are at rest."""
        known = [self.velocity_JD[network] for network in networks if network in self.velocity_JD]
        if not known:
            return None
        rest_JD = torch.zeros_like(known[0])
        return torch.stack([self.velocity_JD.get(network, rest_JD) for network in networks], 1)

    def shift(self, networks: Sequence[str]) -> Tensor | None:
        """Return what is added to the gradients of these networks; None where nothing is."""
        return torch.stack([self.shift_JD[network] for network in networks], 1) if self.shift_JD else None

    def move(
        self, stage: Stage, now_JPD: Tensor, velocity_JPD: Tensor | None, places: Mapping[Copy, Sequence[slice]]
    ) -> None:
        """Keep what a phase made of the networks that moved; others take over the places of what they share."""
        for p, network in enumerate(stage.networks):
            if network in stage.moving:
                self.moved_JD[network] = now_JPD[:, p]
                if velocity_JPD is not None:
                    self.velocity_JD[network] = velocity_JPD[:, p]
        for copy in stage.copies:
            for target in (network for network in copy.targets if network in self.row_J):
                source_JD = self.moved_JD[copy.source]
                self.moved_JD[target] = _overwritten(self.now(target), source_JD, places[copy])
                if velocity_JPD is not None:
                    before = self.velocity_JD.get(target, torch.zeros_like(source_JD))
                    self.velocity_JD[target] = _overwritten(before, self.velocity_JD[copy.source], places[copy])


def _overwritten(rows_JD: Tensor, source_JD: Tensor, places: Sequence[slice]) -> Tensor:
    out_JD = rows_JD.clone()
    for place in places:
        out_JD[:, place] = source_JD[:, place]
    return out_JD


def present(anatomy: Anatomy, bank: Parts) -> tuple[str, ...]:
    """Return the networks of which a bank holds every part."""
    return tuple(network for network in anatomy.networks if all(part in bank for part in anatomy.parts[network]))


def momenta(anatomy: Anatomy, requests: Sequence[Train], networks: Sequence[str]) -> dict[str, Tensor] | None:
    """Return the momentum with which the jobs of all requests begin, by network; None where it does not persist."""
    given = [request.momentum for request in requests if request.momentum is not None]
    if not given:
        return None
    return {
        network: torch.cat([trees.rows(anatomy.assemble(momentum, network)) for momentum in given])
        for network in networks
    }


def shifts(
    anatomy: Anatomy, requests: Sequence[Train], networks: Sequence[str], like: Params, device: torch.device
) -> dict[str, Tensor]:
    """Return what is added to the gradients of the jobs of all requests, by network; nothing where none has any."""

    def rows(request: Train, network: str) -> Tensor:
        given = {n: v for part in anatomy.parts[network] for n, v in request.shift.get(part, {}).items()}
        shape = (len(request.clients),)
        none = {n: torch.zeros(shape + v.shape, device=device) for n, v in like.items() if n not in given}
        return trees.rows({n: none[n] if n in none else given[n].to(device) for n in like})

    asked = any(request.shift for request in requests)
    return {network: torch.cat([rows(r, network) for r in requests]) for network in networks if asked}


def parts_of(anatomy: Anatomy, rows_CD: Mapping[str, Tensor], like: Params) -> Parts:
    """Return the parts of flat networks, a row for each client."""
    return anatomy.split({network: trees.unravel(rows, like) for network, rows in rows_CD.items()})
