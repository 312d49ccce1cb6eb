"""Write the pages that come from the code and from results/, or with --check say whether they are current.

docs/settings.md, docs/methods.md, docs/reproduce/, and the marked blocks of docs/reproduce.md and README.md.

python tools/make_docs.py [--check]
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import PydanticUndefined

from fedbac import data, models, topology
from fedbac.config.experiment import (
    CLUSTERING,
    PERSONALIZATION,
    SELECTION,
    Evaluation,
    Measurement,
    Method,
    Runtime,
    Task,
    Training,
)
from fedbac.core.settings import Settings
from fedbac.presets import tasks
from fedbac.presets.methods import METHODS
from fedbac_paper import own_claims, pages, results
from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.headlines import headlines, in_short

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
BEGIN, END = "<!-- written by tools/make_docs.py -->", "<!-- end -->"
GROUPS: list[tuple[str, type[Settings]]] = [
    ("task", Task),
    ("task.partition", data.Partition),
    ("task.training", Training),
    ("task.noise", data.Noise),
    ("task.augment", data.Augment),
    *((f"task.network, kind `{cls.model_fields['kind'].default}`", cls) for cls in (models.LeNet5, models.Perceptron)),
    ("method", Method),
    ("method.topology", topology.Hierarchical),
    *((f"method.clustering, kind `{kind}`", cls) for kind, cls in CLUSTERING.kinds.items()),
    *((f"method.selection, kind `{kind}`", cls) for kind, cls in SELECTION.kinds.items()),
    *((f"method.personalization, kind `{kind}`", cls) for kind, cls in PERSONALIZATION.kinds.items()),
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
        lines += ["", f"## {path}", "", summary, "", "| setting | default | allowed | meaning |", "|---|---|---|---|"]
        schema = cls.model_json_schema()
        for name, field in cls.model_fields.items():
            if name == "kind":
                continue
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


def methods() -> str:
    """Return the page of all methods."""
    lines = [
        "# Methods",
        "",
        "One row of choices each; `fedbac show NAME` prints a row with every setting. Written by `tools/make_docs.py`.",
        "",
        "| method | clustering | selection | personalization | adaptive | shared at the cloud | what it is |",
        "|---|---|---|---|---|---|---|",
    ]
    task = tasks.task(tasks.DEFAULT_TASK)
    for name, preset in METHODS.items():
        row = preset(task)
        selection = f"{row.selection.kind}, p = {row.selection.fraction:g}"
        adaptive, shared = "yes" if row.adaptive else "no", ", ".join(row.shared) or "nothing"
        cells = (
            f"`{name}`",
            row.clustering.kind,
            selection,
            row.personalization.kind,
            adaptive,
            shared,
            preset.__doc__,
        )
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def block(path: Path, text: str) -> str:
    """Return a page with what stands between its two marks replaced."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: the marks {BEGIN} and {END} are missing")
    return f"{before}{begin}\n{text}{end}{after}"


def main_result() -> str:
    """Return the README's table and figure; nothing before there are results."""
    found = results.read("table-2", RESULTS)
    if found is None:
        return ""
    seeds = ", ".join(map(str, sorted({finding.seed for finding in found.findings})))
    beyond = results.read("beyond", RESULTS)
    parts = [
        "",
        f"The paper's main table, ours (± the standard deviation over seeds {seeds}) with the paper's number in "
        f"brackets ([all results](docs/reproduce.md)).{'' if beyond is None else trust(beyond)}",
        "",
        pages.main_table(found, beyond),
        "",
    ]
    if results.read("figure-convergence", RESULTS) is not None:
        parts += ["![Accuracy over the rounds](docs/reproduce/figure-convergence.svg)", ""]
    return "\n".join(parts)


def trust(beyond: results.Results) -> str:
    """Return how far the row of fedbac-plus is to be trusted: the verdicts by all seeds, and by those not tuned on."""
    verdict = {claim.text: claim.verdict for claim in own_claims.beyond(beyond)}
    held_out, every_seed = (in_short(verdict[own_claims.matches_the_best(held_out=one)]) for one in (True, False))
    return (
        " `fedbac-plus` was tuned on these seeds. That it is not worse than the best rival in any column: "
        f"{every_seed}, by all its seeds; {held_out}, by those from {own_claims.HELD_OUT} on, by which none of its "
        "rules was chosen ([evidence](docs/plus.md#clusters-that-share-methodsharing))."
    )


def overview() -> str:
    """Return what docs/reproduce.md begins with: all pages, and the main claims in short."""
    return f"{pages.index(RESULTS, 'reproduce')}\n\n## The claims in short\n\n{headlines(RESULTS, 'reproduce')}"


def texts() -> dict[Path, str]:
    """Return every generated page."""
    found = [item for name in ARTEFACTS if (item := results.read(name, RESULTS)) is not None]
    return {
        DOCS / "settings.md": settings(),
        DOCS / "methods.md": methods(),
        DOCS / "reproduce.md": block(DOCS / "reproduce.md", f"\n{overview()}\n\n"),
        ROOT / "README.md": block(ROOT / "README.md", main_result()),
        **{DOCS / "reproduce" / f"{item.artefact}.md": pages.page(item) for item in found},
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
        pages.write(list(ARTEFACTS), RESULTS, DOCS / "reproduce")
        for path, text in texts().items():
            path.write_text(text, encoding="utf-8")
    old = [str(path.relative_to(ROOT)) for path in stale()]
    if old:
        print(f"not current: {', '.join(old)}; run python tools/make_docs.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
