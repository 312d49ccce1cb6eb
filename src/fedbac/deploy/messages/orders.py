"""What cloud and edges say to each other: the orders and reports of ``rounds.orders``, to and from bytes.

Parts that the edge and its clients own, momentum and what their links remember are not said: they stay where they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from fedbac.core import trees
from fedbac.core.codecs import Codec
from fedbac.core.links import Ledger
from fedbac.core.parts import Parts
from fedbac.core.queries import Split, Statistic
from fedbac.core.state import flatten
from fedbac.deploy.messages.packing import Shelf, packed_in, packed_out, stamps
from fedbac.deploy.messages.pieces import (
    LARGEST,
    Owners,
    ledger_in,
    ledger_out,
    measured_in,
    most_in,
    names_in,
    one_of,
    query_in,
    query_out,
    rows_in,
    state_in,
    teachers_in,
    teachers_out,
)
from fedbac.deploy.wire import Message, WireError, all_finite, as_array, checked_bank, checked_parts, encode, laid_out
from fedbac.errors import quoted
from fedbac.rounds.orders import MeasureOrder, MeasureReport, Reading, Site, TrainOrder, TrainReport, Wanted


def train_order(order: TrainOrder, owners: Owners, charter: str) -> bytes:
    """Return an order to an edge; what the edge and its clients own is not in it."""
    teachers = {} if order.teachers is None else teachers_out(order.teachers)
    sent, broadcast = owners.without(order.bank, "edge", "client"), order.broadcast
    tensors: dict[str, Any] = packed_out(sent, {} if broadcast is None else broadcast.changes, "bank")
    tensors |= {f"rows/{part}": rows for part, rows in order.row_N.items()}
    tensors |= {f"owners/{part}": order.owner_R[part] for part in sent}
    tensors |= {f"selection/{path}": value for path, value in flatten(order.selection).items()}
    tensors |= {f"teachers/{path}": value for path, value in teachers.items()}
    head = {
        "charter": charter,
        "round": order.round,
        "moved": order.moved,
        "readings": [query_out(query) for query in order.readings],
        "statistics": sorted(query.name for query in order.statistics),
        "wants_updates": order.wants_updates,
        "temperature": None if order.teachers is None else order.teachers.temperature,
    }
    if broadcast is not None:
        head["had"] = stamps(broadcast, {part: range(trees.count(params)) for part, params in sent.items()})
    return encode("train", head, tensors)


def read_bank(message: Message, like: Parts, owners: Owners, codec: Codec | None, shelf: Shelf) -> Parts:
    """Return the networks of an order; where changes are sent, the networks that changed are on the shelf."""
    received = owners.without(like, "edge", "client")
    return checked_bank(packed_in(message, "bank", codec, shelf.find(message, received)), received, "train")


def read_train_order(
    message: Message, site: Site, template: Any, received: Parts, own: Parts, first: Parts, owners: Owners
) -> TrainOrder:
    """Return an order as an edge receives it: with the networks that it ``received``, and the parts that it and its
    clients ``own``; ``first`` are all parts of all owners."""
    count = len(site.clients)
    bank = received | own
    if set(bank) != set(first):
        raise WireError(f"train: it holds the parts {quoted(sorted(bank))}, not {quoted(sorted(first))}")
    rows = {part: message.array(f"rows/{part}", np.int64, (count,)) for part in bank}
    for part, row_N in rows.items():
        if row_N.size and (row_N.min() < 0 or row_N.max() >= trees.count(bank[part])):
            raise WireError(f"train: rows/{part} points beyond the bank")
    owner_R = {part: np.array([site.index]) for part in owners.only(own, "edge")}
    for part, params in received.items():
        owner_R[part] = message.array(f"owners/{part}", np.int64, (trees.count(params),))
        known = np.isin(owner_R[part], np.arange(trees.count(first[part])))
        if not known.all() or np.unique(owner_R[part]).size != owner_R[part].size:
            raise WireError(f"train: owners/{part} names owners that are not there, or one of them twice")
    return TrainOrder(
        site=site.index,
        round=message.whole("round", LARGEST),
        bank=bank,
        row_N=rows,
        selection=state_in(message, template),
        moved=message.value("moved", bool),
        readings=tuple(query_in(one) for one in message.value("readings", list)),
        statistics=frozenset(Statistic(name) for name in names_in(message, "statistics", ("loss", "square", "epochs"))),
        teachers=teachers_in(message, count, owners.of_clusters(first)),
        owner_R=owner_R,
        wants_updates=message.value("wants_updates", bool),
    )


def train_report(report: TrainReport, owners: Owners, present: Sequence[str]) -> bytes:
    """Return what an edge reports; what it and its clients own is not in it."""
    tensors: dict[str, Any] = packed_out(owners.without(report.bank, "edge", "client"), report.changes, "bank")
    tensors |= {f"weight/{part}": weight for part, weight in report.weight.items()}
    tensors |= {f"selection/{path}": value for path, value in flatten(report.selection).items()}
    tensors |= {f"told/{query.name}": value for query, value in report.told_N.items()}
    tensors |= laid_out(report.updates, "updates")
    tensors |= {"loss": np.float64(report.loss), "readings": np.array(report.readings, dtype=np.float64)}
    head = {
        "selected": list(report.selected),
        "failed": list(report.failed),
        "dropped": list(report.dropped),
        "late": list(report.late),
        "seconds": report.seconds,
        "traffic": ledger_out(report.traffic),
        "present": list(present),
    }
    return encode("trained", head, tensors)


def read_train_report(
    message: Message, order: TrainOrder, site: Site, owners: Owners, num_epochs: int, codec: Codec | None
) -> TrainReport:
    """Return an edge's report if it can be one of this order; parts that stay with their owners are as in the order."""
    count = len(site.clients)
    sent = owners.without(order.bank, "edge", "client")
    bank = checked_parts(packed_in(message, "bank", codec, sent), sent, None, "trained: bank")
    weight = {
        part: message.array(f"weight/{part}", np.int64, (trees.count(params),)) for part, params in order.bank.items()
    }
    for part, weight_R in weight.items():
        if (weight_R < 0).any() or weight_R.sum() > site.size:
            raise WireError(f"trained: weight/{part} counts more examples than the edge has")
    if not all_finite(bank):
        raise WireError("trained: the edge's networks are not finite")
    clients = frozenset(site.clients)
    told = {
        query: message.array(f"told/{query.name}", np.float64, told_shape(query, count, num_epochs))
        for query in sorted({*order.statistics, Statistic("loss")}, key=str)
    }
    updates = message.parts("updates")
    if order.wants_updates:
        rows = int(np.isfinite(told[Statistic("loss")]).sum())
        updates = checked_parts(updates, owners.only(sent, "cluster"), rows, "trained: updates")
    if not all_finite(updates) or (updates and not order.wants_updates):
        raise WireError("trained: updates that are not finite, or that nobody asked for")
    seconds = message.value("seconds", (float, int, type(None)))
    if seconds is not None and not 0 <= seconds <= LARGEST:
        raise WireError(f"trained: {quoted(seconds)} seconds cannot be")
    return TrainReport(
        bank=dict(order.bank) | bank,
        weight=weight,
        selection=state_in(message, order.selection),
        selected=message.wholes("selected", clients),
        failed=message.wholes("failed", clients),
        loss=float(message.array("loss", np.float64, ())),
        told_N=told,
        traffic=ledger_in(message.head.get("traffic")),
        momentum=order.momentum,
        readings=tuple(message.array("readings", np.float64, (len(order.readings),)).tolist()),
        updates=updates,
        links=order.links,
        seconds=None if seconds is None else float(seconds),
        dropped=message.wholes("dropped", clients),
        late=message.wholes("late", clients),
    )


def told_shape(query: Statistic, count: int, num_epochs: int) -> tuple[int, ...]:
    """Return the shape of what so many clients tell."""
    return (count, num_epochs) if query.name == "epochs" else (count,)


def lost_report(order: TrainOrder, site: Site, num_epochs: int) -> TrainReport:
    """Return what is known of an edge that did not answer: everything is as it was, and counts for nothing."""
    asked = order.statistics | {Statistic("loss")}
    return TrainReport(
        bank=order.bank,
        weight={part: np.zeros(trees.count(params), dtype=np.int64) for part, params in order.bank.items()},
        selection=order.selection,
        selected=(),
        failed=(),
        loss=float("nan"),
        told_N={query: np.full(told_shape(query, len(site.clients), num_epochs), np.nan) for query in asked},
        traffic=Ledger(),
        momentum=order.momentum,
        readings=(float("nan"),) * len(order.readings),
        links=order.links,
        absent=True,
    )


def measure_order(order: MeasureOrder, round_: int, owners: Owners, charter: str) -> bytes:
    """Return an order to measure; networks that the edge trained itself are not sent to it again."""
    tensors: dict[str, Any] = laid_out(owners.without(order.bank, "edge", "client"), "bank")
    for place, wanted in enumerate(order.wanted):
        tensors |= {f"wanted/{place}/{part}": rows for part, rows in wanted.row_V.items()}
    tensors |= {f"selection/{path}": value for path, value in flatten(order.selection).items()}
    head = {
        "charter": charter,
        "round": round_,
        "wanted": [{"split": w.split, "by": w.by, "max_samples": w.max_samples} for w in order.wanted],
        "kept": sorted(order.kept),
        "knows_selection": order.selection is not None,
        "selected": list(order.selected),
    }
    return encode("measure", head, tensors)


def read_measure_order(
    message: Message, site: Site, template: Any, own: Parts, trained: Parts, like: Parts
) -> MeasureOrder:
    """Return an order as an edge receives it; ``own`` as above, ``trained`` what it averaged itself in this round."""
    bank = checked_bank(message.parts("bank"), {part: like[part] for part in like if part not in own}, "measure")
    kept = {}
    for part in names_in(message, "kept", None):
        if part not in trained:
            raise WireError(f"measure: the edge has no {quoted(part)} of this round, as it was not there to train it")
        kept[part] = trained[part]
    wanted = []
    for place, said in enumerate(message.value("wanted", list)):
        if not isinstance(said, dict) or set(said) != {"split", "by", "max_samples"}:
            raise WireError(f"measure: {quoted(said)} says not what to measure")
        found = message.under(f"wanted/{place}")
        rows = {part: as_array(value, f"measure: wanted/{place}/{part}") for part, value in found.items()}
        mine = {part: params for part, params in own.items() if part in rows}
        wanted.append(
            Wanted(
                rows_in(rows, bank | mine, kept),
                one_of(said["split"], get_args(Split)),
                one_of(said["by"], ("site", "each", "edge", "client")),
                most_in(said["max_samples"]),
            )
        )
        bank |= mine
    return MeasureOrder(
        site=site.index,
        bank=bank,
        wanted=tuple(wanted),
        kept=kept,
        selection=state_in(message, template) if message.value("knows_selection", bool) else None,
        selected=message.wholes("selected", frozenset(site.clients)),
    )


def measure_report(report: MeasureReport, present: Sequence[str]) -> bytes:
    """Return what an edge measured."""
    tensors = {
        f"{place}/{name}": getattr(reading, name)
        for place, reading in enumerate(report.readings)
        for name in ("loss_VG", "accuracy_VG", "count_G")
    }
    return encode("measured", {"traffic": ledger_out(report.traffic), "present": list(present)}, tensors)


def read_measure_report(message: Message, order: MeasureOrder, site: Site, holds: Mapping[Split, int]) -> MeasureReport:
    """Return an edge's measurements if they can be those of this order; ``holds`` are its examples by split."""
    readings = []
    for place, wanted in enumerate(order.wanted):
        shape = reading_shape(wanted, site)
        measured = measured_in(message, f"{place}/", shape, np.full(shape[1], holds[wanted.split]))
        readings.append(Reading(measured.loss_VG, measured.accuracy_VG, measured.count_G))
    return MeasureReport(tuple(readings), ledger_in(message.head.get("traffic")))


def lost_measurements(order: MeasureOrder, site: Site) -> MeasureReport:
    """Return what is known of an edge that did not answer: nothing, from no examples."""
    readings = []
    for wanted in order.wanted:
        models, groups = reading_shape(wanted, site)
        nothing = np.full((models, groups), np.nan)
        readings.append(Reading(nothing, nothing, np.zeros(groups, dtype=np.int64)))
    return MeasureReport(tuple(readings), Ledger())


def reading_shape(wanted: Wanted, site: Site) -> tuple[int, int]:
    """Return how many models and groups a reading is about."""
    if wanted.by == "client":
        return 1, len(site.clients)
    return wanted.num_models, {"site": 1, "each": len(site.clients), "edge": len(site.edges)}[wanted.by]
