"""What the benchmarks measured, in tables for docs/performance.md, and what follows for a million clients."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbac_paper.tables import NONE, table

Row = Mapping[str, Any]
MILLION, MANY_EDGES, MACHINES = 1_000_000, 1_000, (1, 10, 100, 1_000)
GB = 1e9
PARTS = {
    "training": ("training",),
    "measuring": ("measuring",),
    "selection and clustering": ("selection", "clustering", "selection and clustering"),
    "aggregation": ("aggregation",),
    "other": ("other",),
}
"""Columns of the table, and what is added up in each; rows of an earlier table have but the sum of two."""

KERNELS = {
    "convolve_0": "convolution, ReLU and pooling, forward pass",
    "convolve_1": "the same, second layer",
    "convolve_weights_0": "gradient of a convolution's weights",
    "convolve_weights_1": "the same, second layer",
    "convolve_back_1": "gradient of the second convolution's input",
    "head_train": "linear layers, forward pass",
    "head_back": "loss, and linear layers backwards",
    "linear_gradient": "gradients of their weights",
    "gather": "gradients summed up, their norm",
    "update": "clipping, momentum, decay, step",
    "step": "the first step of a round, all lanes side by side",
    "training": "the training of a round",
    "launching": "the host's part of that",
}
"""What ``benchmarks/kernels.py`` times, and what it is."""


USUAL = 100, 100, 32
"""Clients, images of each, and batch size."""


def rounds(folder: Path) -> str:
    """Return the table of single rounds, from the files that ``benchmarks/round.py --json`` wrote."""
    lines, before = [], ""
    for row in _read(folder / "rounds.json"):
        machine = str(row["machine"])
        lines.append(
            (
                machine if machine != before else "",
                _work(row),
                str(row["precision"]),
                _number(row["loop_us_per_sample_step"]),
                _number(row["us_per_sample_step"]),
                _number(row["speedup_over_loop"]),
                f"`{row['path']}`",
            )
        )
        before = machine
    return f"\n{table(('machine', 'network', 'precision', 'plain loop', 'ours', 'speed-up', 'path'), lines)}\n\n"


def peers(folder: Path) -> str:
    """Return how long others take on a GPU, from the file that ``benchmarks/round.py --peers --json`` wrote."""
    row = json.loads((folder / "peers-gpu.json").read_text(encoding="utf-8"))
    lines = [
        (f"`{each['path']}`", _number(each["us_per_sample_step"]), _number(each["speedup_over_loop"]))
        for each in row["contestants"]
    ]
    return f"\n{table((_work(row), 'µs per sample-step', 'speed-up over the loop'), lines)}\n\n"


def ordinary(folder: Path) -> str:
    """Return how many times as fast the native kernel is as torch, from ``benchmarks/ordinary.py --json``."""
    told = json.loads((folder / "ordinary.json").read_text(encoding="utf-8"))
    shapes = [name for name in told["rows"][0] if name != "network"]
    lines = [(row["network"], *(f"{row[shape]:.2g}" for shape in shapes)) for row in told["rows"]]
    head = ("network", *(shape.replace("x", "×") for shape in shapes))
    return f"\nMachine: {told['machine']}.\n\n{table(head, lines)}\n\n"


def _work(row: Row) -> str:
    """Return what was done; of sizes, those that are not the usual."""
    clients, images, batch = sizes = row["clients"], row["images"], row["batch"]
    told = "" if sizes == USUAL else f"; {clients} × {images}, batch {batch}"
    return f"{row['network']}, {str(row['shape']).replace('x', '×')}{told}"


def runs(folder: Path) -> str:
    """Return how long rounds of the paper's size take, from the file that ``benchmarks/paper_run.py --json`` wrote."""
    lines = [
        (
            f"`{row['method']}`",
            f"{row['median_round']:.3f} s",
            f"{row['seconds_200_rounds']:.1f} s",
            f"{100 * row['useful_share']:.1f} %",
        )
        for row in _read(folder / "paper.json")
    ]
    return f"\n{table(('method', 'a round', '200 rounds', 'useful samples'), lines)}\n\n"


def several(folder: Path) -> str:
    """Return how long rounds take with several runs at a time, from ``benchmarks/paper_run.py --processes --json``."""
    lines = [
        (
            f"{row['processes']}{', multi-process service' if row['service'] else ''}",
            f"{row['median_round']:.3f} s",
            f"{1000 * row['median_round'] / row['processes']:.0f} ms",
        )
        for row in _read(folder / "several.json")
    ]
    return f"\n{table(('processes', 'a round, in each', 'divided by the processes'), lines)}\n\n"


def kernels(folder: Path) -> list[list[str]]:
    """Return the µs that each kernel takes, from what ``benchmarks/kernels.py --json`` wrote for two tasks."""
    by_task = {row["task"]: row for row in _read(folder / "kernels.json")}
    lines = [[name, *(f"{row[name]:.0f}" for row in by_task.values()), what] for name, what in KERNELS.items()]
    return [["", *by_task, "what"], *lines]


def precision(folder: Path) -> str:
    """Return accuracy by precision, from the file that ``benchmarks/precision.py`` wrote."""
    accuracy: dict[str, dict[int, float]] = {}
    for row in json.loads((folder / "precision.json").read_text(encoding="utf-8"))["runs"]:
        accuracy.setdefault(row["precision"], {})[row["seed"]] = 100 * row["accuracy"]
    lines = []
    for name, by_seed in accuracy.items():
        gaps = [value - accuracy["float32"][seed] for seed, value in by_seed.items()]
        lines.append(
            (
                name,
                ", ".join(map(str, by_seed)),
                f"{sum(by_seed.values()) / len(by_seed):.2f}",
                NONE if name == "float32" else ", ".join(f"{gap:+.3f}" for gap in gaps),
            )
        )
    return f"\n{table(('precision', 'seeds', 'accuracy %', 'points from float32, by seed'), lines)}\n\n"


def scaling(folder: Path) -> str:
    """Return how the cost grows with clients and edges, from the file that ``benchmarks/scaling.py --json`` wrote."""
    return f"\n{_scalings(_read(folder / 'scaling.json'))}\n\n"


def tiny(folder: Path) -> tuple[str, str]:
    """Return what the largest round of very many tiny clients says of a million, and those that were measured."""
    measured = _read(folder / "tiny.json")
    largest = measured[-1]
    clients, edges = MILLION / largest["clients"], MANY_EDGES / largest["edges"]
    seconds = {part: share * largest["seconds_per_round"] for part, share in largest["share"].items()}
    work = clients * (seconds["training"] + seconds["measuring"])
    averages = clients * (seconds["selection"] + seconds["aggregation"])
    cloud = edges * (seconds["clustering"] + seconds["other"])
    sent = largest["bytes_per_round"]
    ways = [(direction, purpose) for direction in ("down", "up") for purpose in ("train", "evaluate")]
    moved = sum(sent["client"][way][purpose] for way, purpose in ways)
    needed = ", ".join(f"{(work + averages) / count + cloud:,.0f} seconds on {count:,}" for count in MACHINES)
    verdict = (
        f"**A round of a million tiny clients at {MANY_EDGES:,} edges would take {needed} machines of two cores. "
        f"Measuring breaks first:** it takes "
        f"{seconds['measuring'] / (seconds['training'] + seconds['measuring']):.0%} of the clients' time and "
        f"{sent['client']['down']['evaluate'] / moved:.0%} of the {_number(clients * moved / GB)} GB between clients "
        "and edges."
    )
    return f"\n{verdict}\n\n", f"\n{_scalings(measured)}\n\n"


def candidates(folder: Path) -> str:
    """Return what measuring some clusters instead of all changed, seed by seed."""
    accuracy: dict[tuple[str, int | None], dict[int, float]] = {}
    for row in json.loads((folder / "candidates.json").read_text(encoding="utf-8"))["runs"]:
        accuracy.setdefault((row["method"], row["candidates"]), {})[row["seed"]] = 100 * row["accuracy"]
    lines = []
    for (method, count), by_seed in accuracy.items():
        if count is not None:
            gaps = [value - accuracy[method, None][seed] for seed, value in by_seed.items()]
            lines.append(
                (f"`{method}`", str(count), f"{sum(gaps) / len(gaps):+.1f}", f"{min(gaps):+.1f} to {max(gaps):+.1f}")
            )
    return f"\n{table(('method', 'C', 'points', 'by seed'), lines)}\n\n"


def _scalings(rows: Sequence[Row]) -> str:
    header = ("clients", "edges", "s a round", "µs per sample-step", *(f"{part} %" for part in PARTS), "peak MiB")
    return table(header, [_scaled(row) for row in rows])


def _scaled(row: Row) -> tuple[str, ...]:
    shares = (f"{100 * sum(row['share'].get(name, 0) for name in names):.1f}" for names in PARTS.values())
    seconds, each = _number(row["seconds_per_round"]), _number(row["us_per_sample_step"])
    return f"{row['clients']:,}", f"{row['edges']:,}", seconds, each, *shares, f"{row['peak_memory_mib']:,.0f}"


def _number(value: float | None) -> str:
    """Return a number with three digits that count."""
    return NONE if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _read(file: Path) -> list[Row]:
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    return found
