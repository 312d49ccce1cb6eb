"""What benchmarks/liars.py found, for docs/liars.md and docs/liars-further.md: means over all seeds that were run."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedbac.statistics import FEWEST_SEEDS, deviation, gap
from fedbac_paper.tables import NONE, fixed, table

SMALL = "fashion-mnist-mini"
SETTINGS = {
    "cifar10": "CIFAR-10, α = 0.5",
    "cifar10-severe": "CIFAR-10, α = 0.1",
    SMALL: "Fashion-MNIST mini, small",
}
NOBODY, SHARE = "none", 0.3
ATTACKS = ("label_flip", "sign_flip", "gaussian", "alie", "min_max")
SHOWN = ("mean", "nnm+trimmed", "one-voice+median", "no-voice+trimmed-median-losses")
"""The rules in the tables; the file has all."""
LYING = (0.1, 0.3)
"""Shares of those who lie about losses."""
NUMBERS = "liars.csv"
METHODS = {"fedfork": "fedfork", "fed-bac": "Fed-BAC", "hierfavg": "HierFAVG"}
Seeds = Mapping[int, Mapping[str, Any]]
"""By seed, a line of a file."""


class Where(NamedTuple):
    """A row of a table."""

    setting: str
    method: str
    rule: str


class Lie(NamedTuple):
    """What is done to it."""

    attack: str
    share: float = SHARE
    who: str = "clients"


HONEST = Lie(NOBODY, 0.0, "")
Found = Mapping[Where, Mapping[Lie, Seeds]]


def tables(folder: Path) -> str:
    """Return by large setting and rule the accuracy under each attack, and the largest loss; "–" was not run."""
    found, rows, above = _found(folder), [], None
    for where, _ in _rows(found):
        if where.setting == SMALL:
            continue
        of = f"{SETTINGS[where.setting]}, {METHODS[where.method]}"
        plain, lies = found[where._replace(rule="mean")][HONEST], found[where]
        ran = {attack: lies[Lie(attack)] for attack in ATTACKS if Lie(attack) in lies}
        lost = [_lost(plain, seeds) for seeds in ran.values() if plain.keys() & seeds.keys()]
        cells = [_cell(ran, attack) if attack in ran else NONE for attack in ATTACKS]
        worst = _around(max(lost, key=lambda one: gap(one).mean)) if lost else NONE
        count = {len(seeds) for seeds in (lies[HONEST], *ran.values())}
        seeds = "–".join(map(str, sorted({min(count), max(count)})))
        rows.append(["" if of == above else of, where.rule, _both(lies[HONEST]), *cells, worst, seeds])
        above = of
    heads = ["", "rule", "nobody lies", *(f"`{attack}`" for attack in ATTACKS), "largest loss", "seeds"]
    return f"\n{table(heads, rows)}\n\n"


def shares(folder: Path) -> str:
    """Return the accuracy under the worst attack, by the share of clients that lie."""
    title = "By the share of clients that lie:"
    return _worst(title, _found(folder), lambda lie: (lie.attack, lie.share), lambda share: f"{100 * share:g} %")


def jitters(folder: Path) -> str:
    """Return the accuracy under the worst attack, by how far liars differ on purpose."""

    def placed(lie: Lie) -> tuple[str, float] | None:
        attack, _, jitter = lie.attack.partition("~")
        return (attack, float(jitter or 0)) if lie.share == SHARE else None

    title = "30 % of the clients lie:"
    return _worst(title, _found(folder), placed, lambda jitter: f"jitter {jitter:g}")


def _worst(
    title: str, found: Found, placed: Callable[[Lie], tuple[str, float] | None], head: Callable[[float], str]
) -> str:
    """Return rows with several columns: each has the worst of the attacks that were run in all columns of its row."""
    ran: dict[Where, dict[float, dict[str, Seeds]]] = {}
    for where, _ in _rows(found):
        columns: dict[float, dict[str, Seeds]] = defaultdict(dict)
        for lie, seeds in found[where].items():
            if lie.who == "clients" and (place := placed(lie)) is not None:
                columns[place[1]][place[0]] = seeds
        if len(columns) > 1:
            ran[where] = columns
    heads, rows = sorted({column for columns in ran.values() for column in columns}), []
    for where, name in _rows(found):
        columns = ran.get(where, {})
        attacks = [attack for attack in ATTACKS if columns and all(attack in one for one in columns.values())]
        if attacks:
            worst = {at: min((of[one] for one in attacks), key=_accuracy) for at, of in columns.items()}
            cells = [_both(worst[at]) if at in worst else NONE for at in heads]
            rows.append([name, ", ".join(f"`{one}`" for one in attacks), _both(found[where][HONEST]), *cells])
    heading = ["", "worst of", "nobody lies", *map(head, heads)]
    return f"\n{title}\n\n{table(heading, rows)}\n\n" if rows else "\n"


def losses(folder: Path) -> str:
    """Return what lies about losses do to clusters."""
    rows = []
    for where, lies in sorted(_found(folder).items(), key=lambda one: list(METHODS).index(one[0].method)):
        told = {lie: seeds for lie, seeds in lies.items() if lie.attack == "losses"}
        for who in sorted({lie.who for lie in told}):
            cells = [_both(told[lie]) if (lie := Lie("losses", share, who)) in told else NONE for share in LYING]
            rows.append([METHODS[where.method], where.rule, who, _both(lies[HONEST]), *cells])
    heads = ["", "rule", "who lies", "nobody", *(f"{100 * share:g} %" for share in LYING)]
    return f"\n{table(heads, rows)}\n\n" if rows else "\n"


def cost(folder: Path) -> str:
    """Return how much longer a round with a rule takes."""
    file = folder / "cost.json"
    if not file.exists():
        return "\n"
    row, said = json.loads(file.read_text(encoding="utf-8")), []
    for method, seconds in row["seconds"].items():
        # The faster of two turns: whatever else the machine did only took time.
        least = {rule: min(turns) for rule, turns in seconds.items()}
        times = sorted({fixed(one / least["mean"], 1) for rule, one in least.items() if rule != "mean"}, key=float)
        said.append(f"{' to '.join(dict.fromkeys((times[0], times[-1])))} times as long for {METHODS[method]}")
    where = f"{SETTINGS[row['setting']]}, {row['device']}"
    return f"\nA robust round takes {', '.join(said)} as one with the mean ({where}; `benchmarks/liars.py cost`).\n\n"


def numbers(folder: Path) -> list[list[str]]:
    """Return the accuracies of all runs."""
    rows = []
    for where, lies in _found(folder).items():
        for lie, seeds in lies.items():
            accuracies = _each(seeds, "accuracy")
            spread = deviation(accuracies) if len(accuracies) >= FEWEST_SEEDS else None
            cells = [f"{100 * lie.share:g}", lie.who, str(len(seeds)), fixed(_accuracy(seeds), 1)]
            cells += [NONE if spread is None else fixed(spread, 1), fixed(_accuracy(seeds, "edge_min"), 1)]
            rows.append([SETTINGS.get(where.setting, where.setting), *where[1:], lie.attack, *cells])
    head = ["setting", "method", "rule", "attack", "liars (%)", "of", "seeds", "accuracy (%)", "std over seeds"]
    return [[*head, "worst edge (%)"], *rows]


def _rows(found: Found) -> list[tuple[Where, str]]:
    """Return what the tables show, with its title: where something was also run with nobody lying."""
    every = [Where(setting, method, rule) for setting in SETTINGS for method in METHODS for rule in SHOWN]
    return [
        (where, f"{SETTINGS[where.setting]}, {METHODS[where.method]}: {where.rule}")
        for where in every
        if HONEST in found.get(where, ()) and HONEST in found.get(where._replace(rule="mean"), ())
    ]


def _each(seeds: Seeds, name: str) -> list[float]:
    return [100 * row[name] for row in seeds.values()]


def _accuracy(seeds: Seeds, name: str = "accuracy") -> float:
    return gap(_each(seeds, name)).mean


def _around(values: Sequence[float]) -> str:
    """Return the mean over seeds, ± the standard deviation if there are enough."""
    spread = deviation(values) if len(values) >= FEWEST_SEEDS else None
    return fixed(gap(values).mean, 1) + ("" if spread is None else f" ± {fixed(spread, 1)}")


def _both(seeds: Seeds) -> str:
    """Return the mean over edges and that of the worst."""
    return f"{_around(_each(seeds, 'accuracy'))} / {fixed(_accuracy(seeds, 'edge_min'), 1)}"


def _cell(ran: Mapping[str, Seeds], attack: str) -> str:
    """Return the accuracy under an attack; where a rule makes it the very same as one before, that one's name."""
    edges = {name: {seed: row["per_edge"] for seed, row in seeds.items()} for name, seeds in ran.items()}
    first = next(name for name in ran if edges[name] == edges[attack])
    return _both(ran[attack]) if first == attack else f"= `{first}`"


def _lost(plain: Seeds, seeds: Seeds) -> list[float]:
    """Return what an attack takes from the plain mean with nobody lying, by each seed that has both."""
    return [100 * (plain[seed]["accuracy"] - seeds[seed]["accuracy"]) for seed in plain if seed in seeds]


def _found(folder: Path) -> Found:
    """Return the runs of all files."""
    found: dict[Where, dict[Lie, dict[int, Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
    for row in (json.loads(line) for text in texts for line in text.splitlines()):
        where = Where(row["setting"], row["method"], row["rule"])
        found[where][Lie(row["attack"], row["share"], row["who"])][row["seed"]] = row
    return found
