"""The paper's Table I, from the rows of choices: what each column says of a method."""

from typing import NamedTuple

from fedbac.config.experiment import Method
from fedbac.core.parts import judged_parts

NO = "✗"
YES = "✓"
CLUSTERING = {
    "fixed": NO,
    "lowest_loss": "Loss-based",
    "cosine_splits": "Gradient-based",
    "agglomerative": "Hierarchical",
    "kmeans": "K-Means++",
    "gaussian_rewards": "Gaussian-weighted",
    "linucb": "LinUCB",
    "merging": "Merging",
    "drifting": "Drift-based",
}
SELECTION = {
    "random": "Random",
    "thompson": "Thompson Sampling",
    "credit_thompson": "Thompson Sampling, credit",
    "sound": "Credit",
    "power_of_choice": "Power-of-choice",
    "oort": "Utility-based",
    "cs_ucb": "MAB",
    "ucb_cs": "MAB",
    "cocs": "CC-MAB",
    "contextual": "Contextual bandit",
    "resource_score": "Resource-aware",
}
BLENDING = ("leave_one_out", "blend", "similar", "towards_mean", "once_overfitted", "predict_towards_mean")
SHARING = {
    **dict.fromkeys(("distill", "distill_adaptive"), "Distillation"),
    **dict.fromkeys(BLENDING, "Blend"),
    "mean_then_apart": "Full, then none",
}
"""How our kinds are called in the paper's words; kinds of the user's go by their own names."""
MIXED = {"interpolated", "adaptive_start"}
"""Schemes in which a model of one's own is mixed with the one for all."""


class Cells(NamedTuple):
    """A method's cells."""

    architecture: str
    clustering: str
    selection: str
    adaptive: str
    sharing: str
    personalization: str
    aggregation: str = "Mean"


def row(method: Method) -> Cells:
    """Return the cells of a method."""
    return Cells(
        architecture=f"{method.topology.tiers}-tier",
        clustering=CLUSTERING.get(method.clustering.kind, method.clustering.kind),
        selection=SELECTION.get(method.selection.kind, method.selection.kind),
        adaptive=YES if method.adaptive else NO,
        sharing=_sharing(method),
        personalization=_personalization(method),
        aggregation=_aggregation(method),
    )


def _sharing(method: Method) -> str:
    """What members have in common: by the sharing policy, or by the parts that belong to the cloud."""
    if method.sharing.active:
        return SHARING.get(method.sharing.kind, method.sharing.kind)
    scheme = method.personalization
    if scheme.kind in MIXED:
        return "Mixture"
    judged = judged_parts(scheme)
    common = [part for part, spec in scheme.parts.items() if spec.scope == "cloud"]
    if not common:
        return "None"
    if not set(common) & set(judged):
        return "Regularization"
    if all(scheme.parts[part].scope == "cloud" for part in judged):
        return "Full"
    if any(scheme.parts[part].layers != slice(None) for part in common):
        return "Shared layers"
    return "Full (additive)"


def _personalization(method: Method) -> str:
    """Whose model it is: that of the smallest group that owns a part of it."""
    scopes = {method.personalization.parts[part].scope for part in judged_parts(method.personalization)}
    for smallest in ("client", "edge", "region", "country"):
        if smallest in scopes:
            return smallest.capitalize()
    if "cluster" not in scopes:
        return NO
    alone = method.clustering.kind == "fixed" and method.clustering.clusters(2) == 2
    return "Cluster" if not alone else method.unit.capitalize()


def _aggregation(method: Method) -> str:
    """How edges combine, then the cloud if it does otherwise, and the step that follows."""
    rules = dict.fromkeys((method.aggregation.kind, (method.cloud_aggregation or method.aggregation).kind))
    step = f" + {method.step.kind}" if method.step.active else ""
    return (", ".join(rules) + step).replace("_", " ").capitalize()
