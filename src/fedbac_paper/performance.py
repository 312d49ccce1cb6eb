"""What the benchmarks measured, in tables for docs/performance.md, and what follows for a million clients."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbac_paper.tables import NONE, table

Row = Mapping[str, Any]
GB = 1e9
PARTS = ("training", "measuring")
"""Parts of a round that the table shows; the files have the small others."""
HIDDEN = "tf32"
"""A precision whose rows only the file has: its times lie between those of float32 and bf16."""

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
        if row["precision"] == HIDDEN:
            continue
        machine = str(row["machine"])
        times = (_number(row["us_per_sample_step"]), _number(row["speedup_over_loop"]))
        lines.append((machine if machine != before else "", _work(row), *times))
        before = machine
    return f"\n{table(('machine', 'network', 'µs', 'times as fast as the loop'), lines)}\n\n"


def peers(folder: Path) -> str:
    """Return how long others take on a GPU, from the file that ``benchmarks/round.py --peers --json`` wrote."""
    row = json.loads((folder / "peers-gpu.json").read_text(encoding="utf-8"))
    times = (f"`{each['path']}` {_number(each['us_per_sample_step'])}" for each in row["contestants"])
    small = f"a round as small as in pfl's benchmark ({_work(row)}), in µs per sample-step"
    return f"\nOn an H200, {small}: {', '.join(times)}.\n\n"


def ordinary(folder: Path) -> str:
    """Return how many times as fast the native kernel is as torch, from ``benchmarks/ordinary.py --json``."""
    told = json.loads((folder / "ordinary.json").read_text(encoding="utf-8"))
    shapes = [name for name in told["rows"][0] if name != "network"]
    lines = [(row["network"], *(f"{row[shape]:.2g}" for shape in shapes)) for row in told["rows"]]
    head = ("network", *(shape.replace("x", "×") for shape in shapes))
    return f"\nMachine: {told['machine']}.\n\n{table(head, lines)}\n\n"


def _work(row: Row) -> str:
    """Return what was done; of sizes and precision, those that are not the usual."""
    clients, images, batch = sizes = row["clients"], row["images"], row["batch"]
    told = "" if sizes == USUAL else f"; {clients} × {images}, batch {batch}"
    told += "" if row.get("precision", "float32") == "float32" else f"; {row['precision']}"
    return f"{row['network']}, {str(row['shape']).replace('x', '×')}{told}"


def runs(folder: Path) -> str:
    """Return how long rounds of the paper's size take, from the file that ``benchmarks/paper_run.py --json`` wrote."""
    times = (
        f"`{row['method']}` {row['seconds_200_rounds']:.1f} s ({row['median_round']:.3f} s a round)"
        for row in _read(folder / "paper.json")
    )
    return f"\n200 rounds: {', '.join(times)}.\n\n"


def several(folder: Path) -> str:
    """Return how long rounds take with several runs at a time, from ``benchmarks/paper_run.py --processes --json``."""
    times: dict[bool, list[str]] = {False: [], True: []}
    for row in _read(folder / "several.json"):
        times[row["service"]].append(f"{1000 * row['median_round'] / row['processes']:.0f} ({row['processes']})")
    return (
        "\nMilliseconds between two finished rounds of Fed-BAC on an H200 (runs at a time): without the service "
        f"{', '.join(times[False])}; with it {', '.join(times[True])}.\n\n"
    )


def kernels(folder: Path) -> list[list[str]]:
    """Return the µs that each kernel takes, from what ``benchmarks/kernels.py --json`` wrote for two tasks."""
    by_task = {row["task"]: row for row in _read(folder / "kernels.json")}
    lines = [[name, *(f"{row[name]:.0f}" for row in by_task.values()), what] for name, what in KERNELS.items()]
    return [["", *by_task, "what"], *lines]


def precision(folder: Path) -> str:
    """Return how far accuracy is from float32's, from the file that ``benchmarks/precision.py`` wrote."""
    accuracy: dict[str, dict[int, float]] = {}
    for row in json.loads((folder / "precision.json").read_text(encoding="utf-8"))["runs"]:
        accuracy.setdefault(row["precision"], {})[row["seed"]] = 100 * row["accuracy"]
    exact = accuracy.pop("float32")
    most = {name: max(abs(value - exact[seed]) for seed, value in found.items()) for name, found in accuracy.items()}
    told = " and ".join(f"{gap:.2f} points in {name}" for name, gap in most.items())
    return f"\nOn {len(exact)} seeds, accuracy differed from float32's by at most {told}, in this short test:\n\n"


def scaling(folder: Path) -> str:
    """Return how the cost grows with clients and edges, from the file that ``benchmarks/scaling.py --json`` wrote."""
    rows = _read(folder / "scaling.json")
    least, most = ([end(row[key] for row in rows) for key in ("clients", "us_per_sample_step")] for end in (min, max))
    last = rows[-1]
    return (
        f"\nFrom {least[0]:,} clients to {most[0]:,} a sample-step takes {_number(least[1])} to {_number(most[1])} µs. "
        f"The largest round, with {last['edges']:,} edges, takes {_number(last['seconds_per_round'])} s, "
        f"{100 * last['share']['measuring']:.0f} % of it for measuring, and at most "
        f"{last['peak_memory_mib']:,.0f} MiB.\n\n"
    )


def million(folder: Path) -> tuple[str, str]:
    """Return what a round of a million tiny clients took, and the parts of it."""
    measured = _read(folder / "million.json")
    told = " and ".join(
        f"{_number(row['seconds_per_round'])} s with `{row['method']}`, in {row['peak_memory_mib'] / 1024:.1f} GiB"
        for row in measured
    )
    most = max(measured, key=lambda row: row["share"]["measuring"])
    share, sent = most["share"], most["bytes_per_round"]["client"]
    moved = sum(sent[way][purpose] for way in ("down", "up") for purpose in ("train", "evaluate"))
    verdict = (
        f"**A round of {most['clients']:,} tiny clients at {most['edges']:,} edges took {told}, on {most['machine']}. "
        f"What grows first is measuring:** with `{most['method']}` it takes "
        f"{share['measuring'] / (share['training'] + share['measuring']):.0%} of the clients' time and "
        f"{sent['down']['evaluate'] / moved:.0%} of the {_number(moved / GB)} GB between clients and edges."
    )
    header = ("method", "s a round", *(f"{part} %" for part in PARTS), "averages %", "rest %", "peak MiB")
    rows = [
        (
            f"`{row['method']}`",
            _number(row["seconds_per_round"]),
            *(f"{100 * row['share'][part]:.0f}" for part in (*PARTS, "aggregation")),
            f"{100 * sum(row['share'][part] for part in ('selection', 'clustering', 'other')):.0f}",
            f"{row['peak_memory_mib']:,.0f}",
        )
        for row in measured
    ]
    return f"\n{verdict}\n\n", f"\n{table(header, rows)}\n\n"


def candidates(folder: Path) -> str:
    """Return what measuring some clusters instead of all changed, seed by seed."""
    accuracy: dict[tuple[str, int | None], dict[int, float]] = {}
    for row in json.loads((folder / "candidates.json").read_text(encoding="utf-8"))["runs"]:
        accuracy.setdefault((row["method"], row["candidates"]), {})[row["seed"]] = 100 * row["accuracy"]
    told: dict[str, list[str]] = {}
    for (method, count), by_seed in accuracy.items():
        if count is not None:
            gaps = [value - accuracy[method, None][seed] for seed, value in by_seed.items()]
            between = f"{sum(gaps) / len(gaps):+.1f} ({min(gaps):+.1f} to {max(gaps):+.1f})"
            told.setdefault(method, []).append(f"{count}: {between}")
    lines = "\n".join(f"- `{method}`, {'; '.join(found)}" for method, found in told.items())
    return f"\n{lines}\n\n"


def _number(value: float | None) -> str:
    """Return a number with three digits that count."""
    return NONE if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _read(file: Path) -> list[Row]:
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    return found
