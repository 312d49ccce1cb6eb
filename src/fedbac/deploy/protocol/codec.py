"""Declared values to messages and back.

``messages`` declares what each kind of message holds: plain types, and dataclasses whose fields have the marks of
``core.schema``. Plain values travel as JSON, arrays and networks as tensors by paths (``order/bank/global/bias``). A
reader takes only what is declared: values of the type and within the bounds of their fields, and tensors with the name,
the shape and the number type that its template has.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedbac.core.schema import LARGEST, Mark, Within
from fedbac.core.state import flatten, unflatten
from fedbac.deploy.protocol.wire import Message, WireError
from fedbac.errors import Error, quoted

Json = dict[str, object]
"""Plain values that whoever reads them checks."""
UNIONS, MAPPINGS = (Union, UnionType), (dict, Mapping)
NOT_FINITE = ("nan", "inf", "-inf")
"""How numbers travel that JSON does not have."""
CHECKS: dict[type[Any], Callable[[Any, Any], str | None]] = {}
"""By dataclass, how its fields must fit together: takes a value and the template, and says what is wrong."""


@cache
def declared(kind: type[Any]) -> Mapping[str, Any]:
    """Return the fields of a dataclass that travel: their types and marks, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if Mark.LOCAL not in unmarked(hint)[1]}


def unmarked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its marks, and these."""
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


@cache
def as_tensors(hint: Any) -> bool:
    """Whether values of a type are tensors, and nothing else."""
    hint, _ = unmarked(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (*UNIONS, *MAPPINGS):
        return as_tensors(inner[origin in MAPPINGS])
    return hint in (Tensor, bytes) or origin is np.ndarray


def label(key: Any) -> str:
    """Return a name of a mapping as a step of a path."""
    return key if isinstance(key, str) else "-".join(key if isinstance(key, tuple) else astuple(key))


def write(hint: Any, value: Any, path: str, tensors: dict[str, Any]) -> Any:
    """Return the JSON of a value, and put its tensors with the others."""
    hint, _ = unmarked(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if value is None or hint is object:
        return value
    if hint is Any:
        tensors |= flatten(value, path)
        return True
    if origin in UNIONS:
        members = [one for one in inner if one is not NoneType]
        said = write(members[0] if len(members) == 1 else type(value), value, path, tensors)
        return said if len(members) == 1 else {"type": type(value).__name__, **said}
    if is_dataclass(hint):
        hints = declared(hint)  # type: ignore[arg-type]
        said = {name: write(one, getattr(value, name), f"{path}/{name}", tensors) for name, one in hints.items()}
        return {name: one for name, one in said.items() if not as_tensors(hints[name])}
    if origin in MAPPINGS:
        return {label(key): write(inner[1], one, f"{path}/{label(key)}", tensors) for key, one in value.items()}
    if origin in (tuple, frozenset):
        each = enumerate(sorted(value, key=str) if origin is frozenset else value)
        return [write(inner[0], one, f"{path}/{place}", tensors) for place, one in each]
    if as_tensors(hint):
        tensors[path] = np.frombuffer(bytes(value), dtype=np.uint8) if hint is bytes else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Reader:
    """Reads one message. ``left`` are the tensors that have not been asked for."""

    def __init__(self, message: Message) -> None:
        self.kind, self.left = message.kind, dict(message.tensors)

    def refuse(self, path: str, why: str) -> WireError:
        """Return the error that says what is wrong with a value."""
        return WireError(f"{self.kind}: {path} {why}")

    def read(self, hint: Any, said: Any, like: Any, path: str, above: tuple[Any, ...] = ()) -> Any:
        """Return a value from its JSON and its tensors; ``above`` are the marks of what it is in."""
        hint, own = unmarked(hint)
        origin, inner, marks = get_origin(hint), get_args(hint), (*above, *own)
        if hint is object:
            return said
        if hint is Any:
            return self._memory(said, like, path)
        if origin in UNIONS:
            return self._union(inner, said, like, path, marks)
        if is_dataclass(hint):
            return self._fields(hint, said, like, path)
        if origin in MAPPINGS:
            return self._mapping(inner, said, like, path, marks)
        if origin in (tuple, frozenset):
            return origin(self._entries(origin, inner, said, like, path, marks))
        return self._array(hint, like, path, marks) if as_tensors(hint) else self._plain(hint, said, path, marks)

    def _plain(self, hint: Any, said: Any, path: str, marks: tuple[Any, ...]) -> Any:
        if get_origin(hint) is Literal:
            if said in get_args(hint):
                return said
            raise self.refuse(path, f"is {quoted(said)}; it must be one of {', '.join(get_args(hint))}")
        if hint is float and (said in NOT_FINITE or (type(said) is int and abs(said) <= LARGEST)):
            said = float(said)
        low, high = next((mark for mark in marks if isinstance(mark, Within)), (0, LARGEST))
        if type(said) is not hint:
            raise self.refuse(path, f"is {quoted(said)}; it must be of type {hint.__name__}")
        if hint in (int, float) and Mark.UNCHECKED not in marks and not low <= said <= high:
            raise self.refuse(path, f"is {said}; it must be from {low} to {high}")
        return said

    def _union(self, inner: tuple[Any, ...], said: Any, like: Any, path: str, marks: tuple[Any, ...]) -> Any:
        members = {one.__name__: one for one in inner if one is not NoneType}
        if NoneType in inner and (like if as_tensors(inner[0]) else said) is None:
            return None
        if len(members) == 1:
            return self.read(inner[0], said, like, path, marks)
        if not isinstance(said, dict) or not isinstance(said.get("type"), str) or said["type"] not in members:
            raise self.refuse(path, f"is {quoted(said)}; its type must be one of {', '.join(members)}")
        fields = {name: one for name, one in said.items() if name != "type"}
        return self._fields(members[said["type"]], fields, like, path)

    def _fields(self, kind: Any, said: Any, like: Any, path: str) -> Any:
        hints = declared(kind)
        plain = {name for name, hint in hints.items() if not as_tensors(hint)}
        if not isinstance(said, dict) or set(said) != plain:
            raise self.refuse(path, f"is {quoted(said)}; it must tell {', '.join(sorted(plain))}")
        values = {n: self.read(h, said.get(n), getattr(like, n, None), f"{path}/{n}") for n, h in hints.items()}
        try:
            value = kind(**values) if like is None else replace(like, **values)
        except Error as error:
            raise self.refuse(path, f"cannot be: {error}") from error
        wrong = CHECKS[kind](value, like) if kind in CHECKS else None
        if wrong is not None:
            raise self.refuse(path, wrong)
        return value

    def _mapping(
        self, inner: tuple[Any, ...], said: Any, like: Any, path: str, marks: tuple[Any, ...]
    ) -> dict[Any, Any]:
        if as_tensors(inner[1]):
            there = [at.removeprefix(f"{path}/") for at in self.left if at.startswith(f"{path}/")]
            deep = get_origin(unmarked(inner[1])[0]) in MAPPINGS
            said = dict.fromkeys(at.partition("/")[0] if deep else at for at in there)
            like = {} if like is None and Mark.UNCHECKED not in marks else like
        if not isinstance(said, dict):
            raise self.refuse(path, f"is {quoted(said)}; it must be a mapping")
        known = {label(key): key for key in (said if like is None else like)}
        if not set(said) <= set(known) or (set(said) != set(known) and Mark.SOME not in marks):
            raise self.refuse(path, f"holds {quoted(sorted(said))}; it must hold {quoted(sorted(known))}")
        below = tuple(mark for mark in marks if mark is not Mark.SOME)
        found = {
            key: self.read(inner[1], said[name], None if like is None else like[key], f"{path}/{name}", below)
            for name, key in known.items()
            if name in said
        }
        if Mark.ANY_NUMBER in marks and len({len(one) for one in found.values() if not isinstance(one, dict)}) > 1:
            raise self.refuse(path, "must have as many rows of everything")
        return found

    def _entries(
        self, origin: Any, inner: tuple[Any, ...], said: Any, like: Any, path: str, marks: tuple[Any, ...]
    ) -> list[Any]:
        some, like = Mark.SOME in marks, like or ()
        free = some or Mark.ANY_NUMBER in marks or origin is frozenset
        if not isinstance(said, list) or (not free and len(said) != len(like)):
            raise self.refuse(path, f"is {quoted(said)}; it must be a list{'' if free else f' of {len(like)}'}")
        first = like[0] if like and Mark.ANY_NUMBER in marks else None
        likes = [first] * len(said) if free else like
        each = enumerate(zip(said, likes, strict=True))
        found = [self.read(inner[0], one, other, f"{path}/{place}") for place, (one, other) in each]
        if (some and not set(found) <= set(like)) or ((some or origin is frozenset) and len(set(found)) < len(found)):
            allowed = f"different ones of {quoted(list(like))}" if some else "different ones"
            raise self.refuse(path, f"is {quoted(said)}; it must list {allowed}")
        return found

    def _memory(self, said: Any, like: Any, path: str) -> Any:
        """Return what a policy remembers; its arrays may grow, but not change their kind."""
        if said is not (None if like is None else True):
            raise self.refuse(path, f"is {quoted(said)}; it must be true, or null where nothing is remembered")
        arrays = {at: self._tensor(at, one, one.dim()) for at, one in flatten(like, path).items()}
        return unflatten(like, arrays, path)

    def _array(self, hint: Any, like: Any, path: str, marks: tuple[Any, ...]) -> Any:
        if Mark.UNCHECKED in marks:
            like = torch.empty(0, dtype=torch.uint8) if hint is bytes else self.left[path]
        if like is None:
            raise self.refuse(path, "is of something that nobody asked for")
        some, wanted = Mark.SOME in marks, torch.as_tensor(like)
        free = some or hint is bytes or Mark.ANY_NUMBER in marks
        value = self._tensor(path, wanted, (1 if hint is Tensor else wanted.dim()) if free else 0)
        for low, high in (mark for mark in marks if isinstance(mark, Within)):
            if not bool((torch.isfinite(value) & (value >= low) & (value <= high)).all()):
                raise self.refuse(path, f"is not finite, or not from {low:g} to {high:g}")
        if some and not (torch.isin(value, wanted).all() and len(set(value.tolist())) == len(value)):
            raise self.refuse(path, "names what is not there, or something twice")
        if hint is Tensor:
            return value
        return value.numpy().tobytes() if hint is bytes else value.numpy().copy()  # a view would hold the message

    def _tensor(self, path: str, like: Tensor, free: int) -> Tensor:
        """Return a tensor that is like another, but for the lengths of its first axes."""
        value = self.left.pop(path, None)
        if value is None:
            raise self.refuse(path, "is missing")
        if (value.dtype, value.dim(), value.shape[free:]) != (like.dtype, like.dim(), like.shape[free:]):
            got, wanted = (f"{one.dtype} {tuple(one.shape)}" for one in (value, like))
            raise self.refuse(path, f"is {got}, not {wanted}")
        return value
