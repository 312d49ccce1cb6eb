"""Gradients that a GPU replays from graphs. Without a GPU, what stands in for a graph does the work again."""

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedbac.core import trees
from fedbac.core.requests import Train, Trained
from fedbac.data import Augment
from fedbac.engines.adjusting import adjusted
from fedbac.federation import Federation
from fedbac.local.captured import CapturedGradients, prefix
from fedbac.local.own_steps import OwnSteps
from fedbac.personalization import AdaptiveStart, HeadsTogether, Interpolated, MoreauEnvelope
from tests.support import NO_GPU, Regular, order
from tests.trainers.reference import CLIENTS, RATE, make, setting, starts
from tests.trainers.test_own_steps import Drawing, Stepped


class Again:
    """In place of a graph; counts how many there are."""

    made = 0

    def __call__(self, work: Callable[[], None]) -> Any:
        self.made += 1
        return SimpleNamespace(replay=work)


def asked(federation: Federation, scheme: Any, round_: int, broken: bool = False) -> list[Train]:
    parts = starts(federation, scheme)
    if broken:  # the clients of an edge, which have few examples, have lost their weights
        parts[1] = {part: {n: torch.full_like(v, torch.nan) for n, v in p.items()} for part, p in parts[1].items()}
    requests = [order(clients, p, round_, 0, RATE) for clients, p in zip(CLIENTS, parts, strict=True)]
    return [replace(request, keep=frozenset({"square", "epochs"})) for request in requests]


def same(found: list[Trained], expected: list[Trained], close: float = 0.0) -> None:
    for one, other in zip(found, expected, strict=True):
        pairs = [(one.parts_C, other.parts_C), (one.loss_C, other.loss_C)]
        pairs += [(one.square_C, other.square_C), (one.epoch_CE, other.epoch_CE)]
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=close, atol=close, equal_nan=True)


def test_a_prefix_has_room_for_who_is_active_and_little_more() -> None:
    assert [prefix(10, active) for active in (10, 9, 8, 7, 1)] == [10, 9, 8, 7, 1]
    assert (prefix(100, 82), prefix(100, 81), prefix(100, 80)) == (90, 81, 81)


def trainer(federation: Federation, scheme: Any, capture: Any = None, path: str = "vmap") -> Any:
    made: Any = make(path, federation, scheme)
    if capture is not None:
        made.own.replayed = CapturedGradients(capture)
    return made


SCHEMES = [Interpolated(), MoreauEnvelope(inner_steps=2, strength=2.0), HeadsTogether(owner="client")]
OPTIONS: list[dict[str, Any]] = [{"clip_norm": 0.4}, {"augment": Augment(crop_padding=2), "user": Regular}]


@pytest.mark.covering
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.kind)
@pytest.mark.parametrize("options", OPTIONS, ids=["perceptron", "convolutions"])
def test_gradients_through_buffers_are_those_taken_afresh(
    scheme: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where graphs have more rows than clients are left, and such as have finished were broken."""
    monkeypatch.setattr("fedbac.local.captured.GRAPH_SHRINK", 0.5)
    federation, again = setting(None, **options), Again()
    close = 1e-5 if "user" in options else 0.0  # libraries round convolutions by how many there are
    through, afresh = trainer(federation, scheme, again), trainer(federation, scheme)
    for round_, edges in ((1, slice(1, None)), (2, slice(None)), (3, slice(0, 2))):  # more than before, then fewer
        requests = asked(federation, scheme, round_, broken=round_ == 1)[edges]
        same(through.train(requests), afresh.train(requests), close)
        made = again.made
    same(through.train(requests), afresh.train(requests), close)
    assert again.made == made, "graphs serve later rounds"
    buffers = through.own.replayed.buffers.values()
    assert len(buffers) == (2 if scheme.kind == "heads_together" else 1)
    assert {rows for known in buffers for rows in known.graphs} == {6, 3, 1}


def test_a_gradient_stays_while_others_are_taken() -> None:
    federation = setting(None)
    made = trainer(federation, Stepped(), Again())
    (request, *_) = asked(federation, Stepped(), 1)
    network = trees.select(request.bank["global"], request.row_C["global"])
    local = made.own.before(request)
    next(local.batches())
    first, lost_C = local.gradient(network), local.loss_C
    kept, lost = {name: value.clone() for name, value in first.items()}, lost_C.clone()
    second = local.gradient({name: 2 * value for name, value in network.items()})
    assert len(made.own.replayed.buffers) == 1
    torch.testing.assert_close((first, lost_C), (kept, lost), rtol=0, atol=0)
    assert all(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("scheme", [Interpolated(), AdaptiveStart()], ids=["in training", "before it"])
def test_who_is_closed_lets_go_of_buffers(scheme: Any) -> None:
    federation = setting(None)
    made: Any = adjusted(make("vmap", federation, scheme), scheme)
    own: OwnSteps = made.trainer.own or made.own
    own.replayed = CapturedGradients(Again())
    weights = {"w": torch.ones(2, 3)}
    own.replayed(lambda moving, still: (moving, torch.zeros(2), torch.zeros(2)), weights, {})
    (buffers,) = (weakref.ref(known) for known in own.replayed.buffers.values())
    made.close()
    gc.collect()
    assert buffers() is None


def test_where_graphs_are_refused_it_is_said_once_and_gradients_are_taken_afresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(work: Callable[[], None]) -> Any:
        raise RuntimeError("no waiting while capturing\nand more")

    federation, scheme = setting(None), Interpolated()
    requests = asked(federation, scheme, 1)
    with caplog.at_level(logging.WARNING):
        same(trainer(federation, scheme, refuse).train(requests), trainer(federation, scheme).train(requests))
    assert [record.message for record in caplog.records] == [
        "no CUDA graphs of this network's steps, which makes small ones slower: no waiting while capturing"
    ]


def test_where_memory_runs_out_graphs_are_not_to_blame_and_buffers_go() -> None:
    """So that whoever trains takes fewer clients at once."""

    def full(work: Callable[[], None]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    federation, scheme = setting(None), Interpolated()
    made = trainer(federation, scheme, full)
    with pytest.raises(torch.OutOfMemoryError):
        made.train(asked(federation, scheme, 1))
    assert made.own.replayed is not None
    assert not made.own.replayed.buffers


@NO_GPU
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.kind)
@pytest.mark.parametrize("options", OPTIONS, ids=["perceptron", "convolutions"])
def test_graphs_replay_the_very_bits(scheme: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same kernels, launched one by one; and almost those of as many rows as there are clients."""
    monkeypatch.setattr("fedbac.local.captured.GRAPH_SHRINK", 0.5)
    federation = setting(None, **options)
    graphed, afresh = (trainer(federation, scheme, path="vmap-cuda") for _ in range(2))
    through = trainer(federation, scheme, Again(), path="vmap-cuda")
    afresh.own.replayed = None
    for round_ in (1, 2):
        requests = asked(federation, scheme, round_)
        found = graphed.train(requests)
        same(found, through.train(requests))
        same(found, afresh.train(requests), close=1e-5)
    (known, *_) = graphed.own.replayed.buffers.values()
    assert {type(graph) for graph in known.graphs.values()} == {torch.cuda.CUDAGraph}
    assert set(known.graphs) == {6, 1}


@NO_GPU
def test_a_network_that_draws_is_never_captured() -> None:
    assert trainer(setting(None, user=Drawing), Interpolated(), path="vmap-cuda").own.replayed is None
