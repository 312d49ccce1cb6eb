"""SIGKILL and SIGSTOP to sites of a federation of processes: no round is lost, the run ends, who returns takes part.

Three phases. In the first, every edge and client must be there for a round to count; cloud and edges are killed, and
the numbers must be the simulator's to the bit. In the second, a round counts whoever is there, and anyone is killed. In
the third, the cloud does not wait for its slowest edges either.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from deploying.nursery import nursed
from deploying.records import Watch
from deploying.sites import made, strays, whole_memory

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core.parts import judged_parts
from fedbac.deploy.settings import CLOUD, DeploySettings
from fedbac.deploy.trial import Trial
from fedbac.local import describe
from fedbac.runs.configure import configure
from fedbac.runs.play import finish, play

CPU = Runtime(device="cpu", workers=1)
SIZES = ("task.num_edges=2", "task.clients_per_edge=2", "task.network={kind: mlp, hidden: [16]}")
START = 600.0
"""Seconds that a federation has for its first round."""
RETURN = 300.0
"""Seconds that a site has to take part again, while nobody else is disturbed."""
TIMELESS = ("seconds", "check", "computed_by")


@dataclass(frozen=True)
class Phase:
    """How a federation is attacked."""

    name: str
    methods: tuple[str, ...]
    """One run after another."""
    deploy: DeploySettings
    weights: dict[str, int]
    """By role, how often it is hit."""
    share: float
    """Of the kills that are asked for."""
    freeze: tuple[float, float]
    """Seconds that a process is stopped for."""
    exact: bool
    """Whether the numbers must be the simulator's."""
    rounds: int
    settings: tuple[str, ...] = ()

    def experiment(self, method: str, seed: int) -> Experiment:
        settings = [*SIZES, "task.training.epochs=3", "task.training.momentum_state=persist", *self.settings]
        return configure(method, rounds=self.rounds, seed=seed, settings=settings)


PHASES = (
    Phase(
        "everybody must be there",
        ("fed-bac", "fedrep-edges", "ditto-edges"),
        DeploySettings(min_clients=2, min_edges=2, heartbeat=5, deadline=120),
        {"cloud": 1, "edge": 1},
        0.4,
        (0.5, 8.0),
        exact=True,
        rounds=150,
    ),
    Phase(
        "whoever is there",
        ("fed-bac-full", "hierfavg"),
        DeploySettings(min_clients=1, min_edges=1, heartbeat=1, deadline=20),
        {"cloud": 2, "edge": 3, "client": 5},
        0.6,
        (0.5, 10.0),
        exact=False,
        rounds=400,
    ),
    Phase(
        "the cloud does not wait",
        ("fed-bac-full", "hierfavg", "fedrep-edges"),
        DeploySettings(min_clients=1, min_edges=1, heartbeat=1, deadline=20),
        {"cloud": 4, "edge": 3, "client": 3},
        1.0,
        (0.5, 10.0),
        exact=False,
        rounds=400,
        settings=("task.world={}", "method.cloud_clock=buffered"),
    ),
)


@dataclass
class Tally:
    """What came of a phase."""

    kills: Counter[str] = field(default_factory=Counter)
    freezes: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    rounds: int = 0
    again: int = 0
    unfinished: int = 0
    with_failed: int = 0
    with_absent: int = 0
    seconds: float = 0.0
    returns: dict[str, list[float]] = field(default_factory=dict)
    """By role, the seconds from each restart to the end of the first round with the site."""
    rounds_missed: dict[str, list[int]] = field(default_factory=dict)
    """By role, the whole rounds that went by after the site had its link again and before it took part."""
    memory: dict[str, float] = field(default_factory=dict)
    """By role, the most MiB of one site, with all that it started."""
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, found: dict[str, Any]) -> "Tally":
        return cls(**found | {name: Counter(found.get(name, {})) for name in ("kills", "freezes")})


class Attack:
    """One run of a federation, and what is done to it."""

    def __init__(self, phase: Phase, trial: Trial, tally: Tally, rng: Random) -> None:
        self.phase, self.trial, self.tally, self.rng = phase, trial, tally, rng
        self.watch = Watch(trial.folder)

    def complain(self, text: str) -> None:
        self.tally.complaints.append(f"{self.phase.name}, run {self.tally.runs}: {text}")

    def began(self) -> bool:
        """Whether a round was played."""
        return bool(self.watch.records)

    def ended(self) -> bool:
        """Whether the cloud has ended by itself; nobody else may."""
        for name, process in self.trial.processes.items():
            status = process.poll()
            if status is not None and (name != CLOUD or status):
                said = (self.trial.folder / "logs" / f"{name}.log").read_text(errors="replace")[-300:]
                self.complain(f"{name} ended by itself with status {status}: {said!r}")
                self.trial.start(name)
            role, mib = self.trial.sites[name].role, whole_memory(process.pid)["rss"]
            self.tally.memory[role] = max(self.tally.memory.get(role, 0.0), mib)
        return self.trial.processes[CLOUD].poll() == 0

    def wait(self, enough: Any, seconds: float) -> bool:
        """Wait until something holds or the run has ended; say whether either came."""
        until = time.time() + seconds
        while time.time() < until:
            if enough() or self.ended():
                return True
            time.sleep(0.2)
        return False

    def disturb(self) -> None:
        """Kill or stop a random site."""
        roles = [site.role for site in self.trial.sites.values()]
        weights = [self.phase.weights.get(role, 0) / roles.count(role) for role in roles]
        name = self.rng.choices(list(self.trial.sites), weights)[0]
        role = self.trial.sites[name].role
        if self.rng.random() < 0.15:
            self.freeze(name)
            self.tally.freezes[role] += 1
            return
        if self.trial.processes[name].poll() is not None:  # the run has ended meanwhile
            return
        killed = time.time()
        self.trial.processes[name].kill()
        self.trial.processes[name].wait()
        self.tally.kills[role] += 1
        time.sleep(self.rng.choice([0.0, self.rng.uniform(0, 3)]))
        self.trial.start(name)
        if self.rng.random() < 0.5:  # else the next attack comes before this site has recovered
            self.see_return(name, role, killed)

    def freeze(self, name: str) -> None:
        process = self.trial.processes[name]
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(*self.phase.freeze))
        process.send_signal(signal.SIGCONT)

    def see_return(self, name: str, role: str, killed: float) -> None:
        """Wait until a site that was killed takes part again."""
        restarted = time.time()

        def there() -> bool:
            return any(self.took_part(name, record) for record in self.watch.since(killed))

        if not self.wait(there, RETURN):
            self.complain(f"{name} took no part within {RETURN:g} s of its return; round {len(self.watch.records)}")
        elif there():
            self.tally.returns.setdefault(role, []).append(time.time() - restarted)
            if "edges_back" not in self.watch.records[-1]:  # else an edge at work misses rounds by right
                self.count_missed(name, role, killed)

    def took_part(self, name: str, record: dict[str, Any]) -> bool:
        site = self.trial.sites[name]
        if site.role == "cloud":
            return True
        if site.edge not in record.get("edges_back", [site.edge]) or site.edge in record["absent"]:
            return False
        if site.role == "edge":
            return True
        selected = {client for edge in record["selected"] for client in edge}
        return site.number in selected - set(record["failed"])

    def count_missed(self, name: str, role: str, killed: float) -> None:
        """Count the whole rounds between the moment the site could have taken part and the one with it."""
        since = self.able(name, killed)
        if since is None:
            return
        missed, site = 0, self.trial.sites[name]
        for record in self.watch.since(since):
            if self.took_part(name, record):
                break
            missed += role == "edge" or site.edge not in record["absent"]  # a client cannot do without its edge
        self.tally.rounds_missed.setdefault(role, []).append(missed)
        if missed >= 2:
            self.complain(f"{name} had its link again, and {missed} whole rounds went by without it")

    def able(self, name: str, killed: float) -> float | None:
        """Return when a site could take part again: a client had its link, an edge its own and that of a client."""
        site = self.trial.sites[name]
        if site.parent is None:
            return None
        own = self.joins(site.parent, name, killed)
        if site.role == "client" or not own:
            return min(own, default=None)
        clients = [moment for child in site.children for moment in self.joins(name, child, killed)]
        return max(min(own), min(clients)) if clients else None

    def joins(self, parent: str, child: str, after: float) -> list[float]:
        """Return when a site was taken by its parent, as the parent's log says."""
        found = []
        for line in (self.trial.folder / "logs" / f"{parent}.log").read_text(errors="replace").splitlines():
            if line.endswith(f" {child} has joined"):
                stamp, _, millis = " ".join(line.split()[:2]).partition(",")
                found.append(time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")) + int(millis) / 1000)
        return [moment for moment in found if moment > after]

    def conclude(self, seconds: float) -> None:
        """Wait for the end of the run, and look at what is there."""
        if not self.wait(lambda: False, seconds):
            self.complain(f"the run did not end within {seconds:.0f} s; round {len(self.watch.records)}")
        self.watch.stop()
        self.trial.stop()
        records = self.watch.records
        self.tally.rounds += len(records)
        self.tally.again += self.watch.again
        self.tally.unfinished += self.watch.unfinished
        self.tally.with_failed += sum(bool(record["failed"]) for record in records)
        self.tally.with_absent += sum(bool(record["absent"]) for record in records)
        for complaint in self.watch.complaints:
            self.complain(complaint)
        if [record["round"] for record in records] != list(range(1, self.phase.rounds + 1)):
            self.complain(f"the rounds are {[record['round'] for record in records]}")
        logs = b"".join(file.read_bytes() for file in (self.trial.folder / "logs").iterdir())
        if b"Traceback" in logs:
            self.complain(f"a traceback: {logs[logs.index(b'Traceback') :][:600].decode(errors='replace')!r}")
        until = time.time() + 20  # work that nobody waits for is finished first
        while (left := strays(self.trial.folder)) and time.time() < until:
            time.sleep(0.5)
        if left:
            self.complain(f"processes were left behind: {left}")


def compare(experiment: Experiment, records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield where a run is not the simulator's."""
    scheme = experiment.method.personalization
    kept = {scheme.parts[part].scope for part in judged_parts(scheme)} & {"edge", "client"}
    left_out = {*TIMELESS, *(["accuracy_global"] if kept else [])}
    for truth, found in zip(finish(play(experiment, runtime=CPU)).records, records, strict=False):
        truth = json.loads(json.dumps(truth))
        for key in truth.keys() - left_out:
            if truth[key] != found.get(key):
                yield f"round {truth['round']}: {key} is {found.get(key)}, and the simulator's {truth[key]}"
                return


def soak(phase: Phase, kills: int, seconds: float, seed: int, folder: Path, tally: Tally) -> Iterator[None]:
    """Attack federations, one run after another, until there were enough kills or the time is over."""
    until = time.time() + seconds
    while tally.kills.total() < kills and time.time() < until:
        began = time.time()
        experiment = phase.experiment(phase.methods[tally.runs % len(phase.methods)], seed)
        tally.runs += 1
        trial = nursed(made(folder / f"run-{tally.runs}", experiment, phase.deploy))
        with trial.running():
            attack = Attack(phase, trial, tally, Random(f"{seed} {phase.name} {tally.runs}"))
            if not attack.wait(attack.began, START):
                attack.complain(f"there was no round within {START:g} s")
            while tally.kills.total() < kills and time.time() < until and not attack.ended():
                time.sleep(attack.rng.uniform(0, 3))
                attack.disturb()
                print(f"  {tally.kills.total()} kills, round {len(attack.watch.records)}", flush=True)
            attack.conclude(max(120.0, 5.0 * phase.rounds))
        if phase.exact:
            for difference in compare(experiment, attack.watch.records):
                attack.complain(f"{experiment.method.name}: {difference}")
        tally.seconds += time.time() - began
        yield


def campaign(kills: int, seconds: float, seed: int, folder: Path, kept: Path | None) -> tuple[int, int]:
    """Play all phases; return how many kills there were, and how many were survived.

    After every run all is written to ``kept``; the same call goes on from there. A phase counts as survived as a whole:
    what one kill spoils shows rounds later.
    """
    asked = {"kills": kills, "seed": seed, "machine": describe(torch.device("cpu"))}
    found = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    same = all(found.get(name) == value for name, value in asked.items())
    tallies = {phase.name: Tally.read(found["phases"].get(phase.name, {}) if same else {}) for phase in PHASES}
    for phase in PHASES:
        tally, place = tallies[phase.name], folder / phase.name.replace(" ", "-")
        told = 0
        for _ in soak(phase, round(kills * phase.share), seconds * phase.share, seed, place, tally):
            for complaint in tally.complaints[told:]:
                print(f"  {complaint}", flush=True)
            told = len(tally.complaints)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                phases = {name: vars(tally) for name, tally in tallies.items()}
                kept.write_text(json.dumps({**asked, "phases": phases}, indent=1) + "\n")
    tried = [tally.kills.total() for tally in tallies.values()]
    return sum(tried), sum(tally.kills.total() for tally in tallies.values() if not tally.complaints)
