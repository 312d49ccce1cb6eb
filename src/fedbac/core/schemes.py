"""Checks of what a personalization scheme says of itself, before anything is trained with it."""

from collections.abc import Mapping
from typing import Any, get_args

from fedbac.core.parts import Part, Phase, Predicting, Pull, Scope
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
    return tuple(phases)


def moving_parts(scheme: Any) -> frozenset[str]:
    """Return the parts that some phase moves; the others stay as everybody has them from the start."""
    return frozenset(part for phase in scheme.phases() for part in phase.moves)


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
            named and len(part.networks) == len(set(part.networks)) > 0,
            f"{who}: part {name!r} must name its network, or a tuple of different ones, not {part.network!r}",
        )


def _check_followers(who: str, scheme: Any) -> None:
    for name, part in scheme.parts.items():
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
    for part, pull in phase.pull.items():
        _require(isinstance(pull, Pull), f"{what} must pull {part!r} by a Pull, not a {type(pull).__name__}")
        _require(part in phase.moves, f"{what} pulls {part!r}, which it does not move")
        _require(
            pull.strength >= 0, f"{what} pushes {part!r} away with strength {pull.strength}; it must be at least 0"
        )
        known_to = pull.to is None or pull.to in scheme.parts
        _require(known_to, f"{what} pulls {part!r} to {pull.to!r}, but its parts are {known}")
