"""The demo as the documentation shows it: a table, a figure and the report, all from the same runs.

results/demo.json keeps the numbers, results/demo-report.json what the report shows.

make demo
python -m fedbac_paper.demo runs/demo
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedbac
from fedbac.files import write_whole
from fedbac.presets import tasks
from fedbac.runs.store import StoredRun
from fedbac_paper import marks

TASK = "demo"
SHOWN = ("accuracy (%)", "worst edge (%)", "clusters", "moves", "total bytes")
"""What the page shows; the report has more."""
KEPT, FIGURE = Path("results/demo.json"), Path("docs/images/demo-accuracy.svg")
REPORT = Path("results/demo-report.json")


def kept(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return what is kept of the demo: the numbers of the table, and what ran."""
    from fedbac.report.groups import groups
    from fedbac.report.table import seeds_table

    header, rows = seeds_table(groups(runs))
    order = {run.summary["method"]: run.summary["accuracy"] for run in runs}
    rows.sort(key=lambda row: -order[row[0]])
    return {
        "task": runs[0].config["experiment"]["task"],
        "machine": runs[0].config["machine"],
        "seconds": sum(run.summary["seconds"] for run in runs),
        "rows": {row[0]: dict(zip(header, row, strict=True)) for row in rows},
    }


def block(file: Path) -> str:
    """Return the figure and the table for docs/first-run.md; refuse results of another task than the demo's."""
    found = json.loads(file.read_text(encoding="utf-8"))
    task = tasks.task(TASK)
    if type(task).model_validate(found["task"]) != task:
        raise SystemExit(f"{file} is of another task; run: make demo, then python -m fedbac_paper.demo runs/demo")
    methods = list(found["rows"])
    head = f"{task.rounds} rounds, {task.num_edges} edges of {task.clients_per_edge} clients, seed 0"
    lines = [
        f"![Distributed accuracy of {len(methods)} methods over the rounds of the demo](images/{FIGURE.name})",
        "",
        f"| {head} | {' | '.join(f'`{name}`' for name in methods)} |",
        "|---|" + "---:|" * len(methods),
        *(f"| {title} | {' | '.join(found['rows'][name][title] for name in methods)} |" for title in SHOWN),
        "",
    ]
    return "\n".join(lines)


def report(root: Path) -> str:
    """Return the report of the kept runs, as the page is now."""
    from fedbac.report.page import page

    return page(**json.loads((root / REPORT).read_text(encoding="utf-8")))


def main() -> None:
    """Keep the numbers of the demo's runs and what their report shows, and draw the figure."""
    from fedbac.report.document import document
    from fedbac.report.figures import figures
    from fedbac.report.groups import summarized
    from fedbac.report.sections import sections

    runs = [fedbac.load(path.parent) for path in sorted(Path(sys.argv[1]).glob("*/config.yaml"))]
    write_whole(KEPT, json.dumps(kept(runs), indent=1) + "\n")
    marks.save(figures(runs)["accuracy"], FIGURE, KEPT)
    title, runs = "The demo", sorted(summarized(runs), key=lambda run: -run.summary["accuracy"])
    shown = {"title": title, "parts": sections(runs, title), "figures": document(runs)}
    write_whole(REPORT, json.dumps(shown, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
