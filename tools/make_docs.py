"""Write the pages that come from the code and from results/, or with --check say whether they are current.

docs/settings/, docs/methods.md, docs/methods/, docs/commands.md, docs/api*.md, docs/reproduce/, and the marked
blocks of docs/settings.md, docs/deploy-data.md, docs/reproduce.md, docs/performance.md, docs/gpu.md,
docs/million.md, docs/fedfork.md, docs/fedfork-why.md, docs/privacy.md, docs/methods/against-fluke.md and
docs/first-run.md.

python tools/make_docs.py [--check]
"""

import ast
import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import fedbac
from fedbac import data, models
from fedbac.aggregation import Bucketing, NearestNeighbours, OneVoice
from fedbac.cli.main import app
from fedbac.config.changes import Change
from fedbac.config.choices import Choice
from fedbac.config.columns import (
    AGGREGATION,
    CLOCK,
    CLUSTERING,
    LINKS,
    PERSONALIZATION,
    SELECTION,
    SHARING,
    STEP,
    TOPOLOGY,
    Links,
)
from fedbac.config.experiment import Evaluation, Measurement, Method, Runtime, Task
from fedbac.config.tiers import InnerTier
from fedbac.config.training import AdamW, Training
from fedbac.core.liars import Liars
from fedbac.core.settings import Settings
from fedbac.core.world import World
from fedbac.deploy.settings import DeploySettings
from fedbac.privacy import Privacy
from fedbac_paper import (
    ablation,
    against_fluke,
    clocks,
    compared,
    confirmed,
    demo,
    deployed,
    drift,
    languages,
    leaderboard,
    liars,
    marks,
    notebooks,
    overview,
    performance,
    privacy,
    regret,
    rivals,
    secret_sums,
)
from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.method_pages import TITLES, family, methods
from fedbac_paper.pages import HOW, files, how, write_pages
from fedbac_paper.results import read_results
from fedbac_paper.tables import comma_separated

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
GENERATED = ("settings", "methods", "reproduce")
"""Folders of docs/ that hold nothing but generated pages."""
SPEED = RESULTS / "performance"
TUNED = RESULTS / "rivals" / "tuning.jsonl"
SPOKEN = RESULTS / "adapters" / "udhr-smollm2.json"
FLUKE = DOCS / "methods" / "against-fluke.md"
BEGIN, END = "<!-- written by tools/make_docs.py -->", "<!-- end -->"
Group = tuple[str, type[Settings]]


def _kinds(column: str, choice: Choice, apart: Collection[str] = (), taken: bool = False) -> list[Group]:
    """Return the kinds of a column: those that stand apart if they are taken, else the others."""
    kinds = {kind: cls for kind, cls in choice.kinds.items() if (kind in apart) == taken}
    return [(f"method.{column}, kind `{kind}`", cls) for kind, cls in kinds.items()]


def _kind(path: str, cls: type[Settings]) -> Group:
    return f"{path}, kind `{cls.model_fields['kind'].default}`", cls


BY_UPDATES = ("cosine_splits", "agglomerative", "kmeans")
CORRECTED = ("control_variates", "group_corrections", "dynamic_pull")
MIXED = ("interpolated", "adaptive_start", "moreau_envelope")
BY_DEVICES = ("oort", "cs_ucb", "cocs", "resource_score")
"""Kinds with a page of their own, since one page for the whole column would be too long."""
PAGES: dict[str, tuple[str, list[Group]]] = {
    "task": (
        "the task: data, federation and training",
        [
            ("task", Task),
            ("task.partition", data.Partition),
            ("task.training", Training),
            _kind("task.training.optimizer", AdamW),
            ("task.noise", data.Noise),
            ("task.changes[…]", Change),
            ("task.augment", data.Augment),
        ],
    ),
    "network": ("the networks at hand", [_kind("task.network", network) for network in models.AtHand.__args__]),
    "world": ("simulated devices and liars", [("task.world", World), ("task.world.liars", Liars)]),
    "method": (
        "the method: its columns, topology, measurements and links",
        [
            ("method", Method),
            *_kinds("topology", TOPOLOGY),
            ("method.region", InnerTier),
            ("method.measurement", Measurement),
            ("method.links", Links),
            ("method.privacy", Privacy),
            *_kinds("links.LINK", LINKS),
        ],
    ),
    "clustering": ("clusters by losses, or fixed", _kinds("clustering", CLUSTERING, BY_UPDATES)),
    "clustering-by-updates": ("clusters by updates", _kinds("clustering", CLUSTERING, BY_UPDATES, taken=True)),
    "selection": ("which clients train", _kinds("selection", SELECTION, BY_DEVICES)),
    "selection-by-devices": ("which clients train, by devices", _kinds("selection", SELECTION, BY_DEVICES, taken=True)),
    "sharing": ("what clusters give each other", _kinds("sharing", SHARING)),
    "personalization": (
        "which networks predict, and who owns them",
        _kinds("personalization", PERSONALIZATION, CORRECTED + MIXED),
    ),
    "personalization-mixed": (
        "personal networks, mixed with the shared one",
        _kinds("personalization", PERSONALIZATION, MIXED, taken=True),
    ),
    "personalization-corrected": (
        "one network for all, by corrected gradients",
        _kinds("personalization", PERSONALIZATION, CORRECTED, taken=True),
    ),
    "aggregation": (
        "how changes are combined, the owner's step, and the clock",
        [
            *_kinds("aggregation", AGGREGATION),
            _kind("method.aggregation.before", NearestNeighbours),
            _kind("method.aggregation.before", Bucketing),
            _kind("method.aggregation.before", OneVoice),
            *_kinds("step", STEP),
            *_kinds("clock", CLOCK),
        ],
    ),
    "running": ("evaluation and runtime", [("evaluation", Evaluation), ("runtime", Runtime)]),
}
"""The pages of settings: what each is about, and its groups."""

LARGE = 1000
"""Limits from which on nobody meets them, except in an error that names them."""
SHOWN = ("number", "integer", "boolean")
"""Types that a default shows."""
TYPES = {
    "number": "number",
    "integer": "integer",
    "boolean": "`true`, `false`",
    "null": "`null`",
    "array": "list",
    "string": "text",
}


def settings_index() -> str:
    """Return the list of all pages of settings, with the kinds of a group that has several."""
    lines = [""]
    places = Counter(group for _, groups in PAGES.values() for group in {path.partition(", ")[0] for path, _ in groups})
    for name, (about, groups) in PAGES.items():
        kinds: dict[str, list[str]] = {}
        for path, _ in groups:
            group, _, kind = path.partition(", kind ")
            kinds.setdefault(f"`{group}`", []).extend([kind] if places[group] > 1 else [])
        listed = (f"{group}: {', '.join(some)}" if some else group for group, some in kinds.items())
        lines.append(f"- [{about}](settings/{name}.md): {'; '.join(listed)}")
    return "\n".join([*lines, "", ""])


def settings(name: str) -> str:
    """Return a page of settings; what several kinds share is told once."""
    about, groups = PAGES[name]
    lines = [
        f"# Settings: {about}",
        "",
        "[How to read this](../settings.md).",
    ]
    told: dict[str, str] = {}
    for path, cls in groups:
        fields = _fields(cls)
        again: dict[str, list[str]] = {}
        for line in fields:
            if line in told:
                again.setdefault(told[line], []).append(line[2:].partition(":")[0] + "`")
        new = [line for line in fields if line not in told]
        new += [f"- {', '.join(names)}: as of {kind}." for kind, names in again.items()]
        told |= {line: path.partition(", kind ")[2] or f"`{path}`" for line in new if line.startswith("- `")}
        lines += ["", f"## {path}", "", inspect.cleandoc(cls.__doc__ or ""), *new]
    return "\n".join(lines) + "\n"


def _rules() -> dict[tuple[str, str], str]:
    """Return where each kind of a column of methods is explained, as a link from beside the pages of settings."""
    return {
        (
            path.removeprefix("method."),
            kind.strip("`"),
        ): f"{name}.md#{re.sub('[^ a-z_-]', '', heading).replace(' ', '-')}"
        for name, (_, groups) in PAGES.items()
        for heading, _ in groups
        for path, _, kind in [heading.partition(", kind ")]
        if kind
    }


def _fields(cls: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the list of a model's fields, with defaults, what is allowed, and meanings; nothing if it has none."""
    fields = {name: field for name, field in cls.model_fields.items() if name != "kind"}
    lines = [""] if fields else []
    schema, meanings = cls.model_json_schema(), _meanings(cls)
    for name, field in fields.items():
        meaning = " ".join((field.description or meanings.get(name, "")).split())
        value = field.get_default(call_default_factory=True)
        allowed = _allowed(schema["properties"].get(name, {}), type(value) not in (bool, int, float))
        if value is None:
            allowed = allowed.removesuffix(" or `null`")
        lines.append(f"- {_default(prefix + name, value)}{f' ({allowed})' if allowed else ''}: {meaning}")
    return lines


def _meanings(cls: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields; if pydantic gathered them, each import of fedbac would take longer."""
    found = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(BaseModel)]):
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    found[name] = meaning
    return found


def _default(name: str, value: Any) -> str:
    """Return a setting with its default, as it stands in a file."""
    if value is PydanticUndefined:
        return f"`{name}`, required"
    if isinstance(value, Settings):
        changed = value.model_dump(exclude_defaults=True).items() if hasattr(value, "kind") else ()
        kind = f": {value.kind}" if hasattr(value, "kind") else ""
        return ", ".join([f"`{name}{kind}`", *(f"`{field}={setting}`" for field, setting in changed)])
    text = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True)
    return f"`{name}: {text.removesuffix('...' + chr(10)).strip()}`"


def _allowed(schema: dict[str, Any], named: bool = True) -> str:
    """Return what a setting takes: its type, unless the default shows it, and limits that a person might meet."""
    if "anyOf" in schema:
        return " or ".join(filter(None, (_allowed(option, named) for option in schema["anyOf"])))
    if "$ref" in schema or "discriminator" in schema:
        return "group"
    if "discriminator" in schema.get("items", {}):
        return "group, or list of them"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    limits = {sign: schema[key] for key, sign in signs.items() if abs(schema.get(key, math.inf)) < LARGE}
    if {"≥", "≤"} <= limits.keys():
        bounds = f"{limits['≥']:g} to {limits['≤']:g}"
    else:
        bounds = ", ".join(f"{sign}{limit:g}" for sign, limit in limits.items())
    kind = schema.get("type", "")
    return f"{TYPES.get(kind, '') if named or kind not in SHOWN else ''} {bounds}".strip()


def commands() -> str:
    """Return the page of the command line: what every command does."""
    rows = []
    for name, command in _leaves(typer.main.get_command(app), "fedbac"):
        arguments = (
            given.metavar or given.name.upper() for given in command.params if given.param_type_name != "option"
        )
        about = " ".join((command.help or "").split()).partition(". ")[0].removesuffix(".")
        rows.append(f"- `{' '.join([name, *arguments])}`: {about}.")
    return f"""# Command line

`fedbac COMMAND --help` says more, and lists all options; `--set PATH=VALUE` changes any [setting](settings.md). Exit
status: 0 if all went well, 1 if a run failed, 2 if the command or its input is wrong, 130 after Ctrl-C.

{chr(10).join(rows)}
"""


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Go through the commands that are no group of others."""
    for sub, inner in getattr(command, "commands", {}).items():
        yield from _leaves(inner, f"{name} {sub}")
    if not hasattr(command, "commands"):
        yield name, command


API: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "api": ("Python API: running", "What you call to run, resume and read, data sets, and errors.", ()),
    "api-methods": (
        "Python API: methods and tasks",
        "The classes that settings are made of. [Settings](settings.md) lists their fields.",
        (
            "config.experiment",
            "config.changes",
            "config.tiers",
            "topology",
            "clustering",
            "selection",
            "sharing",
            "personalization",
            "aggregation",
            "steps",
            "clocks",
            "networks",
        ),
    ),
    "api-policies": (
        "Python API: writing policies",
        "What a policy or scheme of your own works with. [Your own policy](policies.md) shows how.",
        ("core", "config.columns", "config.choices"),
    ),
}
"""The pages of the API: title, first sentence, and the modules whose names each has; the first has all others."""


def api(page_name: str) -> str:
    """Return a page of the API, which the site fills from the docstrings."""
    title, about, _ = API[page_name]
    lines = [f"# {title}", "", f"{about} The site shows the docstrings.", ""]
    names = [name for name in fedbac.__all__ if not name.startswith("_") and _api_page(name) == page_name]
    for name in sorted(names, key=lambda name: (_rank(getattr(fedbac, name)), name)):
        lines += [f"::: fedbac.{name}", ""]
    return "\n".join(lines)


def _api_page(name: str) -> str:
    value = getattr(fedbac, name)
    module = value.__module__ if inspect.isclass(value) or inspect.isfunction(value) else type(value).__module__
    inside = module.removeprefix("fedbac.")
    homes = (page for page, (_, _, prefixes) in API.items() if inside.startswith(prefixes))
    return next((page for page in homes if API[page][2]), "api")


def _rank(value: Any) -> int:
    """Functions come first, then classes, errors and values."""
    if inspect.isfunction(value):
        return 0
    return 3 if not inspect.isclass(value) else 2 if issubclass(value, Exception) else 1


def block(path: Path, *texts: str) -> str:
    """Return a page with what stands between two marks replaced, for every pair of marks."""
    rest, done = path.read_text(encoding="utf-8"), ""
    for text in texts:
        before, begin, rest = rest.partition(BEGIN)
        _, end, rest = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{path}: the marks {BEGIN} and {END} are missing")
        done += f"{before}{begin}\n{text}{end}"
    return done + rest


def books() -> dict[str, tuple[str, dict[str, bytes]]]:
    """Return the notebooks as pages, with their pictures."""
    return {
        there: notebooks.page(ROOT / "examples" / f"{name}.ipynb", "images") for name, there in notebooks.BOOKS.items()
    }


def texts() -> dict[Path, str]:
    """Return every generated page."""
    shown = rivals.best_runs(TUNED, RESULTS / "rivals" / "again.jsonl")
    found = [item for name in ARTEFACTS if (item := read_results(name, RESULTS)) is not None]
    return {
        DOCS / "settings.md": block(DOCS / "settings.md", settings_index()),
        **{DOCS / "settings" / f"{name}.md": settings(name) for name in PAGES},
        DOCS / "methods.md": methods(RESULTS),
        DOCS / "methods" / compared.NUMBERS: compared.numbers(RESULTS / "methods"),
        **{DOCS / "methods" / f"{name}.md": family(name, RESULTS, _rules()) for name in TITLES},
        FLUKE: block(FLUKE, against_fluke.verdict(RESULTS / "against-fluke.json")),
        FLUKE.parent / against_fluke.EARLY: comma_separated(against_fluke.early(RESULTS / "against-fluke.json")),
        DOCS / "deploy-data.md": block(
            DOCS / "deploy-data.md", "\n".join([*_fields(DeploySettings, "deploy."), "", ""])
        ),
        DOCS / "performance.md": block(
            DOCS / "performance.md",
            performance.rounds(SPEED),
            performance.peers(SPEED),
            performance.runs(SPEED),
            performance.scaling(SPEED),
        ),
        DOCS / "kernels.md": block(DOCS / "kernels.md", performance.ordinary(SPEED)),
        DOCS / "gpu.md": block(DOCS / "gpu.md", performance.precision(SPEED), performance.several(SPEED)),
        DOCS / "kernels.csv": comma_separated(performance.kernels(SPEED)),
        DOCS / "million.md": block(DOCS / "million.md", *performance.million(SPEED), performance.candidates(SPEED)),
        DOCS / "fedfork.md": block(
            DOCS / "fedfork.md",
            confirmed.table(ROOT / confirmed.KEPT),
            rivals.cost(TUNED, RESULTS / "rivals" / "bytes.jsonl"),
            f"\n{confirmed.in_short(RESULTS / 'rivals' / 'natural' / confirmed.KEPT.name)}\n\n",
        ),
        DOCS / "fedfork-why.md": block(
            DOCS / "fedfork-why.md",
            ablation.rules(ROOT / ablation.KEPT),
            ablation.blends(ROOT / ablation.KEPT),
            ablation.sums(ROOT / ablation.KEPT),
        ),
        DOCS / "confirmed.csv": comma_separated(confirmed.numbers(ROOT / confirmed.KEPT)),
        DOCS / "rivals.csv": comma_separated(rivals.best_points(shown)),
        DOCS / "drift.md": block(DOCS / "drift.md", drift.table(RESULTS / "drift" / "planted.jsonl")),
        DOCS / "clocks.md": block(
            DOCS / "clocks.md",
            clocks.table(RESULTS / "clocks" / "devices.jsonl"),
            clocks.beliefs(RESULTS / "clocks" / "beliefs.jsonl"),
        ),
        DOCS / "liars.md": block(DOCS / "liars.md", *(made(RESULTS / "liars") for made in (liars.tables, liars.cost))),
        DOCS / "liars-further.md": block(
            DOCS / "liars-further.md",
            *(made(RESULTS / "liars") for made in (liars.shares, liars.jitters, liars.losses)),
        ),
        DOCS / liars.NUMBERS: comma_separated(liars.numbers(RESULTS / "liars")),
        DOCS / "adapters.md": block(DOCS / "adapters.md", languages.table(SPOKEN)),
        DOCS / languages.NUMBERS: comma_separated(languages.numbers(SPOKEN)),
        DOCS / "privacy.md": block(DOCS / "privacy.md", privacy.table(RESULTS / "privacy" / "clients.jsonl")),
        DOCS / "secret-sums.md": block(
            DOCS / "secret-sums.md", secret_sums.refused(), secret_sums.costs(RESULTS / "secret")
        ),
        DOCS / "leaderboard.md": block(DOCS / "leaderboard.md", leaderboard.table(RESULTS / "benchmark")),
        DOCS / "leaderboard.csv": comma_separated(leaderboard.numbers(RESULTS / "benchmark")),
        DOCS / "natural.md": block(
            DOCS / "natural.md",
            leaderboard.cards(RESULTS / "benchmark", RESULTS / "natural" / "abroad.jsonl"),
            leaderboard.told(RESULTS / "benchmark", RESULTS / "natural" / "told.json"),
        ),
        DOCS / "deploy-operations.md": deployed.filled(DOCS / "deploy-operations.md", RESULTS / "deploy"),
        **{DOCS / f"{name}.md": text for name, (text, _) in books().items()},
        DOCS / "commands.md": commands(),
        **{DOCS / f"{name}.md": api(name) for name in API},
        DOCS / "reproduce.md": block(
            DOCS / "reproduce.md",
            overview.main_result(RESULTS),
            f"\n{overview.index(RESULTS, 'reproduce')}\n\n",
        ),
        DOCS / "regret.md": block(
            DOCS / "regret.md", regret.table(ROOT / regret.KEPT), regret.clients(ROOT / regret.CLIENTS)
        ),
        DOCS / "first-run.md": block(DOCS / "first-run.md", demo.block(ROOT / demo.KEPT)),
        **{DOCS / "reproduce" / name: text for item in found for name, text in files(item).items()},
        DOCS / "reproduce" / HOW: how(),
    }


def stale() -> list[Path]:
    """Return the pages that are not current, are missing their figure, or have no results any more."""
    wanted = texts()
    kept = {path for folder in GENERATED for kind in ("*.md", "*.csv") for path in (DOCS / folder).glob(kind)}
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    old += sorted(kept - set(wanted))
    # A figure's bytes depend on the version of matplotlib, so only its presence is checked.
    figures = (path.with_suffix(".svg") for path in kept if f"]({path.stem}.svg)" in path.read_text(encoding="utf-8"))
    drawn_from = {ROOT / demo.FIGURE: ROOT / demo.KEPT}
    if confirmed.missing(ROOT / confirmed.KEPT) == 0:
        drawn_from[ROOT / confirmed.FIGURE] = ROOT / confirmed.KEPT
    drawn_from[ROOT / ablation.FIGURE] = ROOT / ablation.KEPT
    old += [drawn for drawn, kept_in in drawn_from.items() if kept_in.exists() and not marks.current(drawn, kept_in)]
    pictures = {DOCS / "images" / name: data for _, found in books().values() for name, data in found.items()}
    old += [path for path, data in pictures.items() if not path.exists() or path.read_bytes() != data]
    return old + [path for path in figures if not path.exists()]


def main() -> int:
    """Write or check the pages."""
    if "--check" not in sys.argv[1:]:
        write_pages(list(ARTEFACTS), RESULTS, DOCS / "reproduce")
        for path, text in texts().items():
            path.write_text(text, encoding="utf-8")
        for _, pictures in books().values():
            for name, picture in pictures.items():
                (DOCS / "images" / name).write_bytes(picture)
    old = [str(path.relative_to(ROOT)) for path in stale()]
    if old:
        print(f"not current: {', '.join(old)}; run python tools/make_docs.py", file=sys.stderr)
    if str(demo.FIGURE) in old:
        print("for the demo's figure: make demo && python -m fedbac_paper.demo runs/demo", file=sys.stderr)
    if str(confirmed.FIGURE) in old:
        print("for the rivals' figure: python -m fedbac_paper.confirmed", file=sys.stderr)
    if str(ablation.FIGURE) in old:
        print("for the figure of rules: python -m fedbac_paper.ablation", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
