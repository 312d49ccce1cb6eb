"""Checks of what a personalization scheme says of itself, before anything is trained with it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from torch import Tensor

from fedbac.core import trees
from fedbac.core.answers import all_finite, described
from fedbac.core.parts import (
    Adjusting,
    Params,
    Part,
    Parts,
    Phase,
    Predicting,
    Pull,
    Scope,
    Start,
    Stepping,
)
from fedbac.core.queries import Moment
from fedbac.errors import PolicyError


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


def moving_parts(scheme: Any, moment: Moment | None = None) -> frozenset[str]:
    """Return the parts that change in a round, or in any: those that a phase moves, and those of no network."""
    phases = [phase for phase in scheme.phases() if moment is None or phase.runs(moment)]
    return _changed(scheme, phases)


def moved_parts(scheme: Any, moment: Moment) -> frozenset[str]:
    """Return the parts that change in a round or did before; the others are as everybody has them from the start."""
    return _changed(scheme, [phase for phase in scheme.phases() if phase.has_run(moment)])


def running_phases(scheme: Any, moment: Moment) -> tuple[int, ...] | None:
    """Return the numbers of the phases of a round; None where it has all of them."""
    phases = scheme.phases()
    running = tuple(number for number, phase in enumerate(phases) if phase.runs(moment))
    return None if len(running) == len(phases) else running


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


def checked_step(scheme: Any, answer: Any, now_C: Parts) -> Parts:
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


def _changed(scheme: Any, phases: Sequence[Phase]) -> frozenset[str]:
    free = {part for part, spec in scheme.parts.items() if not spec.networks}
    return frozenset(part for phase in phases for part in phase.moves) | free


def _require(good: Any, message: str) -> None:
    if not good:
        raise PolicyError(message)


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
        good = part.follows is None or (leader is not None and leader.scope == "cloud" and leader.layers == part.layers)
        _require(
            good, f"{who}: part {name!r} must follow a part of the cloud with the same layers, not {part.follows!r}"
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
