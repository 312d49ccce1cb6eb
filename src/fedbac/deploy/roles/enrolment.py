"""How a run begins: everybody says what they hold, and the cloud writes the charter."""

import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbac.config.experiment import Experiment
from fedbac.core.settings import IntArray
from fedbac.data.datasets import normalization_of
from fedbac.deploy import log
from fedbac.deploy.protocol.charter import (
    Charter,
    Facts,
    Held,
    Holding,
    added_up,
    far_off,
    outputs,
    read_charter,
    read_facts,
    read_together,
)
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import received, sent
from fedbac.deploy.protocol.wire import WireError, decode
from fedbac.deploy.settings import MemberChanges, SiteConfig, client_name, edge_name, quorum
from fedbac.deploy.spool import Payload
from fedbac.deploy.transports.base import Children
from fedbac.errors import LONGEST_QUOTE, ConfigError, DeployError, visible
from fedbac.federation import check_validation
from fedbac.files import read_json, write_whole
from fedbac.models import check_recipe
from fedbac.packages import fingerprint, is_own

FILE = "charter.json"
FORMER = ("size_N", "validation_N", "test_N", "test_M", "fingerprints", "sums")
"""What charters said of everybody's data before there were commitments."""
AGAIN = 1.0
"""Seconds before those who are missing are asked again; up to so many times as long, if some refuse."""
MOST_PATIENCE = 30


@dataclass(frozen=True, eq=False)
class Enrolled:
    """A federation as its cloud knows it: numbers about data that are elsewhere."""

    charter: Charter
    classes_ME: tuple[tuple[int, ...], ...]
    source_sha256 = None  # there is no larger whole that this is a sample of
    edge_names = ()
    sites = property(attrgetter("charter.sites"))
    build = property(attrgetter("charter.build"))
    network = property(attrgetter("charter.network"))
    normalization = property(attrgetter("charter.normalization"))
    example = property(attrgetter("charter.example"))

    @property
    def fingerprint(self) -> str:
        """The hash of everybody's data: of the hashes that they sent."""
        each = {name: held.fingerprint for name, held in sorted(self.charter.holdings.items())}
        return hashlib.sha256(json.dumps(each).encode()).hexdigest()

    def classes_per_edge(self) -> IntArray:
        """Return how many examples of each class the clients of each edge hold."""
        width = 1 if self.charter.label_shape else self.charter.num_classes
        table = np.zeros((len(self.classes_ME), width), dtype=np.int64)
        for edge, counts in enumerate(self.classes_ME):
            table[edge, : len(counts)] = counts
        return table

    def save(self, folder: Path, name: str = FILE) -> None:
        """Write the charter beside the run, so that a cloud that comes back goes on under the same."""
        known = {name: held.model_dump() for name, held in self.charter.holdings.items()}
        told = {"charter": self.charter.text, "known": known, "classes": self.classes_ME}
        write_whole(folder / name, json.dumps(told))


def stored(folder: Path, name: str = FILE) -> Enrolled | None:
    """Return the charter of the run in a folder; None if there is none."""
    path = folder / name
    if not path.exists():
        return None
    try:
        said = read_json(path)
        terms = (said["charter"], said["known"]) if "known" in said else _updated(said["charter"])
        return Enrolled(read_charter(*terms), tuple(tuple(map(int, row)) for row in said["classes"]))
    except (OSError, ValueError, KeyError, TypeError, WireError) as error:
        raise DeployError(f"{path}: it cannot be read ({error}); start anew with --overwrite") from error


def _updated(text: str) -> tuple[str, dict[str, Any]]:
    """Return a charter and its holdings as they are now, from one that told everybody's numbers."""
    plain = json.loads(text)
    size_N, validation_N, test_N, test_M, hashes, sums = map(plain.pop, FORMER)
    names = [client_name(m, n) for m, own in enumerate(plain["clients"]) for n in range(len(own))]
    counts = dict(zip(names, zip(size_N, validation_N, test_N, strict=True), strict=True))
    counts |= {edge_name(m): (0, 0, test) for m, test in enumerate(test_M) if test}
    known = {
        name: Holding(train=train, validation=validation, test=test, fingerprint=hashes[name])
        for name, (train, validation, test) in counts.items()
    }
    plain |= {"pixels": _pixels(sums), "commitments": {name: held.commitment for name, held in known.items()}}
    return json.dumps(plain), {name: held.model_dump() for name, held in known.items()}


def _pixels(sums: Any) -> Any:
    """Return mean and deviation of each channel; None where there are no images."""
    return None if sums is None else tuple(tuple(each_C.tolist()) for each_C in normalization_of(np.array(sums)))


@dataclass
class Roll:
    """What sites have said of their data so far."""

    clients: dict[str, Facts]
    edges: dict[str, Facts]
    classes: dict[str, list[int]]
    """Of all clients of an edge together; not of those who join later."""
    sums: dict[str, list[list[int]] | None]
    declined: set[str] = field(default_factory=set)
    """Who cannot join; not who was silent, as a client that is not there yet."""

    def forget(self, edge: str) -> None:
        """Let an edge say again what its clients hold."""
        for known in (self.edges, self.classes, self.sums):
            cast(dict[str, Any], known).pop(edge, None)
        self.clients = {name: it for name, it in self.clients.items() if not name.startswith(f"{edge}-")}


def enrol(
    experiment: Experiment,
    site: SiteConfig,
    children: Children,
    waiting: Callable[[str], None],
    stopped: Callable[[], bool],
) -> Enrolled:
    """Wait until all sites, or by ``deploy.start_after`` enough, have said what they hold; return the federation."""
    check_deployable(experiment)
    deploy, members, expected = site.deploy, site.members, expected_sites(experiment, site.members)
    roll, began, patience = Roll({}, {}, {}, {}), time.monotonic(), 1
    min_edges = quorum(deploy.min_edges, len(expected))
    plain, without = experiment.model_dump(mode="json"), dict[str, str]()
    while True:
        if stopped():
            raise DeployError("stopped before the first round")
        late = deploy.start_after is not None and time.monotonic() - began >= deploy.start_after
        due = [edge for edge in expected if edge not in roll.classes]
        payload = sent("enroll", experiment=plain, only=(), without=tuple(sorted(without)))
        answers, reasons = children.call({edge: payload for edge in due if edge in children.present()}, deploy.deadline)
        heard = set(roll.clients)
        for name, answer in answers.items():
            clients = [client for client in expected[name] if client not in without]
            least = quorum(deploy.min_clients, len(expected[name]))
            heard |= _note(roll, name, clients, answer, least if late else max(least, len(clients)), reasons)
        enough = len(roll.classes) >= (min_edges if late else len(expected))
        odd = {name: why for name, why in reasons.items() if SiteError.found(why, Failure.FAR_OFF)}
        odd = {name: why for name, why in (odd | (_odd(roll) if enough else {})).items() if name not in without}
        for name, why in odd.items():
            log.warning("%s is left out: %s", name, why)
            roll.forget(next(edge for edge, clients in expected.items() if name in (edge, *clients)))
        without |= odd
        if odd:
            continue
        if enough:
            return charter_of(experiment, roll, members)
        missing = [name for edge in due for name in ([edge] if edge not in answers else expected[edge])]
        missing = [name for name in missing if name not in heard]
        reasons |= without
        each = (f"{name} ({visible(reasons[name])})" if name in reasons else name for name in missing)
        waiting(f"waiting for {', '.join(each)}")
        patience = min(2 * patience, MOST_PATIENCE) if reasons else 1  # whoever cannot is not asked every second
        for _ in range(patience):
            if not stopped():
                time.sleep(AGAIN)


def expected_sites(experiment: Experiment, members: MemberChanges) -> dict[str, list[str]]:
    """Return the edges that there should be, and their clients."""
    counts = experiment.task.clients()
    places = {edge_name(m): [client_name(m, n) for n in range(count)] for m, count in enumerate(counts)}
    staying = {edge: [name for name in names if not members.gone(name)] for edge, names in places.items()}
    return {edge: names for edge, names in staying.items() if names}


def newcomers(
    before: Enrolled, experiment: Experiment, site: SiteConfig, children: Children, only: Collection[str]
) -> Roll:
    """Ask those of the sites ``only`` that are there what they hold."""
    roll = Roll({}, {}, {}, {})
    mine = {
        edge: [name for name in (edge, *clients) if name in only]
        for edge, clients in expected_sites(experiment, site.members).items()
        if edge in children.present()
    }
    plain = experiment.model_dump(mode="json")
    each = {edge: tuple(names) for edge, names in mine.items() if names}
    asked = {edge: sent("enroll", experiment=plain, only=names, without=()) for edge, names in each.items()}
    answers, reasons = children.call(asked, site.deploy.deadline)
    for edge, answer in answers.items():
        _note(roll, edge, mine[edge], answer, None, reasons)  # of nobody else's clients
    roll.declined = {*reasons, *(name for edge in asked if edge not in answers for name in mine[edge])}
    for name, reason in reasons.items():
        log.warning("%s cannot join: %s", name, visible(reason))
    charter = before.charter
    roll.edges = {name: it for name, it in roll.edges.items() if name in only or name not in charter.holdings}
    for name, facts in {**roll.clients, **roll.edges}.items():
        ours, theirs = ((tuple(it.shape), it.dtype, tuple(it.label_shape)) for it in (charter, facts))
        if ours != theirs or (facts.largest_token or 0) > (charter.largest_token or 0):
            log.warning(
                "%s cannot join: its examples, labels and largest token are %s, those of the run %s",
                name, (*theirs, facts.largest_token), (*ours, charter.largest_token),
            )  # fmt: skip
            (roll.clients if name in roll.clients else roll.edges).pop(name)
            roll.declined.add(name)
    return roll


def next_charter(before: Enrolled, experiment: Experiment, members: MemberChanges, roll: Roll, round_: int) -> Enrolled:
    """Return the charter under which a run goes on after a round: with newcomers, and without those who left."""
    old, clients = before.charter, members.numbers(experiment.task.clients())
    if old.clients != tuple(numbers[: len(was)] for was, numbers in zip(old.clients, clients, strict=False)):
        raise DeployError(
            "the clients of this run would get other numbers; add sites with: fedbac federation add, or list new ones "
            "in members.added of federation.yaml"
        )
    holdings = {name: held for name, held in old.holdings.items() if not members.gone(name)}
    for name, held in _holdings(roll.clients | roll.edges).items():
        if name not in holdings or held.model_copy(update={"salt": holdings[name].salt}) != holdings[name]:
            holdings[name] = held
    check_places(old.experiment, experiment)
    charter = replace(
        old,
        experiment=experiment,
        clients=clients,
        commitments={name: held.commitment for name, held in holdings.items()},
        holdings=holdings,
        epoch=old.epoch + 1,
        after=round_,
        before=old.id,
    )
    _look_over(charter)
    more = len(clients) - len(before.classes_ME)
    return Enrolled(charter, before.classes_ME + ((),) * more)


def _holdings(facts: Mapping[str, Facts]) -> dict[str, Holding]:
    return {name: Holding(**one.model_dump(include=set(Held.model_fields))) for name, one in facts.items()}


def _note(
    roll: Roll, edge: str, clients: list[str], answer: Payload, least: int | None, reasons: dict[str, str]
) -> set[str]:
    """Take what an edge says of so many clients at least, or of any who join later; return of whom, and add reasons."""
    try:
        roster = received(decode(answer, ("roster",)))
        facts_of = {name: read_facts(said) for name, said in roster["clients"].items() if name in clients}
        if len(facts_of) >= (least or 0):  # sums and classes are those of all clients that are named, or of no use
            own = {} if roster["edge"] is None else {edge: read_facts(roster["edge"])}
            for it in own.values():
                if it.test == 0 or sum(it.classes) != it.test or it.train or it.validation:
                    raise WireError("facts: an edge holds test data, and their classes must add up to them")
            if least is not None:
                together = read_together(roster["together"], list(facts_of.values()))
                roll.classes[edge], roll.sums[edge] = together.classes, together.sums
            roll.edges |= own
            roll.clients |= facts_of
        reasons |= {name: reason[:LONGEST_QUOTE] for name, reason in roster["reasons"].items() if name in clients}
        return set(facts_of)
    except (WireError, ValueError, TypeError) as error:
        log.warning("%s: %s", edge, error)
        return set()


def _looks(facts: Facts) -> str:
    return f"{facts.dtype} {facts.shape}" + f" with labels of {facts.label_shape}" * bool(facts.label_shape)


def _odd(roll: Roll) -> dict[str, str]:
    """Return whose data fit to nobody's, and why: one site must not keep all others from starting."""
    everybody = {**roll.clients, **roll.edges}
    usual, count = Counter(map(_looks, roll.clients.values())).most_common(1)[0]
    odd = {}
    if 2 * count > len(roll.clients):
        each = ((name, _looks(it)) for name, it in everybody.items())
        odd = {name: f"its examples are {one}, those of most others {usual}" for name, one in each if one != usual}
    tokens = {name: it.largest_token for name, it in everybody.items() if it.largest_token is not None}
    odd |= {
        name: f"it has token {tokens[name]}, where others have about {most}" for name, most in far_off(tokens).items()
    }
    tested = {name: len(it.classes) for name, it in roll.edges.items()}
    found = far_off(tested, [len(classes) for classes in roll.classes.values()])
    return odd | {
        name: f"it has {tested[name]} classes, where others have about {most}" for name, most in found.items()
    }


def charter_of(experiment: Experiment, roll: Roll, members: MemberChanges) -> Enrolled:
    """Write the charter, once everybody's data fit together."""
    everybody = {**roll.clients, **roll.edges}
    names = sorted(roll.clients)
    first = roll.clients[names[0]]
    looks = {name: _looks(it) for name, it in everybody.items()}
    for name, one in looks.items():
        if one != (other := looks[names[0]]):
            raise DeployError(f"{name} has examples of {one}, and {names[0]} of {other}; all must be alike")
    counts = [*roll.classes.values(), *(facts.classes for facts in roll.edges.values())]
    tokens = [facts.largest_token for facts in everybody.values() if facts.largest_token is not None]
    sums = [rows for rows in roll.sums.values() if rows is not None]
    largest_token = max(tokens) if tokens else None
    num_classes = max(len(classes) for classes in counts)
    holdings = _holdings(everybody)
    charter = Charter(
        run=uuid.uuid4().hex[:16],
        experiment=experiment,
        shape=tuple(first.shape),
        dtype=first.dtype,
        num_classes=outputs(experiment, num_classes, first.label_shape, first.shape, largest_token),
        largest_token=largest_token,
        pixels=_pixels(added_up(sums)),
        clients=members.numbers(experiment.task.clients()),
        commitments={name: held.commitment for name, held in holdings.items()},
        holdings=holdings,
        label_shape=tuple(first.label_shape),
    )
    _ = charter.build  # now, so that what does not fit is said before the first round
    _look_over(charter)
    return Enrolled(charter, tuple(tuple(roll.classes.get(edge_name(m), ())) for m in range(len(charter.clients))))


def _look_over(charter: Charter) -> None:
    """Name who says that it holds most examples, and refuse who cannot be measured."""
    held = {name: it.train for name, it in charter.holdings.items() if it.train}
    for name, train in held.items():
        if len(held) > 2 and 2 * train > sum(held.values()):
            log.warning(
                "%s says that it holds %d of all %d examples, and counts as much", name, train, sum(held.values())
            )
    tests = charter.held("test")
    for m in charter.members:
        if not charter.edge_tests(m) and not any(tests[client] for client in charter.clients[m]):
            raise DeployError(
                f"{edge_name(m)} has no test data, so its accuracy is undefined; give x_test and y_test to its "
                "clients, or to the edge (fedbac edge KIT --data ...)"
            )
    check_validation(charter.experiment, [site for site in charter.sites if site.size])


def check_places(before: Experiment, after: Experiment) -> None:
    """Refuse new edges that would put others below another region: what nodes remember is of their own children."""
    for was, now in zip(before.heights, after.heights, strict=True):
        if not np.array_equal(now.parent_C[: was.parent_C.size], was.parent_C):
            raise DeployError(
                f"task.tiers: with {after.task.num_edges} edges instead of {before.task.num_edges}, some would belong "
                f"to another {was.name}; add clients to the edges that there are, or make another federation"
            )


def check_deployable(experiment: Experiment) -> None:
    """Refuse what no federation can run: data changed on purpose, and code that sites would not know again."""
    task = experiment.task
    if task.noise is not None:
        raise ConfigError("task.noise makes labels wrong on purpose, in a simulation; in a federation set it to null")
    if task.liars is not None:
        raise ConfigError("task.world.liars: clients lie on purpose in a simulation; in a federation set it to null")
    if task.changes:
        raise ConfigError("task.changes moves data in a simulation; in a federation sites change by themselves")
    clocks = {f"method.{height.name}.clock": height.does.clock for height in experiment.heights}
    clocks |= {"method.cloud_clock": experiment.method.cloud_clock} if clocks else {}
    if late := [f"{field} {clock.kind!r}" for field, clock in clocks.items() if clock.holds]:
        raise ConfigError(
            f"{late[0]}: with task.tiers it goes by the simulated time of task.world; in a federation with regions "
            "everybody waits for its children: use synchronous"
        )
    clock = experiment.method.clock
    if clock.timed:
        raise ConfigError(
            f"method.clock {clock.kind!r} goes by the simulated time of task.world; in a federation use synchronous; "
            "deploy has deadlines of its own, and the cloud may go on without its slowest edges (method.cloud_clock)"
        )
    if task.data_fraction < 1:
        raise ConfigError("task.data_fraction: every client uses all its data in a federation; set it to 1")
    if is_own(task.dataset):
        raise ConfigError(
            "task.dataset: in a federation every site has its own data, and names them with --data; give a plain name"
        )
    for place, named in experiment.packages.items():
        if named.sha256 is None:
            raise ConfigError(
                f"{place}.sha256: it is missing; sites know a package by its hash. That of {named.package} is "
                f"{fingerprint(named.package)} here"
            )
    check_recipe(experiment.network, task.loss.labels, task.frozen)
