"""Messages are what their declarations say: whatever fits one arrives as it was, and nothing else gets through."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbac.core.parts import Parts
from fedbac.core.queries import Query, Statistic
from fedbac.core.requests import Measured, Teachers, Trained
from fedbac.core.schema import LARGEST, AnyNumber, Finite, Local, Mark, NearShare, Some, Unchecked, Within
from fedbac.core.settings import FloatArray, IntArray
from fedbac.deploy.protocol import messages
from fedbac.deploy.protocol.codec import MAPPINGS, UNIONS, Reader, declared, label, unmarked
from fedbac.deploy.protocol.messages import MESSAGES, received, sent
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.errors import PolicyError
from fedbac.rounds.messages import TrainOrder
from tests.covering import first
from tests.deploy.mutants import mutant
from tests.deploy.small import small

SECRET = ("method.aggregation.secret=true", "method.aggregation.threshold=2")
RUNS: tuple[tuple[str, ...], ...] = (
    ("fed-bac",), ("phe-fl-kd",), ("cfl",), ("oort",), ("ditto",), ("fedavg",), ("fedper-edges",),
    ("fed-bac-full", "method.clustering.period=1", "method.clustering.num_clusters=2", *SECRET),
)  # fmt: skip
Likes = dict[str, dict[str, dict[str, Any]]]
"""By run and kind, the templates with which messages of that kind were read."""


@pytest.fixture(scope="module")
def likes(tmp_path_factory: pytest.TempPathFactory) -> Likes:
    """Play runs, and note the templates of their receivers."""
    found: Likes = {}

    class Noting(Reader):
        def read(self, hint: Any, said: Any, like: Any, path: str, above: tuple[Any, ...] = ()) -> Any:
            if "/" not in path and not above:
                found.setdefault(method, {}).setdefault(self.kind, {}).setdefault(path, like)
            return super().read(hint, said, like, path, above)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "Reader", Noting)
        for method, *settings_ in RUNS:
            small(method, *settings_, rounds=1).federation(tmp_path_factory.mktemp(method)).run()
    return found


# ----------------------------------------------------------------------------- any value that fits a declaration

Rng = np.random.Generator
TEXTS = ("", "x", "ä/b", "edge-0-client-1")
NUMBERS = (0, 1, 2, 7, 1000, LARGEST)
SHARES = (0.0, 0.25, 0.5, 1.0)


def sample(hint: Any, like: Any, rng: Rng, above: tuple[Any, ...] = ()) -> Any:
    """Return any value that a declaration allows, given the receiver's template."""
    hint, own = unmarked(hint)
    origin, inner, marks = get_origin(hint), get_args(hint), (*above, *own)
    some, free = Mark.SOME in marks, Mark.ANY_NUMBER in marks
    if hint is Any:
        return like
    if hint is object:
        return {"x": [1, None, "y"]}
    if origin in UNIONS:
        members = [one for one in inner if one is not NoneType]
        if NoneType in inner and (like is None or not is_array(members[0])) and (rng.random() < 0.3 or like is None):
            return sample(members[0], like, rng, marks) if plain(members[0]) and rng.random() < 0.5 else None
        return sample(members[rng.integers(len(members))], like, rng, marks)
    if origin is Literal:
        return inner[rng.integers(len(inner))]
    if is_dataclass(hint):
        return sample_fields(hint, like, rng)
    if origin in MAPPINGS:
        below = tuple(mark for mark in marks if mark is not Mark.SOME)
        keys = list(like) if like is not None else list(TEXTS[1:2]) if not is_array(inner[1]) else []
        if Mark.UNCHECKED in marks and like is None:
            keys, like = ["a", "b"], None
        kept = [key for key in keys if not some or rng.random() < 0.7] or keys[:1]
        rows = int(rng.integers(1, 4))
        lengths = (*below, rows) if free else below
        return {key: sample(inner[1], None if like is None else like[key], rng, lengths) for key in kept}
    if origin in (tuple, frozenset):
        if some:
            return tuple(like[place] for place in rng.permutation(len(like))[: rng.integers(len(like) + 1)])
        if origin is frozenset:
            return frozenset(sample(inner[0], None, rng) for _ in range(rng.integers(4)))
        each = [like[0] if like else None] * int(rng.integers(4)) if free else like
        return tuple(sample(inner[0], one, rng) for one in each)
    if is_array(hint):
        return sample_array(hint, like, rng, marks)
    return sample_plain(hint, rng, marks)


def plain(hint: Any) -> bool:
    return unmarked(hint)[0] in (int, float, str)


def is_array(hint: Any) -> bool:
    hint, _ = unmarked(hint)
    return (
        hint in (Tensor, bytes)
        or get_origin(hint) is np.ndarray
        or (get_origin(hint) in MAPPINGS and is_array(get_args(hint)[1]))
    )


def sample_plain(hint: Any, rng: Rng, marks: tuple[Any, ...]) -> Any:
    low, high = next((mark for mark in marks if isinstance(mark, Within)), (0, LARGEST))
    if hint is bool:
        return bool(rng.integers(2))
    if hint is str:
        return TEXTS[rng.integers(len(TEXTS))]
    if hint is int:
        return [number for number in NUMBERS if low <= number <= high][rng.integers(3)]
    assert hint is float, f"{hint} cannot be sent"
    if Mark.UNCHECKED in marks:
        return (float("nan"), float("inf"), -float("inf"), -1.5, 0.1)[rng.integers(5)]
    return float(rng.choice([one for one in (*SHARES, rng.random(), float(LARGEST)) if low <= one <= high]))


def sample_array(hint: Any, like: Any, rng: Rng, marks: tuple[Any, ...]) -> Any:
    if hint is bytes:
        return rng.bytes(5)
    if Mark.UNCHECKED in marks and like is None:
        return torch.from_numpy(rng.normal(size=(2, 3)))
    rows = next((mark for mark in marks if isinstance(mark, int)), 2)
    shape = (rows, *like.shape[1:]) if Mark.ANY_NUMBER in marks else tuple(like.shape)
    if Mark.SOME in marks:
        return rng.permutation(like)[: rng.integers(1, len(like) + 1)]
    share = any(isinstance(mark, Within) and mark.low == 0 for mark in marks)
    value = rng.random(shape) if share else rng.normal(size=shape)
    if hint is Tensor:
        return torch.from_numpy(np.asarray(value)).to(like.dtype)
    if like.dtype == np.float64 and not share and value.size:
        value.flat[0] = np.nan
    return value.astype(like.dtype)


def sample_fields(kind: Any, like: Any, rng: Rng) -> Any:
    hints = declared(kind)
    for _ in range(100):
        values = {name: sample(hint, getattr(like, name, None), rng) for name, hint in hints.items()}
        try:
            value = kind(**values) if like is None else replace(like, **values)
        except PolicyError:  # fields that do not go together
            continue
        return fitting(value, like, rng)
    raise AssertionError(f"no {kind.__name__} can be made by its declaration")


def fitting(value: Any, like: Any, rng: Rng) -> Any:
    """Return a value whose fields fit together, as the checks of its type want it."""
    if isinstance(value, Teachers):
        return replace(value, weight_CT=rng.random((len(like.share_C), len(next(iter(value.bank.values()))))))
    if isinstance(value, TrainOrder):
        rows = {part: len(owner_R) for part, owner_R in value.owner_R.items()}
        bank = {part: {n: w[:1].repeat(rows[part], *[1] * (w.dim() - 1)) for n, w in params.items()}
                for part, params in value.bank.items()}  # fmt: skip
        return replace(value, bank=bank)
    if isinstance(value, Trained) and np.isfinite(value.loss_C).all():
        return replace(value, loss_C=np.full(1, np.nan))
    if isinstance(value, Measured):
        shares, losses = rng.random((2, *like.accuracy_VG.shape))
        return replace(value, loss_VG=losses, accuracy_VG=shares, count_G=like.count_G // 2)
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same type and the same to the bit."""
    if isinstance(one, Tensor | np.ndarray):
        a, b = (torch.as_tensor(value).contiguous() for value in (one, other))
        alike = type(one) is type(other) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return alike and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    if is_dataclass(one):
        names: Any = type(one)
        return type(one) is type(other) and all(same(getattr(one, n), getattr(other, n)) for n in declared(names))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def sampled(likes: Likes, rng: Rng) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return a kind of message, what it holds, and the templates of a receiver."""
    templates = likes[list(likes)[rng.integers(len(likes))]]
    kind = list(templates)[rng.integers(len(templates))]
    return kind, {n: sample(h, templates[kind].get(n), rng) for n, h in MESSAGES[kind].items()}, templates[kind]


def test_runs_read_every_kind_of_message(likes: Likes) -> None:
    read = {kind for templates in likes.values() for kind in templates}
    untold = {"absent", "ready", "release", "revoked", "stranger", "forgotten"}  # without templates
    assert set(MESSAGES) - read == untold


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_what_a_declaration_allows_arrives_as_it_was(likes: Likes, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(50):
        arrives(*sampled(likes, rng))


def arrives(kind: str, values: dict[str, Any], templates: dict[str, Any]) -> None:
    found = received(decode(sent(kind, **values), (kind,)), **templates)
    assert same(found, values), (kind, values, found)


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_whatever_is_changed_in_a_message_it_is_read_or_refused(likes: Likes, seed: int) -> None:
    rng, dice = np.random.default_rng(seed), random.Random(seed)
    each = [sampled(likes, rng) for _ in range(30)]
    data = [sent(kind, **values) for kind, values, _ in each]
    said: list[str] = []
    for (kind, _, templates), true in zip(each, data, strict=True):
        for _ in range(10):
            try:
                found = received(decode(mutant(true, data, dice), (kind,)), **templates)
            except WireError as error:
                said.append(str(error))
            else:  # what is read is as declared, so it can be sent and read again
                assert same(received(decode(sent(kind, **found), (kind,)), **templates), found)
    assert said
    assert max(map(len, said)) < 1000


# ------------------------------------------------------------------------------------- what a declaration refuses


@dataclass(frozen=True)
class Everything:
    """A field of each kind."""

    whole: int = 1
    flag: bool = True
    rate: float = 0.5
    share: NearShare[float] = 0.5
    loss: Unchecked[float] = float("nan")
    word: Literal["a", "b"] = "a"
    cap: Annotated[int, Within(1, 9)] | None = None
    before: tuple[int, ...] = (1, 2)
    clients: Some[tuple[int, ...]] = (3, 4)
    names: AnyNumber[tuple[str, ...]] = ()
    statistics: frozenset[Statistic] = frozenset()
    queries: AnyNumber[tuple[Query, ...]] = ()
    entries: Some[Mapping[tuple[str, str], int]] = field(default_factory=lambda: {("a", "b"): 1})
    local: Local[int] = 7
    loss_N: FloatArray = field(default_factory=lambda: np.zeros(2))
    square_N: FloatArray | None = None
    share_N: NearShare[FloatArray] = field(default_factory=lambda: np.zeros(2))
    owner_R: Some[IntArray] = field(default_factory=lambda: np.arange(3))
    bank: Finite[Parts] = field(default_factory=lambda: network(2))
    stack: Some[AnyNumber[Parts]] = field(default_factory=lambda: network(1))
    inner: "Inner | None" = None


@dataclass(frozen=True)
class Inner:
    """Something that holds an array."""

    loss_N: FloatArray


def network(rows: int) -> Parts:
    return {"global": {"weight": torch.zeros(rows, 2, 3), "bias": torch.zeros(rows, 2)}}


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> Message:
    monkeypatch.setattr(messages, "MESSAGES", {**MESSAGES, "update": {"it": Everything}})
    return decode(sent("update", it=Everything()), ("update",))


def test_local_fields_are_those_of_the_template(everything: Message) -> None:
    assert "local" not in everything.head["it"]
    assert received(everything, it=Everything(local=8))["it"].local == 8


def test_networks_are_in_the_order_of_the_template(everything: Message) -> None:
    back = replace(everything, tensors=dict(reversed(everything.tensors.items())))
    assert list(received(back, it=Everything())["it"].bank["global"]) == ["weight", "bias"]


PLAIN: dict[str, tuple[Any, ...]] = {
    "whole": (-1, True, 1.0, "1", None, 2**53 + 1, 10**400, [1]),
    "flag": (1, None, "true"),
    "rate": (-0.1, 1e300, float("inf"), "nan", "1", True, None, 10**400),
    "share": (1.1, -1, "nan"),
    "loss": ("NaN", True, 10**400, None),
    "word": ("c", None, ["a"], {}),
    "cap": (0, 10, 1.5, "1"),
    "before": ([1], [1, 2, 3], [1, -1], None, {}),
    "clients": ([5], [3, 3], ["3"], [True], 3),
    "names": ([1], "x", None),
    "statistics": ([{"name": "loss"}] * 2, [{"name": "x"}], [{}], ["loss"], {}),
    "queries": ([{}], [{"type": "Train"}], [{"type": ["Gram"]}], [{"type": "Gram", "x": 1}], [{"type": "Loss"}],
                ["Gram"], [{"type": "Loss", "of": "own", "on": None, "each": False, "candidates": 3, "share": 1.0}]),
    "entries": ({"a-b": -1}, {"a-c": 1}, {"x": 1}, [], None),
    "local": (7,),
    "more": (1,),
}  # fmt: skip


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, each in PLAIN.items() for said in each])
def test_a_plain_value_that_is_not_declared_is_refused(everything: Message, name: str, said: Any) -> None:
    head = {"it": {**everything.head["it"], name: said}}
    with pytest.raises(WireError, match=f"^update: it/{name}" if name in declared(Everything) else "^update: it is "):
        received(replace(everything, head=head), it=Everything())


@pytest.mark.parametrize("name", [name for name in declared(Everything) if name in PLAIN])
def test_a_plain_value_must_be_there(everything: Message, name: str) -> None:
    head = {"it": {key: said for key, said in everything.head["it"].items() if key != name}}
    with pytest.raises(WireError, match=rf"^update: it is .*; it must tell .*{name}"):
        received(replace(everything, head=head), it=Everything())


NAN = float("nan")
TENSORS: dict[str, tuple[Any, ...]] = {
    "loss_N": (None, torch.zeros(2), torch.zeros(3, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64),
               torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float8_e4m3fn)),
    "square_N": (torch.zeros(2, dtype=torch.float64),),
    "share_N": (torch.tensor([0.5, 1.5]).double(), torch.tensor([0.5, NAN]).double()),
    "owner_R": (torch.tensor([3]), torch.tensor([1, 1]), torch.tensor([-1]), torch.tensor([[1]]), torch.tensor([1.0])),
    "bank/global/bias": (None, torch.zeros(1, 2), torch.zeros(2, 3), torch.zeros(2, 2).double(), torch.tensor(1.0),
                         torch.full((2, 2), NAN), torch.full((2, 2), NAN - NAN), torch.full((2, 2), float("inf"))),
    "bank/global/more": (torch.zeros(2),),
    "bank/local/bias": (torch.zeros(2, 2),),
    "stack/global/bias": (None, torch.zeros(2, 2), torch.zeros(1, 3), torch.tensor(1.0), torch.zeros(1, 2).double()),
    "stack/local/bias": (torch.zeros(1, 2),),
    "stack/global": (torch.zeros(1, 2),),
    "stack": (torch.zeros(1, 2),),
    "local": (torch.zeros(1),),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "place"), [(path, place) for path, each in TENSORS.items() for place in range(len(each))]
)
def test_a_tensor_that_is_not_declared_is_refused(everything: Message, path: str, place: int) -> None:
    tensors = {**everything.tensors, f"it/{path}": TENSORS[path][place]}
    there = {name: value for name, value in tensors.items() if value is not None}
    with pytest.raises(WireError, match=rf"^update: .*it/{path.split('/')[0]}"):
        received(replace(everything, tensors=there), it=Everything())


def test_a_stack_has_as_many_rows_as_the_sender_likes(everything: Message) -> None:
    tensors = {
        **everything.tensors,
        "it/stack/global/weight": torch.ones(5, 2, 3),
        "it/stack/global/bias": torch.ones(5, 2),
    }
    assert len(received(replace(everything, tensors=tensors), it=Everything())["it"].stack["global"]["bias"]) == 5
    without = {path: value for path, value in everything.tensors.items() if not path.startswith("it/stack")}
    assert received(replace(everything, tensors=without), it=Everything())["it"].stack == {}


def test_what_is_not_in_the_template_is_refused_whatever_it_holds(everything: Message) -> None:
    full = Everything(inner=Inner(np.ones(2)))
    message = decode(sent("update", it=full), ("update",))
    assert same(received(message, it=full)["it"], full)
    assert received(everything, it=full)["it"].inner is None
    with pytest.raises(WireError, match=r"^update: it/inner/loss_N is of something that nobody asked for"):
        received(message, it=Everything())


def test_keys_of_mappings_are_steps_of_paths() -> None:
    assert (label("a"), label(("client", "up")), label(Statistic("loss"))) == ("a", "client-up", "loss")


def test_what_an_owner_keeps_is_read_as_it_was_written() -> None:
    kept = {"parts": network(1), "momentum": {}, "left": {}, "links": {"cloud_up": network(2)}}
    found = received(decode(sent("version", **kept), ("version",)))
    assert same(found, kept)
