"""For docs/secret-sums.md: what benchmarks/secret.py found, and the presets that are refused."""

import json
from pathlib import Path

from fedbac.errors import ConfigError
from fedbac.presets.methods import METHODS
from fedbac.presets.tasks import TASKS
from fedbac.runs.configure import configure

ON = ("method.aggregation.secret=true",)
KB, MS = 1e3, 1e3


def refused() -> str:
    """Return the presets that secret sums do not serve."""
    refused = []
    for name in METHODS:
        try:
            configure(name, TASKS["demo"], settings=ON)
        except ConfigError:
            refused.append(name)
    others = ", ".join(f"`{name}`" for name in sorted(refused))
    return f"\n{len(METHODS) - len(refused)} of {len(METHODS)} presets work. The others are refused: {others}.\n\n"


def costs(folder: Path) -> str:
    """Return by number of clients what a sum costs, and what the most clients cost without secrecy."""
    lines = ["| clients | lost | client, ms | edge, s | up, kB | more down, kB | MiB |", "|" + "---:|" * 7]
    plain = ""
    for file in sorted(folder.glob("*.json"), key=lambda file: int(file.stem)):
        found = json.loads(file.read_text(encoding="utf-8"))
        plain = (
            f"In plain sums a client sends {found['plain']['client_bytes_up'] / KB:.0f} kB, and the edge takes "
            f"{found['plain']['edge_seconds']:.2f} s for {found['clients']:,} clients and holds "
            f"{found['plain']['mib']:.1f} MiB, however many they are."
        )
        for name, one in sorted(found.items()):
            if not name.startswith("lost_"):
                continue
            cells = [
                f"{found['clients']:,}",
                f"{100 * float(name.removeprefix('lost_')):.0f} %",
                f"{MS * one['client_seconds']:.0f}",
                f"{one['edge_seconds']:.2f}",
                f"{one['client_bytes_up'] / KB:.0f}",
                f"{one['client_bytes_down'] / KB:.0f}",
                f"{one['mib']:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join([*lines, "", plain]) + "\n\n"
