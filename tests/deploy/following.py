"""Following a federation of processes from outside: by its files, and with patience."""

import json
import time
from collections.abc import Callable
from typing import Any

from fedbac.deploy.trial import Trial


def until(what: str, true: Callable[[], Any], trial: Trial, patience: float) -> None:
    """Wait for something, for so many seconds at most."""
    end = time.monotonic() + patience
    while not true():
        logs = {log.name: log.read_text()[-2000:] for log in (trial.folder / "logs").iterdir()}
        assert time.monotonic() < end, (what, logs)
        time.sleep(0.05)


def records(trial: Trial) -> list[dict[str, Any]]:
    """Return the rounds that are on the disk."""
    file = trial.run / "rounds.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
