"""The cloud: takes its edges, and plays the run."""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedbac.config.experiment import Runtime
from fedbac.deploy import log
from fedbac.deploy.metrics import METRICS
from fedbac.deploy.models import cloud_models
from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.protocol.handshake import check_hello, hello
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.roles.edges import BrokenRoundError, Interruption, RemoteClients, RemoteEdges
from fedbac.deploy.roles.enrolment import Enrolled, enrol
from fedbac.deploy.roles.epochs import EPOCHS, NEXT, advanced, continued, play_epochs
from fedbac.deploy.roles.history import History
from fedbac.deploy.roles.status import Board
from fedbac.deploy.settings import quorum
from fedbac.deploy.transports.base import Children, Counted
from fedbac.deploy.transports.connect import children_of
from fedbac.errors import DeployError, Error
from fedbac.files import make_folder, read_bytes, remove
from fedbac.rounds.messages import Edges
from fedbac.runs import checkpoints
from fedbac.runs.configure import configure
from fedbac.runs.play import conduct
from fedbac.runs.stopping import Stop
from fedbac.runs.store import RunFolder, StoredRun

LINKS_BACK = 3
"""Heartbeats in which edges have dialled again, where the cloud of a finished run is started once more."""
SECONDS_APART = 600.0
"""Between two times that models are handed out before the run ends."""


@dataclass
class Cloud:
    """One run of a federation, from its cloud."""

    kit: Kit
    folder: RunFolder
    runtime: Runtime
    rounds: int | None = None
    listen: str | None = None
    overwrite: bool = False
    accept_rollback: bool = False
    """Whether sites go on with what they have where they lack what the run needs of them."""
    refresh: Sequence[str] = ()
    """Sites whose data have changed on purpose."""
    state: Path | None = None
    """Where the status is written, and what the cloud keeps of a run without tiers; in the kit unless given."""
    stop: Stop = field(default_factory=Stop)
    remote: RemoteEdges | RemoteClients | None = None
    lists: dict[str, bytes] = field(default_factory=dict)
    """By edge, the list of revoked certificates that it was handed since it last came."""

    def play(self) -> Generator[dict[str, Any], None, StoredRun]:
        """Wait for everybody, then play all rounds; yield each once it is safe on the disk."""
        experiment = configure(self.kit.experiment_file, rounds=self.rounds)
        site, wanted = self.kit.site, lambda: self.stop.wanted
        begun = not self.overwrite and (self.folder.has_run() or (self.folder.path / EPOCHS / NEXT).exists())
        before = advanced(self.folder, site.members.moved) if begun else None
        with (
            closing(children_of(self.kit, self._shake_hands, self.listen, self._state)) as children,
            closing(Board(self._state, lambda: self._look(children))) as board,
        ):
            self._board, self._children = board, children
            self._show_metrics(children)
            played = 0 if before is None else checkpoints.newest(self.folder.checkpoints)
            run = str(self.folder.path)
            board.say(rounds=experiment.task.rounds, round=played, method=experiment.method.name, run=run)
            try:
                make_folder(self.folder.path)  # now, so that whoever wants to watch it finds it
                if before is None:
                    remove(self.folder.path / EPOCHS)
                    enrolled = enrol(experiment, site, children, self._waiting, wanted)
                    enrolled.save(self.folder.path)
                else:
                    rest = (site, children, self.refresh, self._waiting, wanted)
                    enrolled = continued(before, experiment, self.folder, *rest)
                board.say(doing="playing")
                play = partial(self._play, children=children)
                playing = play_epochs(enrolled, site, children, play, lambda: self.remote, self.folder)
                return (yield from self._followed(playing, board))
            except Interruption as waited:
                board.say(doing="stopped")
                raise DeployError(f"stopped ({waited}); all complete rounds are saved") from waited
            except Error as error:
                board.say(doing="stopped", why=str(error))
                raise

    def _play(
        self, enrolled: Enrolled, declined: set[str], children: Children
    ) -> Generator[dict[str, Any], None, StoredRun]:
        overwrite, self.overwrite = self.overwrite, False  # only what was there before
        self._board.say(epoch=enrolled.charter.epoch)
        connect = partial(self._connect, enrolled, declined, children)
        return play_soundly(enrolled, connect, self.runtime, self.folder, overwrite, self.stop)

    def _followed(
        self, playing: Generator[dict[str, Any], None, StoredRun], board: Board
    ) -> Generator[dict[str, Any], None, StoredRun]:
        self._pass_list_on()
        handed = time.monotonic()
        while True:
            try:
                record = next(playing)
            except StopIteration as done:
                run: StoredRun = done.value
                if self.remote is not None and run.models.round:
                    self.remote.hand_out(run.models, patience=LINKS_BACK * self.kit.site.deploy.heartbeat)
                board.say(doing="finished" if not self.stop.wanted else "stopped")
                return run
            METRICS.round(record["seconds"])
            board.say(doing="playing", round=record["round"], accuracy=record["accuracy"], absent=record["absent"])
            self._pass_list_on()
            if self.remote is not None and time.monotonic() - handed >= SECONDS_APART:
                self.remote.hand_out(cloud_models(self.folder.path))
                handed = time.monotonic()
            yield record

    def _show_metrics(self, children: Children) -> None:
        site = self.kit.site

        def left_out() -> int:
            return 0 if self.remote is None else len(self.remote.caller.unfit | self.remote.left_out)

        METRICS.watch_children(len(site.children), children.present, left_out)
        METRICS.ready = lambda: len(children.present()) >= quorum(site.deploy.min_edges, len(site.children))

    def _connect(self, enrolled: Enrolled, declined: set[str], children: Children) -> RemoteEdges | RemoteClients:
        missed = partial(self._waiting, level=logging.WARNING)  # the run has begun, and lacks them
        who = (enrolled.charter, children, self.kit.site.deploy)
        moved = self.kit.site.members.moved
        history = History(enrolled.charter, self.folder.read_records, self.accept_rollback, moved)
        rest = (*who, missed, lambda: self.stop.wanted, history, declined)
        flat = enrolled.charter.experiment.method.topology.tiers == 2
        before, self.remote = self.remote, (RemoteClients if flat else RemoteEdges)(self._state, *rest)
        self.remote.take_over(before)
        return self.remote

    @property
    def _state(self) -> Path:
        return self.state or self.kit.folder / "state"

    def _shake_hands(self, name: str, said: bytes) -> bytes:
        check_hello(name, said)
        self.lists.pop(name, None)
        if self.remote is not None:
            self.remote.caller.rejoined(name)
        return hello(self.kit.site.name)

    def _waiting(self, what: str, level: int = logging.INFO) -> None:
        if self._board.said.get("doing") != what:
            log.log(level, "%s", what)
        self._board.say(doing=what)
        self._pass_list_on()  # the site that keeps a round from being played may be the one that was revoked

    def _look(self, children: Counted) -> dict[str, Any]:
        now = time.time()
        edges = {
            name: {"present": name in children.present(), "seen": now - ago} for name, ago in children.seen().items()
        }
        clients, spoke = ({}, {}) if self.remote is None else (self.remote.present, self.remote.spoke)
        return {
            "site": self.kit.site.name,
            "expected": list(self.kit.site.children),
            "edges": edges,
            "clients": clients,
            "spoke": spoke,
            "left_out": {} if self.remote is None else self.remote.left_out,
            "traffic": children.traffic(),
        }

    def _pass_list_on(self) -> None:
        """Hand the list of revoked certificates to edges that were not handed it, who believe it for its signature."""
        pem = read_bytes(self.kit.list_file) if self.kit.list_file.exists() else b""
        due = [name for name in self._children.present() if self.lists.get(name, b"") != pem]
        if due:
            message = sent("revoked", list=pem.decode(errors="replace"))
            answers, _ = self._children.call(dict.fromkeys(due, message), self.kit.site.deploy.deadline)
            self.lists |= dict.fromkeys(answers, pem)


def play_soundly(
    enrolled: Enrolled,
    connect: Callable[[], Edges],
    runtime: Runtime,
    folder: RunFolder,
    overwrite: bool = False,
    stop: Stop | None = None,
) -> Generator[dict[str, Any], None, StoredRun]:
    """Play a run; from a round that cannot be played, go back to an older checkpoint, but to none a second time."""
    tried: set[int] = set()
    while True:
        playing = conduct(enrolled.charter.experiment, enrolled, connect(), runtime, False, folder, overwrite, stop)
        try:
            return (yield from playing)
        except BrokenRoundError as error:
            with folder.locked():
                older = checkpoints.sound_before_newest(folder.checkpoints)
                if older is None or older in tried:
                    raise DeployError(
                        f"{error}. No older checkpoint is left to go back to. {folder.path} is kept as it is. Find the "
                        "site that sends garbage (the logs name sites that were left out), then start the cloud again "
                        "to resume, or with --overwrite to start over"
                    ) from error
                log.warning("%s; going back to round %d", error, older)
                checkpoints.tidy(folder.checkpoints, older, folder.keep)
            overwrite = False
            tried.add(older)


def run_folder(kit: Kit, out: Path | None) -> RunFolder:
    """Return where the cloud writes: beside its kit, unless told otherwise."""
    command = f"fedbac cloud {kit.folder}" + (f" --out {out}" if out else "")
    return RunFolder(out or kit.folder / "run", command)
