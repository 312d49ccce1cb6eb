"""Write docs/settings.md and docs/methods.md from the code, or with --check say whether they are current.

python tools/make_docs.py [--check]
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import PydanticUndefined

from fedbac import data, models, tasks, topology
from fedbac.experiment import (
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
from fedbac.methods import METHODS
from fedbac.types import Settings

DOCS = Path(__file__).resolve().parent.parent / "docs"
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


def main() -> int:
    """Write or check the pages."""
    stale = []
    for name, text in (("settings.md", settings()), ("methods.md", methods())):
        path = DOCS / name
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"not current: {', '.join(stale)}; run python tools/make_docs.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
