"""The verdict on our method beside its rivals, by the rule of docs/decisions/0018-protocol.md.

    python -m fedbac_paper.confirmed

draws the figure anew from results/rivals/confirmed.jsonl.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbac.presets.methods import RENAMED
from fedbac.rounds.metrics import JUDGED_AT
from fedbac.statistics import FEWEST_SEEDS, Gap, gap, holm
from fedbac_paper import marks, tables

KEPT, FIGURE = Path("results/rivals/confirmed.jsonl"), Path("docs/images/rivals.svg")
PLANNED = "planned.jsonl"
"""Beside the runs, the file that names all that are to be done."""
OURS, KIN = "fedfork", "fedbac-plus"
"""Our method, and our earlier one, which counts as a rival."""
WIDE, ONE = "fedavg-ft-wide", "fedfork-one"
FORMERLY = RENAMED | {"fedbac-plus-2-one": ONE}
"""By the name that a method has in files of runs, its name today."""
CONTROLS = {WIDE: "`fedavg-ft`, a network of twice the weights", ONE: "`fedfork`, one network"}
"""Methods that are shown and not judged."""
UNUSED = {("planted", 20)}
"""Settings and seeds among the confirming ones on which a rule of ours was once tried."""
SEEDS = 10
SETTINGS = {
    "cifar10": "CIFAR-10, α = 0.5",
    "cifar10-severe": "CIFAR-10, 0.1",
    "svhn": "SVHN, 0.5",
    "svhn-severe": "SVHN, 0.1",
    "fashion-mnist": "Fashion-MNIST, 0.5",
    "fashion-mnist-severe": "Fashion-MNIST, 0.1",
    "per-class": "Fashion-MNIST, 0.5, per class",
    "planted": "planted",
    "noisy": "noisy",
}
NATURAL = {name: name for name in ("glyphs", "shakespeare", "flights", "udhr", "udhr-varieties")}
"""Settings of the next attempt, and their titles."""
SIMPLE = ("hierfavg", "local", "fedavg-ft")
"""The simple answers that ours should never be below."""
DRAWN_BY_US = ("planted", "noisy")
MEASURES = {"accuracy": "mean over edges", "edge_min": "worst edge"}
MARGINS = {"accuracy": 0.3, "edge_min": 1.0}
"""By measure: how many points below the best rival still pass as level."""
Point = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Ours against the best rival, in one setting by one measure; in percent and points."""

    setting: str
    measure: str
    seeds: int
    ours: float
    best: str
    rivals: int
    gap: Gap
    controls: Mapping[str, float]
    """Ours less each control, where that was run."""
    word: str = ""


def means(found: Iterable[dict[str, Any]], name: str) -> dict[tuple[str, Point], dict[str, dict[int, float]]]:
    """Return a number of every run in percent, by method and point, by setting, by seed."""
    by: dict[tuple[str, Point], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in found:
        by[row["method"], tuple(row["point"])][row["setting"]][row["seed"]] = 100 * row[name]
    return by


def judged(part: Part, significant: bool) -> Part:
    """Return a part with its word: whether ours differs significantly, or can at most be a little behind."""
    mean, half = part.gap.mean, part.gap.half
    if part.seeds < max(FEWEST_SEEDS, _wanted(part.setting)):
        return replace(part, word="too few seeds")
    level = mean - half > -MARGINS[part.measure]
    if significant and (mean > 0 or not level):
        return replace(part, word="ahead" if mean > 0 else "behind")
    return replace(part, word="level" if level else "not clear")


def at_both_moments(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every run of a rival as two, judged before and after local training, and those of ours as averaged."""
    out = []
    for row in found:
        for moment in JUDGED_AT if row["method"] != OURS else JUDGED_AT[:1]:
            if row[moment] is not None:  # where nobody keeps what it trained
                after = (moment.replace("_", " "),) * (moment != JUDGED_AT[0])
                out.append(row | row[moment] | {"point": [*row["point"], *after]})
    return out


def parts(found: Sequence[dict[str, Any]], but: str | None = None, among: Collection[str] | None = None) -> list[Part]:
    """Judge ours by setting and measure, on the seeds that ours and all rivals have there: all but this one, or these
    alone."""
    out = []
    for name in MEASURES:
        values = means(found, name)
        for setting in SETTINGS | NATURAL:
            here = {rival: by[setting] for rival, by in values.items() if by.get(setting)}
            ours = next((by for (method, _), by in here.items() if method == OURS), {})
            rivals = {rival: by for rival, by in here.items() if rival[0] not in (OURS, but, *CONTROLS)}
            rivals = {rival: by for rival, by in rivals.items() if among is None or rival[0] in among}
            seeds = sorted(set(ours).intersection(*rivals.values())) if rivals else []
            if not seeds:
                continue
            best = max(rivals, key=lambda rival: float(np.mean([rivals[rival][seed] for seed in seeds])))
            difference = gap([ours[seed] - rivals[best][seed] for seed in seeds])
            controls = {
                method: float(np.mean([ours[seed] - value for seed, value in by.items() if seed in ours]))
                for (method, _), by in here.items()
                if method in CONTROLS and set(by) & set(ours)
            }
            mean = float(np.mean([ours[seed] for seed in seeds]))
            out.append(Part(setting, name, len(seeds), mean, _named(best), len(rivals), difference, controls))
    significant = holm([part.gap.chance for part in out])
    return [judged(part, sure) for part, sure in zip(out, significant, strict=True)]


def claim(found: Sequence[Part], settings: Collection[str] = SETTINGS) -> str:
    """Return the verdict on the whole in one sentence."""
    words = [part.word for part in found]
    words += ["not run"] * (len(MEASURES) * len(settings) - len(words))
    whole = "is not clear"
    if set(words) <= {"level", "ahead"}:
        whole = "holds"
    elif "behind" in words:
        whole = "does not hold"
    return f"The claim {whole}: {_counts(words)}."


def _counts(words: Sequence[str]) -> str:
    counts = [f"{word} in {words.count(word)}" for word in dict.fromkeys(words)]
    counts[0] += f" of {len(words)} comparisons"
    return ", ".join(counts)


def missing(file: Path) -> int | None:
    """Return how many planned runs are not in a file yet; None before there is a plan."""
    planned = {_key(row) for row in read(file.with_name(PLANNED))}
    return len(planned - {_key(row) for row in read(file)}) if planned else None


def in_short(file: Path) -> str:
    """Return how the test ended, or how far it has come, in a sentence or two."""
    left = missing(file)
    if left == 0:
        found = parts(read(file))
        return f"{claim(found)[:-1]} ({_seeds(found)} each)."
    if left is None:
        return "The test has not begun."
    planned = len(read(file.with_name(PLANNED)))
    return f"The test is not complete: {planned - left} of {planned} runs are done. Nothing is judged before all are."


def read(file: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, by today's names of methods; none where there is no file."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return [row | {"method": FORMERLY.get(row["method"], row["method"])} for row in rows]


def table(file: Path) -> str:
    """Return the verdict, and a row for every setting and every control."""
    if missing(file) != 0:
        return f"\n{in_short(file)}\n\n"
    judged_parts = parts(read(file))
    found = {(part.setting, part.measure): part for part in judged_parts}
    lines = [
        f"**{in_short(file)}** {_without_ours(judged_parts)}",
        f"Against methods of other authors alone: {_counts([part.word for part in parts(read(file), but=KIN)])}.",
        "",
        f"![Ours − best rival]({FIGURE.relative_to('docs')})",
        "",
    ]
    heads = ["ours, %", *(f"{title}: ours − best rival" for title in MEASURES.values())]
    rows = []
    for setting, title in SETTINGS.items():
        both = [found.get((setting, measure)) for measure in MEASURES]
        rows.append([title, " / ".join(f"{part.ours:.2f}" for part in both if part), *map(_cell, both)])
    return "\n".join(["", *lines, tables.table(["", *heads], rows), "", *_controls(judged_parts), ""])


def _controls(found: Sequence[Part]) -> list[str]:
    """Return how far ours is above each control in mean accuracy."""
    above = {
        name: [part.controls[name] for part in found if part.measure == "accuracy" and name in part.controls]
        for name in CONTROLS
    }
    told = [f"{min(gaps):+.2f} to {max(gaps):+.2f} points ({CONTROLS[name]})" for name, gaps in above.items() if gaps]
    return [f"Ours − control in mean accuracy, by setting: {'; '.join(told)}.\n"] if told else []


def numbers(file: Path) -> list[list[str]]:
    """Return all that the test compared, as a file: a row for each setting and measure."""
    heads = ["setting", "measure", "seeds", "ours (%)", "best rival", "ours - rival", "half interval", "verdict"]
    rows = [
        [
            SETTINGS[part.setting],
            MEASURES[part.measure],
            str(part.seeds),
            f"{part.ours:.2f}",
            part.best,
            f"{part.gap.mean:+.2f}",
            f"{part.gap.half:.2f}",
            part.word,
            *(f"{part.controls[name]:+.2f}" if name in part.controls else tables.NONE for name in CONTROLS),
        ]
        for part in parts(read(file))
    ]
    return [[*heads, *(f"ours - {title.replace('`', '')}" for title in CONTROLS.values())], *rows]


def draw(file: Path, figure: Path) -> None:
    """Draw what ours is above the best rival in every setting, with the bounds by which it is judged."""
    from fedbac_paper.drawing import differences

    by_measure = {
        title: [part for part in parts(read(file)) if part.measure == measure] for measure, title in MEASURES.items()
    }
    shown = {
        title: [(SETTINGS[part.setting], part.gap.mean, part.gap.half) for part in some]
        for title, some in by_measure.items()
    }
    margins = {MEASURES[measure]: margin for measure, margin in MARGINS.items()}
    marks.save(differences(shown, margins), figure, file)


def _seeds(found: Sequence[Part]) -> str:
    count = [part.seeds for part in found]
    return f"{min(count)} to {max(count)} seeds" if min(count) < max(count) else f"{max(count)} seeds"


def _wanted(setting: str) -> int:
    """Return on how many seeds a setting is judged."""
    return SEEDS - sum(setting == where for where, _ in UNUSED)


def _key(row: Mapping[str, Any]) -> tuple[str, Point, str, int]:
    return row["method"], tuple(row["point"]), row["setting"], row["seed"]


def _named(rival: tuple[str, Point]) -> str:
    """Return a method with its settings, the last name of each path, a policy by its kind, and the moment if named."""
    method, point = rival
    pairs = (setting.partition("=") for setting in point)
    texts = [f"{path.rpartition('.')[2]}{equals}{value}" for path, equals, value in pairs]
    return " ".join([method, *(re.sub(r"\w+={kind: (\w+), \w+: ([^}]*)}", r"\1(\2)", text) for text in texts)])


def _without_ours(found: Sequence[Part]) -> str:
    """Return what holds in the settings that others drew."""
    good = sum(part.word in ("level", "ahead") for part in found if part.setting not in DRAWN_BY_US)
    count = len(MEASURES) * (len(SETTINGS) - len(DRAWN_BY_US))
    return f"Without `planted` and `noisy`, which we made, it is level or ahead in {good} of {count}."


def _cell(part: Part | None) -> str:
    return f"{part.gap.mean:+.2f} ± {part.gap.half:.2f}, {part.word} (`{part.best}`)" if part else "–"


if __name__ == "__main__":
    draw(KEPT, FIGURE)
