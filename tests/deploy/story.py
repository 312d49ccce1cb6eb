"""What a federation of processes outlives, whatever carries its messages: one test, told once for every transport."""

import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from fedbac.cli.deploying import described
from fedbac.deploy.models import give
from fedbac.deploy.roles.status import read_status
from fedbac.deploy.trial import Trial
from fedbac.report.following import Follower
from fedbac.runs.checkpoints import newest
from fedbac.runs.store import RunFolder
from tests.deploy.clinics import ROUNDS, Clinic, freeze, kill, thaw
from tests.deploy.following import records, until

CLIENT, NUMBER = "edge-1-client-0", 2
EDGE = "edge-0"


def everybody_took_part(record: dict[str, Any]) -> bool:
    return (record["selected"], record["absent"], record["failed"]) == ([[0, 1], [2, 3]], [], [])


class Story(ABC):
    """A federation that runs, and what happens to it."""

    patience: float
    """Seconds: the machine may be slow, and nothing here depends on how fast it is."""

    def __init__(self, clinic: Clinic, folder: Path) -> None:
        self.clinic, self.folder = clinic, folder
        self.trial: Trial = clinic.trial(folder)

    @abstractmethod
    def log_of(self, name: str) -> str:
        """Return what a site has logged."""

    @abstractmethod
    def strangers_are_refused(self) -> None:
        """Nobody without a certificate of this federation gets a word in, and who tries is refused."""

    def more_happens(self) -> None:  # noqa: B027 (most transports know of nothing more)
        """What only this transport knows."""

    def told(self) -> None:
        """Live through all of it."""
        expected = self.clinic.simulated(3)
        with self.trial.running():
            self.rounds_are(expected)
            self.status_says("  edge-0: here, with edge-0-client-0, edge-0-client-1")
            self.it_can_be_watched()
            self.strangers_are_refused()
            self.a_client_and_an_edge_are_killed_and_come_back()
            self.sites_freeze_and_come_back()
            self.more_happens()
            self.the_cloud_is_killed_and_resumes()
            self.a_client_is_revoked()
            self.the_cloud_stops_and_hands_out_models(CLIENT)
        assert [record["round"] for record in self.records] == list(range(1, len(self.records) + 1))
        assert len(RunFolder(self.trial.run).read().records) == len(self.records)
        self.no_secret_is_written()

    @property
    def records(self) -> list[dict[str, Any]]:
        return records(self.trial)

    def until(self, what: str, true: Any) -> None:
        until(what, true, self.trial, self.patience)

    def rounds_are(self, expected: list[dict[str, Any]]) -> None:
        self.until(f"{len(expected)} rounds", lambda: len(self.records) >= len(expected))
        for mine, theirs in zip(self.records[: len(expected)], expected, strict=True):
            unknown = {"accuracy_global"} if mine["accuracy_global"] is None else set()  # of models that stay at home
            for key in theirs.keys() - {"seconds"} - unknown:
                assert mine[key] == theirs[key], (mine["round"], key)

    def status_says(self, line: str) -> None:
        kit, state = self.clinic.folder.kit("cloud"), self.trial.state("cloud")
        self.until(f"the status: {line}", lambda: line in described(read_status(kit, state), time.time()))

    def it_can_be_watched(self) -> None:
        """What ``fedbac watch`` shows follows the rounds."""
        follower = Follower(lambda: [RunFolder(self.trial.run)])
        before = follower.shown

        def newer() -> bool:
            follower.refresh()
            return follower.shown.version != before.version

        assert f"of {ROUNDS} rounds" in "".join(before.parts.values())
        self.until("the page shows more", newer)

    def joined(self, name: str) -> int:
        """Return how often a site has joined its parent."""
        parent = self.trial.sites[name].parent
        assert parent is not None
        return self.log_of(parent).count(f"{name} has joined")

    def back_within_two_rounds(self, before: dict[str, int]) -> None:
        """Wait for sites to join again; of the two rounds after that the second begins when they are there."""
        for name, times in before.items():
            self.until(f"{name} joins", lambda name=name, times=times: self.joined(name) > times)
        second = len(self.records) + 2
        self.until("two more rounds", lambda: len(self.records) >= second)
        assert everybody_took_part(self.records[second - 1])

    def a_client_and_an_edge_are_killed_and_come_back(self) -> None:
        before = {name: self.joined(name) for name in (CLIENT, EDGE, *self.trial.sites[EDGE].children)}
        kill(self.trial, CLIENT, self.patience)
        alone = len(self.records)
        self.until("rounds without the client", lambda: len(self.records) >= alone + 4)
        assert all(NUMBER not in record["selected"][1] for record in self.records[alone + 2 :])
        kill(self.trial, EDGE, self.patience)
        alone = len(self.records)
        self.until("rounds without the edge", lambda: len(self.records) >= alone + 4)
        for record in self.records[alone + 2 :]:
            assert (record["absent"], record["accuracy_per_edge"][0], record["selected"]) == ([0], None, [[], [3]])
        self.trial.start(EDGE)
        self.trial.start(CLIENT)
        self.back_within_two_rounds(before)

    def sites_freeze_and_come_back(self) -> None:
        """One frozen edge leaves a quorum; two do not, and then nothing is written."""
        freeze(self.trial, EDGE)
        self.until("a round without the frozen edge", lambda: self.records[-1]["absent"] == [0])
        freeze(self.trial, "edge-1")
        self.status_says("cloud: waiting for edges: 0 are there and deploy.min_edges is 1; missing: edge-0, edge-1")
        waiting = len(self.records)
        thaw(self.trial, EDGE, "edge-1")
        self.until("everybody is back", lambda: everybody_took_part(self.records[-1]))
        assert all(len(record["absent"]) < 2 for record in self.records[waiting:])

    def the_cloud_is_killed_and_resumes(self) -> None:
        kill(self.trial, "cloud", self.patience)
        file, played = self.trial.run / "rounds.jsonl", newest(self.trial.run / "checkpoint")
        complete = b"".join(file.read_bytes().splitlines(keepends=True)[:played])  # a round counts by its checkpoint
        self.trial.start("cloud")
        self.until("it resumes", lambda: len(self.records) > played + 2)
        assert file.read_bytes().startswith(complete)

    def a_client_is_revoked(self) -> None:
        """It runs on, but nobody speaks to it any more."""
        self.until("everybody is back", lambda: everybody_took_part(self.records[-1]))
        self.clinic.folder.revoke(CLIENT)
        self.until("a round without it", lambda: self.records[-1]["selected"] == [[0, 1], [3]])
        assert "revoked" in self.log_of("edge-1")
        assert self.trial.processes[CLIENT].poll() is None
        alone = len(self.records)
        self.until("more rounds", lambda: len(self.records) >= alone + 10)
        assert all(NUMBER not in record["selected"][1] for record in self.records[alone:])

    def the_cloud_stops_and_hands_out_models(self, *revoked: str) -> None:
        """It saves the round in hand, and every site that it can reach has its model of that round."""
        self.trial.processes["cloud"].send_signal(signal.SIGTERM)
        assert self.trial.processes["cloud"].wait(self.patience) == 130
        for name, site in self.trial.sites.items():
            if name == "cloud" or name in revoked:
                continue
            found = give(site, self.trial.state(name), None, None)
            assert (found.said["round"], found.said["model"]) == (len(self.records), name)
            parent = site.parent
            assert parent is not None
            if parent == "cloud" and any(spec.scope == "edge" for spec in found.model.scheme.parts.values()):
                continue  # which the cloud does not have
            above = self.trial.run if parent == "cloud" else self.trial.state(parent)
            expected = give(self.trial.sites[parent], above, site.edge, None).model.state_dict()
            assert all(torch.equal(value, expected[key]) for key, value in found.model.state_dict().items())

    def no_secret_is_written(self) -> None:
        secrets = [path.read_text().splitlines()[1] for path in self.clinic.folder.path.rglob("*.key")]
        logs = [*(self.folder / "logs").iterdir(), *self.clinic.folder.path.rglob("*.log")]
        for path in [*logs, *self.trial.run.rglob("*.*")]:
            text = path.read_bytes().decode(errors="replace")
            assert not any(line in text for line in secrets), path
