"""The pages of methods: Table I, and of each its source, its settings, its equations and what differs."""

import inspect
from pathlib import Path
from typing import Any

from fedbac.config.experiment import Method
from fedbac.core.parts import judged_parts
from fedbac.core.settings import Settings
from fedbac.presets import DEFAULT_TASK, tasks
from fedbac.presets.methods import METHODS
from fedbac.presets.notes import FAMILIES, NOTES
from fedbac.presets.table import DEVIATIONS, row
from fedbac_paper import compared, costs
from fedbac_paper.tables import details

TITLES = {
    "plain": "One network for all",
    "clustered": "Clusters",
    "blending": "Blends, and edges on their own",
    "selecting": "Client selection",
    "personal": "Personal parts",
    "additive": "Fed-BAC and its relatives",
}


def methods(results: Path) -> str:
    """Return the page of all methods: Table I from the rows of choices, and where it differs from the paper's."""
    lines = [
        "# Methods",
        "",
        "The paper's Table I with more rows, computed from the presets. `fedbac methods` prints it; `fedbac show NAME`",
        "prints every setting of a row. Each name links to what the method does, where it comes from, and where ours",
        "differs. [Against fluke](methods/against-fluke.md) compares seven of them with another package.",
        "Written by `tools/make_docs.py`.",
        "",
        "| method | architecture | clustering | selection | adaptive | knowledge sharing | personalization "
        "| aggregation |",
        "|---|---|---|---|---|---|---|---|",
    ]
    task = tasks.task(DEFAULT_TASK)
    for name, preset in METHODS.items():
        lines.append(f"| [`{name}`](methods/{_family(name)}.md#{name}) | {' | '.join(row(preset(task)))} |")
    lines += ["", "## Where it differs from the paper's table", "", *(f"- {line}" for line in DEVIATIONS.values()), ""]
    lines += compared.section(results / "methods")
    return "\n".join(lines)


def _family(name: str) -> str:
    return next(family for family, members in FAMILIES.items() if name in members.split())


def family(name: str, results: Path) -> str:
    """Return the page of one family of methods, a section each."""
    lines = [
        f"# {TITLES[name]}",
        "",
        "Written by `tools/make_docs.py` from the presets. [All methods](../methods.md).",
    ]
    task = tasks.task(DEFAULT_TASK)
    for method in (method for method in METHODS if _family(method) == name):
        note = NOTES[method]
        reading = (
            " **This is our reading:** the original's full definition could not be found."
            if note.interpretation
            else ""
        )
        lines += ["", f"## {method}", "", f"{note.summary}{reading}", "", f"Source: {note.reference}.", ""]
        lines += [f"Settings: {_choices(METHODS[method](task))}.", "", _model(METHODS[method](task))]
        if rules := _rules(METHODS[method](task)):
            lines += ["", details("Equations and rules", "\n".join(rules))]
        if note.differences:
            lines += ["", "Differences from the original:", "", *(f"- {difference}" for difference in note.differences)]
        lines += costs.lines(method, results / "methods")
    return "\n".join(lines) + "\n"


def _model(method: Method) -> str:
    """Return with which parts a method predicts, and which of them are personal."""
    parts = {part: method.personalization.parts[part].scope for part in judged_parts(method.personalization)}
    owners = {"cloud": "the cloud", "cluster": "each cluster", "edge": "each edge", "client": "each client"}
    told = " and ".join(f"`{part}` of {owners[scope]}" for part, scope in parts.items())
    own = [f"`{part}`" for part, scope in parts.items() if scope in ("edge", "client")]
    return f"Predicts with {told}; personal: {', '.join(own) or 'nothing'}."


def _unusual(method: Method) -> dict[str, Any]:
    """Return the policies of a row that are not the defaults, by column."""
    columns = ("topology", "clustering", "selection", "sharing", "personalization", "aggregation", "step")
    found = {column: getattr(method, column) for column in columns}
    return {column: policy for column, policy in found.items() if policy != _usual(Method, column)}


def _choices(method: Method) -> str:
    """Return the kinds of a row, and the settings of each that are not the defaults."""
    found = [f"`unit={method.unit}`"] * (method.unit != "edge")
    for column, policy in _unusual(method).items():
        own = {name: value for name, value in policy if name != "kind" and value != _usual(type(policy), name)}
        found.append(f"{column} `{policy.kind}`" + "".join(f", `{key}={value}`" for key, value in own.items()))
    for link, transforms in method.links:
        steps = [", ".join([f"`{one.kind}`", *(f"`{k}={v}`" for k, v in one if k != "kind")]) for one in transforms]
        found += [f"link {link} {' → '.join(steps)}"] * bool(steps)
    if method.network is not None:
        found.append(f"network `{method.network.kind}`, `width={getattr(method.network, 'width', None)}`")
    return "; ".join(found) or "all at their defaults"


def _rules(method: Method) -> list[str]:
    """Return what the policies of a row do, in the words and equations of their code."""
    texts = {column: inspect.cleandoc(type(policy).__doc__ or "") for column, policy in _unusual(method).items()}
    return [
        f"- {column} `{getattr(method, column).kind}`: {' '.join(text.replace('``', '`').split())}"
        for column, text in texts.items()
    ]


def _usual(settings: type[Settings], name: str) -> Any:
    return settings.model_fields[name].get_default(call_default_factory=True)
