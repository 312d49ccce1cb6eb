"""The pages of methods: Table I, and of each its source, its choices and what differs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbac.config.experiment import Method, Task
from fedbac.core.settings import Settings
from fedbac.presets import DEFAULT_TASK, tasks
from fedbac.presets.methods import METHODS
from fedbac.presets.notes import NOTES, OURS
from fedbac.presets.table import row
from fedbac_paper import compared, costs
from fedbac_paper.tables import table

FAMILIES = {
    "plain": "fedavg fedprox scaffold feddyn fedavgm fedadam fedyogi hierfavg hierfavg-wide hierfavg-periods mtgc abad",
    "clustered": "ifca ifca-edges ifca-paper cfl cfl-edges fl-hc fl-hc-edges fedgwc fedgwc-edges feddrift "
    "feddrift-edges cflhkd cflhkd-edges",
    "blending": "chpfl chpfl-edges phe-fl phe-fl-kd fedbabu fedbabu-edges pfedgraph pfedgraph-edges fedavg-ft local",
    "selecting": "trindade power-of-choice oort cs-ucb ucb-cs cocs fed-csad",
    "personal": "ditto ditto-edges apfl apfl-edges pfedme fedrep fedrep-edges fedper fedper-edges fedrod fedrod-edges "
    "fedala fedala-edges",
    "additive": "fedfork fed-bac fed-cam fed-cam-edges fed-cam-alternate paper-text paper-figures fed-bac-random "
    "fed-bac-full singletons linucb-isolated fedbac-plus",
}
"""The pages of methods, and what is on them."""
TITLES = {
    "plain": "One network for all",
    "clustered": "Clusters",
    "blending": "Blends, and edges on their own",
    "selecting": "Client selection",
    "personal": "Personal parts",
    "additive": "Fed-BAC and its relatives",
}

DEVIATIONS = {
    "architecture": "`-edges`: a method of clients that serves edges here, to compare with those that do. Methods of "
    "two tiers that select or personalize clients run in three, selecting at every edge.",
    "chpfl": "`chpfl` and `phe-fl` count as adaptive blends: they share by what they measure. The paper calls the "
    "first full sharing, the second distillation (`phe-fl-kd`); the authors' code of PHE-FL blends.",
    "cfl": "`cfl` and `fedgwc` count as adaptive: they remember updates and losses.",
}
"""Where the rows differ from those of the paper, and why; by the first method that a sentence is about."""


def methods(results: Path) -> str:
    """Return the page of all methods: Table I from the rows of choices, and where it differs from the paper's."""
    task = tasks.task(DEFAULT_TASK)
    header = ["method", "architecture", "clustering", "selection", "adaptive", "knowledge sharing", "personalization"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in METHODS:
        if name.removesuffix("-edges") not in METHODS.keys() - {name}:
            links, columns = _table_row(name, task)
            alike.setdefault(columns, []).append(links)
    rows = [[", ".join(links), *columns] for columns, links in alike.items()]
    differences = "\n".join(f"- {line}" for line in DEVIATIONS.values())
    return f"""# Methods

The paper's Table I with more rows. Methods alike in all columns share a row; “/” precedes what `-edges` does
differently. Each name links to what the method does, its source and its [choices](#the-pages-of-methods).
`fedbac show NAME` prints every setting. [Against fluke](methods/against-fluke.md) compares eight with another package.

{table(header, rows)}

## The pages of methods

- **Choices** are those that differ from the defaults, on the task `{DEFAULT_TASK}`; links lead to rules and equations.
- **Our reading** marks methods whose original we could not find fully defined.
- {costs.ABOUT}
- {costs.SHARED}

## Where it differs from the paper's table

{differences}

{compared.section(results / "methods")}
"""


def _table_row(name: str, task: Task) -> tuple[str, tuple[str, ...]]:
    """Return the links to a method and its variant on edges, if it has one, and what both are in each column."""
    links, columns = [f"[`{name}`](methods/{_family(name)}.md#{name})"], _columns(name, task)
    if (edges := f"{name}-edges") in METHODS:
        links.append(f"[`-edges`](methods/{_family(name)}.md#{edges})")
        columns = [a if a == b else f"{a} / {b}" for a, b in zip(columns, _columns(edges, task), strict=True)]
    return ", ".join(links), tuple(columns)


def _columns(name: str, task: Task) -> list[str]:
    """Return the paper's columns of a method: all but the rule of aggregation, which its page says."""
    return list(row(METHODS[name](task))[:-1])


def _family(name: str) -> str:
    return next(family for family, members in FAMILIES.items() if name in members.split())


def family(name: str, results: Path, rules: Mapping[tuple[str, str], str]) -> str:
    """Return the page of one family of methods, a section each; rules say where each kind of a column is explained.

    Of methods with one source, differences that the first has are said there."""
    sections, task, sources = list[str](), tasks.task(DEFAULT_TASK), dict[str, str]()
    found = costs.read(results / "methods")
    for method in FAMILIES[name].split():
        note = NOTES[method]
        first = sources.setdefault(note.reference, method)
        named = first == method or note.reference == OURS
        source = f"Source: {note.reference if named else f'[`{first}`](#{first})'}."
        reading = " **Our reading.**" if note.interpretation else ""
        sections += ["", f"## {method}", "", f"{note.summary}{reading}", ""]
        sections += [source, ""] * (not method.endswith("-edges"))
        choices, base = _choices(METHODS[method](task), rules), method.removesuffix("-edges")
        if base in METHODS.keys() - {method} and _choices(METHODS[base](task), rules).endswith(f"; {choices}"):
            choices = f"those of `{base}`, with edges as members"
        sections.append(f"Choices: {choices}.")
        differences = costs.lines(method, found)
        title = "Differences" if len(differences) == len(note.differences) else "Further differences"
        if differences:
            sections += ["", f"{title}:", "", *(f"- {one}" for one in differences)]
        elif note.differences:
            sections += ["", f"Differences: those of `{first}`."]
    head = f"# {TITLES[name]}\n\n{costs.TOLD} [How to read this](../methods.md#the-pages-of-methods)."
    return head + "\n" + "\n".join(sections) + "\n"


def _unusual(method: Method) -> dict[str, Any]:
    """Return the policies of a row that are not the defaults, by column."""
    columns = ("topology", "clustering", "selection", "sharing", "personalization", "aggregation", "step", "clock")
    found = {column: getattr(method, column) for column in columns}
    return {column: policy for column, policy in found.items() if policy != _usual(Method, column)}


def _choices(method: Method, rules: Mapping[tuple[str, str], str]) -> str:
    """Return the kinds of a row, and the settings of each that are not the defaults."""
    found = [f"`unit={method.unit}`"] * (method.unit != "edge")
    for column, policy in _unusual(method).items():
        own = {name: value for name, value in policy if name != "kind" and value != _usual(type(policy), name)}
        kind = f"[`{policy.kind}`](../settings/{rules[column, policy.kind]})"
        found.append(f"{column} {kind}" + "".join(f", `{key}={value}`" for key, value in own.items()))
    for link, transforms in method.links:
        steps = [", ".join([f"`{one.kind}`", *(f"`{k}={v}`" for k, v in one if k != "kind")]) for one in transforms]
        found += [f"link {link} {' → '.join(steps)}"] * bool(steps)
    if method.network is not None:
        found.append(f"network `{method.network.kind}`, `width={getattr(method.network, 'width', None)}`")
    return "; ".join(found) or "all at their defaults"


def _usual(settings: type[Settings], name: str) -> Any:
    return settings.model_fields[name].get_default(call_default_factory=True)
