"""What sites and clients say to each other: the requests of ``core.requests``, client by client, to and from bytes.

Parts that a client owns are not said: they stay with it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch

from fedbac.core import trees
from fedbac.core.codecs import Broadcast, Changes, Codec
from fedbac.core.parts import Parts
from fedbac.core.queries import Split
from fedbac.core.requests import Evaluate, Measured, Teachers, Train, Trained
from fedbac.deploy.messages.packing import Shelf, of_row, packed_in, packed_out, stamps
from fedbac.deploy.messages.pieces import (
    LARGEST,
    Owners,
    measured_in,
    most_in,
    names_in,
    one_of,
    rows_in,
    teachers_in,
    teachers_out,
)
from fedbac.deploy.wire import Message, WireError, as_array, checked_bank, checked_parts, encode, laid_out
from fedbac.errors import quoted


@dataclass(frozen=True)
class Lesson:
    """One client's training: what ``Train`` says of it, without the parts that are its own."""

    bank: Parts
    """One row each."""
    round: int
    edge_round: int
    learning_rate: float
    share: float
    keep: tuple[str, ...]
    phases: tuple[int, ...] | None
    teachers: Teachers | None


def start_of(request: Train, place: int) -> Parts:
    """Return the networks from which one client of a request starts, a row each."""
    one = slice(place, place + 1)
    return {part: trees.select(params, request.row_C[part][one]) for part, params in request.bank.items()}


def lesson(request: Train, place: int, owners: Owners, charter: str, broadcast: Broadcast | None = None) -> bytes:
    """Return the training of one client of a request, by changes where it is known how they are sent."""
    rows = owners.without(start_of(request, place), "client")
    row = {part: int(request.row_C[part][place]) for part in rows}
    changes = {} if broadcast is None else of_row(broadcast.changes, row)
    one = slice(place, place + 1)
    teachers = None if request.teachers is None else request.part(one).teachers
    tensors: dict[str, Any] = packed_out(rows, changes, "bank")
    tensors |= {
        f"teachers/{path}": value for path, value in ({} if teachers is None else teachers_out(teachers)).items()
    }
    tensors |= {"learning_rate": np.float64(request.learning_rate), "share": np.float64(request.share)}
    head = {
        "charter": charter,
        "round": request.round,
        "edge_round": request.edge_round,
        "keep": sorted(request.keep),
        "phases": None if request.phases is None else list(request.phases),
        "temperature": None if teachers is None else teachers.temperature,
    }
    if broadcast is not None:
        head["had"] = stamps(broadcast, {part: [one] for part, one in row.items()})
    return encode("lesson", head, tensors)


def read_lesson(message: Message, like: Parts, owners: Owners, codec: Codec | None, shelf: Shelf) -> Lesson:
    """Return the training that a client is asked for; ``like`` is a row of every part.

    Where changes are sent, the networks that changed are on the shelf.
    """
    received = owners.without(like, "client")
    bank = packed_in(message, "bank", codec, shelf.find(message, received))
    phases = message.value("phases", (list, type(None)))
    rate = float(message.array("learning_rate", np.float64, ()))
    share = float(message.array("share", np.float64, ()))
    if not (0 <= rate < LARGEST and 0 <= share <= 1):
        raise WireError(f"lesson: a learning rate of {rate} and a share of {share} cannot be")
    return Lesson(
        bank=checked_parts(bank, received, 1, "lesson"),
        round=message.whole("round", LARGEST),
        edge_round=message.whole("edge_round", LARGEST),
        learning_rate=rate,
        share=share,
        keep=names_in(message, "keep", ("square", "epochs")),
        phases=None if phases is None else message.wholes("phases", range(1000)),
        teachers=teachers_in(message, 1, owners.of_clusters(like)),
    )


def learned(trained: Trained, sent: Collection[str], changes: Changes) -> bytes:
    """Return what one client came back with: those parts that are sent, by changes where those are given."""
    parts = {part: trained.parts_C[part] for part in trained.parts_C if part in sent}
    tensors: dict[str, Any] = packed_out(parts, changes, "parts")
    tensors["loss"] = trained.loss_C
    if trained.square_C is not None:
        tensors["square"] = trained.square_C
    if trained.epoch_CE is not None:
        tensors["epochs"] = trained.epoch_CE
    return encode("learned", {}, tensors)


def read_learned(
    message: Message, request: Train, place: int, sent: Collection[str], num_epochs: int, codec: Codec | None
) -> Trained:
    """Return what a client came back with if it can be; parts that are not sent are as the client received them."""
    start = start_of(request, place)
    like = {part: start[part] for part in start if part in sent}
    parts = checked_parts(packed_in(message, "parts", codec, like), like, 1, "learned")
    square = message.array("square", np.float64, (1,)) if "square" in request.keep else None
    epochs = message.array("epochs", np.float64, (1, num_epochs)) if "epochs" in request.keep else None
    loss = message.array("loss", np.float64, (1,))
    for told in (square, epochs):
        if told is not None and np.isfinite(loss).all() and not (np.isfinite(told) & (told >= 0)).all():
            raise WireError("learned: a client that trained well must tell of its losses, as it was asked to")
    return Trained(start | parts, loss, None, square, epochs)


def question(request: Evaluate, place: int, before: tuple[int, int], owners: Owners, charter: str) -> bytes:
    """Return a request to one of its owners: all its models, or where they are paired the owner's own.

    ``before`` is the round and edge round before which what a client owns was trained.
    """
    row_V = {part: rows[place : place + 1] if request.paired else rows for part, rows in request.row_V.items()}
    bank, rows_out = {}, {}
    for part, rows in row_V.items():
        used, rows_out[part] = np.unique(rows, return_inverse=True)
        bank[part] = {name: value[torch.as_tensor(used)] for name, value in request.bank[part].items()}
    tensors: dict[str, Any] = laid_out(owners.without(bank, "client"), "bank")
    tensors |= {f"rows/{part}": rows.astype(np.int64) for part, rows in rows_out.items()}
    head = {
        "charter": charter,
        "split": request.split,
        "level": request.level,
        "max_samples": request.max_samples,
        "before": list(before),
    }
    return encode("question", head, tensors)


def moment_in(message: Message) -> tuple[int, int]:
    """Return the round and edge round before which what a client owns was trained."""
    before = message.value("before", list)
    if len(before) != 2 or not all(type(one) is int and 0 <= one <= LARGEST for one in before):
        raise WireError(f"question: before is {quoted(before)}; it must be a round and an edge round")
    return before[0], before[1]


def read_question(message: Message, owner: int, own: Parts, like: Parts) -> Evaluate:
    """Return what is asked of an owner; ``own`` are the parts that a client owns, ``like`` all parts, one row each."""
    rows = {part: as_array(value, f"question: rows/{part}") for part, value in message.under("rows").items()}
    bank = checked_bank(message.parts("bank"), {part: like[part] for part in like if part not in own}, "question")
    bank |= {part: params for part, params in own.items() if part in rows}
    for part in own.keys() & rows.keys():
        rows[part] = np.zeros_like(rows[part])
    return Evaluate(
        bank=bank,
        row_V=rows_in(rows, bank, {}),
        split=one_of(message.head.get("split"), get_args(Split)),
        owners=(owner,),
        level=one_of(message.head.get("level"), ("client", "edge")),
        max_samples=most_in(message.head.get("max_samples")),
    )


def findings(measured: Measured) -> bytes:
    """Return what was measured."""
    return encode(
        "findings",
        {},
        {"loss_VG": measured.loss_VG, "accuracy_VG": measured.accuracy_VG, "count_G": measured.count_G},
    )


def read_findings(message: Message, num_models: int, most: int) -> Measured:
    """Return what one owner, who has at most so many examples, measured of so many models."""
    return measured_in(message, "", (num_models, 1), np.array([most]))
