"""What attacks on a federation of processes came to, and what one costs, as tables of docs/deploy-operations.md.

python benchmarks/soak.py --only federation --kills 100 --json results/deploy/soak.json
python benchmarks/deploy.py --json results/deploy/bench.json
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbac_paper.tables import table

ROLES = ("cloud", "edge", "client")
Phase = Mapping[str, Any]


def filled(page: Path, results: Path) -> str:
    """Return a page with the tables between their marks."""
    text = page.read_text(encoding="utf-8")
    for mark, made in (("soak", soak), ("deploy-bench", bench)):
        before, begin, rest = text.partition(f"<!-- {mark} -->")
        _, end, after = rest.partition(f"<!-- /{mark} -->")
        if not begin or not end:
            raise SystemExit(f"{page}: the marks <!-- {mark} --> and <!-- /{mark} --> are missing")
        text = f"{before}{begin}\n{made(results)}\n{end}{after}"
    return text


def soak(results: Path) -> str:
    """Return what the attacks came to; refuse results with complaints, which the text would deny."""
    file = results / "soak.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    phases: dict[str, Phase] = found["phases"]
    if any(phase["complaints"] for phase in phases.values()):
        raise SystemExit(f"{file}: it holds complaints; mend what they name, and run benchmarks/soak.py again")
    kills = sum(sum(phase["kills"].values()) for phase in phases.values())
    rows: list[tuple[str, Callable[[Phase], str]]] = [
        ("killed: cloud, edge, client", lambda phase: _counts(phase["kills"])),
        ("rounds repeated", lambda phase: str(phase["again"])),
        (
            "seconds until the cloud, an edge, a client took part again",
            lambda phase: ", ".join(_spread(phase["returns"].get(role)) for role in ROLES),
        ),
    ]
    return "\n".join(
        [
            "",
            f"Sites were killed {kills} times at random moments; every run finished, and no completed round was lost: "
            f"2 edges and 4 clients on {found['machine']} (`python benchmarks/soak.py --only federation`). Where "
            "rounds needed everybody, all numbers equalled the simulator's; elsewhere one client was enough.",
            "",
            table(["", *phases], [[title, *(cell(phase) for phase in phases.values())] for title, cell in rows]),
            "",
            "Seconds: median (maximum) from the restart to the end of the first round with the site.",
            "",
        ]
    )


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(str(found.get(role, 0)) for role in ROLES)


def _spread(seconds: Sequence[float] | None) -> str:
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "–"


def bench(results: Path) -> str:
    """Return what a federation of processes costs."""
    found = json.loads((results / "bench.json").read_text(encoding="utf-8"))
    memory = ", ".join(
        f"{role} {when} {mib['rss']:.0f}"
        for when, roles in found["memory"].items()
        for role, mib in sorted(roles.items(), key=lambda item: ROLES.index(item[0]))
    )
    excess = 100 * (max(row["ratio"] for row in found["bytes"]) - 1)
    return "\n".join(
        [
            "",
            f"`benchmarks/deploy.py`: `{found['method']}` with {found['edges']} edges of {found['clients']} clients on "
            f"{found['machine']}. Round 1 ended after {found['cold_start']:.0f} s; the median round then took "
            f"{found['median_round']:.2f} s. For training, links carried at most {excess:.1f} % more than the ledger "
            f"counts (`bytes` in the record). Memory of the largest site of each kind (RSS, in MiB): {memory}.",
            "",
        ]
    )
