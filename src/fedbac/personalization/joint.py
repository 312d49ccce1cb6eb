"""Schemes whose parts are trained together: one network, one or two per cluster, or the sum of both (Eq. 2)."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from torch import nn
from torch.nn.functional import normalize

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import Anatomy, LocalSteps, Params, Part, Parts, Phase, Pull, Scope
from fedbac.core.settings import NonNegative, Settings

ClusterInit = Literal["shared", "distinct"]
"""Whether all cluster networks start from the same weights or each from its own (C.16)."""


class SameForAll(Settings):
    """A scheme whose networks all begin as the same one."""

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return that network for all owners."""
        return stacked(self, build(0), owners)


def stacked(scheme: Any, network: nn.Module, owners: Mapping[Scope, int], **others: Params) -> Parts:
    """Return the parts of all owners, given one network for all and by name those that differ from it."""
    anatomy = Anatomy(scheme, network)
    one = anatomy.split(dict.fromkeys(anatomy.networks, models.weights(network)) | others)
    return {part: trees.stack([params] * owners[scheme.parts[part].scope]) for part, params in one.items()}


def _cluster_stack(build: Callable[[int], nn.Module], first: int, num_clusters: int, init: ClusterInit) -> Params:
    indices = [first] * num_clusters if init == "shared" else list(range(first, first + num_clusters))
    return trees.stack([models.weights(build(index)) for index in indices])


class Shared(SameForAll):
    """One network for everybody, averaged at the cloud: no personalization."""

    kind: Literal["shared"] = "shared"
    parts: ClassVar[Mapping[str, Part]] = {"global": Part("cloud", "global")}
    terms: ClassVar[tuple[str, ...]] = ("global",)
    proximal: NonNegative = 0.0
    """μ of FedProx: the loss has (μ/2)‖w − w^t‖², w^t being the network received."""

    def phases(self) -> tuple[Phase, ...]:
        """Train it."""
        return (Phase(moves=("global",), pull={"global": Pull(self.proximal, to="global")} if self.proximal else {}),)


class PerCluster(Settings):
    """What predicts is averaged within its cluster only, as in IFCA."""

    kind: Literal["per_cluster"] = "per_cluster"
    networks: Literal[1, 2] = 1
    """One network per cluster, or the sum of two, trained at once."""
    cluster_init: ClusterInit = "shared"
    """Equal or independent initial cluster networks (C.16); the original IFCA's are distinct."""
    taught: bool = False
    """Whether clients also learn from the teachers of a sharing policy."""

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return the initial cluster networks; with a shared start, the very network that ``Shared`` starts from."""
        count = owners["cluster"]
        apart = 1 if self.cluster_init == "shared" else count
        return {
            part: _cluster_stack(build, apart * number, count, self.cluster_init)
            for number, part in enumerate(self.terms)
        }

    @property
    def parts(self) -> Mapping[str, Part]:
        """The networks of a cluster."""
        return {part: Part("cluster", part) for part in self.terms}

    @property
    def terms(self) -> tuple[str, ...]:
        """The networks whose sum predicts."""
        return ("cluster", "second")[: self.networks]

    def phases(self) -> tuple[Phase, ...]:
        """Train what the cluster owns."""
        return (Phase(moves=self.terms, taught=self.taught),)


class Directed(SameForAll):
    """The cluster's network; clients keep near the direction of what they received: they learn L(θ) − λ·cos(θ, θ^t)."""

    kind: Literal["directed"] = "directed"
    parts: ClassVar[Mapping[str, Part]] = {"cluster": Part("cluster", "cluster")}
    terms: ClassVar[tuple[str, ...]] = ("cluster",)
    strength: NonNegative = 0.01
    """λ."""

    def phases(self) -> tuple[Phase, ...]:
        """Train it."""
        return (Phase(moves=("cluster",)),)

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        """Add the gradient of −λ·cos(θ, θ^t), −λ(û − cos·θ̂)/‖θ‖ where û and θ̂ have length 1."""
        now, slope = now_C["cluster"], local.gradient(now_C["cluster"])
        own_CD, to_CD = trees.rows(now), normalize(trees.rows(received_C["cluster"]), dim=1)
        norm_C, unit_CD = own_CD.norm(dim=1, keepdim=True), normalize(own_CD, dim=1)
        cosine_C = (unit_CD * to_CD).sum(1, keepdim=True)
        turn = trees.shaped(self.strength * (cosine_C * unit_CD - to_CD) / norm_C.clamp(min=1e-12), now)
        return {"cluster": local.descend("cluster", now, {n: g + turn[n] for n, g in slope.items()})}


class Additive(Settings):
    """Eq. 2: ŷ = h(x; Θ_global) + f(x; Θ_k); Θ_global is shared by all, Θ_k by the cluster."""

    kind: Literal["additive"] = "additive"
    parts: ClassVar[Mapping[str, Part]] = {"global": Part("cloud", "global"), "cluster": Part("cluster", "cluster")}
    terms: ClassVar[tuple[str, ...]] = ("global", "cluster")
    l2_cluster: NonNegative = 0.001
    """λ, the additional L2 on Θ_k."""
    l2_form: Literal["decay", "loss"] = "decay"
    """λΘ_k as weight decay, or as the gradient of (λ/2)‖Θ_k‖² inside the clipped loss (C.4)."""
    cluster_init: ClusterInit = "shared"
    """Equal or independent initial cluster networks (C.16)."""
    residual_init: Literal["independent", "zero_last_layer"] = "independent"
    """How f starts: with weights of its own, or an output of zero (C.15)."""
    order: Literal["joint", "alternate"] = "joint"
    """Both at once; or first f for all epochs with h frozen, then the reverse."""

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return network 0 as h, and networks 1, 2, … as the f_k."""
        cluster = _cluster_stack(build, 1, owners["cluster"], self.cluster_init)
        if self.residual_init == "zero_last_layer":
            cluster = models.zero_last_layer(cluster)
        return {"global": trees.stack([models.weights(build(0))]), "cluster": cluster}

    def phases(self) -> tuple[Phase, ...]:
        """Train both at once, or one after the other."""
        pull = {"cluster": Pull(self.l2_cluster, clipped=self.l2_form == "loss")}
        if self.order == "alternate":
            return Phase(moves=("cluster",), pull=pull), Phase(moves=("global",))
        return (Phase(moves=("global", "cluster"), pull=pull),)
