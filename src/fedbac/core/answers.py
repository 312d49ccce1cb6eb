"""Checks of what policies answer: a wrong answer is an error that names the policy, never a silent wrong number."""

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
from torch import Tensor

from fedbac.core.parts import Parts, Personalization, Scope
from fedbac.core.policies import Assignment, Exchange, Teaching
from fedbac.core.queries import Accuracy, Ask, Loss, Query
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.errors import Error, PolicyError

QUERIES = get_args(Query)
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def consult(column: str, when: str, verb: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
    """Return what a verb of a policy answers; if it raises, say which policy and verb, when, and in which line."""
    try:
        return verb(*given, **named)
    except Exception as error:
        file = getattr(getattr(verb, "__code__", None), "co_filename", None)
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
        said = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        raise PolicyError(
            f"{_named(column, getattr(verb, '__self__', verb))}: {getattr(verb, '__name__', 'it')}() failed in {when}: "
            f"{said} ({Path(frame.filename).name}, line {frame.lineno})"
        ) from error


def checked_ask(
    column: str, policy: Any, answer: Any, before: Collection[str] = (), after: Collection[str] = ()
) -> Ask:
    """Return what a policy asks for if it declared it, and if it can be measured then.

    ``before`` and ``after`` name the models that are there to be measured before and after the policy acts.
    """
    who = _named(column, policy)
    if not isinstance(answer, Ask):
        raise PolicyError(f"{who}: ask() must return an Ask, not a {type(answer).__name__}")
    needs = policy.needs()
    if not isinstance(needs, frozenset):
        raise PolicyError(f"{who}: needs() must return a frozenset of queries, not a {type(needs).__name__}")
    for name, queries in (("before", answer.before), ("after", answer.after)):
        if not isinstance(queries, tuple) or not all(isinstance(query, QUERIES) for query in queries):
            raise PolicyError(f"{who}: ask() must give {name} as a tuple of queries, not {queries!r}")
    undeclared = {*answer.before, *answer.after} - needs
    if undeclared:
        raise PolicyError(f"{who}: ask() wants {undeclared.pop()}, which needs() does not declare; add it there")
    for name, queries, models in (("before", answer.before, before), ("after", answer.after, after)):
        for query in queries:
            there = query.of in models if isinstance(query, Loss | Accuracy) else name == "after"
            if not there:
                raise PolicyError(f"{who}: ask() wants {query} {name} it acts, when it cannot be measured")
    return answer


def checked_queries(policy: Any, answer: Any) -> tuple[Any, ...]:
    """Return what a sharing policy asks for if it is a plain tuple of queries."""
    if not isinstance(answer, tuple) or not all(isinstance(query, QUERIES) for query in answer):
        raise PolicyError(f"{_named('sharing', policy)}: ask() must return a tuple of queries, not {answer!r}")
    return answer


def checked_pair(policy: Any, answer: Any) -> tuple[Any, Any]:
    """Return what a clustering policy's act() returned if it is a state and an assignment."""
    if not isinstance(answer, tuple) or isinstance(answer, Assignment) or len(answer) != 2:
        raise PolicyError(
            f"{_named('clustering', policy)}: act() must return a state and an Assignment(label_N), not a "
            f"{type(answer).__name__}"
        )
    return answer


def checked_init(column: str, policy: Any, state: Any) -> Any:
    """Return a policy's first state if it can be saved."""
    check_savable(_named(column, policy), "init()", state)
    return state


def check_savable(who: str, verb: str, state: Any) -> None:
    """Refuse a state that is no named tuple of arrays of numbers."""
    if not isinstance(state, tuple) or not hasattr(state, "_fields"):
        found = type(state).__name__
        raise PolicyError(f"{who}: {verb} must return a named tuple of arrays as its state, not a {found}")
    for field, value in zip(state._fields, state, strict=True):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise PolicyError(
                f"{who}: {verb} must return an array of numbers as field {field} of its state, not {found}"
            )


def checked_state(column: str, policy: Any, state: Any, before: Any) -> Any:
    """Return a policy's new state if it is of the kind that it was."""
    if type(state) is not type(before):
        raise PolicyError(
            f"{_named(column, policy)}: learn() and act() must hand the state on, a {type(before).__name__}, not a "
            f"{type(state).__name__}; is a return missing?"
        )
    return state


def checked_trust(policy: Any, verb: str, mask_N: Any, num_members: int) -> BoolArray:
    """Return whom a selection policy trusts, or asks, if it is a mask; it may be nobody."""
    return _mask(_named("selection", policy), verb, mask_N, num_members)


def checked_mask(policy: Any, mask_N: Any, size_N: IntArray) -> BoolArray:
    """Return a selection policy's answer if it is a mask that selects somebody who can train."""
    who = _named("selection", policy)
    checked_N = _mask(who, "act()", mask_N, size_N.size)
    if not checked_N.any():
        raise PolicyError(f"{who}: act() selected none of {size_N.size} clients; a round needs at least one")
    if (checked_N & (size_N == 0)).any():
        empty = np.flatnonzero(checked_N & (size_N == 0)).tolist()
        raise PolicyError(f"{who}: act() selected clients without training data (places {empty}); pass over them")
    return checked_N


def _mask(who: str, verb: str, mask_N: Any, num_members: int) -> BoolArray:
    if not isinstance(mask_N, np.ndarray) or mask_N.dtype != np.bool_:
        given = f"an array of {mask_N.dtype}" if isinstance(mask_N, np.ndarray) else f"a {type(mask_N).__name__}"
        raise PolicyError(
            f"{who}: {verb} must return a mask, an array of bool with an entry for each client, not {given}; "
            "from indices, make one with mask = numpy.zeros(n, dtype=bool); mask[indices] = True"
        )
    if mask_N.shape != (num_members,):
        raise PolicyError(f"{who}: {verb} returned a mask of shape {mask_N.shape} for {num_members} clients")
    checked: BoolArray = mask_N
    return checked


def checked_assignment(policy: Any, answer: Any, num_members: int, num_clusters: int) -> Assignment:
    """Return a clustering policy's answer if its labels and its origins are possible."""
    who = _named("clustering", policy)
    if not isinstance(answer, Assignment):
        raise PolicyError(
            f"{who}: act() must return a state and an Assignment(label_N), not a state and a {type(answer).__name__}"
        )
    checked_labels(policy, "act()", answer.label_N, num_members, num_clusters)
    checked_mix(who, "origin_KJ", answer.origin_KJ, num_clusters)
    return answer


def checked_combination(rule: Any, answer: Any, change_CD: Tensor) -> Tensor:
    """Return what an aggregation made of some changes if it is one change, of finite numbers."""
    who, shape = _named("aggregation", rule), tuple(change_CD.shape[1:])
    if not isinstance(answer, Tensor) or tuple(answer.shape) != shape:
        raise PolicyError(
            f"{who}: combine() must return one change, a tensor of shape {shape}, not {described(answer)}"
        )
    if not bool(answer.isfinite().all()):
        raise PolicyError(f"{who}: combine() must return finite numbers; those of {len(change_CD)} children were")
    return answer.to(change_CD)


def checked_memory(step: Any, verb: str, answer: Any, row_KD: Tensor, like: Mapping[str, Tensor] | None = None) -> Any:
    """Return what a step remembers if it is tensors by name with a row for each owner: of the names and shapes as ever,
    or at first like the rows, or of one number each."""
    who, count = _named("step", step), len(row_KD)
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise PolicyError(f"{who}: {verb} must return tensors by name, not {described(answer)}")
    if like is not None and set(answer) != set(like):
        known = ", ".join(like) or "nothing"
        raise PolicyError(f"{who}: {verb} must return its memory: {known}, not {', '.join(answer) or 'nothing'}")
    for name, value in answer.items():
        shapes = [tuple(row_KD.shape), (count,), (count, 1)] if like is None else [tuple(like[name].shape)]
        if not isinstance(value, Tensor) or tuple(value.shape) not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise PolicyError(f"{who}: {verb} must return {name} as a tensor of shape {wanted}, not {described(value)}")
    return {name: value.to(row_KD) for name, value in answer.items()}


def checked_step(
    step: Any, answer: Any, before_KD: Tensor, combined_KD: Tensor, memory: Mapping[str, Tensor], when: str
) -> tuple[Tensor, Any]:
    """Return the rows after a step and what it remembers, if they are like those before, and finite as those were."""
    who = _named("step", step)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise PolicyError(f"{who}: step() must return rows and a memory, not {described(answer)}")
    after_KD = checked_memory(step, "step()", {"its rows": answer[0]}, before_KD, {"its rows": before_KD})["its rows"]
    learned = checked_memory(step, "step()", answer[1], before_KD, memory)
    broken = [name for name, value in {"its rows": after_KD, **learned}.items() if not all_finite([value])]
    if broken and all_finite([before_KD, combined_KD, *memory.values()]):
        names = " and ".join(broken)
        raise PolicyError(
            f"{who}: step() must return finite numbers of finite ones, but {names} had others in {when}; does it "
            "divide by 0 where nothing changed?"
        )
    return after_KD, learned


def all_finite(values: Iterable[Tensor]) -> bool:
    """Return whether all numbers are finite: a sum is only if all that is in it are, but a large sum may not be."""
    return all(bool(value.sum().isfinite()) or bool(value.isfinite().all()) for value in values)


def described(value: Any) -> str:
    """Return what somebody returned instead of a tensor, in a few words."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{'a tensor' if isinstance(value, Tensor) else 'a numpy array'} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def checked_clusters(policy: Any, answer: Any, num_members: int) -> int:
    """Return how many clusters a clustering policy wants if there can be so many."""
    if isinstance(answer, bool) or not isinstance(answer, int) or not 1 <= answer <= num_members:
        raise PolicyError(
            f"{_named('clustering', policy)}: clusters({num_members}) must return a whole number from 1 to "
            f"{num_members}, not {answer!r}"
        )
    return answer


def checked_notes(column: str, policy: Any, notes: Any) -> Mapping[str, float]:
    """Return a policy's numbers for the record if they are single numbers by name."""
    if not isinstance(notes, Mapping) or not all(
        isinstance(name, str) and isinstance(_single(value), Real) for name, value in notes.items()
    ):
        raise PolicyError(f"{_named(column, policy)}: notes() must return single numbers by name, not {notes!r}")
    return notes


def _single(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def checked_labels(policy: Any, verb: str, label_N: Any, num_members: int, num_clusters: int) -> IntArray:
    """Return the labels if each is the number of a cluster."""
    who = _named("clustering", policy)
    if not isinstance(label_N, np.ndarray) or label_N.dtype.kind != "i" or label_N.shape != (num_members,):
        given = f"{label_N.dtype}{list(label_N.shape)}" if isinstance(label_N, np.ndarray) else type(label_N).__name__
        raise PolicyError(f"{who}: {verb} must return an array of {num_members} whole numbers, not {given}")
    if label_N.min() < 0 or label_N.max() >= num_clusters:
        raise PolicyError(
            f"{who}: {verb} returned labels from {label_N.min()} to {label_N.max()}, but clusters are numbered from 0 "
            f"to {num_clusters - 1}"
        )
    return label_N


def checked_start(scheme: Personalization, parts: Any, owners: Mapping[Scope, int]) -> Parts:
    """Return a personalization's initial parts if every part has a row for each of its owners."""
    who = _named("personalization", scheme)
    if not isinstance(parts, dict) or set(parts) != set(scheme.parts):
        found = ", ".join(parts) if isinstance(parts, dict) else type(parts).__name__
        raise PolicyError(f"{who}: init() must return the parts {', '.join(scheme.parts)}, not {found}")
    for part, spec in scheme.parts.items():
        if not isinstance(parts[part], Mapping) or not parts[part]:
            raise PolicyError(f"{who}: init() must return tensors by name as part {part!r}, not {parts[part]!r}")
        for name, value in parts[part].items():
            if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != owners[spec.scope]:
                raise PolicyError(
                    f"{who}: init() must return {name} of part {part!r} as a tensor with a row for each owner "
                    f"({spec.scope}), of whom there are {owners[spec.scope]}, not {described(value)}"
                )
    return parts


def checked_exchange(policy: Any, answer: Any, num_clusters: int, num_members: int) -> Exchange:
    """Return a sharing policy's answer if its mixes are, and if its teachers are."""
    who = _named("sharing", policy)
    if not isinstance(answer, Exchange):
        raise PolicyError(f"{who}: act() must return an Exchange, not a {type(answer).__name__}")
    checked_mix(who, "mix_KJ", answer.mix_KJ, num_clusters)
    checked_mix(who, "judged_KJ", answer.judged_KJ, num_clusters)
    if answer.teaching is not None:
        _check_teaching(who, answer.teaching, num_clusters, num_members)
    return answer


def _check_teaching(who: str, teaching: Any, num_clusters: int, num_members: int) -> None:
    if not isinstance(teaching, Teaching):
        raise PolicyError(f"{who}: teaching must be a Teaching, not a {type(teaching).__name__}")
    checked_mix(who, "teaching.mix_TJ", teaching.mix_TJ, num_clusters, len(teaching.mix_TJ))
    shape = (num_members, len(teaching.mix_TJ))
    if teaching.weight_NT.shape != shape or teaching.share_N.shape != (num_members,):
        raise PolicyError(
            f"{who}: teaching needs weight_NT of shape {shape} and share_N of shape {(num_members,)}, not "
            f"{teaching.weight_NT.shape} and {teaching.share_N.shape}"
        )
    total_N = teaching.weight_NT.sum(1)
    if not (np.isclose(total_N, 1) | (total_N == 0)).all() or (teaching.weight_NT < 0).any():
        raise PolicyError(f"{who}: rows of teaching.weight_NT must hold shares that sum to 1, or to 0 for no teacher")
    if not ((teaching.share_N >= 0) & (teaching.share_N <= 1)).all() or not teaching.temperature > 0:
        raise PolicyError(f"{who}: teaching.share_N must be from 0 to 1, and teaching.temperature above 0")


def checked_mix(who: str, name: str, mix_KJ: FloatArray | None, num_clusters: int, num_rows: int | None = None) -> None:
    """Refuse a mix whose rows are not shares that sum to one."""
    if mix_KJ is None:
        return
    wanted = (num_clusters if num_rows is None else num_rows, num_clusters)
    if not isinstance(mix_KJ, np.ndarray) or mix_KJ.shape != wanted:
        shape = getattr(mix_KJ, "shape", type(mix_KJ).__name__)
        raise PolicyError(f"{who}: {name} must have the shape {wanted}, not {shape}")
    if mix_KJ.dtype.kind != "f":
        raise PolicyError(f"{who}: {name} must hold floats, not {mix_KJ.dtype}")
    bad = np.flatnonzero(~np.isclose(mix_KJ.sum(1), 1.0) | ~np.isfinite(mix_KJ).all(1) | (mix_KJ < 0).any(1))
    if bad.size:
        k = int(bad[0])
        raise PolicyError(
            f"{who}: row {k} of {name} must hold shares of at least 0 that sum to 1, but it is "
            f"{np.round(mix_KJ[k], 4).tolist()}"
        )


def _named(column: str, policy: Any) -> str:
    return f"method.{column} {getattr(policy, 'kind', type(policy).__name__)!r}"
