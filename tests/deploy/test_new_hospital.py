"""The commands of docs/deploy.md as people give them: a federation of processes, and a new hospital in it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbac.deploy.trial import free_ports
from fedbac.runs.store import RunFolder

PATIENCE = 240
ROUNDS = "40"
"""So many that whoever comes late on a busy machine has joined before the last."""


def fedbac(*words: str, code: int = 0) -> str:
    """Return what a command says, after it has ended as it should."""
    done = subprocess.run([sys.executable, "-m", "fedbac", *words], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def data_of(folder: Path, seed: int) -> Path:
    """Return a hospital's examples: three classes that can be told apart."""
    chance = np.random.default_rng(seed)
    y = chance.integers(0, 3, 60)
    x = chance.normal(size=(60, 8)).astype(np.float32)
    x[np.arange(60), y] += 2
    path = folder / f"data-{seed}.npz"
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return path


@contextmanager
def started(folder: Path, kits: Path) -> Iterator[None]:
    """Start every edge and client that has a kit and has not left."""
    names = sorted(path.name for path in kits.iterdir() if path.name != "cloud")
    sites = []
    for name in names:
        seed = sum(map(ord, name))
        role = "client" if "client" in name else "edge"
        more = ["--data", str(data_of(folder, seed))] if role == "client" else []
        with (folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "fedbac", role, str(kits / name), *more]
            sites.append(subprocess.Popen(command, stdout=log, stderr=log))
    try:
        yield
    finally:
        for site in sites:
            site.terminate()
        for site in sites:
            site.wait(PATIENCE)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_new_hospital_joins_in_the_second_month_and_takes_a_model_home(tmp_path: Path) -> None:
    kits, hospital = tmp_path / "hospital" / "kits", str(tmp_path / "hospital")
    port = str(min(free_ports(4)))
    settings = ("task.network=mlp", "task.rounds=3", "deploy.heartbeat=1")
    chosen = [word for setting in settings for word in ("--set", setting)]
    fedbac("federation", "init", hospital, "--edges", "2", "--clients", "2", "--method", "ditto", "--keys", *chosen,
           "--port", port)  # fmt: skip
    with started(tmp_path, kits):
        fedbac("cloud", str(kits / "cloud"))
    assert "edge-2-client-0" in fedbac("federation", "add", hospital, "--keys", "--port", port)
    assert "edge-1-client-2" in fedbac("federation", "add", hospital, "--edge", "1", "--keys")
    fedbac("federation", "leave", hospital, "edge-0-client-0")
    for name in ("edge-0-client-0", "edge-7"):
        assert f"unknown site '{name}'" in fedbac("federation", "leave", hospital, name, code=2)
    (kits / "edge-0-client-0").rename(tmp_path / "left")
    with started(tmp_path, kits):
        said = fedbac("cloud", str(kits / "cloud"), "--rounds", ROUNDS)
    assert f"round {ROUNDS}" in said
    run = RunFolder(kits / "cloud" / "run").read()
    (_, first), (_, last) = ((record["round"], record["selected"]) for record in (run.records[0], run.records[-1]))
    assert ([sorted(clients) for clients in first], [sorted(clients) for clients in last]) == (
        [[0, 1], [2, 3], []],
        [[1], [2, 3, 5], [4]],
    )
    assert run.records[-1]["accuracy"] > 0.6
    charters = {name: (tmp_path / f"{name}.log").read_text() for name in ("edge-1", "edge-1-client-2")}
    terms = {re.findall(r"epoch \d+ \(charter (\w+)\)", text)[-1] for text in charters.values()}
    assert len(terms) == 1, "everybody works under the same terms"

    out = tmp_path / "model.pt2"
    fedbac("model", str(kits / "edge-1-client-2"), "--out", str(out))
    assert f"Genuine: the model of edge-1-client-2 after round {ROUNDS}" in fedbac(
        "model", str(kits / "cloud"), "--verify", str(out)
    )
    model = torch.export.load(out).module()
    with np.load(data_of(tmp_path, 99)) as fresh:
        predicted = model(torch.from_numpy(fresh["x_test"])).argmax(1).numpy()
        assert (predicted == fresh["y_test"]).mean() > 0.6
