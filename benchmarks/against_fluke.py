"""Our APFL, Ditto, FedPer, FedRep, FedBABU, FedRoD and FedALA against those of fluke, an independent simulator.

    pip install torch==2.13.0                 # first, and torchvision of the same build
    pip install -e '.[fluke]'
    python benchmarks/against_fluke.py [--seeds 0 1 2 3 4] [--only apfl ditto] [--json results/against-fluke.json]

Both get the same clients with the same examples, the same first network, cut before its last layer, and the same
batches in the same order; everybody trains in every round, and averages are weighted by examples. Every client is
measured on its own test data with what it has received after the last round. FedAvg is the control: it must come to
the same weights after one round, or the two did not get the same work.

Long runs of several seeds say how far the packages are apart in the end. There, rounding has grown to a point or so
even where both compute the same; so short runs say whether they do. Short runs marked with a change take one deviation
of fluke's away, to show that this makes the difference.

What a file already has of long runs is not run again.
"""

import argparse
import itertools
import json
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fluke.algorithms.apfl import APFLClient, APFLServer
from fluke.algorithms.ditto import DittoClient
from fluke.algorithms.fedala import FedALAClient
from fluke.algorithms.fedbabu import FedBABU, FedBABUClient, FedBABUServer
from fluke.algorithms.fedper import FedPerClient, FedPerServer
from fluke.algorithms.fedrep import FedRepClient, FedRepServer
from fluke.algorithms.fedrod import FedRODClient
from fluking import mended
from fluking.running import Rival, run

from fedbac import __version__, configure
from fedbac.config.experiment import Experiment, Runtime
from fedbac.core.settings import FloatArray
from fedbac.engines import connect
from fedbac.federation import assemble
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from fedbac.runs.play import play

CLIENTS, ROUNDS, EARLY, EPOCHS, TUNING = 20, 15, 3, 2, 2
"""``EARLY``: the rounds of the short runs; ``TUNING``: the last rounds, in which FedBABU fine-tunes."""
TASK = (
    f"task.num_edges={CLIENTS}",
    "task.clients_per_edge=1",  # so that the accuracy of edges is that of clients
    "task.partition.dirichlet_server=0.3",
    "task.partition.validation_fraction=0.8",  # not used: fluke trains a hundred images a client in minutes
    "task.partition.min_edge_test=20",
    "task.network.width=0.5",
    "task.training.batch_size=16",
    f"task.training.epochs={EPOCHS}",
    "task.training.learning_rate_decay=1",
    "task.training.clip_norm=null",
    "task.training.momentum_state=persist",  # as in fluke
)
OPTIMIZERS = {
    "plain": ("task.training.learning_rate=0.05", "task.training.momentum=0", "task.training.weight_decay=0"),
    "momentum": ("task.training.learning_rate=0.01", "task.training.momentum=0.9", "task.training.weight_decay=5e-4"),
}
SETTING = {
    "rounds": ROUNDS,
    "early": EARLY,
    "task": list(TASK),
    "optimizers": {name: list(own) for name, own in OPTIMIZERS.items()},
}


@dataclass(frozen=True)
class Pair:
    """A method in both packages."""

    name: str
    preset: str
    settings: tuple[str, ...] = ()
    rival: Rival = field(default_factory=Rival)
    passes: int = EPOCHS
    """fluke's epochs of all phases in a round."""
    tuning: int = 0
    """The last of our rounds, which are fine-tuning after the last round in fluke."""
    change: str | None = None
    """What was changed in fluke's code."""
    optimizers: tuple[str, ...] = ("plain",)


FLAT = "method.topology.kind=flat"
"""One site with everybody."""
APFL = ("method.personalization.adaptive=false", "method.personalization.alpha=0.5")
BABU: dict[str, Any] = {
    "preset": "fedbabu",
    "settings": (
        f"method.sharing.alone_rounds={TUNING}",
        f"method.personalization.last={TUNING}",
    ),
    "tuning": TUNING,
}
TUNED = {"mode": "full", "fine_tuning_epochs": TUNING * EPOCHS}
PAIRS = (
    Pair("fedavg", "fedavg", optimizers=tuple(OPTIMIZERS)),
    Pair("fedper", "fedper", rival=Rival(FedPerClient, FedPerServer, only_encoder=True)),
    Pair(
        "fedrep",
        "fedrep",
        rival=Rival(FedRepClient, FedRepServer, only_encoder=True, options={"tau": 1}),
        passes=EPOCHS + 1,
    ),
    Pair(
        "ditto",
        "ditto",
        rival=Rival(DittoClient, options={"tau": EPOCHS, "lam": 1.0}),
        passes=2 * EPOCHS,
        optimizers=tuple(OPTIMIZERS),
    ),
    Pair("fedbabu", **BABU, rival=Rival(FedBABUClient, FedBABUServer, FedBABU, only_encoder=True, options=TUNED)),
    Pair(
        "fedbabu",
        **BABU,
        rival=Rival(FedBABUClient, FedBABUServer, mended.TunedFromMeanBABU, only_encoder=True, options=TUNED),
        change="fine-tuning begins with the average",
    ),
    Pair("apfl", "apfl", APFL, Rival(APFLClient, APFLServer, options={"lam": 0.5})),
    Pair("apfl", "apfl", APFL, Rival(mended.LearningAPFL, options={"lam": 0.5}), change="v learns through the blend"),
    Pair("fedrod", "fedrod", rival=Rival(FedRODClient)),
    Pair("fedrod", "fedrod", rival=Rival(mended.ZeroHeadROD), change="p begins at zero"),
    Pair(
        "fedrod",
        "fedrod",
        rival=Rival(mended.ZeroHeadFirstROD),
        passes=2 * EPOCHS,
        change="the same, p trained before the rest",
    ),
    Pair("fedala", "fedala", rival=Rival(FedALAClient)),
)


Seeds = dict[str, tuple[float, float]]
"""By seed, our accuracy and fluke's: the mean over clients after the last round."""


def experiment(pair: Pair, optimizer: str, seed: int, rounds: int = ROUNDS) -> Experiment:
    """Return what we run."""
    settings = (*TASK, *OPTIMIZERS[optimizer], FLAT, *pair.settings)
    return configure(pair.preset, "fashion-mnist-mini", seed=seed, rounds=rounds, settings=settings)


def play_both(pair: Pair, optimizer: str, seed: int, rounds: int) -> tuple[FloatArray, FloatArray]:
    """Return the accuracies of clients after the last round, ours and fluke's."""
    chosen = experiment(pair, optimizer, seed, rounds)
    *_, last = play(chosen, runtime=Runtime(device="cpu"))
    theirs = run(assemble(chosen), pair.rival, rounds - pair.tuning, pair.passes)
    return np.array(last["accuracy_per_edge"]), np.array(theirs.accuracy_C)


def early(pair: Pair, optimizer: str) -> dict[str, Any]:
    """Return how far clients are apart after so few rounds that rounding has not grown yet."""
    ours_C, theirs_C = play_both(pair, optimizer, seed=0, rounds=EARLY)
    apart_C = np.abs(ours_C - theirs_C)
    means = {"ours": float(ours_C.mean()), "theirs": float(theirs_C.mean()), "apart": float(apart_C.mean())}
    return {"method": pair.name, "optimizer": optimizer, "change": pair.change, **means}


def control(optimizer: str) -> float:
    """Return the largest difference between the weights that FedAvg has averaged after one round."""
    chosen = experiment(PAIRS[0], optimizer, seed=0)
    federation, runtime = assemble(chosen), Runtime(device="cpu")
    edges = connect(chosen, federation, runtime)
    _, after = next(rounds(chosen, federation.sites, edges, start(chosen, federation.build, federation.sites)))
    edges.close()
    mine, theirs = after.parts["global"].values(), run(federation, Rival(), 1, EPOCHS).shared.parameters()
    return max(float((ours[0] - value).abs().max()) for ours, value in zip(mine, theirs, strict=True))


def read(file: Path) -> dict[str, Any]:
    """Return what a file tells, nothing yet if there is no file."""
    if not file.exists():
        return {"setting": SETTING, "early": [], "late": {}}
    told: dict[str, Any] = json.loads(file.read_text())
    if told["setting"] != SETTING:
        sys.exit(f"{file} was measured with other settings; give another file")
    return told


def write(file: Path, told: dict[str, Any]) -> None:
    file.write_text(json.dumps(told, indent=1) + "\n")


def main() -> None:
    names = list(dict.fromkeys(pair.name for pair in PAIRS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4], help="of the long runs")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, default=Path("results/against-fluke.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # on batches this small it is the slower one
    told = read(options.json)
    told["versions"] = {
        "fedbac": __version__,
        "fluke": version("fluke-fl"),
        "torch": torch.__version__.partition("+")[0],
    }
    told["first_average"] = {optimizer: control(optimizer) for optimizer in OPTIMIZERS}
    print("largest difference of FedAvg's weights after one round:", told["first_average"])
    pairs = [pair for pair in PAIRS if pair.name in options.only]
    kept = [row for row in told["early"] if row["method"] not in options.only]
    found = [early(pair, optimizer) for pair in pairs for optimizer in pair.optimizers]
    told["early"] = sorted([*kept, *found], key=lambda row: names.index(row["method"]))
    for row in found:
        print(*row.values())
    write(options.json, told)
    for seed, pair in itertools.product(options.seeds, pairs):
        done: Seeds = told["late"].setdefault(pair.name, {})
        if pair.change is None and str(seed) not in done:
            ours, theirs = (float(of_C.mean()) for of_C in play_both(pair, "plain", seed, ROUNDS))
            done[str(seed)] = (ours, theirs)
            print(f"seed {seed}: {pair.name:8} {ours:.4f} {theirs:.4f}", flush=True)
            write(options.json, told)


if __name__ == "__main__":
    main()
