"""What benchmarks/liars.py found, for docs/liars.md."""

import json
from pathlib import Path

SETTINGS = {
    "cifar10": "CIFAR-10, α = 0.5",
    "cifar10-severe": "CIFAR-10, α = 0.1",
    "fashion-mnist-mini": "Fashion-MNIST mini, small",
}
ATTACKS = {
    "none": "nobody lies",
    **{name: f"`{name}`" for name in ("label_flip", "sign_flip", "gaussian", "alie", "min_max")},
}


def tables(folder: Path) -> str:
    """Return by setting and rule the accuracies on seed 0, and the largest loss to a lie; "–" was not run."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    found = {(row["setting"], row["rule"], row["attack"]): row for row in rows if row["seed"] == 0}
    lines = []
    for setting, title in SETTINGS.items():
        honest = found[setting, "mean", "none"]["accuracy"]
        lines += [f"| {title} | {' | '.join(ATTACKS.values())} | largest loss |", "| --- " * (len(ATTACKS) + 2) + "|"]
        for rule in dict.fromkeys(rule for there, rule, _ in found if there == setting):
            runs = [found.get((setting, rule, attack)) for attack in ATTACKS]
            cells = [f"{100 * one['accuracy']:.1f} / {100 * one['edge_min']:.1f}" if one else "–" for one in runs]
            lost = 100 * max(honest - one["accuracy"] for one in runs if one)
            lines.append(f"| {rule} | {' | '.join(cells)} | {lost:.1f} |")
        lines.append("")
    return "\n\n" + "\n".join(lines) + "\n"
