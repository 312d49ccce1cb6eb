"""The figures of a report, drawn without global state so that they can be shown anywhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedbac.core.links import PURPOSES, Purpose, Tier
from fedbac.core.settings import FloatArray
from fedbac.files import make_folder
from fedbac.report import canvas
from fedbac.report.canvas import LEGEND, TEXT, End
from fedbac.report.groups import Group, edge_accuracy, edge_names, groups, labels, numbers, rounds_of, summarized
from fedbac.report.table import ends, human_bytes, traffic
from fedbac.report.theme import CLUSTERS, GRID, INK, ON_COLOUR, SURFACE, TRAFFIC
from fedbac.runs.store import StoredRun

Values = Callable[[StoredRun], FloatArray]


def figures(runs: Sequence[StoredRun]) -> dict[str, Figure]:
    """Return accuracy, clusters, edges, bytes, and assignment where some run has more than one cluster."""
    runs = summarized(runs)
    together = groups(runs)
    drawn = {
        "accuracy": _accuracy(together),
        "clusters": _clusters(together),
        "edges": _edges(together),
        "bytes": _bytes(runs),
    }
    used = [{label for record in run.records for label in record["assignment"]} for run in runs]
    clustered = [(label, run) for label, run, own in zip(labels(runs), runs, used, strict=True) if len(own) > 1]
    if clustered:
        drawn["assignment"] = _assignment(clustered)
    return drawn


def save_figures(runs: Sequence[StoredRun], folder: Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write every figure in every format into the folder; the same runs give the same files."""
    make_folder(folder)
    drawn = {folder / f"{name}.{kind}": figure for name, figure in figures(runs).items() for kind in formats}
    for path, figure in drawn.items():
        canvas.save(figure, path)
    return list(drawn)


def _accuracy(together: Sequence[Group]) -> Figure:
    last = [group.mean_curve(_percents("accuracy"))[1][-1] for group in together]
    texts = [f"{canvas.short(group.label)} {end:.1f} %" for group, end in zip(together, last, strict=True)]
    figure, (axes,) = canvas.panels([3.9], right=canvas.margin(texts))
    faint = min(0.1, 0.2 / len(together))  # bands lie over each other
    for group in together:
        rounds_T, low_T = group.mean_curve(_percents("accuracy_min"))
        _, high_T = group.mean_curve(_percents("accuracy_max"))
        axes.fill_between(rounds_T, low_T, high_T, color=group.look.colour, alpha=faint, linewidth=0)
    ends = [_draw(axes, group, _percents("accuracy"), text) for group, text in zip(together, texts, strict=True)]
    canvas.title(axes, "Distributed accuracy (%)")
    canvas.round_axis(axes, _last(together))
    canvas.percent_axis(axes)
    canvas.label_ends(axes, ends)
    return figure


def _clusters(together: Sequence[Group]) -> Figure:
    moves: Values = lambda run: np.nancumsum(numbers(run, "moves"))  # noqa: E731
    active: Values = lambda run: numbers(run, "active_clusters")  # noqa: E731
    texts = [canvas.short(group.label) for group in together]
    figure, panels = canvas.panels([1.9, 1.9], right=canvas.margin([f"{text} 0.00" for text in texts]))
    names = ("Reassignments so far", "Clusters with at least one edge")
    for axes, name, values in zip(panels, names, (moves, active), strict=True):
        ends = [_draw(axes, group, values, text, step=True) for group, text in zip(together, texts, strict=True)]
        canvas.whole_numbers(axes, max(float(np.nanmax(values(run))) for group in together for run in group.runs))
        canvas.title(axes, name)
        canvas.round_axis(axes, _last(together))
        canvas.label_ends(axes, [replace(end, text=f"{end.text} {end.y:.3g}") for end in ends])
    panels[0].set_xlabel("")
    return figure


def _edges(together: Sequence[Group]) -> Figure:
    """Draw edges from the worst to the best: edges of one number hold different data in each seed, ranks compare."""
    mean_GM = [_mean(_ranked(group)) for group in together]
    spans = [f" {mean_M[0]:.1f} to {mean_M[-1]:.1f} %" if mean_M.size else "" for mean_M in mean_GM]
    texts = [f"{canvas.short(group.label)}{span}" for group, span in zip(together, spans, strict=True)]
    figure, (axes,) = canvas.panels([3.5], right=canvas.margin(texts))
    ends = [_ranks(axes, *each) for each in zip(together, mean_GM, texts, strict=True)]
    several = any(len(group.runs) > 1 for group in together)
    ranked = "; ranked within each seed (thin)" if several else ""
    canvas.title(axes, f"Accuracy of the edges (%), mean over the last rounds{ranked}")
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 1], ["worst edge", "best edge"])
    axes.margins(y=0.08)
    canvas.percent_axis(axes)
    canvas.label_ends(axes, ends)
    return figure


def _ranked(group: Group) -> list[FloatArray]:
    """Return the accuracies of each run's edges in percent, from the worst to the best."""
    accuracy_R = [100 * edge_accuracy(run) for run in group.runs]
    return [np.sort(accuracy_M[np.isfinite(accuracy_M)]) for accuracy_M in accuracy_R]


def _mean(rank_R: Sequence[FloatArray]) -> FloatArray:
    length = min(rank_M.size for rank_M in rank_R)
    mean_M: FloatArray = np.mean([rank_M[:length] for rank_M in rank_R], axis=0)
    return mean_M


def _ranks(axes: Axes, group: Group, mean_M: FloatArray, text: str) -> End:
    """Draw a line over the ranks of edges: bold for the mean over the runs, thin for each of several."""
    look = group.look
    if len(group.runs) > 1:
        for rank_M in _ranked(group):
            axes.plot(_places(rank_M), rank_M, color=look.colour, linewidth=0.8, alpha=0.5)
    axes.plot(_places(mean_M), mean_M, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=4.5)
    return End(text, 1.02, float(mean_M[-1]) if mean_M.size else np.nan, look.colour)


def _places(rank_M: FloatArray) -> FloatArray:
    """Return where ranks are between the worst, 0, and the best, 1."""
    return np.linspace(0, 1, rank_M.size) if rank_M.size > 1 else np.full(rank_M.size, 0.5)


def _bytes(runs: Sequence[StoredRun]) -> Figure:
    names = [canvas.short(label) for label in labels(runs)]
    totals = [human_bytes(run.summary["bytes_total"]) for run in runs]
    figure, (axes,) = canvas.panels(
        [0.42 * len(runs)], right=canvas.margin(totals), left=canvas.margin(names), top=0.75, bottom=0.15
    )
    longest = max(1, *(int(run.summary["bytes_total"]) for run in runs))
    between = {tier: "–".join(both) for tier, both in ends(runs).items()}
    purposes = [purpose for purpose in PURPOSES if any(traffic(run, tier, purpose) for run in runs for tier in between)]
    shown = [(tier, purpose) for tier in between for purpose in purposes]
    for row, (run, total) in enumerate(zip(runs, totals, strict=True)):
        start = 0
        for tier, purpose in shown:
            width = traffic(run, tier, purpose)
            _bar(axes, row, start / longest, width / longest, TRAFFIC[tier, purpose][0], human_bytes(width))
            start += width
        axes.text(start / longest + 0.012, row, total, va="center", fontsize=TEXT, color=INK, fontweight="bold")
    _bar_axis(axes, names)
    _key(axes, shown, between)
    return figure


def _key(axes: Axes, shown: Sequence[tuple[Tier, Purpose]], between: Mapping[Tier, str]) -> None:
    ordered = sorted(shown, key=lambda pair: PURPOSES.index(pair[1]))  # a legend fills its columns first
    handles = [Patch(color=TRAFFIC[pair][0], label=f"{between[pair[0]]}: {pair[1]}") for pair in ordered]
    if handles:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": len(handles) // len(between)}
        axes.legend(handles=handles, **place, **LEGEND, handlelength=0.9, handletextpad=0.5, columnspacing=2)


def _bar(axes: Axes, row: int, start: float, width: float, colour: str, text: str) -> None:
    axes.barh(row, width, left=start, height=0.62, color=colour, edgecolor=SURFACE, linewidth=0.8)
    if width > 0.09:
        red, green, blue = to_rgb(colour)
        ink = "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.55 else ON_COLOUR
        axes.text(start + width / 2, row, text, ha="center", va="center", fontsize=TEXT - 0.5, color=ink)


def _bar_axis(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_yticks(range(len(names)), [canvas.plain(name) for name in names])
    axes.tick_params(axis="y", labelcolor=INK)


def _assignment(clustered: Sequence[tuple[str, StoredRun]]) -> Figure:
    sizes = [len(run.records[0]["assignment"]) for _, run in clustered]
    heights = [min(max(0.17 * size, 0.8), 4.5) for size in sizes]
    figure, panels = canvas.panels(heights, right=0.3)
    last = max(float(rounds_of(run)[-1]) for _, run in clustered)
    for axes, (label, run) in zip(panels, clustered, strict=True):
        _cells(axes, run, last)
        canvas.title(axes, f"{canvas.plain(canvas.short(label))}: cluster of each edge")
    canvas.round_axis(panels[-1], last)
    panels[-1].set_xlim(0.5, last + 0.5)
    return figure


def _cells(axes: Axes, run: StoredRun, last: float) -> None:
    """Draw a row per edge, one bar for as long as it stays in a cluster, with the cluster's number."""
    label_TM = np.array([record["assignment"] for record in run.records])
    rounds_T = rounds_of(run)
    num_edges = label_TM.shape[1]
    for edge, label_T in enumerate(label_TM.T.tolist()):
        stays = [(label, len(list(stay))) for label, stay in groupby(label_T)]
        end_S = rounds_T[0] - 0.5 + np.cumsum([length for _, length in stays])
        bars = [(end - length, length) for end, (_, length) in zip(end_S, stays, strict=True)]
        axes.broken_barh(bars, (edge - 0.45, 0.9), facecolors=[_cluster_colour(label) for label, _ in stays])
        for end, (label, length) in zip(end_S, stays, strict=True):
            if num_edges <= 25 and length > 0.02 * last:
                x = end - length / 2
                axes.text(x, edge, str(label), ha="center", va="center", fontsize=TEXT - 2, color=ON_COLOUR)
    axes.set_ylim(num_edges - 0.5, -0.5)
    names = edge_names(run) if num_edges <= 25 else []
    axes.set_yticks(range(0, num_edges, 1 if names or num_edges <= 10 else 5), labels=names or None)
    axes.grid(visible=False)
    axes.spines["bottom"].set_color(GRID)


def _cluster_colour(cluster: int) -> tuple[float, float, float]:
    """Return one of the nine colours; darker ones past them, told apart by the numbers in the cells."""
    red, green, blue = to_rgb(CLUSTERS[cluster % len(CLUSTERS)])
    shade = 0.8 ** (cluster // len(CLUSTERS))
    return red * shade, green * shade, blue * shade


def _draw(axes: Axes, group: Group, values: Values, text: str, step: bool = False) -> End:
    """Draw a group's line: bold, with a thin one for each of several runs; return its end."""
    look = group.look
    curves = group.curves(values)
    if len(curves) > 1:
        for rounds_T, value_T in curves:
            axes.add_line(_line(rounds_T, value_T, step, color=look.colour, linewidth=0.8, alpha=0.5))
    rounds_T, value_T = group.mean_curve(values)
    axes.add_line(_line(rounds_T, value_T, step, color=look.colour, linewidth=2.2, linestyle=look.dash))
    axes.autoscale_view()
    seen = np.flatnonzero(np.isfinite(value_T))
    at = int(seen[-1]) if seen.size else -1
    return End(text, float(rounds_T[at]), float(value_T[at]), look.colour)


def _line(x: FloatArray, y: FloatArray, step: bool, **style: object) -> Line2D:
    marker = "o" if np.isfinite(y).sum() < 2 else ""  # a single point has no line
    return Line2D(x, y, drawstyle="steps-post" if step else "default", marker=marker, **style)  # type: ignore[arg-type]


def _percents(key: str) -> Values:
    return lambda run: 100 * numbers(run, key)


def _last(together: Sequence[Group]) -> float:
    return max(float(rounds_of(run)[-1]) for group in together for run in group.runs)
