"""Where only sums of clients may be known, a site asks for sums: a wrapper around its work."""

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedbac.config.experiment import Experiment
from fedbac.core.links import Ledger
from fedbac.core.requests import Average, Request, Result
from fedbac.core.secret import Scale, Secret, count_protocol
from fedbac.rounds.messages import MeasureReport, Site, TrainReport

if TYPE_CHECKING:
    from fedbac.rounds.edge import Common

R = TypeVar("R", bound=TrainReport | MeasureReport)


def sums_only(
    work: Generator[Request, Result, R], site: Site, experiment: Experiment, common: "Common | None" = None
) -> Generator[Request, Result, R]:
    """Do a site's work with every request to its clients as one for their sum. What a client would have told alone is
    everybody's mean then, so nothing else changes for the site; and count the bytes of the protocol."""
    rule: Any = experiment.method.aggregation
    examples = int(max(site.size_N.sum(), site.validation_N.sum()))
    secret = Secret(Scale.of(rule.bound, examples), rule.threshold, rule.bound, seed=experiment.seed)
    training = secret
    if common is not None:
        link, parts = common.clients, experiment.method.personalization.parts
        kept = tuple(part for part, spec in parts.items() if spec.scope == "client")
        counted_N, privacy = experiment.method.counted(site.size_N), experiment.method.privacy
        if privacy is not None:
            counted_N = privacy.counted(counted_N)
        if counted_N.sum() < site.size_N.sum():  # a finer scale
            training = replace(secret, fixed=Scale.of(rule.bound, int(counted_N.sum())))
        training = replace(training, sends=tuple(sorted(link.passing["up"])), twins=link.twins, kept=kept)
    traffic = Ledger()
    try:
        request = next(work)
        while True:
            if isinstance(request, Average):
                request = replace(request, secret=training)
                numbers = 2 + (common.passes if common is not None and "epochs" in request.train.keep else 0)
                count_protocol(traffic, request.size_C.size, numbers)
            else:
                size_N = {"train": site.size_N, "validation": site.validation_N}.get(request.split)
                here = [site.clients.index(client) for client in request.owners] if request.level == "client" else []
                size_C = None if size_N is None else size_N[here]
                request = replace(request, secret=replace(secret, size_C=size_C))
                if request.split != "test" and experiment.method.measurement.location == "clients":
                    count_protocol(traffic, len(here), 1 + 2 * (1 if request.paired else request.num_models))
            request = work.send((yield request))
    except StopIteration as done:
        report: R = done.value
        report.traffic.merge(traffic)
        return report
