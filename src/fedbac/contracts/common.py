"""What all contracts share: settings, states, and verbs that leave alone what they are given."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import safetensors.torch
from pydantic import ValidationError
from torch import Tensor

from fedbac.core.answers import check_savable, checked_notes
from fedbac.core.policies import Clock, Noting, Topology, lacking
from fedbac.core.settings import Settings
from fedbac.core.state import arrays, flatten, unflatten
from fedbac.core.world import EQUAL, World
from fedbac.errors import PolicyError


def require(kept: object, sentence: str) -> None:
    """Raise the sentence if a promise is not kept; unlike ``assert``, also under ``python -O``."""
    if not kept:
        raise AssertionError(sentence)


def check_settings(column: str, policy: Any, protocol: type) -> str:
    """Hold a policy to its settings: frozen, complete and readable again; return how it is called in messages."""
    who = f"method.{column} {getattr(policy, 'kind', type(policy).__name__)!r}"
    good = isinstance(policy, Settings)
    require(good, f"{who}: its class must derive from fedbac.Settings, and it must be an instance of that")
    trouble = lacking(type(policy), protocol)
    require(trouble is None, f"{who}: {trouble}")
    kind = type(policy).model_fields.get("kind")
    require(
        kind is not None and kind.default == policy.kind,
        f"{who}: kind must be a field with its name as the default, as in kind: Literal['mine'] = 'mine'",
    )
    require(_refuses_change(policy), f"{who}: its settings must be frozen, but a field could be set after it was made")
    for name in ("model_dump", "model_dump_json"):
        try:
            text = policy.model_dump_json()
            again = fresh(policy) if name == "model_dump" else type(policy).model_validate_json(text)
        except ValidationError as error:
            raise AssertionError(f"{who}: what {name}() writes cannot be read again: {error}") from error
        require(again == policy, f"{who}: what {name}() writes must be read again as the same settings, not {again}")
    return who


def fresh(policy: Any) -> Any:
    """Return the policy as another process makes it from its settings: nothing else comes along."""
    return type(policy).model_validate(policy.model_dump())


def _refuses_change(policy: Any) -> bool:
    try:
        policy.kind = policy.kind
    except ValidationError:
        return True
    return False


@contextmanager
def calling(who: str, verb: str, **given: Any) -> Iterator[None]:
    """Call a verb: it may not write to what it is given, nor look at what it did not ask for."""
    before = copy.deepcopy(given)
    try:
        yield
    except PolicyError as error:
        if "was not asked for" in str(error):  # which evidence says, and it does not know who looked
            raise AssertionError(f"{who}: {verb} looked at what it did not ask for: {error}") from error
        raise AssertionError(str(error)) from error
    except AssertionError:
        raise
    except Exception as error:
        wrote = isinstance(error, ValueError) and "read-only" in str(error)  # numpy says no more
        what = "wrote to its evidence in place; it must leave that alone" if wrote else f"raised {type(error).__name__}"
        raise AssertionError(f"{who}: {verb} {what}: {error}") from error
    written = difference(before, given)
    require(not written, f"{who}: {verb} wrote to {written} in place; it must return new arrays and leave these alone")


@contextmanager
def trying(what: str) -> Iterator[None]:
    """Say what was tried where a promise is broken."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(str(error) if what in str(error) else f"{error}, {what}") from error


def difference(left: Any, right: Any) -> str | None:
    """Return the path of an array in which two trees differ, by type, shape or value; None if they are the same."""
    if type(left) is not type(right):
        return f"its type ({type(left).__name__}, {type(right).__name__})"
    ours, theirs = dict(arrays(left)), dict(arrays(right))
    for path in sorted({*ours, *theirs}):
        if path not in ours or path not in theirs:
            return path
        a, b = (
            np.asarray(leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf) for leaf in (ours[path], theirs[path])
        )
        if a.dtype != b.dtype or a.shape != b.shape:
            return path
        if a.tobytes() != b.tobytes() and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return path
    return None


def check_state(who: str, verb: str, state: Any, like: Any = None) -> None:
    """Hold a state to be a named tuple of arrays of numbers, the same fields all the time."""
    with calling(who, verb):
        check_savable(who, verb, state)
    require(
        like is None or type(state) is type(like),
        f"{who}: {verb} must return the type of state that init() does, {type(like).__name__}, or a checkpoint forgets "
        f"what is added; not {type(state).__name__}",
    )


def check_adaptive(who: str, adaptive: object, begin: Any, end: Any) -> None:
    """Hold ``adaptive`` to be true exactly if the state changes."""
    learned = difference(begin, end) is not None
    require(isinstance(adaptive, bool), f"{who}: adaptive must be true or false, not {adaptive!r}")
    require(
        adaptive == learned,
        f"{who}: adaptive is {adaptive}, but many rounds {'changed' if learned else 'did not change'} its state; it "
        "must be true exactly if the policy learns",
    )


def check_reload(who: str, state: Any, template: Any) -> Any:
    """Return a state after a trip through the bytes of a checkpoint, with a first one as the template, if it is the
    same."""
    loaded = unflatten(template, safetensors.torch.load(safetensors.torch.save(flatten(state, "state"))), "state")
    lost = difference(state, loaded)
    require(not lost, f"{who}: field {lost} of its state does not survive a checkpoint")
    return loaded


def check_same(who: str, verb: str, first: Any, second: Any, why: str) -> None:
    """Hold two answers of a verb to be the same."""
    where = difference((first,), (second,))
    require(where is None, f"{who}: {verb} answered differently {why}")


REPEATED = (
    "to the same state, evidence and stream; all chance must come from rng, and all that it remembers must be in its "
    "state"
)
RESUMED = "after its state was saved and read again; all that it remembers must be in its state"


def check_notes(who: str, column: str, policy: Any, state: Any) -> None:
    """Hold what a policy says of itself for the record, if it says anything, to be numbers by name."""
    if isinstance(policy, Noting):
        with calling(who, "notes()", state=state):
            checked_notes(column, policy, policy.notes(state))


def check_clock(clock: Any, most: int = 20) -> None:
    """Hold a clock to its promises, with up to so many clients under way."""
    who = check_settings("clock", clock, Clock)
    for name in ("timed", "holds"):
        value = getattr(clock, name)
        require(isinstance(value, bool), f"{who}: {name} must be true or false, not {value!r}")
    before = 1
    for wanted in range(1, most + 1):
        enough = clock.enough(wanted)
        good = isinstance(enough, int) and before <= enough <= wanted
        require(good, f"{who}: enough({wanted}) must be a whole number from {before} to {wanted}, not {enough!r}")
        before = enough
    ages = np.arange(most, dtype=np.float64)
    share = clock.discount(ages.copy())
    good = isinstance(share, np.ndarray) and share.shape == ages.shape and bool((share > 0).all())
    require(good, f"{who}: discount() must return a number above 0 for each of {most} ages, not {share!r}")
    require(share[0] == 1, f"{who}: discount() must be 1 for an update of age 0, not {share[0]}")
    require((np.diff(share) <= 0).all(), f"{who}: discount() must not grow with age, but returned {share.tolist()}")
    world = clock.world(EQUAL)
    require(isinstance(world, World), f"{who}: world() must return a World, not {type(world).__name__}")
    require(clock.world(world) == world, f"{who}: world() must change no more when it is asked again")
    if not clock.timed:
        still = world == EQUAL and before == most and not clock.holds
        require(still, f"{who}: timed is False, so it must wait for all and leave the world as it is")


def check_topology(topology: Any, num_edges: int = 6) -> None:
    """Hold a topology to its promises, with so many edges in the task."""
    who = check_settings("topology", topology, Topology)
    sites = topology.sites(num_edges)
    require(
        isinstance(sites, tuple) and all(isinstance(edges, tuple) and edges for edges in sites),
        f"{who}: sites() must return a tuple of the edges of each site, none without any, not {sites!r}",
    )
    found = sorted(edge for edges in sites for edge in edges)
    require(
        found == list(range(num_edges)),
        f"{who}: sites({num_edges}) must hold every edge from 0 to {num_edges - 1} exactly once, but it holds {found}",
    )
    require(topology.edge_rounds >= 1, f"{who}: edge_rounds must be at least 1, not {topology.edge_rounds}")
    require(topology.tiers in (2, 3), f"{who}: tiers must be 2 or 3, not {topology.tiers}")
    require(
        topology.tiers == 3 or len(sites) == 1,
        f"{who}: tiers is 2, so the only site is the cloud itself, but sites() returned {len(sites)}",
    )
