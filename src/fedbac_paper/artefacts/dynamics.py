"""Cluster dynamics: reassignments and active clusters."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedbac_paper.artefact import Artefact, Body, presets
from fedbac_paper.claims import Claim, claim_about, noted, own_numbers
from fedbac_paper.measures import moves_by, values
from fedbac_paper.paper import READINGS, look_up, period_of, printed_as
from fedbac_paper.results import Curve, Finding, Results
from fedbac_paper.tables import NONE, OURS, difference, mean, side_by_side, std
from fedbac_paper.tasks import MODERATE, task_name
from fedbac_paper.verdicts import Verdict, between, every, near, positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = ("ifca-paper", *READINGS)
NUMBERS = {"reassignments": "moves", "clusters at the end": "active_clusters"}


def body(_: Artefact, results: Results) -> Body:
    """Return reassignments, and clusters at the end."""
    header = ["setting", "method", "most reassignments", "seeds"]
    for number in NUMBERS:
        header += [f"{number}, {column}" for column in ("paper", *OURS)]
    rows = [header]
    for task in MODERATE:
        for variant in VARIANTS:
            runs = list(results.of(task, variant).values())
            most = str(10 * (runs[0].rounds // period_of(variant))) if runs else NONE
            row = [task_name(task), variant, most, str(len(runs))]
            for key in NUMBERS.values():
                paper = look_up("dynamics", task, printed_as(variant), key)[-1][1]
                ours = [getattr(found, key) for found in runs]
                row += [f"{paper:g}", mean(ours, 1, 1), std(ours, 1, 1), difference(ours, paper, 1, 1)]
            rows.append(row)
    moved = next(iter(NUMBERS))
    return Body([side_by_side(rows, f"{moved}, ours", f"{moved}, paper", moved)], rows)


def figure(results: Results) -> "Figure":
    """Draw reassignments so far and active clusters over the rounds."""
    from fedbac.report import canvas
    from fedbac_paper import drawing

    drawn, rows = drawing.panels(2, 3, 2.1)
    kinds: tuple[tuple[str, str, Callable[[Curve], Sequence[float]]], ...] = (
        ("moves", "reassignments so far", lambda curve: curve.moves),
        ("active_clusters", "active clusters", lambda curve: curve.active_clusters),
    )
    for panels, (key, words, number) in zip(rows, kinds, strict=True):
        for axes, task in zip(panels, MODERATE, strict=True):
            curves = {method: look_up("dynamics", task, method, key) for method in ("ifca-paper", "fed-bac")}
            highest = max(value for curve in curves.values() for _, value in curve)
            for method, curve in curves.items():
                drawing.paper_curve(axes, curve, method)
            for variant in VARIANTS:
                highest = max(highest, drawing.our_curve(axes, results, task, variant, number))
            canvas.whole_numbers(axes, highest)
            canvas.title(axes, task_name(task))
            drawing.round_axis(axes, results, task, curves["ifca-paper"][-1][0])
        drawing.label_y(panels[0], words)
    for axes in rows[0]:
        axes.set_xlabel("")
    drawing.key(drawn, [*drawing.variant_lines(VARIANTS), drawing.paper_line()])
    return drawn


def claims(results: Results) -> list[Claim]:
    """Figures of reassignments and active clusters, and "Cluster dynamics"."""
    out = []
    for variant in VARIANTS:
        text = "{} makes as many reassignments as in the paper's figures"
        out.append(claim_about(variant, "figure-dynamics-moves", text, _moves_as_printed(results, variant)))
        text = "{} “discovers 7–8 active clusters” on Fashion-MNIST and “stabilizes at ≈ 8” on the others"
        if variant == "ifca-paper":
            text = "IFCA has “static 3” clusters on Fashion-MNIST"
        out.append(claim_about(variant, "figure-dynamics-clusters", text, _clusters_as_printed(results, variant)))
        if variant in READINGS:
            calm = {
                task_name(task, alpha=False): positive(_calming(results, task, variant), "moves per decision", 1)
                for task in MODERATE
            }
            text = "{} “reassigns actively in early rounds and stabilizes”: more moves in the first half"
            out.append(claim_about(variant, "figure-dynamics-stabilizes", text, every(calm)))
    return out


def _moves_as_printed(results: Results, variant: str) -> Verdict:
    parts = {}
    for task in MODERATE:
        paper = look_up("dynamics", task, printed_as(variant), "moves")[-1][1]
        parts[task_name(task, alpha=False)] = near([*values(results, task, variant, _moves).values()], paper)
    return every(parts)


def _clusters_as_printed(results: Results, variant: str) -> Verdict:
    parts, own = {}, []
    for task, ranges in look_up("clusters_found").items():
        limits = ranges.get(printed_as(variant))
        if limits is None:
            continue
        parts[task_name(task, alpha=False)] = between([*values(results, task, variant, _active).values()], *limits)
        curves = look_up("dynamics", task, printed_as(variant))
        first, last = curves["active_clusters"][0][1], curves["active_clusters"][-1][1]
        if not limits[0] - 0.5 <= last <= limits[1] + 0.5:
            own.append(f"{first:g} → {last:g} clusters; {curves['moves'][-1][1]:g} is its number of moves (C.32)")
    return noted(every(parts), own_numbers("figure", own))


def _moves(found: Finding) -> float:
    return found.moves


def _active(found: Finding) -> float:
    return found.active_clusters


def _calming(results: Results, task: str, variant: str) -> list[float]:
    """Return how many more moves a decision brought in the first half, one number per seed."""
    out = []
    for found in results.of(task, variant).values():
        half = found.rounds // 2
        early, period = moves_by(found, half), period_of(variant)
        first, second = half // period, found.rounds // period - half // period
        if early is not None and first and second:
            out.append(early / first - (found.moves - early) / second)
    return out


ARTEFACT = Artefact(
    "figure-dynamics",
    "Reassignments and active clusters",
    "Figures of cluster dynamics in the paper",
    presets(MODERATE, *VARIANTS),
    body,
    claims,
    figure,
    curves=True,
)
