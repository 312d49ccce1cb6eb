"""One self-contained HTML page: no script, no network, light and dark."""

import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import yaml
from matplotlib.figure import Figure

from fedbac.files import make_folder, write_whole
from fedbac.report.figures import figures
from fedbac.report.groups import Group, groups, labels, last_rounds, look_up, summarized
from fedbac.report.outcome import caveats, leaks, measured_on, outcome
from fedbac.report.table import NONE, Table, best, duration, ledger_table, seeds_table, table
from fedbac.report.theme import SWAPS, style_sheet
from fedbac.runs.store import Run

CAPTIONS = {
    "accuracy": (
        "Accuracy",
        "Mean over the edges after every round; the shade reaches from the worst edge to the best. "
        "Labels give the mean over the last rounds. Look at how far apart the lines end, and who gets there first.",
    ),
    "edges": ("Fairness", "A fair method keeps its dots close together. Look at the lowest dot of each colour."),
    "clusters": (
        "Cluster dynamics",
        "A line that goes flat in the upper panel means that the clusters have settled; "
        "the lower panel shows on how many.",
    ),
    "assignment": (
        "Who is with whom",
        "One row per edge; edges of one colour and number in the same round train a cluster model together. "
        "A change of colour is a move.",
    ),
    "bytes": (
        "Traffic",
        "Everything sent in the whole run. Look at what is spent on measuring rather than on training (paler tones).",
    ),
}
"""Heading and caption of each figure, in the order of the page."""

SEEDS = {
    "accuracy": " Thin lines are single seeds.",
    "edges": " Small dots are single seeds; edges of one number hold different data in each.",
    "clusters": " Thin lines are single seeds.",
}
"""What to add when a method ran with several."""

POINTS = {
    "pre_reassign": "after the cloud's averaging, with the clusters of the round",
    "post_reassign": "after the cloud's averaging, with the clusters of the next round",
    "edge_model": "of each edge's own average, before the cloud's",
}


def write_report(runs: Sequence[Run], path: Path, title: str = "Federated learning report") -> Path:
    """Write the page, all at once, and return where it is."""
    path = Path(path)
    text = _page(summarized(runs), title)
    make_folder(path.parent)
    write_whole(path, text)
    return path


def _page(runs: Sequence[Run], title: str) -> str:
    together = groups(runs)
    drawn = figures(runs)
    several = any(group.num_seeds > 1 for group in together)
    body = [
        _header(runs, title),
        "<h2>Final numbers</h2>",
        _final(runs, together),
        "<h2>Figures</h2>",
        *(_figure(name, drawn[name], several) for name in CAPTIONS if name in drawn),
        "<h2>Byte ledger</h2>",
        _ledger(runs),
        "<h2>How it was measured</h2>",
        _measured(together),
        "<h2>Configuration</h2>",
        _configurations(runs),
        "<footer>Made by fedbac. This page is complete in itself and loads nothing.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style_sheet()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


# ------------------------------------------------------------------------------------------------- sections


def _header(runs: Sequence[Run], title: str) -> str:
    warnings = [f"{group.label}: {leak}" for group in groups(runs) for leak in leaks(group.runs[0])]
    return (
        f'<header>\n<h1>{_text(title)}</h1>\n<p class="lead">{_glued(outcome(runs))}</p>\n'
        + "".join(f'<p class="note">{_text(note)}</p>\n' for note in caveats(runs))
        + "".join(f'<p class="warn" role="note">{_text(warning)}</p>\n' for warning in warnings)
        + "</header>"
    )


def _final(runs: Sequence[Run], together: Sequence[Group]) -> str:
    swatches = _swatches(runs, together)
    chosen = best(runs) if len(runs) > 1 else -1
    out = _table(table(runs), swatches, {chosen: "best"}, "Final numbers of every run")
    spans = {last_rounds(run) for run in runs}
    span = f"last {spans.pop()} rounds" if len(spans) == 1 else "last rounds"
    note = f"Accuracy is the mean over the {span} ± its standard deviation over them"
    note += "; in bold the highest." if chosen >= 0 else "."
    out = f'<div class="card">{out}<p class="note">{note}</p></div>'
    if all(group.num_seeds == 1 for group in together):
        return out
    means = _table(seeds_table(together), [group.look.css for group in together], {}, "Means over seeds")
    return f'<div class="card"><h3>Means over seeds</h3>{means}<p class="note">± is over the seeds.</p></div>\n{out}'


def _figure(name: str, figure: Figure, several: bool) -> str:
    heading, caption = CAPTIONS[name]
    caption += SEEDS.get(name, "") if several else ""
    return (
        f"<figure>\n<figcaption><h3>{heading}</h3><p>{caption}</p></figcaption>\n"
        f'<div class="scroll" tabindex="0">{inline_svg(figure, name, heading)}</div>\n</figure>'
    )


def _ledger(runs: Sequence[Run]) -> str:
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
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text('; '.join(values))}</dd>" for name, values in merged.items())
    found = dict.fromkeys(leak for run in group.runs for leak in leaks(run))
    warnings = "".join(f'<p class="warn">{_text(leak)}</p>' for leak in found)
    return f'<div class="card"><h3>{_swatch(group.look.css)}{_text(group.label)}</h3><dl>{items}</dl>{warnings}</div>'


def facts(run: Run) -> dict[str, str]:
    """Return how a run was made and judged, in words."""
    task = look_up(run.config, "experiment.task", {})
    spread = look_up(task, "partition", {})
    planned, judge = look_up(task, "rounds", len(run.records)), look_up(run.config, "experiment.evaluation", {})
    point = str(look_up(judge, "point", NONE))
    failed = int(run.summary.get("failed_clients", 0))
    return {
        "Data set": str(look_up(task, "dataset", NONE)),
        "Edges and clients": _members(task),
        "Partition": f"α = {look_up(spread, 'dirichlet_server', NONE)} over edges, "
        f"{look_up(spread, 'dirichlet_client', NONE)} over an edge's clients",
        "Rounds": str(planned) if planned == len(run.records) else f"{len(run.records)} of {planned}",
        "Seed": str(look_up(run.config, "experiment.seed", NONE)),
        "Trainer": str(look_up(run.config, "trainer", NONE)),
        "Accuracy measured": POINTS.get(point, point),
        "Final accuracy": f"mean over the last {last_rounds(run)} rounds",
        "Targets": f"reached after {look_up(judge, 'target_patience', 1)} rounds in a row",
        "Policies measure on": _measures(run),
        "Failed clients": f"{failed} (client, round) pairs left out" if failed else "none",
        **_devices(run),
    }


def _devices(run: Run) -> dict[str, str]:
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
    return f"{num_edges} edges with {clients} clients each"


def _measures(run: Run) -> str:
    found = [f"{field.rpartition('.')[2]}: {', '.join(splits)}" for field, splits in measured_on(run).items()]
    return "; ".join(found) or "nothing: no policy needs a model measured"


def _configurations(runs: Sequence[Run]) -> str:
    parts = []
    for label, run in zip(labels(runs), runs, strict=True):
        clean = json.loads(json.dumps(run.config, default=str))
        text = yaml.safe_dump(clean, sort_keys=False, allow_unicode=True)
        place = "" if run.folder is None else f" · {run.folder}"
        parts.append(f"<details><summary>{_text(label + place)}</summary><pre>{_text(text)}</pre></details>")
    return f'<div class="card">{"".join(parts)}</div>'


# --------------------------------------------------------------------------------------------------- pieces


def inline_svg(figure: Figure, prefix: str, label: str) -> str:
    """Return a figure as an SVG element for the page: its ids are its own, its colours follow the page's."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)  # it would style the whole page
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {SWAPS.get(m[2], m[2])}", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)  # the page decides; the shape is in the viewBox
    return f'{opening} role="img" aria-label="{_text(label)}">{rest.strip()}'


def _table(
    content: Table, swatches: Sequence[str], classes: Mapping[int, str], caption: str, kind: str = "numbers"
) -> str:
    header, rows = content
    head = "".join(f'<th scope="col">{_glued(cell)}</th>' for cell in header)
    lines = []
    for index, (first, *rest) in enumerate(rows):
        mark = _swatch(swatches[index]) if swatches else ""
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        attribute = f' class="{classes[index]}"' if index in classes else ""
        lines.append(f'<tr{attribute}><th scope="row">{mark}{_text(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}" aria-label="{caption}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def _swatches(runs: Sequence[Run], together: Sequence[Group]) -> list[str]:
    return [next(group.look.css for group in together if run in group.runs) for run in runs]


def _swatch(colour: str) -> str:
    return f'<span class="swatch" style="background:{colour}"></span>'


def _text(value: object) -> str:
    """Escape for text and attributes; control characters, which no page may hold, become spaces."""
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", " ", str(value)))


def _glued(value: str) -> str:
    """Escape, and keep numbers and percent signs on one line."""
    return _text(value).replace(" %", "&nbsp;%")
