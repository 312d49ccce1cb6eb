"""Checks of what policies answer: a wrong answer is an error that names the policy, never a silent wrong number."""

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, get_args

import numpy as np
from torch import Tensor

from fedbac.core import trees
from fedbac.core.parts import (
    Adjusting,
    Params,
    Part,
    Parts,
    Personalization,
    Phase,
    Predicting,
    Pull,
    Scope,
    Start,
    Stepping,
    moving_parts,
)
from fedbac.core.policies import Assignment, Exchange, Teaching
from fedbac.core.queries import Accuracy, Ask, Loss, Moment, Query
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
    """Return what a policy asks for if it declared it, and if such models can be measured before and after it acts."""
    who, needs = _named(column, policy), policy.needs()
    _require(isinstance(answer, Ask), f"{who}: ask() must return an Ask, not a {type(answer).__name__}")
    found = type(needs).__name__
    _require(isinstance(needs, frozenset), f"{who}: needs() must return a frozenset of queries, not a {found}")
    asked = ("before", answer.before, before), ("after", answer.after, after)
    for name, queries, _ in asked:
        _require(_are_queries(queries), f"{who}: ask() must give {name} as a tuple of queries, not {queries!r}")
    for query in {*answer.before, *answer.after} - needs:
        raise PolicyError(f"{who}: ask() wants {query}, which needs() does not declare; add it there")
    for name, queries, models in asked:
        for query in queries:
            there = query.of in models if isinstance(query, Loss | Accuracy) else name == "after"
            _require(there, f"{who}: ask() wants {query} {name} it acts, when it cannot be measured")
    return cast(Ask, answer)


def checked_queries(policy: Any, answer: Any) -> tuple[Any, ...]:
    """Return what a sharing policy asks for if it is a plain tuple of queries."""
    who = _named("sharing", policy)
    _require(_are_queries(answer), f"{who}: ask() must return a tuple of queries, not {answer!r}")
    return cast(tuple[Any, ...], answer)


def _are_queries(queries: Any) -> bool:
    return isinstance(queries, tuple) and all(isinstance(query, QUERIES) for query in queries)


def checked_pair(policy: Any, answer: Any) -> tuple[Any, Any]:
    """Return what a clustering policy's act() returned if it is a state and an assignment."""
    pair = isinstance(answer, tuple) and not isinstance(answer, Assignment) and len(answer) == 2
    who, found = _named("clustering", policy), type(answer).__name__
    _require(pair, f"{who}: act() must return a state and an Assignment(label_N), not a {found}")
    return cast(tuple[Any, Any], answer)


def checked_init(column: str, policy: Any, state: Any) -> Any:
    """Return a policy's first state if it can be saved."""
    check_savable(_named(column, policy), "init()", state)
    return state


def check_savable(who: str, verb: str, state: Any) -> None:
    """Refuse a state that is no named tuple of arrays of numbers."""
    named = isinstance(state, tuple) and hasattr(state, "_fields")
    found = type(state).__name__
    _require(named, f"{who}: {verb} must return a named tuple of arrays as its state, not a {found}")
    for field, value in zip(state._fields, state, strict=True):
        if not (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):  # a name of a type takes long to say
            wanted = f"an array of numbers as field {field} of its state"
            raise PolicyError(f"{who}: {verb} must return {wanted}, not {_typed(value)}")


def _typed(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def checked_state(column: str, policy: Any, state: Any, before: Any) -> Any:
    """Return a policy's new state if it is of the kind that it was and can be saved."""
    wanted, found = type(before).__name__, type(state).__name__
    _require(
        type(state) is type(before),
        f"{_named(column, policy)}: learn() and act() must hand the state on, a {wanted}, not a {found}; is a return "
        "missing?",
    )
    check_savable(_named(column, policy), "learn() and act()", state)
    return state


def checked_trust(policy: Any, verb: str, mask_N: Any, num_members: int) -> BoolArray:
    """Return whom a selection policy trusts, or asks, if it is a mask; it may be nobody."""
    who = _named("selection", policy)
    if not (isinstance(mask_N, np.ndarray) and mask_N.dtype == np.bool_):
        raise PolicyError(
            f"{who}: {verb} must return a mask, an array of bool with an entry for each client, not {_typed(mask_N)}; "
            "from indices, make one with mask = numpy.zeros(n, dtype=bool); mask[indices] = True"
        )
    fits = mask_N.shape == (num_members,)
    _require(fits, f"{who}: {verb} returned a mask of shape {mask_N.shape} for {num_members} clients")
    return cast(BoolArray, mask_N)


def checked_mask(policy: Any, mask_N: Any, size_N: IntArray) -> BoolArray:
    """Return a selection policy's answer if it is a mask that selects somebody who can train."""
    who, checked_N = _named("selection", policy), checked_trust(policy, "act()", mask_N, size_N.size)
    some = checked_N.any() or getattr(policy, "sampling", 1.0) < 1  # whom chance alone selects, it may select none
    _require(some, f"{who}: act() selected none of {size_N.size} clients; a round needs at least one")
    empty = np.flatnonzero(checked_N & (size_N == 0)).tolist()
    _require(not empty, f"{who}: act() selected clients without training data (places {empty}); pass over them")
    return checked_N


def checked_assignment(policy: Any, answer: Any, num_members: int, num_clusters: int) -> Assignment:
    """Return a clustering policy's answer if its labels and its origins are possible."""
    who, found = _named("clustering", policy), type(answer).__name__
    good = isinstance(answer, Assignment)
    _require(good, f"{who}: act() must return a state and an Assignment(label_N), not a state and a {found}")
    checked_labels(policy, "act()", answer.label_N, num_members, num_clusters)
    checked_mix(who, "origin_KJ", answer.origin_KJ, num_clusters)
    return cast(Assignment, answer)


def checked_combination(rule: Any, answer: Any, change_CD: Tensor) -> Tensor:
    """Return what an aggregation made of some changes if it is one change, of finite numbers."""
    who, shape = f"{_named('aggregation', rule)}: combine() must return", tuple(change_CD.shape[1:])
    good = isinstance(answer, Tensor) and tuple(answer.shape) == shape
    _require(good, f"{who} one change, a tensor of shape {shape}, not {described(answer)}")
    _require(answer.isfinite().all(), f"{who} finite numbers; those of {len(change_CD)} children were")
    return cast(Tensor, answer.to(change_CD))


def checked_memory(step: Any, verb: str, answer: Any, row_KD: Tensor, like: Mapping[str, Tensor] | None = None) -> Any:
    """Return a step's memory if it is tensors by name: shaped as ever, or at first with a row or a number per owner."""
    who, count = f"{_named('step', step)}: {verb} must return", len(row_KD)
    named = isinstance(answer, Mapping) and all(isinstance(name, str) for name in answer)
    _require(named, f"{who} tensors by name, not {described(answer)}")
    if like is not None:
        known, found = (", ".join(names) or "nothing" for names in (like, answer))
        _require(set(answer) == set(like), f"{who} its memory: {known}, not {found}")
    for name, value in answer.items():
        shapes = [tuple(row_KD.shape), (count,), (count, 1)] if like is None else [tuple(like[name].shape)]
        good = isinstance(value, Tensor) and tuple(value.shape) in shapes
        wanted = " or ".join(map(str, shapes))
        _require(good, f"{who} {name} as a tensor of shape {wanted}, not {described(value)}")
    return {name: value.to(row_KD) for name, value in answer.items()}


def checked_step(
    step: Any, answer: Any, before_KD: Tensor, combined_KD: Tensor, memory: Mapping[str, Tensor], when: str
) -> tuple[Tensor, Any]:
    """Return the rows after a step and what it remembers, if they are like those before, and finite as those were."""
    who, pair = f"{_named('step', step)}: step() must return", isinstance(answer, tuple) and len(answer) == 2
    _require(pair, f"{who} rows and a memory, not {described(answer)}")
    after_KD = checked_memory(step, "step()", {"its rows": answer[0]}, before_KD, {"its rows": before_KD})["its rows"]
    learned = checked_memory(step, "step()", answer[1], before_KD, memory)
    broken = [name for name, value in {"its rows": after_KD, **learned}.items() if not all_finite([value])]
    _require(
        not broken or not all_finite([before_KD, combined_KD, *memory.values()]),
        f"{who} finite numbers of finite ones, but {' and '.join(broken)} had others in {when}; does it divide by 0 "
        "where nothing changed?",
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
    good = isinstance(answer, int) and not isinstance(answer, bool) and 1 <= answer <= num_members
    verb, wanted = f"clusters({num_members})", f"a whole number from 1 to {num_members}"
    _require(good, f"{_named('clustering', policy)}: {verb} must return {wanted}, not {answer!r}")
    return cast(int, answer)


def checked_notes(column: str, policy: Any, notes: Any) -> Mapping[str, float]:
    """Return a policy's numbers for the record if they are single numbers by name."""
    good = isinstance(notes, Mapping) and all(isinstance(name, str) for name in notes)
    for value in notes.values() if good else ():
        good &= isinstance(value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value, Real)
    _require(good, f"{_named(column, policy)}: notes() must return single numbers by name, not {notes!r}")
    return cast(Mapping[str, float], notes)


def checked_labels(policy: Any, verb: str, label_N: Any, num_members: int, num_clusters: int) -> IntArray:
    """Return the labels if each is the number of a cluster."""
    who, found = f"{_named('clustering', policy)}: {verb}", type(label_N).__name__
    good = isinstance(label_N, np.ndarray) and label_N.dtype.kind == "i" and label_N.shape == (num_members,)
    given = f"{label_N.dtype}{list(label_N.shape)}" if isinstance(label_N, np.ndarray) else found
    _require(good, f"{who} must return an array of {num_members} whole numbers, not {given}")
    low, high = label_N.min(), label_N.max()
    named = low >= 0 and high < num_clusters
    numbers = f"0 to {num_clusters - 1}"
    _require(named, f"{who} returned labels from {low} to {high}, but clusters are numbered from {numbers}")
    return cast(IntArray, label_N)


def checked_start(scheme: Personalization, parts: Any, owners: Mapping[Scope, int]) -> Parts:
    """Return a personalization's initial parts if every part has a row for each of its owners."""
    who = f"{_named('personalization', scheme)}: init() must return"
    found = ", ".join(parts) if isinstance(parts, dict) else type(parts).__name__
    good = isinstance(parts, dict) and set(parts) == set(scheme.parts)
    _require(good, f"{who} the parts {', '.join(scheme.parts)}, not {found}")
    for part, spec in scheme.parts.items():
        if not isinstance(parts[part], Mapping) or not parts[part]:  # else its text, which is long, is not made
            raise PolicyError(f"{who} tensors by name as part {part!r}, not {parts[part]!r}")
        for name, value in parts[part].items():
            _require(
                isinstance(value, Tensor) and value.ndim > 0 and len(value) == owners[spec.scope],
                f"{who} {name} of part {part!r} as a tensor with a row for each owner ({spec.scope}), of whom there "
                f"are {owners[spec.scope]}, not {described(value)}",
            )
    return cast(Parts, parts)


def checked_exchange(policy: Any, answer: Any, num_clusters: int, num_members: int) -> Exchange:
    """Return a sharing policy's answer if its mixes are, and if its teachers are."""
    who = _named("sharing", policy)
    _require(isinstance(answer, Exchange), f"{who}: act() must return an Exchange, not a {type(answer).__name__}")
    checked_mix(who, "mix_KJ", answer.mix_KJ, num_clusters)
    checked_mix(who, "judged_KJ", answer.judged_KJ, num_clusters)
    if answer.teaching is not None:
        _check_teaching(who, answer.teaching, num_clusters, num_members)
    return cast(Exchange, answer)


def _check_teaching(who: str, teaching: Any, num_clusters: int, num_members: int) -> None:
    good = isinstance(teaching, Teaching)
    _require(good, f"{who}: teaching must be a Teaching, not a {type(teaching).__name__}")
    mix_TJ, weight_NT, share_N, temperature = teaching
    checked_mix(who, "teaching.mix_TJ", mix_TJ, num_clusters, len(mix_TJ))
    shapes, found = ((num_members, len(mix_TJ)), (num_members,)), (weight_NT.shape, share_N.shape)
    wanted = f"weight_NT of shape {shapes[0]} and share_N of shape {shapes[1]}"
    _require(found == shapes, f"{who}: teaching needs {wanted}, not {found[0]} and {found[1]}")
    total_N = weight_NT.sum(1)
    shared = (np.isclose(total_N, 1) | (total_N == 0)).all() and not (weight_NT < 0).any()
    _require(shared, f"{who}: rows of teaching.weight_NT must hold shares that sum to 1, or to 0 for no teacher")
    good = ((share_N >= 0) & (share_N <= 1)).all() and temperature > 0
    _require(good, f"{who}: teaching.share_N must be from 0 to 1, and teaching.temperature above 0")


def checked_mix(who: str, name: str, mix_KJ: FloatArray | None, num_clusters: int, num_rows: int | None = None) -> None:
    """Refuse a mix whose rows are not shares that sum to one."""
    if mix_KJ is None:
        return
    wanted = (num_clusters if num_rows is None else num_rows, num_clusters)
    shape = getattr(mix_KJ, "shape", type(mix_KJ).__name__)
    good = isinstance(mix_KJ, np.ndarray) and shape == wanted
    _require(good, f"{who}: {name} must have the shape {wanted}, not {shape}")
    _require(mix_KJ.dtype.kind == "f", f"{who}: {name} must hold floats, not {mix_KJ.dtype}")
    bad = np.flatnonzero(~np.isclose(mix_KJ.sum(1), 1.0) | ~np.isfinite(mix_KJ).all(1) | (mix_KJ < 0).any(1))
    for k in bad.tolist():
        row = np.round(mix_KJ[k], 4).tolist()
        raise PolicyError(f"{who}: row {k} of {name} must hold shares of at least 0 that sum to 1, but it is {row}")


def _named(column: str, policy: Any) -> str:
    return f"method.{column} {getattr(policy, 'kind', type(policy).__name__)!r}"


def _require(good: Any, message: str) -> None:
    if not good:
        raise PolicyError(message)


# ---------------------------------------- what a personalization scheme says of itself, before and in training


def checked_phases(scheme: Any) -> tuple[Phase, ...]:
    """Return a scheme's phases if its parts, terms and phases fit together; the error names the scheme."""
    who = f"method.personalization {scheme.kind!r}"
    _check_parts(who, scheme)
    _check_followers(who, scheme)
    networks = tuple(dict.fromkeys(network for part in scheme.parts.values() for network in part.networks))
    _check_terms(who, scheme, networks)
    phases = scheme.phases()
    good = isinstance(phases, tuple) and phases and all(isinstance(phase, Phase) for phase in phases)
    _require(good, f"{who}: phases() must return a tuple of at least one Phase, not {phases!r}")
    for number, phase in enumerate(phases):
        _check_phase(f"{who}: phase {number} of phases()", scheme, phase, networks)
    if isinstance(scheme, Stepping):
        plain = len(phases) == 1 and not phases[0].pull and not phases[0].taught
        _require(plain, f"{who}: it has step(), so phases() must return one Phase, without pulls and not taught")
    ends = {0, *(rounds for phase in phases for rounds in (phase.last, phase.until_last) if rounds is not None)}
    for left in ends:
        running = [phase for phase in phases if phase.runs(Moment(1, left + 1))]
        _require(running, f"{who}: no phase of phases() runs in a round with {left} more to come")
    return tuple(phases)


def checked_start_of_clients(scheme: Any, answer: Any, received_C: Parts) -> Start:
    """Return what a scheme's ``before`` says, with every part as clients start from it."""
    who = f"method.personalization {scheme.kind!r}: before()"
    if not isinstance(answer, Start):
        raise PolicyError(f"{who} must return a Start, not {described(answer)}")
    _check_adjusted(who, scheme, answer.parts, received_C)
    num_clients, known = len(next(iter(next(iter(received_C.values())).values()))), range(len(scheme.phases()))
    for phase, scale_C in answer.rate_scale.items():
        _require(phase in known, f"{who} scales the rate of phase {phase}, but there are {len(known)}, counted from 0")
        good = np.shape(scale_C) == (num_clients,) and np.isfinite(scale_C).all() and (np.asarray(scale_C) >= 0).all()
        _require(good, f"{who} must scale the rate of phase {phase} by {num_clients} numbers of at least 0")
    trained = [part for part, spec in scheme.parts.items() if spec.networks]
    for part, params in answer.shift.items():
        _require(part in trained, f"{who} shifts {part!r}, but the parts of its networks are {', '.join(trained)}")
        _check_tensors(f"{who} must shift", part, params, received_C[part])
    return replace(answer, parts={**received_C, **answer.parts})


def checked_outcome(scheme: Any, answer: Any, *given: Parts) -> Parts:
    """Return what a scheme's ``after`` makes of what it is given, last what was trained: every part as it is kept."""
    who, trained_C = f"method.personalization {scheme.kind!r}: after()", given[-1]
    _check_adjusted(who, scheme, answer, trained_C)
    check_finite(who, answer, given)
    return {part: answer.get(part, trained_C[part]) for part in trained_C}


def checked_own_step(scheme: Any, answer: Any, now_C: Parts) -> Parts:
    """Return every part after a scheme's own ``step``."""
    who = f"method.personalization {scheme.kind!r}: step()"
    _check_adjusted(who, scheme, answer, now_C)
    still = sorted(set(answer) - moving_parts(scheme))
    _require(not still, f"{who} changes {', '.join(still)}, which the phase of phases() does not move")
    return {**now_C, **answer}


def _check_adjusted(who: str, scheme: Any, answer: Any, like_C: Parts) -> None:
    by_name = isinstance(answer, Mapping)
    _require(by_name, f"{who} must return parts by name, not {described(answer)}")
    unknown = [part for part in answer if part not in like_C]
    _require(not unknown, f"{who} returns {', '.join(unknown)}, but its parts are {', '.join(scheme.parts)}")
    for part, params in answer.items():
        same = isinstance(params, Mapping) and set(params) == set(like_C[part])
        found = ", ".join(params) or "none" if isinstance(params, Mapping) else described(params)
        _require(same, f"{who} must return the weights {', '.join(like_C[part])} as part {part!r}, not {found}")
        _check_tensors(f"{who} must return", part, params, like_C[part])


def _check_tensors(what: str, part: str, params: Any, like_C: Params) -> None:
    for name, value in params.items():
        _require(name in like_C, f"{what} weights of part {part!r} ({', '.join(like_C)}), not {name}")
        shape = tuple(like_C[name].shape)
        good = isinstance(value, Tensor) and tuple(value.shape) == shape
        _require(good, f"{what} {name} of part {part!r} as a tensor of shape {shape}, not {described(value)}")


def check_finite(who: str, answer: Parts, given: Sequence[Parts]) -> None:
    """Refuse numbers that are not finite where those that they were made of are; who diverged may have any."""
    for part, params in answer.items():
        if not all_finite(params.values()):
            finite_C = np.logical_and.reduce([trees.finite_rows(parts) for parts in given])
            made = np.flatnonzero(finite_C & ~trees.finite_rows({part: params})).tolist()
            _require(
                not made,
                f"{who} must return finite numbers of finite ones, but part {part!r} has others in rows {made} of "
                f"{finite_C.size}",
            )


def _check_parts(who: str, scheme: Any) -> None:
    good = isinstance(scheme.parts, Mapping) and len(scheme.parts) > 0
    _require(good, f"{who}: parts must hold at least one Part by its name, not {scheme.parts!r}")
    for name, part in scheme.parts.items():
        _require(isinstance(part, Part), f"{who}: parts must hold a Part as {name!r}, not a {type(part).__name__}")
        _require(
            part.scope in get_args(Scope),
            f"{who}: part {name!r} must belong to one of {', '.join(get_args(Scope))}, not to {part.scope!r}",
        )
        named = isinstance(part.networks, tuple) and all(isinstance(network, str) for network in part.networks)
        _require(
            named and len(part.networks) == len(set(part.networks)),
            f"{who}: part {name!r} must name its network, or a tuple of different ones, not {part.network!r}",
        )
        _require(
            part.networks or isinstance(scheme, Adjusting | Stepping),
            f"{who}: part {name!r} belongs to no network, so nothing changes it; name its network, or write before() "
            "and after(), or step()",
        )


def _check_followers(who: str, scheme: Any) -> None:
    for name, part in scheme.parts.items():
        known = part.returns_as is None or part.returns_as in scheme.parts
        _require(known, f"{who}: part {name!r} cannot return as {part.returns_as!r}, which is none of its parts")
        leader = scheme.parts.get(part.follows)
        same = leader is not None and (leader.layers, leader.matching) == (part.layers, part.matching)
        _require(
            part.follows is None or (same and leader.scope == "cloud"),
            f"{who}: part {name!r} must follow a part of the cloud with the same layers, not {part.follows!r}",
        )


def _check_terms(who: str, scheme: Any, networks: tuple[str, ...]) -> None:
    own = isinstance(scheme, Predicting)
    if scheme.terms is None:
        _require(own, f"{who}: terms is None, so it must have predict(apply, x)")
        return
    _require(
        not own, f"{who}: terms say which networks are summed, so its predict() is never called; set terms to None"
    )
    _check_known(f"{who}: terms", scheme.terms, networks)


def _check_known(what: str, terms: Any, networks: tuple[str, ...]) -> None:
    _require(
        isinstance(terms, tuple) and terms and set(terms) <= set(networks),
        f"{what} must name some of the networks {', '.join(networks)}, not {terms!r}",
    )


def _check_phase(what: str, scheme: Any, phase: Phase, networks: tuple[str, ...]) -> None:
    known = ", ".join(scheme.parts)
    _require(
        isinstance(phase.moves, tuple) and phase.moves and set(phase.moves) <= set(scheme.parts),
        f"{what} must move some of the parts {known}, not {phase.moves!r}",
    )
    _require(len(set(phase.moves)) == len(phase.moves), f"{what} moves a part twice: {', '.join(phase.moves)}")
    if phase.terms is not None:
        _check_known(f"{what}: its terms", phase.terms, networks)
    terms = phase.terms or scheme.terms or networks
    for part in phase.moves:
        _require(scheme.parts[part].networks, f"{what} moves {part!r}, which belongs to no network")
        if isinstance(scheme, Stepping):  # which says itself what learns through which networks
            continue
        own = scheme.parts[part].networks
        summed = [network for network in own if network in terms]
        its = f"network {own[0]!r} is" if len(own) == 1 else f"networks {', '.join(own)} are"
        _require(summed, f"{what} moves {part!r}, but its {its} not summed, so it cannot learn")
        _require(
            len(summed) == 1,
            f"{what} sums the networks {' and '.join(summed)}, which share part {part!r}, so it must not move that "
            "part; sum one of them, or leave the part out of moves",
        )
    _require(phase.epochs is None or phase.epochs >= 1, f"{what} must train for at least 1 epoch, not {phase.epochs}")
    for name, rounds in (("last", phase.last), ("until_last", phase.until_last)):
        _require(rounds is None or rounds >= 0, f"{what}: {name} must be a number of rounds, not {rounds}")
    for part, pull in phase.pull.items():
        _require(isinstance(pull, Pull), f"{what} must pull {part!r} by a Pull, not a {type(pull).__name__}")
        _require(part in phase.moves, f"{what} pulls {part!r}, which it does not move")
        _require(
            pull.strength >= 0, f"{what} pushes {part!r} away with strength {pull.strength}; it must be at least 0"
        )
        known_to = pull.to is None or pull.to in scheme.parts
        _require(known_to, f"{what} pulls {part!r} to {pull.to!r}, but its parts are {known}")
