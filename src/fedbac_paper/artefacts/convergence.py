"""Convergence: accuracy over the rounds, and the rounds to each target."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedbac.presets.tasks import TASKS
from fedbac_paper.artefact import Artefact, Body
from fedbac_paper.artefacts.table_2 import CELLS
from fedbac_paper.claims import Claim, claim_about, noted
from fedbac_paper.measures import values
from fedbac_paper.paper import BASELINES, READINGS, look_up, printed_as, rounds_to
from fedbac_paper.results import Finding, Results
from fedbac_paper.tables import NONE, OURS, at_least, difference, fixed, mean, paper_number, ratio, std
from fedbac_paper.targets import (
    BASE,
    RATIOS,
    bound,
    goals,
    in_range,
    judge_target,
    judge_targets,
    own_ratios,
    reached,
    round_ratios,
    targets_of,
)
from fedbac_paper.tasks import MODERATE, SEVERE, SIX, task_name
from fedbac_paper.verdicts import Verdict, always, below, every, faster, near, positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def body(artefact: Artefact, results: Results) -> Body:
    """Return the rounds to each target, and HierFAVG's by the method's."""
    rows = [["setting", "method", "target", "paper", *OURS, "ratio, paper", "ratio, ours", "seeds"]]
    for task in SIX:
        for target in targets_of(results, task):
            rows += [_row(results, task, target, variant) for variant in artefact.variants]
    about = (
        "**Rounds to a target**: the first of three consecutive rounds at or above it. Ours is the mean over seeds, "
        "from the raw curve; the paper's is read off its smoothed curves (C.37). **Ratio**: HierFAVG's rounds divided "
        f"by the method's. [Marks of bounds]({RATIOS})."
    )
    return Body([about], rows)


def _row(results: Results, task: str, target: str, variant: str) -> list[str]:
    runs = results.of(task, variant)
    crossed, slow = (rounds_to(task, name, float(target)) for name in (printed_as(variant), BASE))
    paper = NONE if crossed is None else fixed(crossed, 1)
    ratio_of_paper = ratio_of_ours = NONE
    if variant != BASE:
        ratio_of_paper = paper_number(slow / crossed if slow and crossed else None)
        ratios = round_ratios(results, task, target, BASE, variant)
        ratio_of_ours = ratio(ratios.values(), bound(results, task, target, BASE, variant))
    rounds = [at for found in runs.values() if (at := found.targets[target].round) is not None]
    rounds = rounds if len(rounds) == len(runs) else []  # a bound has neither spread nor difference
    ours = [_mean_rounds(runs, target), std(rounds, 1, 1), difference(rounds, crossed, 1, 1)]
    name, percent = task_name(task), f"{float(target):.0%}"
    return [name, variant, percent, paper, *ours, ratio_of_paper, ratio_of_ours, str(len(runs))]


def _mean_rounds(runs: Mapping[int, Finding], target: str) -> str:
    rounds = [found.targets[target].round for found in runs.values()]
    counted = [at or found.rounds for at, found in zip(rounds, runs.values(), strict=True)]
    return at_least(mean(counted, 1, 1), [at is not None for at in rounds])


def figure(results: Results) -> "Figure":
    """Draw accuracy over the rounds, a panel per setting."""
    from fedbac.report import canvas
    from fedbac_paper import drawing

    drawn, rows = drawing.panels(2, 3, 2.3)
    for panels, tasks in zip(rows, (MODERATE, SEVERE), strict=True):
        for axes, task in zip(panels, tasks, strict=True):
            for method in (*BASELINES, "fed-bac"):
                drawing.paper_curve(axes, look_up("curves", task, method), method)
            last = max(point[0] for point in look_up("curves", task, "hierfavg"))
            for variant in drawing.LOOKS:
                drawing.our_curve(axes, results, task, variant, lambda curve: [100 * share for share in curve.accuracy])
            canvas.title(axes, task_name(task))
            drawing.round_axis(axes, results, task, last)
            axes.autoscale_view(scalex=False)
            canvas.percent_axis(axes)
        drawing.label_y(panels[0], "distributed accuracy (%)")
    for axes in rows[0]:
        axes.set_xlabel("")
    drawing.key(drawn, [*drawing.variant_lines(drawing.LOOKS), drawing.paper_line()])
    return drawn


def claims(results: Results) -> list[Claim]:
    """Convergence figure and "Convergence Speed"."""
    low, high = look_up("round_ratio_ranges", "all")
    narrow = look_up("round_ratio_ranges", "svhn")
    plateaus = {
        f"{BASELINES[other]} below {level} %": positive(
            [one - level / 100 for one in values(results, task, other).values()], claimed=-1
        )
        for task, levels in look_up("plateaus").items()
        for other, level in levels.items()
    }
    text = "HierFAVG and IFCA “plateau below 58 % and 66 %” on CIFAR-10, α = 0.5"
    out = [Claim("figure-convergence-plateaus", text, every(plateaus))]
    for reading in READINGS:
        text = "{} reaches every target in fewer rounds than HierFAVG"
        verdict = judge_targets(results, SIX, reading, faster, by="fed-bac")
        out.append(claim_about(reading, "figure-convergence-fewer-rounds", text, verdict))
        text = f"{{}} converges “{low:g}–{high:g}× faster depending on dataset and accuracy target” than HierFAVG"
        ranged = judge_targets(results, SIX, reading, in_range(low, high), by=BASE)
        verdict = noted(ranged, own_ratios(low, high))
        out.append(claim_about(reading, "figure-convergence-range-of-ratios", text, verdict))
        for task, printed in look_up("round_ratios").items():
            for target, times in printed.items():
                text = f"{{}} reaches {float(target):.0%} on {task_name(task)} {times:g}× faster than HierFAVG"
                verdict = judge_target(results, task, target, reading, in_range(times, times))
                id_ = f"figure-convergence-ratio-to-{100 * float(target):.0f}-on-{task}"
                out.append(claim_about(reading, id_, text, verdict))
        text = f"{{}} “reaches each SVHN target {narrow[0]:g}–{narrow[1]:g}× faster than HierFAVG”, α = 0.5"
        verdict = judge_targets(results, ("svhn",), reading, in_range(*narrow), by=BASE)
        out.append(claim_about(reading, "figure-convergence-ratios-on-svhn", text, verdict))
        text = "{} is “the only method to exceed 70 %” on CIFAR-10, and to reach 85 % on Fashion-MNIST, α = 0.5"
        out.append(claim_about(reading, "figure-convergence-only-to-reach", text, _only_to_reach(results, reading)))
        out += _against_ifca(results, reading)
        text = "α = 0.1: {} “surpasses 80 % by round 40” on CIFAR-10, “90 % by round 53” on SVHN, HierFAVG far behind"
        out.append(claim_about(reading, "figure-convergence-severe", text, _severe(results, reading)))
    return out


def _only_to_reach(results: Results, reading: str) -> Verdict:
    parts = {}
    for task, target in look_up("only_to_reach").items():
        goal = f"{float(target):.0%} on {task_name(task, alpha=False)}"
        for variant in (reading, *BASELINES):
            rounds = reached(results, task, target, variant).values()
            wanted = variant == reading
            name = f"{variant} reaches {goal}" if wanted else f"{variant} does not reach {goal}"
            parts[name] = always([(at is not None) == wanted for at in rounds], "so")
    return every(parts)


def _against_ifca(results: Results, reading: str) -> list[Claim]:
    task = "fashion-mnist"
    first = {
        name: faster(
            [*round_ratios(results, task, target, reading, "ifca-paper").values()],
            bound(results, task, target, reading, "ifca-paper"),
        )
        for name, (_, target) in goals((task,), "ifca-paper").items()
    }
    text = "on Fashion-MNIST, α = 0.5, “IFCA converges faster at lower targets” than {}"
    ifca_first = claim_about(reading, "figure-convergence-ifca-first", text, every(first))
    paper = look_up("overtakes", task, "ifca-paper")
    overtakes = [*_overtakes(results, task, reading, "ifca-paper").values()]
    never = f", {TASKS[task].rounds + 1} means never" if max(overtakes, default=0) > TASKS[task].rounds else ""
    text = f"{{}} “overtakes IFCA after approximately {paper} rounds” there"
    verdict = noted(near(overtakes, paper), f"the first round kept after which it stays above{never}")
    return [ifca_first, claim_about(reading, "figure-convergence-overtakes-ifca", text, verdict)]


def _overtakes(results: Results, task: str, variant: str, other: str) -> dict[int, float]:
    """Return by seed the first kept round from which a variant stays above the other; one too late if it ends below."""
    ours, theirs = results.of(task, variant), results.of(task, other)
    out: dict[int, float] = {}
    for seed in sorted(set(ours) & set(theirs)):
        mine, its = ours[seed].curve, theirs[seed].curve
        if mine is None or its is None:
            continue
        common = [round_ for round_ in mine.round if round_ in its.round]
        behind = [round_ for round_ in common if (mine.at(round_) or 0) <= (its.at(round_) or 0)]
        last = max(behind, default=0)
        out[seed] = next((round_ for round_ in common if round_ > last), ours[seed].rounds + 1)
    return out


def _severe(results: Results, reading: str) -> Verdict:
    parts = {}
    for task, printed in look_up("by_round").items():
        for target, paper in printed.items():
            rounds = reached(results, task, target, reading).values()
            shown = ", ".join("never" if at is None else str(at) for at in rounds)
            name = f"{float(target):.0%} on {task_name(task, alpha=False)} by round {paper}"
            parts[name] = always([at is not None and at <= paper for at in rounds], f"{shown}: so")
    parts["HierFAVG stays below 50% on CIFAR-10"] = always(
        [at is None for at in reached(results, "cifar10-severe", "0.5", "hierfavg").values()], "so"
    )
    too_late = TASKS["svhn-severe"].rounds + 1
    ours, theirs = (
        {seed: at or too_late for seed, at in reached(results, "svhn-severe", target, variant).items()}
        for target, variant in (("0.9", reading), ("0.8", "hierfavg"))
    )
    parts["90% on SVHN before HierFAVG's 80%"] = below(ours, theirs, "rounds", 1)
    return every(parts)


ARTEFACT = Artefact(
    "figure-convergence",
    "Accuracy over the rounds",
    "Figure and section “Convergence Speed” of the paper",
    CELLS,
    body,
    claims,
    figure,
    curves=True,
)
