"""What ``fedbac compare --all`` found, kept in one small file, as a table beside docs/methods.md.

fedbac compare --all --task devices --out runs/all
python -m fedbac_paper.compared runs/all results/methods/compared.json

Runs of some methods replace their rows, and the others stay.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedbac
from fedbac.config.experiment import Method
from fedbac.files import make_folder, write_whole
from fedbac.presets import tasks
from fedbac.presets.methods import METHODS
from fedbac.runs.store import StoredRun
from fedbac_paper.tables import NONE, comma_separated

TASK = "devices"
NUMBERS = "compared.csv"
KEPT = ("accuracy", "bytes_total", "simulated_seconds", "active_clusters", "seconds")
OWN_KERNELS = ("native", "cuda-fused")
MUCH = 5
WHY_SLOW = {
    ("cflhkd", "cflhkd-edges", "fed-csad", "phe-fl-kd"): "learn from a teacher's outputs, so torch trains them.",
    ("abad",): "cuts every client's update to its largest entries.",
    ("paper-figures",): "every edge measures every cluster in every round.",
}
COMMANDS = f"""fedbac compare --all --task {TASK} --out runs/all
python -m fedbac_paper.compared runs/all results/methods/compared.json
python tools/make_docs.py"""


def kept(runs: Sequence[StoredRun], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a comparison: of each run its method with all settings, and the numbers of the table."""
    rows = {
        run.summary["method"]: {
            "settings": run.config["experiment"]["method"],
            "trainer": run.config["trainer"],
            "machine": run.config["machine"],
            **{key: run.summary[key] for key in KEPT},
        }
        for run in runs
    }
    return {"task": TASK, "methods": dict(sorted({**before.get("methods", {}), **rows}.items()))}


def outdated(found: Mapping[str, Any]) -> list[str]:
    """Return the presets whose settings have changed since they were compared."""
    task = tasks.task(TASK)
    then = {name: Method.model_validate(row["settings"]) for name, row in found["methods"].items()}
    return [name for name, preset in METHODS.items() if name in then and then[name] != preset(task)]


def section(results: Path) -> str:
    """Return what docs/methods.md says of all methods on one task; nothing before they were compared."""
    read = kept_in(results)
    if read is None:
        return ""
    found, speed = read
    own = sum(row["trainer"].startswith(OWN_KERNELS) for row in found["methods"].values())
    return "\n".join(
        [
            "## All of them on one task",
            "",
            f"[One seed of {len(found['methods'])} of {len(METHODS)} methods on `{TASK}`](methods/{NUMBERS}) "
            f"(`fedbac compare --all`) shows that each runs, learns and counts bytes; it does not rank them. {own} of "
            f"them use our own kernels. Of {_timed(speed)} that were timed (`benchmarks/methods.py`, {_tasks(speed)}), "
            f"these take over {MUCH} times as long as HierFAVG for a round:",
            "",
            *(f"- {reason}" for reason in reasons(speed)),
        ]
    )


def kept_in(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return the comparison and the speeds that are kept in a folder, of today's presets; refuse older settings."""
    file = results / "compared.json"
    if not file.exists():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    found["methods"] = {name: row for name, row in found["methods"].items() if name in METHODS}
    if old := outdated(found):
        raise SystemExit(f"{file} is not current for {', '.join(old)}; run:\n{COMMANDS}")
    speed = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("speed-*.json"))]
    for timed in speed:
        timed["methods"] = [row for row in timed["methods"] if _current(row, found["methods"])]
    return found, speed


def _current(timed: Mapping[str, Any], compared: Mapping[str, Any]) -> bool:
    """Whether a method was timed as it is today: with our own kernels if it has them, without if not."""
    name = timed["method"]
    own = timed["trainer"].startswith(OWN_KERNELS)
    return name in compared and own == compared[name]["trainer"].startswith(OWN_KERNELS)


def numbers(results: Path) -> str:
    """Return the comparison as a file for spreadsheets; only a header before there is one."""
    found, speed = kept_in(results) or ({"methods": {}}, [])
    return comma_separated(rows(found, speed))


def _timed(speed: Sequence[Mapping[str, Any]]) -> int:
    return len({row["method"] for timed in speed for row in timed["methods"]})


def _tasks(speed: Sequence[Mapping[str, Any]]) -> str:
    """Return on which task each machine was timed; refuse tasks that have changed since."""
    for results in speed:
        task = tasks.task(results["task"]).model_copy(update={"rounds": results["settings"]["rounds"]})
        if type(task).model_validate(results["settings"]) != task:
            raise SystemExit(f"the task {results['task']} has changed; run benchmarks/methods.py --json again")
    return ", ".join(f"task `{results['task']}` on {results['machine']}" for results in speed)


def reasons(speed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why methods are slow; each that is must have a reason."""
    slow = {row["method"] for results in speed for row in results["methods"] if row["ratio"] > MUCH}
    explained = {name for names in WHY_SLOW for name in names}
    if missing := slow - explained:
        raise SystemExit(f"say in fedbac_paper.compared.WHY_SLOW why {', '.join(sorted(missing))} are slow")
    return [
        f"{', '.join(f'`{name}`' for name in names if name in slow)}: {why}"
        for names, why in WHY_SLOW.items()
        if slow & set(names)
    ]


def rows(found: Mapping[str, Any], speed: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return all numbers, best accuracy first; ``speed`` holds what ``benchmarks/methods.py`` wrote."""
    from fedbac.report.table import duration, human_bytes, percent

    machines = (f"a round on {results['machine']}" for results in speed)
    header = ["method", "accuracy (%)", "total bytes", "simulated time", "clusters"]
    ratios = [{row["method"]: row for row in results["methods"]} for results in speed]
    return [[*header, *machines]] + [
        [
            name,
            percent(row["accuracy"]),
            human_bytes(row["bytes_total"]),
            duration(row["simulated_seconds"]),
            str(row["active_clusters"]),
            *(f"{by_name[name]['ratio']:.1f}" if name in by_name else NONE for by_name in ratios),
        ]
        for name, row in sorted(found["methods"].items(), key=lambda item: -item[1]["accuracy"])
    ]


def main() -> None:
    """Keep the numbers of a folder of runs."""
    folder, file = map(Path, sys.argv[1:])
    runs = [fedbac.load(path.parent) for path in sorted(folder.glob("*/config.yaml"))]
    make_folder(file.parent)
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    write_whole(file, json.dumps(kept(runs, before), indent=1) + "\n")


if __name__ == "__main__":
    main()
