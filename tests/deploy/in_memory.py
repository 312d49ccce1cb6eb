"""A federation in one process: the real roles, with calls where links would be; and the same data for the simulator."""

import hashlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.config.experiment import Experiment, Runtime
from fedbac.data import Dataset, Shards
from fedbac.deploy.protocol.wire import ROOM
from fedbac.deploy.roles.cloud import play_soundly
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.deploy.roles.edge import Edge
from fedbac.deploy.roles.edges import RemoteClients, RemoteEdges
from fedbac.deploy.roles.enrolment import Enrolled, enrol
from fedbac.deploy.roles.epochs import EPOCHS, NEXT, advanced, continued, play_epochs
from fedbac.deploy.roles.history import History
from fedbac.deploy.settings import CloudPlace, DeploySettings, EdgePlace, FederationConfig, MemberChanges
from fedbac.runs.play import conduct, finish
from fedbac.runs.store import RunFolder, StoredRun

CPU = Runtime(device="cpu", workers=1)
ELSEWHERE = Runtime(engine="federation", device="cpu", workers=1)
Answer = Callable[[bytes, threading.Event], bytes]


class Signing:
    """Signs as anybody: who proves whom is tested with kits."""

    certificate = bytes(470)

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def sign(self, content: bytes) -> bytes:
        return hashlib.sha256(content).digest()

    def check(self, place: int, certificate: bytes, content: bytes, signature: bytes) -> None:
        assert 0 < place <= len(self.names)
        assert (certificate, signature) == (self.certificate, self.sign(content))


class MemoryChildren:
    """Children that answer at once. ``lost`` are not there; ``answer`` may be replaced to lie."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.lost: set[str] = set()
        self.bytes_down = self.bytes_up = 0

    def present(self) -> frozenset[str]:
        return frozenset(self.answers) - self.lost

    def seen(self) -> dict[str, float]:
        return dict.fromkeys(self.present(), 0.0)

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        answers, reasons = {}, {}
        for name, message in messages.items():
            if name in self.lost:
                reasons[name] = "lost"
                continue
            self.bytes_down += len(message)
            try:
                answer = self.answers[name](message, threading.Event())
                if len(answer) > limit:
                    raise ValueError(f"an answer of {len(answer):,} bytes, where {limit:,} are allowed")
                answers[name] = answer
                self.bytes_up += len(answer)
            except Exception as error:
                reasons[name] = f"{type(error).__name__}: {error}"
        return answers, reasons

    def turn_away(self, revoked: bytes) -> bool:
        return False

    def close(self) -> None:
        pass


@dataclass
class MemoryFederation:
    """A cloud, its edges and their clients."""

    experiment: Experiment
    folder: Path
    data: Mapping[str, Mapping[str, Any]]
    """Arrays by site."""
    deploy: DeploySettings = DeploySettings()  # noqa: RUF009 (frozen)
    edges: dict[str, Edge] = field(default_factory=dict)
    shops: dict[str, DataHolder] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """What the cloud said that it waits for."""
    accept_rollback: bool = False
    members: MemberChanges = MemberChanges()  # noqa: RUF009 (frozen)
    remote: RemoteEdges | RemoteClients | None = None
    """The connection that was made last."""
    most_said: int = 3
    """The operator stops the cloud once it has said so much."""
    waited: Callable[[str], None] = lambda text: None
    """Is called whenever it waits, so that a test may bring back who is missing."""

    def __post_init__(self) -> None:
        counts = self.experiment.task.clients()
        place = {"address": "localhost:1", "listen": "localhost:1"}
        config = FederationConfig(
            name="test",
            cloud=CloudPlace(**place),
            edges=tuple(EdgePlace(**place, clients=count) for count in counts),
            deploy=self.deploy,
            members=self.members,
            experiment=self.experiment.model_dump(mode="json"),
        )
        self.sites = config.sites()
        for name, arrays in self.data.items():
            path = self.folder / "data" / name
            path.mkdir(parents=True, exist_ok=True)
            np.savez(path / "data.npz", **arrays)
        self.cloud = MemoryChildren({name: self._edge(name) for name in self.sites["cloud"].children})

    def _edge(self, name: str) -> Answer:
        site = self.sites[name]
        holder = self._shop(name) if name in self.data else None
        edge = Edge(site, self.folder / "state" / name, holder)
        clients = {child: self._client(child) for child in site.children}
        edge.children = MemoryChildren(clients)
        self.edges[name] = edge
        return edge.answer

    def _client(self, name: str) -> Answer:
        holder = self._shop(name)
        return lambda payload, gone: holder.answer(payload)

    def _shop(self, name: str) -> DataHolder:
        site = self.sites[name]
        assert site.edge is not None
        source, state = str(self.folder / "data" / name), self.folder / "state" / name
        who = (name, site.number, site.edge, site.role == "client")
        holder = DataHolder(*who, source, state, CPU, lambda terms: Signing(terms.names))
        self.shops[name] = holder
        return holder

    def children(self, edge: str) -> MemoryChildren:
        """Return the links of an edge."""
        found = self.edges[edge].children
        assert isinstance(found, MemoryChildren)
        return found

    def enrol(self) -> Enrolled:
        """Let everybody say what they hold."""
        return enrol(self.experiment, self.sites["cloud"], self.cloud, self._waiting, self._stopped)

    def _waiting(self, text: str) -> None:
        self.said.append(text)
        self.waited(text)

    def _stopped(self) -> bool:
        return len(self.said) > self.most_said

    def connect(
        self, enrolled: Enrolled, folder: Path | None = None, declined: set[str] | None = None
    ) -> RemoteEdges | RemoteClients:
        """Return the edges as the round loop sees them; those of a run in a folder know its records."""
        records: Callable[[], Any] = tuple if folder is None else RunFolder(folder).read_records
        history = History(enrolled.charter, records, self.accept_rollback, self.members.moved)
        who = (enrolled.charter, self.cloud, self.deploy, self._waiting, self._stopped)
        rest = (*who, history, set() if declined is None else declined)
        kind = RemoteClients if self.experiment.method.topology.tiers == 2 else RemoteEdges
        before, self.remote = self.remote, kind(self.folder / "state" / "cloud", *rest)
        self.remote.take_over(before)
        return self.remote

    def play_on(self, folder: Path, refreshed: Sequence[str] = ()) -> Generator[dict[str, Any], None, StoredRun]:
        """Play a run as a cloud does that may have been started again, and let members come."""
        to = RunFolder(folder)
        to.path.mkdir(exist_ok=True)
        before = advanced(to, self.members.moved) if to.has_run() or (folder / EPOCHS / NEXT).exists() else None
        if before is None:
            enrolled = self.enrol()
            enrolled.save(folder)
        else:
            rest = (self.sites["cloud"], self.cloud, refreshed, self._waiting, self._stopped)
            enrolled = continued(before, self.experiment, to, *rest)

        def play(enrolled: Enrolled, declined: set[str]) -> Generator[dict[str, Any], None, StoredRun]:
            return play_soundly(enrolled, lambda: self.connect(enrolled, folder, declined), ELSEWHERE, to)

        return play_epochs(enrolled, self.sites["cloud"], self.cloud, play, lambda: self.remote, to)

    def play(
        self,
        folder: Path | None = None,
        enrolled: Enrolled | None = None,
        remote: RemoteEdges | RemoteClients | None = None,
    ) -> Generator[dict[str, Any], None, StoredRun]:
        """Play the run round by round."""
        enrolled = enrolled or self.enrol()
        edges = remote or self.connect(enrolled, folder)
        if folder is None:
            return conduct(self.experiment, enrolled, edges, ELSEWHERE)
        folder.mkdir(exist_ok=True)
        enrolled.save(folder)
        return play_soundly(enrolled, lambda: edges, ELSEWHERE, RunFolder(folder))

    def run(
        self,
        folder: Path | None = None,
        enrolled: Enrolled | None = None,
        remote: RemoteEdges | RemoteClients | None = None,
    ) -> StoredRun:
        """Play the whole run, and hand out its models."""
        enrolled = enrolled or self.enrol()
        remote = remote or self.connect(enrolled, folder)
        run = finish(self.play(folder, enrolled, remote))
        remote.hand_out(run.models)
        return run


def cut(dataset: Dataset, shards: Shards, tests_at: str = "edge", client_test: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the arrays of every site, as a partition hands them out."""
    sites: dict[str, Any] = {}
    for edge, clients in enumerate(shards.clients):
        if tests_at == "edge":
            test = shards.test[edge]
            sites[f"edge-{edge}"] = {"x_test": dataset.x_test[test], "y_test": dataset.y_test[test]}
        for within, client in enumerate(clients):
            arrays: dict[str, Any] = {}
            for split, indices in (("train", shards.train[client]), ("validation", shards.validation[client])):
                if indices.size:
                    arrays |= {f"x_{split}": dataset.x_train[indices], f"y_{split}": dataset.y_train[indices]}
            if tests_at == "clients":
                share = client_test[client]
                if share.size:
                    arrays |= {"x_test": dataset.x_test[share], "y_test": dataset.y_test[share]}
            sites[f"edge-{edge}-client-{within}"] = arrays
    return sites


def gathered(
    name: str, sites: Mapping[str, Mapping[str, Any]], counts: Sequence[int], num_classes: int
) -> tuple[Dataset, Shards]:
    """Return all data of a federation as one data set with its shards, as only a test may."""
    x: dict[str, list[Any]] = {"train": [], "test": []}
    y: dict[str, list[Any]] = {"train": [], "test": []}
    train, validation, test, clients, number = [], [], [], [], 0

    def add(to: str, arrays: Mapping[str, Any], split: str) -> Any:
        begin = sum(map(len, y[to]))
        if f"x_{split}" not in arrays:
            return np.zeros(0, dtype=np.int64)
        x[to].append(arrays[f"x_{split}"])
        y[to].append(arrays[f"y_{split}"])
        return np.arange(begin, begin + len(arrays[f"y_{split}"]))

    for edge, count in enumerate(counts):
        tests = [add("test", sites.get(f"edge-{edge}", {}), "test")]
        for within in range(count):
            arrays = sites[f"edge-{edge}-client-{within}"]
            train.append(add("train", arrays, "train"))
            validation.append(add("train", arrays, "validation"))
            tests.append(add("test", arrays, "test"))
        test.append(np.concatenate(tests))
        clients.append(range(number, number + count))
        number += count
    x_train, y_train, x_test, y_test = (np.concatenate(part) for part in (x["train"], y["train"], x["test"], y["test"]))
    dataset = Dataset(name, x_train, y_train, x_test, y_test, num_classes)
    return dataset, Shards(tuple(train), tuple(validation), tuple(test), tuple(clients))
