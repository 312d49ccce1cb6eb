"""All messages of a federation, each declared once.

Orders, requests and answers are those of the simulator: ``rounds.messages`` between cloud and edges, and
``core.requests``, client by client, between sites and clients. A field of theirs travels unless it is marked as local.
Parts that an edge or a client owns stay there: whoever reads a request adds its own, and then checks the rows. An
answer must be like the one that stands for it when it is lost.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from typing import Any, TypeVar, cast

import numpy as np
import torch

from fedbac.core import trees
from fedbac.core.codecs import Broadcast, Changes
from fedbac.core.links import DIRECTIONS, OUTER, PURPOSES, Ledger
from fedbac.core.parts import Parts
from fedbac.core.queries import Statistic
from fedbac.core.requests import Evaluate, Measured, Teachers, Train, Trained
from fedbac.core.schema import AnyNumber, Some, Unchecked
from fedbac.core.secret import Scale
from fedbac.core.settings import IntArray
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.codec import CHECKS, Json, Reader, as_tensors, write
from fedbac.deploy.protocol.packing import Shelf, of_row, pack, stamps, unpacked
from fedbac.deploy.protocol.wire import Message, WireError, decode, encode
from fedbac.errors import LONGEST_QUOTE, quoted, visible
from fedbac.rounds.messages import MeasureOrder, MeasureReport, Site, TrainOrder, TrainReport, Wanted

Names = AnyNumber[tuple[str, ...]]
Places = AnyNumber[tuple[int, ...]]
Had = Mapping[str, Names]
"""By part, the hashes of the networks whose changes are sent."""


@dataclass(frozen=True)
class Expected:
    """What an owner must have kept, as far as the records of the run tell."""

    trained: int = 0
    """The last round in which it trained; 0 if there was none."""
    anyway: bool = False
    """Whether it is to go on with what it has if that is something else."""


Expectations = Mapping[str, Expected]
"""By the number of a client, and of the site itself under ``edge``."""
SUM: dict[str, Any] = {"charter": str, "session": str}
WORK: dict[str, Any] = {"places": Places, "fixed": Scale, "payload": Unchecked[bytes]}
MESSAGES: Mapping[str, Mapping[str, Any]] = {
    # How a run begins. An edge tells the classes and sums of all its clients together, and is told their holdings. Of
    # clients that join later, ``only`` those, it tells neither: they would be those of one client. Who is ``without``
    # is not asked, as its data fit to nobody's.
    "enroll": {"experiment": Json, "only": Names, "without": Names},
    "facts": {"facts": Json},
    "roster": {"clients": Mapping[str, Json], "edge": Json | None, "together": Json, "reasons": Mapping[str, str]},
    "begin": {"charter": str, "known": Mapping[str, Json]},
    "ready": {},
    "revoked": {"list": str},
    # A child does not know the charter, does not have the networks whose changes it was sent, or cannot take part.
    "stranger": {},
    "forgotten": {},
    "absent": {"reason": str, "present": Names},
    # Between cloud and edges: orders, and reports with the names of the clients that are there.
    "train": {"charter": str, "order": TrainOrder, "had": Had, "expected": Expectations},
    "trained": {"report": TrainReport, "present": Names},
    "measure": {"charter": str, "round": int, "order": MeasureOrder, "kept": Names, "expected": Expectations},
    "measured": {"report": MeasureReport, "present": Names},
    # Messages of a cloud without tiers to clients, and to the test data of edges; what several get travels once.
    "relay": {"charter": str, "to": Mapping[str, str], "payload": Unchecked[Mapping[str, bytes]]},
    "relayed": {
        "answer": Some[Unchecked[Mapping[str, bytes]]],
        "reasons": Mapping[str, str],
        "present": Names,
        "numbers": Some[tuple[int, ...]],
    },
    # Between sites and clients. ``before`` is when what a client owns was trained at the latest.
    "fit": {"charter": str, "train": Train, "had": Had, "expected": Expected},
    "update": {"trained": Trained},
    "evaluate": {"charter": str, "request": Evaluate, "before": tuple[int, ...], "expected": Expected},
    "evaluation": {"measured": Measured},
    # The five messages of a secret sum, and the one kind of answers. Clients are numbered from 1; ``places`` are those
    # of the sum, in the order of its ring; then those who shared their secrets, whose numbers came, and who gave
    # proofs. ``payload`` is what a client is to do for it: a ``fit`` or an ``evaluate``.
    "secret_keys": SUM,
    "secret_shares": SUM | {"places": Places, "keys": Unchecked[bytes]},
    "secret_fit": SUM | WORK,
    "secret_evaluate": SUM | WORK,
    "secret_confirm": SUM | {"places": Places},
    "secret_unmask": SUM | {"places": Places, "proofs": Unchecked[bytes], "sealed": Unchecked[bytes]},
    "secret": {"data": Unchecked[bytes]},
    # A model after a round, on its way from the cloud to an edge and from an edge to a client, and as a site keeps it:
    # then with the parts that the site owns, and with the text of the charter instead of its hash.
    "model": {
        "charter": str,
        "round": int,
        "bank": Some[AnyNumber[Parts]],
        "row_N": Some[AnyNumber[Mapping[str, IntArray]]],
    },
    # What an owner keeps for itself, on its own disk.
    "version": {
        "parts": Unchecked[Parts],
        "momentum": Unchecked[Parts],
        "left": Unchecked[Parts],
        "links": Unchecked[Mapping[str, Parts]],
    },
    # What a site has released with noise, and the hash of the networks from which.
    "release": {"stamp": str, "parts": Unchecked[Parts]},
}
"""By kind, what a message holds."""
MOST_MODELS = 1_000_000
T = TypeVar("T")
EVERY_LINK = Ledger(dict.fromkeys(product(OUTER, DIRECTIONS, PURPOSES), 0))


def sent(kind: str, changes: Changes | None = None, place: str = "", /, **values: Any) -> bytes:
    """Return a message as bytes; changes of networks are sent instead of those at a place."""
    tensors: dict[str, Any] = {}
    head = {name: write(hint, values[name], name, tensors) for name, hint in MESSAGES[kind].items()}
    pack(tensors, place, changes or {})
    return encode(kind, {name: said for name, said in head.items() if not as_tensors(MESSAGES[kind][name])}, tensors)


def received(message: Message, **likes: Any) -> dict[str, Any]:
    """Return the fields of a message, if they are as declared, and like the templates that are given."""
    reader, hints = Reader(message), MESSAGES[message.kind]
    if set(message.head) != {name for name, hint in hints.items() if not as_tensors(hint)}:
        raise WireError(f"{message.kind}: it tells {quoted(sorted(message.head))}; it must tell {', '.join(hints)}")
    found = {name: reader.read(hint, message.head.get(name), likes.get(name), name) for name, hint in hints.items()}
    if reader.left:
        raise WireError(f"{message.kind}: nobody asked for {quoted(sorted(reader.left))}")
    return found


def _one(message: Message, name: str, like: T) -> T:
    return cast(T, received(message, **{name: like})[name])


# ------------------------------------------------------------------------------------- what must fit together


def _teachers(found: Teachers, like: Teachers) -> str | None:
    good = found.weight_CT.shape == (len(like.share_C), trees.count(found.bank))
    return None if good else "must have a weight for each client and teacher"


def _order(found: TrainOrder, like: TrainOrder) -> str | None:
    good = all(len(owner_R) == trees.count(found.bank[part]) for part, owner_R in found.owner_R.items())
    return None if good else "must have an owner for each network"


def _trained(found: Trained, like: Trained) -> str | None:
    told = [values for values in (found.square_C, found.epoch_CE) if values is not None]
    good = not np.isfinite(found.loss_C).all() or all(np.isfinite(one).all() for one in told)
    good = good and (found.square_C is None or not (found.square_C < 0).any())
    return None if good else "has a finite loss, but not the statistics that were asked for"


def _measured(found: Measured, like: Measured) -> str | None:
    shares, good_G = found.accuracy_VG[:, found.count_G > 0], (found.count_G >= 0) & (found.count_G <= like.count_G)
    good = good_G.all() and ((shares >= 0) & (shares <= 1 + 1e-9)).all()
    return None if good else "has impossible accuracies or numbers of examples"


def _possible(charter: Charter, *losses: Any) -> bool:
    """Whether numbers are losses that a site may tell; NaN is that of nobody."""
    least, most = charter.experiment.task.loss.limits
    return all((np.isnan(told) | ((told >= least) & (told <= most))).all() for told in map(np.asarray, losses))


def _check_least(charter: Charter, kind: str, losses: Any) -> None:
    least, _ = charter.experiment.task.loss.limits
    if (np.asarray(losses) < least).any():
        raise WireError(f"{kind}: it has a loss below {least:g}")


CHECKS.update({Teachers: _teachers, TrainOrder: _order, Trained: _trained, Measured: _measured})


def check_rows(rows: Mapping[str, IntArray], *banks: Parts) -> None:
    """Refuse rows of networks that are not there; those of a later bank follow those of an earlier one."""
    if not rows:
        raise WireError("a message must say which networks are to be used")
    for part, row_V in rows.items():
        known = sum(trees.count(bank[part]) for bank in banks if part in bank)
        if not 0 < row_V.size <= MOST_MODELS or row_V.min() < 0 or row_V.max() >= known:
            raise WireError(f"the rows of part {quoted(part)} are none, too many, or beyond its {known} networks")


def _rows(charter: Charter, count: int) -> dict[str, IntArray]:
    return {part: np.zeros(count, dtype=np.int64) for part in charter.template}


def _had(message: Message, bank: Parts, shelf: Shelf) -> Parts:
    """Return the networks whose changes are sent."""
    return shelf.find(Reader(message).read(Had, message.head.get("had"), None, "had"), bank)


def _taught(charter: Charter, count: int) -> Teachers | None:
    """Return the template of teachers of so many clients: networks like those that clusters own."""
    like = list(charter.only(charter.template, "cluster").values())
    return Teachers(like[0], np.zeros((count, 1)), np.zeros(count)) if like else None


# ------------------------------------------------------------------------------------------- cloud and edges


def train_request(order: TrainOrder, charter: Charter, expected: Expectations) -> bytes:
    """Return an order to an edge; what the edge and its clients own is not in it."""
    bank, broadcast = charter.without(order.bank, "edge", "client"), order.broadcast
    had = stamps(broadcast, {part: range(trees.count(params)) for part, params in bank.items()})
    changes = None if broadcast is None else broadcast.changes
    order = replace(order, bank=bank, owner_R={part: order.owner_R[part] for part in bank})
    return sent("train", changes, "order/bank", charter=charter.id, order=order, had=had, expected=expected)


def read_train_request(message: Message, charter: Charter, site: Site, shelf: Shelf) -> tuple[TrainOrder, Expectations]:
    """Return an order as an edge receives it, without what it and its clients own; and what they must have."""
    bank, count = charter.without(charter.template, "edge", "client"), len(site.clients)
    owner_R = {part: np.arange(trees.count(charter.first[part])) for part in bank}
    selection = charter.experiment.method.selection.init(count)
    like = TrainOrder(site.index, 0, bank, _rows(charter, count), selection, moved=False, owner_R=owner_R)
    whole = unpacked(message, "order/bank", charter.codec(f"{charter.above}_down"), _had(message, bank, shelf))
    found = received(whole, order=replace(like, teachers=_taught(charter, count)))
    return found["order"], found["expected"]


def read_trained(message: Message, lost: TrainReport, order: TrainOrder, site: Site, charter: Charter) -> TrainReport:
    """Return an edge's report if it can be one of this order; parts that stay with their owners are as in the order."""
    bank, some = charter.without(order.bank, "edge", "client"), site.clients
    like = replace(lost, bank=bank, traffic=EVERY_LINK, absent=False)
    reasons = dict.fromkeys((charter.names[client] for client in some), "")
    like = replace(like, selected=some, failed=some, dropped=some, late=some, reasons=reasons)
    if order.wants_updates:
        like = replace(like, updates=charter.only(bank, "cluster"))
    whole = unpacked(message, "report/bank", charter.codec(f"{charter.above}_up"), bank)
    report = _one(whole, "report", like)
    most = int(charter.experiment.method.counted(site.size_N).sum())
    for part, weight_R in report.weight.items():
        if max(weight_R.max(), weight_R.sum()) > most:  # of very many large numbers the sum may be negative
            raise WireError(f"trained: report/weight/{part} counts more than all clients of the edge")
    losses = {query.name: told_N for query, told_N in report.statistic_N.items()}
    squares = np.sqrt(losses.pop("square", np.zeros(0)))
    if not _possible(charter, report.loss, report.readings, squares, *losses.values()):
        raise WireError("trained: report tells impossible losses")
    healthy = int(np.isfinite(report.statistic_N[Statistic("loss")]).sum())
    if any(trees.count(params) != healthy for params in report.updates.values()):
        raise WireError(f"trained: report/updates must be of the {healthy} clients whose loss is finite")
    reasons = {name: visible(why[:LONGEST_QUOTE]) for name, why in report.reasons.items()}
    return replace(report, bank=dict(order.bank) | report.bank, reasons=reasons)


def read_measure_request(
    message: Message, charter: Charter, site: Site
) -> tuple[MeasureOrder, int, tuple[str, ...], Expectations]:
    """Return an order as an edge receives it, without what it owns; the round; and what must be there of it."""
    bank, wanted = charter.without(charter.template, "edge", "client"), Wanted(_rows(charter, 1), "test")
    selection = charter.experiment.method.selection.init(len(site.clients))
    like = MeasureOrder(site.index, bank, (wanted,), selection=selection, selected=site.clients)
    found = received(message, order=like)
    return found["order"], found["round"], found["kept"], found["expected"]


def read_measured(
    message: Message, lost: MeasureReport, order: MeasureOrder, site: Site, charter: Charter
) -> MeasureReport:
    """Return an edge's measurements if they can be those of this order."""
    each = zip(lost.readings, order.wanted, strict=True)
    most = [replace(one, count_G=charter.groups(two, site)) for one, two in each]
    report = _one(message, "report", MeasureReport(tuple(most), EVERY_LINK))
    if not _possible(charter, *(reading.loss_VG for reading in report.readings)):
        raise WireError("measured: report tells impossible losses")
    return report


# ----------------------------------------------------------------------------------------- sites and clients


def start_of(request: Train, place: int) -> Parts:
    """Return the networks from which one client of a request starts, a row each."""
    one = slice(place, place + 1)
    return {part: trees.select(params, request.row_C[part][one]) for part, params in request.bank.items()}


def training_of(request: Train, place: int, charter: Charter) -> Train:
    """Return the training of one client of a request."""
    bank = charter.without(start_of(request, place), "client")
    return replace(request.part(slice(place, place + 1)), bank=bank)


def fit_request(
    request: Train, place: int, charter: Charter, expected: Expected, broadcast: Broadcast | None = None
) -> bytes:
    """Return the training of one client of a request, by changes where it is known how they are sent."""
    one = training_of(request, place, charter)
    row = {part: int(request.row_C[part][place]) for part in one.bank}
    had = stamps(broadcast, {part: [row] for part, row in row.items()})
    changes = None if broadcast is None else of_row(broadcast.changes, row)
    return sent("fit", changes, "train/bank", charter=charter.id, train=one, had=had, expected=expected)


def read_fit_request(message: Message, charter: Charter, client: int, shelf: Shelf) -> tuple[Train, Expected]:
    """Return the training that a client is asked for, without the parts that it owns; and what it must have kept."""
    experiment, bank = charter.experiment, charter.without(charter.template, "client")
    phases = tuple(range(len(experiment.method.personalization.phases())))
    like = Train((client,), bank, _rows(charter, 1), 0, 0, 0.0, teachers=_taught(charter, 1), phases=phases)
    like = replace(like, edge_rounds=experiment.edge_rounds)
    whole = unpacked(message, "train/bank", charter.codec("client_down"), _had(message, bank, shelf))
    found = received(whole, train=like)
    return found["train"], found["expected"]


def read_update(message: Message, lost: Trained, passing: Collection[str], charter: Charter) -> Trained:
    """Return what a client came back with, if it is like what stands for it when it is lost; the rest is as there."""
    parts = {part: params for part, params in lost.parts_C.items() if part in passing}
    whole = unpacked(message, "trained/parts_C", charter.codec("client_up"), parts)
    trained = _one(whole, "trained", replace(lost, parts_C=parts))
    told = (trained.loss_C, trained.epoch_CE, None if trained.square_C is None else np.sqrt(trained.square_C))
    _check_least(charter, "update", trained.loss_C)
    sound = _possible(charter, *(losses for losses in told if losses is not None))
    loss_C = trained.loss_C if sound else lost.loss_C
    return replace(trained, parts_C=lost.parts_C | trained.parts_C, loss_C=loss_C)


def evaluation_of(request: Evaluate, place: int, charter: Charter) -> Evaluate:
    """Return what one owner of a request measures: all its models, or where they are paired the owner's own."""
    bank, rows = {}, {}
    for part, row_V in request.row_V.items():
        used, rows[part] = np.unique(row_V[place : place + 1] if request.paired else row_V, return_inverse=True)
        bank[part] = {name: value[torch.as_tensor(used)] for name, value in request.bank[part].items()}
    return replace(request, bank=charter.without(bank, "client"), row_V=rows)


def work_of(asked: Train | Evaluate, fixed: Scale, charter: Charter) -> bytes:
    """Return the hash of what one client is to do for a secret sum. It must be the same for all: else whoever asks
    could have the others add zeros. What clients measure counts where those of a site all have the same networks, but
    for their own."""
    bank = charter.without(asked.bank, "client")
    if isinstance(asked, Train):
        said = sent("fit", charter=charter.id, train=replace(asked, bank=bank), had={}, expected=Expected())
    else:
        method = charter.experiment.method
        alike = bank if method.unit == "edge" and method.topology.tiers > 2 else {}
        rows = {part: asked.row_V[part] for part in alike if part in asked.row_V}
        request = replace(asked, bank=alike, row_V=rows)
        said = sent("evaluate", charter=charter.id, request=request, before=(0, 0), expected=Expected())
    message = decode(said, MESSAGES)
    found = sha256(json.dumps([message.head, fixed.weights, fixed.numbers], sort_keys=True).encode())
    for path, value in sorted(message.tensors.items()):
        found.update(f"{path} {value.dtype} {tuple(value.shape)} ".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def read_evaluate_request(message: Message, charter: Charter, owner: int) -> tuple[Evaluate, tuple[int, int], Expected]:
    """Return what an owner is to measure, without the parts that it owns; when these were trained at the latest; and
    what it must have kept."""
    like = Evaluate(charter.without(charter.template, "client"), _rows(charter, 1), "test", (owner,))
    found = received(message, request=like, before=(0, 0))
    return found["request"], found["before"], found["expected"]


def read_evaluation(message: Message, lost: Measured, most: int, charter: Charter) -> Measured:
    """Return what one owner measured, who has at most so many examples; losses beyond the most are the most."""
    found = _one(message, "measured", replace(lost, count_G=np.array([most])))
    _check_least(charter, "evaluation", found.loss_VG)
    return replace(found, loss_VG=np.minimum(found.loss_VG, charter.experiment.task.loss.limits[1]))
