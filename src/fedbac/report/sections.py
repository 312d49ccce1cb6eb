"""The parts of the page that are text: verdict, tables, how it was measured. They need no script."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fedbac.report.groups import Group, groups, labels, last_rounds, look_up
from fedbac.report.outcome import caveats, leading, leaks, measured_on, outcome
from fedbac.report.table import NONE, Table, duration, ledger_table, seeds_table, table
from fedbac.runs.provenance import in_words
from fedbac.runs.store import StoredRun

POINTS = {
    "pre_reassign": "after the cloud's averaging, with the clusters of the round",
    "post_reassign": "after the cloud's averaging, with the clusters of the next round",
    "edge_model": "of each edge's own average, before the cloud's",
}


NAMES = ("header", "final", "ledger", "measured", "configuration")
"""Of the parts, in the order of the page."""


def sections(runs: Sequence[StoredRun], title: str) -> dict[str, str]:
    """Return the HTML of every part by its name, in the order of the page; runs are summarized."""
    together = groups(runs)
    return {
        "header": _header(runs, title),
        "final": f"<h2>Final numbers</h2>\n{_final(runs, together)}",
        "ledger": f"<h2>Byte ledger</h2>\n{_ledger(runs)}",
        "measured": f"<h2>How it was measured</h2>\n{_measured(together)}",
        "configuration": f"<h2>Configuration</h2>\n{_configurations(runs)}",
    }


def _header(runs: Sequence[StoredRun], title: str) -> str:
    warnings = [f"{group.label}: {leak}" for group in groups(runs) for leak in leaks(group.runs[0])]
    return (
        f'<header>\n<h1>{_glued(_subject(runs) + title)}</h1>\n<p class="lead">{_glued(outcome(runs))}</p>\n'
        + "".join(f'<p class="note">{_glued(note)}</p>\n' for note in caveats(runs))
        + "".join(f'<p class="warn" role="note">{escaped(warning)}</p>\n' for warning in warnings)
        + "</header>"
    )


def _subject(runs: Sequence[StoredRun]) -> str:
    """Return what all runs are about, as far as they agree: data, rounds and edges."""
    tasks = [look_up(run.config, "experiment.task", {}) for run in runs]
    facts = [(str(task.get("dataset")), f"{task.get('rounds')} rounds", _members(task)) for task in tasks]
    return "".join(f"{told[0]} · " for told in zip(*facts, strict=True) if len(set(told)) == 1)


def _final(runs: Sequence[StoredRun], together: Sequence[Group]) -> str:
    swatches = [next(group.look.css for group in together if run in group.runs) for run in runs]
    out = _table(table(runs), swatches, {}, "Final numbers of every run")
    spans = {last_rounds(run) for run in runs}
    span = f"last {spans.pop()} rounds" if len(spans) == 1 else "last rounds"
    note = f"Accuracy is the mean over the {span} ± its standard deviation over them."
    out = f'<div class="card">{out}<p class="note">{note}</p></div>'
    if all(group.num_seeds == 1 for group in together):
        return out
    bold = dict.fromkeys(leading(together), "best")
    means = _table(seeds_table(together), [group.look.css for group in together], bold, "Means over seeds")
    note = "± is over the seeds." + " In bold the best, and all that are not significantly worse." * bool(bold)
    return f'<div class="card"><h3>Means over seeds</h3>{means}<p class="note">{note}</p></div>\n{out}'


def _ledger(runs: Sequence[StoredRun]) -> str:
    header, rows = ledger_table(runs)
    classes = dict.fromkeys(range(0, len(rows) - 1, 6), "tier") | {len(rows) - 1: "total"}
    out = _table((header, rows), [], classes, "Bytes by tier, direction and purpose", "ledger")
    note = "Networks count 4 bytes a weight. Measuring the reported accuracy is not counted: it is the experimenter's "
    return f'<div class="card">{out}<p class="note">{note}instrument, not part of a method.</p></div>'


def _measured(together: Sequence[Group]) -> str:
    return (
        "<p>Distributed accuracy is the unweighted mean over the edges of the accuracy, on an edge's test data, of the "
        "model that serves it. A target counts as reached in the first of a few consecutive rounds at or above it. "
        "The traffic of these measurements is not counted in the bytes.</p>\n"
        '<div class="runs">' + "\n".join(_card(group) for group in together) + "</div>"
    )


def _card(group: Group) -> str:
    """Return the facts of a group's runs; where they differ, those of each run."""
    each = [facts(run) for run in group.runs]
    merged = {name: dict.fromkeys(fact[name] for fact in each) for name in each[0]}
    items = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped('; '.join(values))}</dd>" for name, values in merged.items())
    found = dict.fromkeys(leak for run in group.runs for leak in leaks(run))
    warnings = "".join(f'<p class="warn">{escaped(leak)}</p>' for leak in found)
    return f'<div class="card"><h3>{_swatch(group.look.css)}{escaped(group.label)}</h3><dl>{items}</dl>{warnings}</div>'


def facts(run: StoredRun) -> dict[str, str]:
    """Return how a run was made and judged, in words."""
    task = look_up(run.config, "experiment.task", {})
    planned, judge = look_up(task, "rounds", len(run.records)), look_up(run.config, "experiment.evaluation", {})
    point = str(look_up(judge, "point", NONE))
    failed = int(run.summary.get("failed_clients", 0))
    measured = [f"{field.rpartition('.')[2]}: {', '.join(splits)}" for field, splits in measured_on(run).items()]
    return {
        "Data set": str(look_up(task, "dataset", NONE)),
        "Edges and clients": _members(task),
        "Partition": _partition(look_up(task, "partition", {})),
        "Rounds": str(planned) if planned == len(run.records) else f"{len(run.records)} of {planned}",
        "Seed": str(look_up(run.config, "experiment.seed", NONE)),
        "Trainer": _trainer(run),
        **_computed_by(run),
        "Accuracy measured": POINTS.get(point, point),
        "Final accuracy": f"mean over the last {last_rounds(run)} rounds",
        "Targets": f"reached after {look_up(judge, 'target_patience', 1)} rounds in a row",
        "Policies measure on": "; ".join(measured) or "nothing: no policy needs a model measured",
        "Failed clients": f"{failed} (client, round) pairs left out" if failed else "none",
        **_devices(run),
    }


def _partition(spread: Mapping[str, Any]) -> str:
    """Return who got which data, in words."""
    if look_up(spread, "natural", False):
        return "the data's own edges and clients"
    mixes = look_up(spread, "edge_distributions", None)
    over = "edges" if mixes is None else f"{mixes} mixes of classes that edges share"
    edges, clients = look_up(spread, "dirichlet_server", NONE), look_up(spread, "dirichlet_client", NONE)
    return f"α = {edges} over {over}, {clients} over an edge's clients"


def _trainer(run: StoredRun) -> str:
    """Return which one trained, and what it gave up for speed."""
    used = dict.fromkeys(str(segment.by.get("trainer", NONE)) for segment in run.segments)
    path = ", then ".join(used) or str(look_up(run.config, "trainer", NONE))
    coarse = next((name for name in ("tf32", "bf16") if path.endswith(f"-{name}")), None)
    return path if coarse is None else f"{path}: products in {coarse}; a repeated run differs in its last bits"


def _computed_by(run: StoredRun) -> dict[str, str]:
    """Return what computed which rounds, where the run says."""
    ends = [segment.first - 1 for segment in run.segments[1:]] + [len(run.records)]
    told = [f"rounds {first} to {end}: {in_words(by)}" for (first, by), end in zip(run.segments, ends, strict=False)]
    return {"Computed by": "; ".join(told)} if told else {}


def _devices(run: StoredRun) -> dict[str, str]:
    """Return what devices cost a run, if it had any."""
    seconds = run.summary.get("simulated_seconds")
    if seconds is None:
        return {}
    dropped, late = run.summary["dropped_clients"], run.summary["late_clients"]
    selected = sum(len(clients) for record in run.records for clients in record["selected"])
    lost = f"{dropped} dropped out and {late} were late, of {selected} selected" if dropped or late else "none"
    return {"Simulated time": duration(seconds), "Updates lost": lost}


def _members(task: Mapping[str, Any]) -> str:
    num_edges, clients = look_up(task, "num_edges", NONE), look_up(task, "clients_per_edge", NONE)
    if isinstance(clients, list | tuple):
        return f"{num_edges} edges, {sum(clients)} clients ({min(clients)} to {max(clients)} per edge)"
    return f"{num_edges} edges with {clients} client{'s' if clients != 1 else ''} each"


def _configurations(runs: Sequence[StoredRun]) -> str:
    parts = []
    for label, run in zip(labels(runs), runs, strict=True):
        shown = {key: value for key, value in run.config.items() if key != "classes_per_edge"}  # a figure shows it
        clean = json.loads(json.dumps(shown, default=str))
        text = yaml.safe_dump(clean, sort_keys=False, allow_unicode=True)
        place = "" if run.folder is None else f" · {run.folder}"
        parts.append(f"<details><summary>{escaped(label + place)}</summary><pre>{escaped(text)}</pre></details>")
    return f'<div class="card">{"".join(parts)}</div>'


# --------------------------------------------------------------------------------------------------- pieces


def _table(
    content: Table, swatches: Sequence[str], classes: Mapping[int, str], caption: str, kind: str = "numbers"
) -> str:
    header, rows = content
    head = "".join(f'<th scope="col">{_glued(cell)}</th>' for cell in header)
    lines = []
    for index, (first, *rest) in enumerate(rows):
        mark = _swatch(swatches[index]) if swatches else ""
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in rest)
        attribute = f' class="{classes[index]}"' if index in classes else ""
        lines.append(f'<tr{attribute}><th scope="row">{mark}{escaped(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}" aria-label="{caption}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def _swatch(colour: str) -> str:
    return f'<span class="swatch" style="background:{colour}"></span>'


def escaped(value: object) -> str:
    """Escape for text and attributes."""
    return html.escape(printable(str(value)))


def printable(text: str) -> str:
    """Return text in which control characters, which no page may hold, are spaces."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", " ", text)


def _glued(value: str) -> str:
    """Escape, and keep numbers and percent signs, and names such as fed-bac, on one line."""
    whole = r'<span class="whole">\g<0></span>'
    return re.sub(r"\b\w{1,20}(-\w{1,20}){1,3}\b", whole, escaped(value).replace(" %", "&nbsp;%"))
