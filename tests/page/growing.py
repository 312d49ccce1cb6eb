"""A run folder that grows by a round when a test says so, as under the hands of a running command."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fedbac
from fedbac.data import toy
from fedbac.report.beside import END_SECONDS, address, listen, new_path
from fedbac.report.following import Find
from fedbac.report.live import Live
from fedbac.runs.store import RunFolder

SMALL = [
    "task.num_edges=4", "task.clients_per_edge=2", "task.network={kind: mlp, hidden: [4]}", "task.training.epochs=1",
    "task.partition.min_edge_test=1", "task.partition.min_client_samples=1", "method.clustering.period=2",
]  # fmt: skip


def played(folder: Path, method: str = "fedbac-plus", rounds: int = 5) -> Path:
    """Play a run of some rounds, in no time, and return its folder."""
    fedbac.run(method, rounds=rounds, settings=SMALL, dataset=toy(size=8), out=folder, device="cpu", workers=1)
    return folder


class Growing:
    """A copy of a played run, with no round at first."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.lines = (source / "rounds.jsonl").read_bytes().splitlines(keepends=True)
        folder.mkdir(parents=True)
        shutil.copy(source / "config.yaml", folder)
        self.folder, self.file = RunFolder(folder), folder / "rounds.jsonl"
        self.written = 0

    def grow(self, rounds: int = 1) -> None:
        """Add rounds."""
        with self.file.open("ab") as file:
            for line in self.lines[self.written : self.written + rounds]:
                file.write(line)
        self.written += rounds

    def tear(self) -> None:
        """Add half of the next line."""
        with self.file.open("ab") as file:
            file.write(self.lines[self.written][:40])


@contextmanager
def served(find: Find) -> Iterator[str]:
    """Serve a live page in a thread of this process, and yield its address."""
    with listen(None) as listening:
        server = Live(find, listening, new_path())
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        try:
            yield address(listening, server.path)
        finally:
            server.end()
            thread.join(timeout=2 * END_SECONDS)
