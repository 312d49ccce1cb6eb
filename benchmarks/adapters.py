"""Adapters of a language model in languages: perplexity, next tokens, and whether clusters are families.

    python benchmarks/adapters.py [--methods …] [--seeds 0 1 2] [--rounds 20] [--out runs/adapters] [--json FILE]
                                  [--families 8] [--languages 4] [--set PATH=VALUE]

Five methods fine-tune SmolLM2-135M by adapters of rank 8 on ``q_proj`` and ``v_proj`` in the languages of the task
``udhr-smollm2``, or in fewer of them. One that was interrupted goes on where it was when the same command is given
again. Per method, over seeds: mean and worst perplexity over languages, mean and worst share of next tokens told, and
the adjusted Rand index of clusters and families (1: the same; 0: no more than by chance).
Per language: ``--json``.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score

import fedbac
from fedbac import Dataset, Method, method, task
from fedbac.data.natural import FAMILIES, UDHR
from fedbac.data.tokens import read_udhr_tokens
from fedbac.language import VOCABULARY
from fedbac.losses import NextToken

TARGET = ("*.q_proj", "*.v_proj")
OWNERS = {
    "hierfavg": ("cloud",),
    "fedavg-ft": ("cluster",),
    "ifca-edges": ("cluster",),
    "fed-bac": ("cloud", "cluster"),
    "fedfork": ("cluster",),
}
"""Who owns adapters, by the preset whose other choices a method has."""
BATCH = 4


@dataclass(frozen=True)
class Row:
    """What a method has come to with a seed."""

    method: str
    seed: int
    perplexity: dict[str, float]
    """By language."""
    accuracy: dict[str, float]
    rand: float | None
    """Adjusted Rand index; None where there is one cluster, or each language is one."""


def choices(name: str, clusters: int) -> Method:
    """Return a preset with adapters in place of its networks. All start at zero, so that no cluster is nearer to a
    language than another is: IFCA's languages begin dealt out in turns."""
    preset = method(name, task("udhr-smollm2"))
    changed: dict[str, Any] = {
        "name": f"{name}-lora",
        "personalization": {"kind": "adapters", "owners": OWNERS[name], "target": TARGET, "rank": 8, "alpha": 16},
    }
    if name in ("ifca-edges", "fed-bac"):
        again = {"period": 1} if name == "ifca-edges" else {"period": 5}
        clustering = preset.clustering.model_dump() | {"num_clusters": clusters, "start_labels": "round_robin"} | again
        changed["clustering"] = clustering
    if name == "fedfork":  # in 20 rounds of four steps all acts sooner than in its own hundreds
        changed["clustering"] = preset.clustering.model_dump() | {"period": 4}
        changed["sharing"] = preset.sharing.model_dump() | {"period": 4}
    return Method.model_validate(preset.model_dump() | changed)


def languages(families: int, each: int) -> Dataset:
    """Return some of the task's languages."""
    groups = {family: codes[:each] for family, codes in list(FAMILIES.items())[:families]}
    *arrays, tiers = read_udhr_tokens([UDHR], groups)
    return Dataset.from_arrays("languages", *arrays, num_classes=VOCABULARY, tiers=tiers)


@torch.no_grad()
def judged(run: fedbac.Run, data: Dataset) -> tuple[dict[str, float], dict[str, float]]:
    """Return perplexity and the share of next tokens told, of every language by its own model."""
    assert data.tiers is not None
    perplexity, accuracy, loss = {}, {}, NextToken()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for edge, name in enumerate(data.tiers.names):
        model, mine = run.model(edge=edge).to(device), data.tiers.edge_test == edge
        x, y = (torch.from_numpy(values[mine]).to(device) for values in (data.x_test, data.y_test))
        losses, rights, counts = [], [], []
        for some in range(0, len(x), BATCH):
            output, label = model(x[some : some + BATCH]), y[some : some + BATCH]
            count = (label >= 0).sum(-1)
            losses.append(loss.loss(output, label, "none") * count)
            rights.append(loss.right(output, label) * count)
            counts.append(count)
        total = float(torch.cat(counts).sum())
        perplexity[name] = round(math.exp(float(torch.cat(losses).sum()) / total), 2)
        accuracy[name] = round(float(torch.cat(rights).sum()) / total, 4)
    return perplexity, accuracy


def played(name: str, seed: int, args: argparse.Namespace, data: Dataset) -> Row:
    """Play a method, or what is left of it."""
    assert data.tiers is not None
    folder = args.out / f"{name}-{seed}"
    if (folder / "config.yaml").exists():
        run = fedbac.resume(folder, dataset=data)
    else:
        # No model is measured on the data of all edges: 32 models would take most of the time.
        settings = [f"task.num_edges={len(data.tiers.names)}", "evaluation.global_every=1000", *args.settings]
        run = fedbac.run(choices(name, args.families), "udhr-smollm2", dataset=data, rounds=args.rounds, seed=seed,
                         settings=settings, out=folder)  # fmt: skip
    labels = run.records[-1]["assignment"]
    meaningful = len(set(labels)) > 1 and OWNERS[name] and name not in ("hierfavg", "fedavg-ft")
    rand = float(adjusted_rand_score(data.tiers.groups, labels)) if meaningful else None
    return Row(name, seed, *judged(run, data), rand)


def show(rows: Sequence[Row]) -> None:
    """Print a line for each method."""
    print(f"{'':14}{'seeds':>6}{'perplexity':>12}{'worst':>9}{'tokens':>9}{'worst':>8}{'Rand':>7}")
    for name in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == name]
        numbers = [mean(f(row) for row in mine) for f in (
            lambda row: mean(row.perplexity.values()), lambda row: max(row.perplexity.values()),
            lambda row: mean(row.accuracy.values()), lambda row: min(row.accuracy.values()),
        )]  # fmt: skip
        found = [row.rand for row in mine if row.rand is not None]
        rand = f"{mean(found):7.2f}" if found else f"{'–':>7}"
        print(f"{name:14}{len(mine):6}{numbers[0]:12.1f}{numbers[1]:9.1f}{numbers[2]:9.3f}{numbers[3]:8.3f}{rand}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(OWNERS), choices=list(OWNERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--families", type=int, default=len(FAMILIES))
    parser.add_argument("--languages", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/adapters"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    args = parser.parse_args()
    data, rows = languages(args.families, args.languages), list[Row]()
    for seed in args.seeds:
        for name in args.methods:
            rows.append(played(name, seed, args, data))
            show(rows)
            if args.json:
                args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
