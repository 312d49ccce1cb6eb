"""Presets that give edges or clients a part of the model of their own."""

from fedbac.config.experiment import Method, Task
from fedbac.personalization import AdaptiveStart, Interpolated, MoreauEnvelope, Personal, PersonalHead, TwoHeads


def ditto(task: Task) -> Method:
    """Ditto: every client keeps a network of its own, pulled to the one for all."""
    return Method(name="ditto", personalization=Personal())


def ditto_edges(task: Task) -> Method:
    """Ditto on edges: every edge keeps a network of its own, pulled to the one for all."""
    return Method(name="ditto-edges", personalization=Personal(owner="edge"))


def fedper(task: Task) -> Method:
    """FedPer on edges: one body for all, every edge its own last layer."""
    return Method(name="fedper", personalization=PersonalHead())


def fedrep(task: Task) -> Method:
    """FedRep on edges: FedPer whose heads are trained first, and then the body for one epoch."""
    return Method(name="fedrep", personalization=PersonalHead(order="head_first", body_epochs=1))


def fedrep_clients(task: Task) -> Method:
    """FedRep: one body for all, every client its own last layer, which is trained first."""
    scheme = PersonalHead(owner="client", order="head_first", body_epochs=1)
    return Method(name="fedrep-clients", personalization=scheme)


def apfl(task: Task) -> Method:
    """APFL: every client predicts with a mix of its own network and the one for all, and learns how much of each."""
    return Method(name="apfl", personalization=Interpolated())


def apfl_edges(task: Task) -> Method:
    """APFL on edges: every edge predicts with a mix of its own network and the one for all."""
    return Method(name="apfl-edges", personalization=Interpolated(owner="edge"))


def pfedme(task: Task) -> Method:
    """pFedMe: every client's own network is held near the one for all, which follows them."""
    return Method(name="pfedme", personalization=MoreauEnvelope())


def fedrod(task: Task) -> Method:
    """FedRoD on edges: one body, a head for all trained by the balanced softmax, and every edge's own beside it."""
    return Method(name="fedrod", personalization=TwoHeads())


def fedala(task: Task) -> Method:
    """FedALA on edges: clients start from a learned mix of their edge's network and the one for all."""
    return Method(name="fedala", personalization=AdaptiveStart())
