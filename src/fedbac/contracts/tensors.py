"""What aggregations, steps of owners, and transforms of links promise: arithmetic on tensors."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedbac.contracts.common import RESUMED, calling, check_reload, check_same, check_settings, fresh, require, trying
from fedbac.core.answers import checked_combination, checked_memory, checked_step
from fedbac.core.codecs import Alteration, Codec, Packed, Transform
from fedbac.core.policies import Aggregation, Step
from fedbac.core.rng import Rng, stream

NUM_CHILDREN = (2, 3, 7)
NUM_WEIGHTS, NUM_OWNERS, NUM_ROUNDS = 11, 3, 5
HUGE = 1e30
"""A weight that a liar may send: it is finite, but its square is not in single precision."""
REPEATED = "to the same tensors; it may neither draw numbers nor remember any but in what it is given"


def check_aggregation(rule: Any) -> None:
    """Hold an aggregation to its promises, with a few children."""
    who = check_settings("aggregation", rule, Aggregation)
    require(rule.needs in ("sum", "all"), f"{who}: needs must be 'sum' or 'all', not {rule.needs!r}")
    for num in NUM_CHILDREN:
        change_CD, weight_C = _drawn(num), torch.arange(1.0, num + 1, dtype=torch.float64)
        tried = f"with {num} children of {NUM_WEIGHTS} weights from a normal distribution"
        found = _combined(who, rule, change_CD, weight_C, tried)
        check_same(who, "combine()", found, _combined(who, fresh(rule), change_CD, weight_C, tried), REPEATED)
        same_CD = change_CD[:1].expand(num, -1).clone()
        _require_close(
            _combined(who, rule, same_CD, weight_C, f"with {num} equal children"),
            change_CD[0],
            f"{who}: combine() must return what {num} children changed if all of them changed the same",
        )
        if rule.needs == "sum":
            _require_close(
                found,
                (weight_C @ change_CD.double() / weight_C.sum()).float(),
                f"{who}: needs is 'sum', so combine() must be the weighted mean, which is what tiers compute, {tried}; "
                "a rule of another kind needs 'all'",
            )
        huge_CD = torch.cat([change_CD[1:], torch.full_like(change_CD[:1], HUGE)])
        _combined(who, rule, huge_CD, weight_C, f"with {num} children, of which one sends only {HUGE:g}")
    one_CD = _drawn(1)
    one = _combined(who, rule, one_CD, torch.ones(1, dtype=torch.float64), "with one child")
    _require_close(one, one_CD[0], f"{who}: combine() must return what a single child changed")
    _require_close(
        _combined(who, rule, change_CD.roll(1, 0), weight_C.roll(1), tried),
        found,
        f"{who}: combine() must not depend on the order of children; it did {tried}",
    )


def check_step(step: Any) -> None:
    """Hold a step to its promises, with a few owners in several rounds."""
    who = check_settings("step", step, Step)
    require(isinstance(step.active, bool), f"{who}: active must be true or false, not {step.active!r}")
    before_KD, share_K = _drawn(NUM_OWNERS), torch.tensor([1.0, 0.5, 0.2])
    first = _begun(who, step, before_KD)
    check_same(who, "init()", first, _begun(who, fresh(step), before_KD), REPEATED)
    require(step.active or not first, f"{who}: active is False, so init() must remember nothing, not {list(first)}")
    memory = first
    for t in range(NUM_ROUNDS):
        still = t in (0, NUM_ROUNDS - 1)
        changed = "that did not change" if still else "from a normal distribution"
        tried = f"in round {t + 1} of {NUM_OWNERS} owners with {NUM_WEIGHTS} weights {changed}"
        combined_KD = before_KD + (0.0 if still else 0.1) * _drawn(NUM_OWNERS, seed=t + 2)
        after_KD, learned = _stepped(who, step, before_KD, combined_KD, memory, share_K, tried)
        again = _stepped(who, fresh(step), before_KD, combined_KD, memory, share_K, tried)
        check_same(who, "step()", (after_KD, learned), again, REPEATED)
        loaded = check_reload(who, memory, first)
        again = _stepped(who, fresh(step), before_KD, combined_KD, loaded, share_K, tried)
        check_same(who, "step()", (after_KD, learned), again, RESUMED)
        if not step.active:
            check_same(who, "step()", after_KD, combined_KD, "from the combination, though active is False")
        for k in range(NUM_OWNERS):  # owners that heard of nobody are not among the rows
            one = slice(k, k + 1)
            mine = {name: value[one] for name, value in memory.items()}
            alone, _ = _stepped(who, step, before_KD[one], combined_KD[one], mine, share_K[one], tried)
            _require_close(alone[0], after_KD[k], f"{who}: step() must treat every owner by itself; it did not {tried}")
        before_KD, memory = after_KD, learned


def _drawn(num: int, seed: int = 0) -> Tensor:
    return torch.randn((num, NUM_WEIGHTS), generator=torch.Generator().manual_seed(seed))


def _combined(who: str, rule: Any, change_CD: Tensor, weight_C: Tensor, tried: str) -> Tensor:
    with trying(tried), calling(who, "combine()", change_CD=change_CD, weight_C=weight_C):
        return checked_combination(rule, rule.combine(change_CD, weight_C), change_CD)


def _begun(who: str, step: Any, row_KD: Tensor) -> Any:
    with calling(who, "init()", row_KD=row_KD):
        return checked_memory(step, "init()", step.init(row_KD), row_KD)


def _stepped(
    who: str, step: Any, before_KD: Tensor, combined_KD: Tensor, memory: Any, share_K: Tensor, tried: str
) -> tuple[Tensor, Any]:
    given = {"before_KD": before_KD, "combined_KD": combined_KD, "memory": memory, "share_K": share_K}
    with trying(tried), calling(who, "step()", **given):
        answer = step.step(*given.values())
        return checked_step(step, answer, before_KD, combined_KD, memory, tried.removeprefix("in "))


def _require_close(found: Tensor, expected: Tensor, sentence: str) -> None:
    good = torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    numbers = [[round(number, 4) for number in one[:3].tolist()] for one in (found, expected)]
    require(good, f"{sentence}; it returned {numbers[0]} and so on, not {numbers[1]}")


SIZES = (1, 2, 7, 100)
"""Numbers of the tensors that are packed."""
ROWS = 3
BOUND = 2.0
DRAWN = "to the same change and stream; all chance must come from the stream"


def check_transform(transform: Any) -> None:
    """Hold a transform to its promises."""
    who = check_settings("links", transform, Transform)
    check = _check_alteration if isinstance(transform, Alteration) else _check_codec
    for numbers in SIZES:
        for scale in (0.0, 1e-3, 10.0):
            change = scale * torch.randn(ROWS, numbers, generator=torch.Generator().manual_seed(numbers))
            check(who, transform, change)


def _streams(row: int) -> Rng:
    return stream(0, "client_up", 1, 0, row)


def _check_alteration(who: str, transform: Alteration, change_N: torch.Tensor) -> None:
    for row, change in enumerate(change_N):
        with calling(who, "alter()", change=change):
            first, second = (transform.alter(change, BOUND, _streams(row)) for _ in range(2))
        good = isinstance(first, torch.Tensor) and first.shape == change.shape and first.dtype == change.dtype
        require(good, f"{who}: alter() must return a change of the same shape and number type")
        require(torch.isfinite(first).all(), f"{who}: alter() must return finite numbers of finite ones")
        require(torch.equal(first, second), f"{who}: alter() answered differently {DRAWN}")
        bound = transform.bound(BOUND)
        require(
            bound is None or float(torch.linalg.vector_norm(first)) <= bound * (1 + 1e-5),
            f"{who}: bound() says {bound}, but alter() returned a longer change",
        )


def _check_codec(who: str, codec: Codec, change_N: torch.Tensor) -> None:
    numbers = change_N.shape[1]
    layout = codec.layout(numbers)
    with calling(who, "pack()", change_N=change_N):
        packed, again = (codec.pack(change_N, _streams) for _ in range(2))
    laid = {name: (piece.dtype, tuple(piece.shape)) for name, piece in packed.items()}
    wanted = {name: (dtype, (ROWS, count)) for name, (dtype, count) in layout.items()}
    require(laid == wanted, f"{who}: pack() of {numbers} numbers must return what layout() says, {wanted}, not {laid}")
    size = sum(piece[0].numel() * piece.element_size() for piece in packed.values())
    require(codec.num_bytes(numbers) == size, f"{who}: num_bytes({numbers}) must be {size}, as much as pack() returns")
    require(_same(packed, again), f"{who}: pack() answered differently {DRAWN}")
    for row in range(ROWS):
        alone = codec.pack(change_N[row : row + 1], lambda _, row=row: _streams(row))  # type: ignore[misc]
        require(
            _same(alone, {name: piece[row : row + 1] for name, piece in packed.items()}),
            f"{who}: pack() must pack every row for itself, however many come at once",
        )
    fault = codec.fault(packed, numbers)
    require(fault is None, f"{who}: fault() found fault with what pack() returned: {fault}")
    _check_unpacked(who, codec, packed, numbers, "what pack() returned")
    for piece, hostile in _hostile(packed):
        with calling(who, "fault()"):
            fault = codec.fault(hostile, numbers)
        require(fault is None or isinstance(fault, str), f"{who}: fault() must return a text or None, not {fault!r}")
        if fault is None:
            _check_unpacked(who, codec, hostile, numbers, f"a piece {piece!r} that fault() let pass")


def _check_unpacked(who: str, codec: Codec, packed: Packed, numbers: int, what: str) -> None:
    with calling(who, f"unpack() of {what}"):
        found = codec.unpack(packed, numbers)
    shape = (ROWS, numbers)
    good = isinstance(found, torch.Tensor) and found.shape == shape and found.dtype == torch.float32
    require(good, f"{who}: unpack() must return a tensor of float32 of shape {shape}")
    require(torch.isfinite(found).all(), f"{who}: unpack() made numbers that are not finite of {what}")


def _hostile(packed: Packed) -> Iterator[tuple[str, Packed]]:
    """Go through what somebody may send instead: laid out well, but of the worst numbers."""
    for name, piece in packed.items():
        limits = torch.finfo(piece.dtype) if piece.is_floating_point() else torch.iinfo(piece.dtype)
        worst = [limits.min, limits.max, 0, -1]
        worst += [float("nan"), float("inf"), -float("inf")] if piece.is_floating_point() else []
        for value in worst:
            yield name, packed | {name: torch.full_like(piece, value)}


def _same(left: Packed, right: Packed) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
