"""What the GPU trainer does on the host, without a GPU: which networks it has judged on which examples."""

import ctypes
from ctypes import CFUNCTYPE, c_int32, c_uint, c_void_p
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedbac import native
from fedbac.core import trees
from fedbac.core.parts import Parts
from fedbac.federation import Federation
from fedbac.gpu import NetworkPlan
from fedbac.gpu.driver import Kernel, KernelQueue, in_turn, launches, pointers
from fedbac.local import FusedTrainer, LoopTrainer, fused
from fedbac.local.batches import LANES, Visits, VisitTable, shared_out
from fedbac.local.fused import Workload
from fedbac.native import Layers
from fedbac.personalization import Additive
from tests.support import on_test, order, question
from tests.trainers.test_gpu_shapes import setting

LAYERS = Layers(1, 13, 14, ((3, 3), (5, 2)), (9, 7))


class NoModule:
    """Takes the place of compiled kernels."""

    def __init__(self, source: str) -> None:
        self.source = source

    def kernel(self, name: str, shared_bytes: int = 0) -> None:
        return None


class OnHost(FusedTrainer):
    """Judges as the kernels would: the logits of every (network, example), then sums per (model, group)."""

    calls = 0
    network: nn.Module

    def _score(self, split: Any, networks: torch.Tensor, layout: Workload) -> Any:
        self.calls += 1
        pixels, labels = split
        examples, jobs, slots, pairs = layout.examples, layout.jobs, layout.slots, layout.pairs
        assert layout.num_scored == (jobs[:, 1] + jobs[:, 2]).max(initial=0)
        logits = torch.full((int((jobs[:, 1] + jobs[:, 2]).max(initial=0)), 7), torch.nan)
        for (first, to, count, batches), slot in zip(jobs, slots, strict=True):
            assert batches == 1
            assert 0 < count <= self.plan.room
            x = self.examples.normalize(pixels[torch.from_numpy(examples[first : first + count])])
            params = trees.unravel(networks[slot][self.out_of], self.like)
            logits[to : to + count] = torch.func.functional_call(self.network, params, (x,))
        assert not logits.isnan().any()
        loss, correct = [], []
        for first, count, *at in pairs:
            score = torch.stack([logits[a : a + count] for a in at]).sum(0)
            y = labels[torch.from_numpy(examples[first : first + count])].long()
            loss.append(float(F.cross_entropy(score, y, reduction="sum")) if count else 0.0)
            correct.append(float((score.argmax(1) == y).sum()))
        return lambda: (np.array(loss), np.array(correct))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[OnHost, LoopTrainer, Federation]:
    monkeypatch.setattr(fused, "Module", NoModule)
    federation, scheme = setting(LAYERS, 16, floats=False, crop=0), Additive()
    plan = NetworkPlan(LAYERS, 16, float_pixels=False)
    host = OnHost(federation.network, scheme, federation.examples, plan, torch.device("cpu"))
    host.network = federation.network
    return host, LoopTrainer(federation.network, scheme, federation.examples), federation


def models(federation: Federation) -> list[Parts]:
    """Return three models with one common global network."""
    parts = Additive(cluster_init="distinct").init(federation.build, {"cloud": 1, "cluster": 3})
    common = trees.take(parts["global"], 0)
    return [{"global": common, "cluster": trees.take(parts["cluster"], k)} for k in range(3)]


@pytest.mark.parametrize("at_once", [2**24, 100, 1])
def test_every_model_is_judged_on_its_own_examples(
    pair: tuple[OnHost, LoopTrainer, Federation], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "SCORED_AT_ONCE", at_once)
    host, loop, federation = pair
    a, b, c = models(federation)
    asked = [
        on_test((a, b, c), 0),
        question((b,), "train", (3, 4)),
        question((c, a), "train", (0, 2, 1), max_samples=5),
        question((a,), "validation", ()),
        on_test((c,), 1),
    ]
    for mine, theirs in zip(host.evaluate(asked), loop.evaluate(asked), strict=True):
        np.testing.assert_allclose(mine.loss_VG, theirs.loss_VG, rtol=1e-5)
        np.testing.assert_array_equal(mine.accuracy_VG, theirs.accuracy_VG)
        np.testing.assert_array_equal(mine.count_G, theirs.count_G)
    assert host.calls == {2**24: 2, 100: 4, 1: 5}[at_once]


def test_weights_go_into_the_kernels_layout_and_back(pair: tuple[OnHost, LoopTrainer, Federation]) -> None:
    host = pair[0]
    flat = torch.randn(4, sum(value.numel() for value in host.like.values()))
    inside = host._inside(flat)
    torch.testing.assert_close(inside[:, host.out_of], flat, rtol=0, atol=0)
    assert int((inside != 0).sum()) == int((flat != 0).sum())  # padding is zero


def test_batches_of_a_phase_are_those_of_the_loop(pair: tuple[OnHost, LoopTrainer, Federation]) -> None:
    """What ``window`` in the kernels makes of the table of jobs: every batch of every epoch, client by client."""
    examples, epochs = pair[2].examples, 3
    asked = [order((0, 1, 2), {}, 3, 1), order((3, 4), {}, 5, 0)]
    jobs = [(request, client) for request in asked for client in request.clients]
    table = VisitTable(examples, jobs, epochs, Visits(examples))
    assert sum(lane.active[0] for lane in table.lanes) == len(jobs)
    for row, (first, size, used, per_epoch) in enumerate(table.jobs.tolist()):
        request, client = jobs[table.order[row]]
        visits = examples.visits(client, request.round, request.edge_round, epochs)
        (lane,) = (lane for lane in table.lanes if row in range(*lane.jobs.indices(len(jobs))))
        steps = [step for step, active in enumerate(lane.active) if row - lane.jobs.start < active]
        assert len(steps) == epochs * per_epoch
        for step in steps:
            epoch, batch = divmod(step, per_epoch)
            begin, count = first + epoch * size + batch * 16, min(16, used - batch * 16)
            expected = visits[epoch][batch * 16 : batch * 16 + count]
            np.testing.assert_array_equal(table.visits[begin : begin + count], expected)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_lanes_share_out_the_batches_and_leave_nobody_out(batches: list[int]) -> None:
    batches_J = np.sort(np.array(batches))[::-1]
    lanes = shared_out(np.arange(batches_J.size), batches_J)
    assert np.concatenate(lanes).tolist() == list(range(batches_J.size)), "those with most batches first"
    assert 1 <= len(lanes) <= LANES
    assert all(batches_J[lane].sum() <= batches_J.sum() / LANES + batches_J[0] for lane in lanes)


def test_layers_lie_side_by_side_in_the_kernels_layout() -> None:
    plan = NetworkPlan(LAYERS, 16, float_pixels=False)
    sizes = [3 * 10, 5 * 13, (20 + 1) * 9, (9 + 1) * 7]
    ends = np.cumsum(sizes).tolist()
    assert plan.inside(slice(0, ends[-1])) == slice(0, plan.size)
    assert plan.inside(slice(ends[0], ends[2])) == slice(plan.convolutions[1].offset, plan.linears[1].offset)
    assert plan.inside(slice(ends[2], ends[3])) == slice(plan.linears[1].offset, plan.size)
    assert plan.inside(slice(0, 0)) == slice(0, 0)


@pytest.mark.skipif(native.launcher() is None, reason=str(native.missing()))
def test_kernels_started_in_one_call_are_those_started_one_by_one() -> None:
    """In the same order, each with the step that its lane has then; and the first error ends it."""
    rule, steps = c_int32(), [c_int32(), c_int32()]
    lanes = [KernelQueue(c_void_p(s), pointers([rule, step]), step) for s, step in zip((None, 7), steps, strict=True)]
    kernels = [Kernel(c_void_p(11), 1, 2, 32, 0), Kernel(c_void_p(12), 3, 4, 64, 2**16)]
    alone: list[tuple[Any, ...]] = []

    def launch(kernel: c_void_p, grid: Any, threads: int, shared: int, stream: c_void_p, given: Any) -> None:
        step = c_int32.from_address(given[1]).value
        alone.append((kernel.value, *grid, threads, 1, 1, shared, stream.value, step, None))

    def start(*given: Any) -> int:
        *numbers, arguments, extra = given
        step = c_int32.from_address((c_void_p * 2).from_address(arguments)[1] or 0).value
        together.append((*numbers, step, extra))
        return 9 if len(together) == fails_at else 0

    turns = [(0, 0, 5), (1, 0, 6), (0, 1, 4)]
    in_turn(launch, kernels, lanes, turns)
    table, start_all = launches(kernels, lanes, turns), native.launcher()
    assert start_all is not None
    driver = CFUNCTYPE(c_int32, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)(start)
    for fails_at in (0, 3):
        together: list[tuple[Any, ...]] = []
        assert start_all(ctypes.cast(driver, c_void_p), table.ctypes.data, len(table)) == (9 if fails_at else 0)
        assert together == alone[: fails_at or None]
    assert [one[-2] for one in alone] == [0, 0, 0, 0, 1, 1]
