"""Write the pages that come from the code and from results/, or with --check say whether they are current.

docs/settings.md, docs/methods.md, docs/methods/, docs/reproduce/, and the marked blocks of docs/reproduce.md, of
docs/methods/against-fluke.md and of README.md.

python tools/make_docs.py [--check]
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic_core import PydanticUndefined
from scipy import stats

from fedbac import data, models
from fedbac.config.columns import CLUSTERING, PERSONALIZATION, SELECTION, SHARING, TOPOLOGY
from fedbac.config.experiment import Evaluation, Measurement, Method, Runtime, Task, Training
from fedbac.core.codecs import EightBits, Links, TopK
from fedbac.core.settings import Settings
from fedbac.core.world import World
from fedbac.presets import additive, blending, clustered, personal, plain, selecting, tasks
from fedbac.presets.methods import METHODS
from fedbac.presets.notes import NOTES
from fedbac.presets.table import DEVIATIONS, row
from fedbac_paper import compared, overview
from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.pages import page, write_pages
from fedbac_paper.results import read_results

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
BEGIN, END = "<!-- written by tools/make_docs.py -->", "<!-- end -->"
GROUPS: list[tuple[str, type[Settings]]] = [
    ("task", Task),
    ("task.partition", data.Partition),
    ("task.training", Training),
    ("task.noise", data.Noise),
    ("task.augment", data.Augment),
    ("task.world", World),
    *((f"task.network, kind `{cls.model_fields['kind'].default}`", cls) for cls in (models.LeNet5, models.Perceptron)),
    ("method", Method),
    *((f"method.topology, kind `{kind}`", cls) for kind, cls in TOPOLOGY.kinds.items()),
    *((f"method.clustering, kind `{kind}`", cls) for kind, cls in CLUSTERING.kinds.items()),
    *((f"method.selection, kind `{kind}`", cls) for kind, cls in SELECTION.kinds.items()),
    *((f"method.sharing, kind `{kind}`", cls) for kind, cls in SHARING.kinds.items()),
    *((f"method.personalization, kind `{kind}`", cls) for kind, cls in PERSONALIZATION.kinds.items()),
    ("method.links", Links),
    *((f"a link, kind `{cls.model_fields['kind'].default}`", cls) for cls in (TopK, EightBits)),
    ("method.measurement", Measurement),
    ("evaluation", Evaluation),
    ("runtime", Runtime),
]

TYPES = {
    "number": "number",
    "integer": "whole number",
    "boolean": "`true`, `false`",
    "null": "`null`",
    "array": "list",
    "string": "text",
}


def settings() -> str:
    """Return the page of all settings."""
    lines = [
        "# Settings",
        "",
        "Every setting of `config.yaml` and `--set PATH=VALUE`. (C.n) points at a question that the paper leaves open:",
        "see [open-questions.md](open-questions.md). This page is written by `tools/make_docs.py`.",
    ]
    for path, cls in GROUPS:
        summary = inspect.cleandoc(cls.__doc__ or "")
        lines += ["", f"## {path}", "", summary]
        fields = {name: field for name, field in cls.model_fields.items() if name != "kind"}
        if fields:
            lines += ["", "| setting | default | allowed | meaning |", "|---|---|---|---|"]
        schema = cls.model_json_schema()
        for name, field in fields.items():
            meaning = " ".join((field.description or "").split())
            allowed = _allowed(schema["properties"].get(name, {}))
            default = _default(field.get_default(call_default_factory=True))
            lines.append(f"| `{name}` | {default} | {allowed} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Settings):
        return f"kind `{value.kind}`" if hasattr(value, "kind") else "as below"
    text = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True)
    return f"`{text.removesuffix('...' + chr(10)).strip()}`"


def _allowed(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(filter(None, (_allowed(option) for option in schema["anyOf"])))
    if "$ref" in schema or "discriminator" in schema:
        return "a group of settings"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    signs = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
    bounds = ", ".join(f"{sign}{schema[key]:g}" for key, sign in signs.items() if key in schema)
    return f"{TYPES.get(schema.get('type', ''), '')} {bounds}".strip()


FAMILIES = {
    "plain": (plain, "One network for everybody"),
    "clustered": (clustered, "Clusters"),
    "blending": (blending, "Blends, and edges that go their own way"),
    "selecting": (selecting, "Who trains"),
    "personal": (personal, "Parts of one's own"),
    "additive": (additive, "Fed-BAC and its relatives"),
}


def methods() -> str:
    """Return the page of all methods: Table I from the rows of choices, and where it differs from the paper's."""
    lines = [
        "# Methods",
        "",
        "The paper's Table I, with more rows, worked out from the presets. `fedbac methods` prints it; `fedbac show",
        "NAME` prints a row with every setting. Each name links to what the method does, where it comes from, and what",
        "ours does otherwise. [Against fluke](methods/against-fluke.md) holds seven of them to another package's.",
        "Written by `tools/make_docs.py`.",
        "",
        "| method | architecture | clustering | selection | adaptive | knowledge sharing | personalization |",
        "|---|---|---|---|---|---|---|",
    ]
    task = tasks.task(tasks.DEFAULT_TASK)
    for name, preset in METHODS.items():
        lines.append(f"| [`{name}`](methods/{_family(name)}.md#{name}) | {' | '.join(row(preset(task)))} |")
    lines += ["", "## Where it differs from the paper's table", "", *(f"- {line}" for line in DEVIATIONS.values()), ""]
    lines += compared.section(RESULTS / "methods")
    return "\n".join(lines)


def _family(name: str) -> str:
    return next(family for family, (module, _) in FAMILIES.items() if METHODS[name].__module__ == module.__name__)


def family(name: str) -> str:
    """Return the page of one family of methods, a section each."""
    lines = [
        f"# {FAMILIES[name][1]}",
        "",
        "Written by `tools/make_docs.py` from the presets. [All methods](../methods.md).",
    ]
    task = tasks.task(tasks.DEFAULT_TASK)
    for method in (method for method in METHODS if _family(method) == name):
        note = NOTES[method]
        reading = " **Our reading:** a definition could not be found." if note.interpretation else ""
        lines += ["", f"## {method}", "", f"{note.summary}{reading}", "", f"From: {note.reference}.", ""]
        lines += [f"Settings: {_choices(METHODS[method](task))}."]
        if note.differences:
            lines += ["", "What ours does otherwise:", "", *(f"- {difference}" for difference in note.differences)]
    return "\n".join(lines) + "\n"


def _choices(method: Method) -> str:
    """Return the kinds of a row, and the settings of each that are not the defaults."""
    found = [f"`unit={method.unit}`"] * (method.unit != "edge")
    for column in ("topology", "clustering", "selection", "sharing", "personalization"):
        policy = getattr(method, column)
        if policy != Method.model_fields[column].default:
            own = {name: value for name, value in policy if name != "kind" and value != _usual(policy, name)}
            found.append(f"{column} `{policy.kind}`" + "".join(f", `{key}={value}`" for key, value in own.items()))
    found += ["compressed links"] * bool(method.links.active)
    found += ["a network of its own"] * (method.network is not None)
    return "; ".join(found) or "all at their defaults"


def _usual(policy: Settings, name: str) -> Any:
    return type(policy).model_fields[name].get_default(call_default_factory=True)


def block(path: Path, text: str) -> str:
    """Return a page with what stands between its two marks replaced."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: the marks {BEGIN} and {END} are missing")
    return f"{before}{begin}\n{text}{end}{after}"


def reproduced() -> str:
    """Return what docs/reproduce.md begins with: all pages, and the main claims in short."""
    index, claims = overview.index(RESULTS, "reproduce"), overview.main_claims(RESULTS, "reproduce")
    return f"\n{index}\n\n## The claims in short\n\n{claims}\n\n"


WIDE = 2.0
"""Points; half an interval that is wider could hide a difference that matters."""


def against_fluke() -> str:
    """Return what docs/methods/against-fluke.md begins with: the verdict and both tables."""
    told = json.loads((RESULTS / "against-fluke.json").read_text(encoding="utf-8"))
    late, agreeing = [], []
    for method, seeds in told["late"].items():
        ours, theirs = (100 * np.array(column) for column in zip(*seeds.values(), strict=True))
        apart = ours - theirs
        noise = float(stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart)))
        agrees = "no" if abs(apart.mean()) > noise else "yes" if noise <= WIDE else "too wide to tell"
        agreeing += [f"`{method}`"] * (agrees == "yes")
        cells = (f"{ours.mean():.1f}", f"{theirs.mean():.1f}", f"{apart.mean():+.1f} ± {noise:.1f}")
        late.append(f"| `{method}` | {' | '.join(cells)} | {agrees} |")
    early, same = [], set()
    for found in told["early"]:
        numbers = [f"{100 * found[key]:.2f}" for key in ("ours", "theirs", "apart")]
        name = f"`{found['method']}`" + ", with momentum" * (found["optimizer"] == "momentum")
        early.append(f"| {name} | {found['change'] or 'none'} | {' | '.join(numbers)} |")
        if numbers[-1] == "0.00":
            same.add((found["method"], found["change"] is not None))
    named = {method: f"`{method}`" for method in told["late"]}
    alike = [name for method, name in named.items() if (method, False) in same]
    mended = [name for method, name in named.items() if (method, False) not in same and (method, True) in same]
    left = [name for name in named.values() if name not in alike + mended]
    setting, weights = told["setting"], max(told["first_average"].values())
    return "\n".join(
        [
            "",
            f"**Verdict.** With plain SGD, {len(alike)} of {len(named)} methods compute the same in both packages: "
            f"{_listed(alike)}.",
            f"{len(mended)} do once what ours does otherwise is done in fluke too: {_listed(mended)}.",
            f"Without an explanation: {_listed(left) or 'none'}.",
            f"After {setting['rounds']} rounds, {len(agreeing)} of {len(named)} are seen to be within noise: "
            f"{_listed(agreeing)}.",
            "",
            f"The control: after one round the weights that FedAvg has averaged differ by {weights:.0e} at most.",
            "",
            f"After {setting['rounds']} rounds of plain SGD, seeds {_listed(list(told['late']['fedavg']))}: "
            "mean accuracy of clients, %.",
            "The difference is ours less fluke's, ± half its 95 % interval over seeds, which are paired.",
            f"An interval of more than ± {WIDE:.0f} points says nothing about agreement.",
            "",
            f"| method | fedbac | fluke {told['versions']['fluke']} | difference | within noise |",
            "|---|---|---|---|---|",
            *late,
            "",
            f"After {setting['early']} rounds of seed 0, before rounding has grown, also with changes to fluke's code.",
            "The last column is the mean over clients of the difference, whichever way, in points.",
            "",
            "| method | change in fluke | fedbac | fluke | clients apart |",
            "|---|---|---|---|---|",
            *early,
            "",
            "",
        ]
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + "".join(names[-1:])


def texts() -> dict[Path, str]:
    """Return every generated page."""
    found = [item for name in ARTEFACTS if (item := read_results(name, RESULTS)) is not None]
    return {
        DOCS / "settings.md": settings(),
        DOCS / "methods.md": methods(),
        **{DOCS / "methods" / f"{name}.md": family(name) for name in FAMILIES},
        DOCS / "methods" / "against-fluke.md": block(DOCS / "methods" / "against-fluke.md", against_fluke()),
        DOCS / "reproduce.md": block(DOCS / "reproduce.md", reproduced()),
        ROOT / "README.md": block(ROOT / "README.md", overview.main_result(RESULTS)),
        **{DOCS / "reproduce" / f"{item.artefact}.md": page(item) for item in found},
    }


def stale() -> list[Path]:
    """Return the pages that are not current, are missing their figure, or have no results any more."""
    wanted = texts()
    kept = set((DOCS / "reproduce").glob("*.md"))
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    old += sorted(kept - set(wanted))
    # A figure's bytes depend on the version of matplotlib, so only its presence is checked.
    figures = (path.with_suffix(".svg") for path in kept if f"]({path.stem}.svg)" in path.read_text(encoding="utf-8"))
    return old + [path for path in figures if not path.exists()]


def main() -> int:
    """Write or check the pages."""
    if "--check" not in sys.argv[1:]:
        write_pages(list(ARTEFACTS), RESULTS, DOCS / "reproduce")
        for path, text in texts().items():
            path.write_text(text, encoding="utf-8")
    old = [str(path.relative_to(ROOT)) for path in stale()]
    if old:
        print(f"not current: {', '.join(old)}; run python tools/make_docs.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
