"""One network whose layers have different owners, learn at different times, or have two heads (FedRoD)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from torch import nn

from fedbac import models
from fedbac.core import trees
from fedbac.core.parts import LocalRun, LocalSteps, Params, Part, Parts, Phase, Scope, Start
from fedbac.core.settings import Epochs, FloatArray, IntArray, NumLayers, Rounds, Settings
from fedbac.errors import ConfigError
from fedbac.personalization.joint import SameForAll, stacked


class _Headed(SameForAll):
    if TYPE_CHECKING:
        head_layers: int
    terms: ClassVar[tuple[str, ...]] = ("network",)

    def _split(self, body: Scope, head: Scope) -> Mapping[str, Part]:
        at = -self.head_layers
        return {"body": Part(body, "network", slice(None, at)), "head": Part(head, "network", slice(at, None))}


class PersonalHead(_Headed):
    """The last layers belong to each edge, cluster or client, the others to the cloud (FedPer, FedRep)."""

    kind: Literal["personal_head"] = "personal_head"
    owner: Literal["edge", "cluster", "client", "region", "country"] = "edge"
    """Who owns the head."""
    head_layers: NumLayers = 1
    """How many of the last layers the head has; the body needs one."""
    order: Literal["together", "head_first"] = "together"
    """All layers at once; or first the head with the body frozen, then the reverse."""
    head_epochs: Epochs | None = None
    """Passes over the data for a head that comes first; default: the task's."""
    body_epochs: Epochs | None = None
    """The same for the body."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Body and head of one network."""
        return self._split("cloud", self.owner)

    def phases(self) -> tuple[Phase, ...]:
        """Train all layers at once, or the head and then the body."""
        if self.order == "together":
            return (Phase(moves=("body", "head")),)
        return Phase(moves=("head",), epochs=self.head_epochs), Phase(moves=("body",), epochs=self.body_epochs)


class LateHead(_Headed):
    """One network per cluster: the body learns under a random head, at the end all layers.

    With a cluster per member and ``sharing=mean_then_apart``: FedBABU.
    """

    kind: Literal["late_head"] = "late_head"
    head_layers: NumLayers = 1
    """How many of the last layers the head has; the body needs one."""
    last: Rounds = 10
    """F: last rounds in which the head learns."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Body and head of one network."""
        return self._split("cluster", "cluster")

    def phases(self) -> tuple[Phase, ...]:
        """Train the body, and in the last rounds all layers at once."""
        return Phase(moves=("body",), until_last=self.last), Phase(moves=("body", "head"), last=self.last)


PERSONAL, GENERIC = 0, 1
"""The phases of ``TwoHeads``."""
LEAST = 1e-6
"""Examples of a class that a client has at least for the balanced softmax: the logarithm of none would be −∞."""


class _UnderTwoHeads(Settings):
    if TYPE_CHECKING:
        kind: str
    owner: Literal["edge", "client", "region", "country"] = "edge"
    """Who owns p."""
    head_layers: NumLayers = 1
    """How many of the last layers the head has; the body needs one."""
    balanced: bool = True
    """Balanced softmax for g, or the plain one."""
    terms: ClassVar[tuple[str, ...]] = ("generic", "personal")

    @property
    def parts(self) -> Mapping[str, Part]:
        """The body and its two heads."""
        head = slice(-self.head_layers, None)
        return {
            "body": Part("cloud", ("generic", "personal"), slice(None, -self.head_layers)),
            "generic": Part("cloud", "generic", head),
            "personal": Part(self.owner, "personal", head),
        }

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Return one network for all, and heads p whose output is zero, so that whoever never trained predicts by g."""
        network = build(0)
        if self.balanced and not list(models.weights(network))[-1].endswith("bias"):
            raise ConfigError(
                f"method.personalization {self.kind!r}: the last layer of the network must have a bias, which the "
                "balanced softmax shifts; use another network, or method.personalization.balanced=false"
            )
        return stacked(self, network, owners, personal=models.zero_last_layer(models.weights(network)))


class HeadsTogether(_UnderTwoHeads):
    """It predicts g(φ(x)) + p(φ(x)): body φ and generic head g belong to the cloud, head p to its owner.

    Each batch moves all three at once: φ and g by the balanced softmax of g(φ(x)), for which ln(share of the class
    among the client's examples) is added to g's logits; p by the plain loss of the sum, φ and g held fixed. The
    gradient of φ and g is clipped as one, that of p by itself. ``two_heads`` is several times as fast.
    """

    kind: Literal["heads_together"] = "heads_together"

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        """Begin as ever, but for networks that only heads in turn can have."""
        if any(True for _ in build(0).buffers()):
            raise ConfigError(
                f"method.personalization {self.kind!r}: under a network with buffers, such as batch normalization, "
                f"heads can only learn in turn; use method.personalization={{kind: two_heads, owner: {self.owner}}}, "
                "or group normalization"
            )
        return super().init(build, owners)

    def phases(self) -> tuple[Phase, ...]:
        """Train all at once."""
        return (Phase(moves=("body", "generic", "personal")),)

    def step(self, now_C: Parts, received_C: Parts, local: LocalSteps) -> Parts:
        """Move φ and g by the balanced loss of g, and p by that of the sum."""
        body, generic, personal = (now_C[part] for part in ("body", "generic", "personal"))
        shifted = _shifted(generic, _shift(local.count_CK)) if self.balanced else generic
        slope = local.clipped(local.gradient(body | shifted))  # of one network; neither part is longer
        own = local.gradient(body | personal, personal, beside=body | generic)
        return {
            "body": local.descend("body", body, {name: slope[name] for name in body}),
            "generic": local.descend("generic", generic, {name: slope[name] for name in generic}),
            "personal": local.descend("personal", personal, own),
        }


class TwoHeads(_UnderTwoHeads):
    """As ``heads_together``, but first p learns, beside what came, then φ and g; for batch normalization, too."""

    kind: Literal["two_heads"] = "two_heads"
    head_epochs: Epochs | None = None
    """Passes over the data for p; default: those for φ and g."""

    def phases(self) -> tuple[Phase, ...]:
        """Train the personal head, then the body and the generic head."""
        return (
            Phase(moves=("personal",), epochs=self.head_epochs),
            Phase(moves=("body", "generic"), terms=("generic",)),
        )

    def before(self, received_C: Parts, run: LocalRun) -> Start:
        """Shift the logits of g by the classes of each client, and those of p back, so that their sum stays."""
        if not self.balanced:
            return Start()
        shift_CK = _shift(run.count_CK)
        generic, personal = _shifted(received_C["generic"], shift_CK), _shifted(received_C["personal"], -shift_CK)
        return Start({"generic": generic, "personal": personal})

    def after(self, received_C: Parts, started_C: Parts, trained_C: Parts, run: LocalRun) -> Parts:
        """Take the shifts back, as weight decay has left them."""
        if not self.balanced:
            return {}
        shift_CK, left_FC1 = _shift(run.count_CK), run.left_FC[:, :, None]
        return {
            "generic": _shifted(trained_C["generic"], -shift_CK * left_FC1[GENERIC]),
            "personal": _shifted(trained_C["personal"], shift_CK * left_FC1[PERSONAL]),
        }


def _shift(count_CK: IntArray) -> FloatArray:
    """Return what the balanced softmax adds to logits: the logarithm of each class's share of a client's examples."""
    share_CK: FloatArray = np.maximum(count_CK, LEAST) / np.maximum(count_CK.sum(1, keepdims=True), 1)
    return np.log(share_CK)


def _shifted(head: Params, shift_CK: FloatArray) -> Params:
    """Return heads with their last bias shifted."""
    last = list(head)[-1]
    return {**head, last: head[last] + trees.onto(shift_CK, head[last].device, head[last].dtype)}
