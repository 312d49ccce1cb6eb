"""One network for everybody, trained by corrected gradients: SCAFFOLD, MTGC, and the clients of FedDyn.

What a correction is made of are parts of no network. They hold a number for each weight that moves, and begin at zero.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedbac.core import trees
from fedbac.core.parts import LocalRun, Params, Part, Parts, Phase, Pull, Scope, Start
from fedbac.core.settings import NonNegative
from fedbac.personalization.joint import SameForAll


class _Corrected(SameForAll):
    parts: ClassVar[Mapping[str, Part]]
    terms: ClassVar[tuple[str, ...]] = ("global",)

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the initial network, and zeros."""
        moves = {name: value for name, value in build(0).named_parameters() if value.requires_grad}
        zeros = {
            part: {name: torch.zeros((owners[spec.scope], *value.shape)) for name, value in moves.items()}
            for part, spec in self.parts.items()
            if not spec.networks
        }
        return {**super().init(build, owners), **zeros}

    def phases(self) -> tuple[Phase, ...]:
        """Train the network."""
        return (Phase(moves=("global",)),)


def _gradient(started_C: Parts, trained_C: Parts, run: LocalRun, names: Params) -> Params:
    """Return the constant gradient that would have brought clients from start to end; 0 of those that never moved. It
    stands for the mean of the gradients on the way: corrected, clipped and with weight decay, as SGD had them."""
    found = {}
    for name in names:
        start, end = started_C["global"][name], trained_C["global"][name]
        travel = trees.column(run.travel_FC[0], start).double()
        found[name] = (start - end) * torch.where(travel > 0, 1 / travel, 0.0).to(start.dtype)
    return found


class ControlVariates(_Corrected):
    """Clients train by ∇F_i + c − c_i: c_i is their mean gradient when they trained last, c the mean of all c_i.

    Option II of SCAFFOLD: c_i⁺ = c_i − c + (x − y_i)/(Kη), where Kη is how far a gradient of 1 goes in K steps,
    momentum included. A client sends c + s·(c_i⁺ − c_i), s being the share of examples that train, so c stays the mean
    of all c_i.
    """

    kind: Literal["control_variates"] = "control_variates"
    parts: ClassVar[Mapping[str, Part]] = {
        "global": Part("cloud", "global"),
        "control": Part("cloud", ()),
        "own": Part("client", ()),
    }

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Shift gradients by c − c_i."""
        own = received_C["own"]
        return Start(shift={"global": {name: value - own[name] for name, value in received_C["control"].items()}})

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return c_i⁺, and c moved by its share of the change."""
        control, own = received_C["control"], received_C["own"]
        gradient = _gradient(started_C, trained_C, run, own)
        after = {name: value - control[name] + gradient[name] for name, value in own.items()}
        moved = {name: value + run.share * (after[name] - own[name]) for name, value in control.items()}
        return {"control": moved, "own": after}


class GroupCorrections(_Corrected):
    """Clients train by ∇F_i + z_i + y_j: z_i leads them to the gradient of their edge, y_j the edge to that of all.

    Let g_i be a client's mean gradient in a training, corrections included, g_j its mean over the edge's clients, and g
    the mean over edges of a round's mean g_j. Then after every edge round z_i ← z_i + g_j − g_i, and after every round
    y_j ← y_j + g − g_j and z_i ← 0. With equal numbers of steps these are z_i ← z_i + (x_i − x̄_j)/(Hγ) and y_j ← y_j +
    (x̄_j − x̄)/(HEγ) of MTGC. A client absent from the last edge round has z_i = 0.
    """

    kind: Literal["group_corrections"] = "group_corrections"
    # The cloud has the sum so far of a round's g_j/E, and at the end g; the edge y_j less that sum, so both together
    # are y_j at any time. A client knows g_j by what was added to the sum.
    parts: ClassVar[Mapping[str, Part]] = {
        "global": Part("cloud", "global"),
        "sum": Part("cloud", ()),
        "rest": Part("edge", ()),
        "own": Part("client", ()),
    }

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the initial network, and zeros; and the number of each client's last training."""
        parts = super().init(build, owners)
        return {**parts, "own": {**parts["own"], "trained": torch.zeros(owners["client"])}}

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Shift gradients by z_i + y_j."""
        return Start(shift={"global": {name: z + y for name, (z, y) in self._corrections(received_C, run).items()}})

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return the sum with g_i/E, the rest, and what z_i will be but for the next sum."""
        corrections = self._corrections(received_C, run)
        gradient = _gradient(started_C, trained_C, run, received_C["sum"])
        total, rest, own = {}, {}, {}
        for name, (z, y) in corrections.items():
            so_far = received_C["sum"][name] if run.edge_round else torch.zeros_like(y)
            total[name] = so_far + gradient[name] / run.edge_rounds
            rest[name] = y - total[name]
            own[name] = z - gradient[name] - run.edge_rounds * so_far
        own["trained"] = torch.full_like(received_C["own"]["trained"], _number(run))
        return {"sum": total, "rest": rest, "own": own}

    def _corrections(self, received_C: Parts, run: LocalRun) -> dict[str, tuple[Tensor, Tensor]]:
        """Return z_i and y_j by the names of weights."""
        own, total = received_C["own"], received_C["sum"]
        goes_on_C = (own["trained"] == _number(run) - 1) & (run.edge_round > 0)
        return {
            name: (
                torch.where(trees.column(goes_on_C, rest).bool(), own[name] + run.edge_rounds * total[name], 0.0),
                rest + total[name],
            )
            for name, rest in received_C["rest"].items()
        }


def _number(run: LocalRun) -> int:
    """Return the number of a training among all edge rounds of a run."""
    return run.round * run.edge_rounds + run.edge_round


class DynamicPull(_Corrected):
    """Clients train by ∇F_i − h_i + α·(θ − θ^t) from the θ^t received; then h_i ← h_i − α·(θ_i − θ^t). These are
    FedDyn's clients; its server is ``method.step=dynamic``.
    """

    kind: Literal["dynamic_pull"] = "dynamic_pull"
    parts: ClassVar[Mapping[str, Part]] = {"global": Part("cloud", "global"), "own": Part("client", ())}
    alpha: NonNegative = 0.01
    """α: strength of the pull, which is clipped with the gradient."""

    def phases(self) -> tuple[Phase, ...]:
        """Train the network, held back."""
        return (Phase(moves=("global",), pull={"global": Pull(self.alpha, to="global")}),)

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Shift gradients by −h_i."""
        return Start(shift={"global": {name: -value for name, value in received_C["own"].items()}})

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Return h_i."""
        start, end = started_C["global"], trained_C["global"]
        return {"own": {n: value - self.alpha * (end[n] - start[n]) for n, value in received_C["own"].items()}}
