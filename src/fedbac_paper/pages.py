"""One page a table or figure, written from the result files alone."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedbac.errors import ConfigError
from fedbac.files import make_folder, write_whole
from fedbac.statistics import FEWEST_SEEDS
from fedbac_paper.artefact import Artefact
from fedbac_paper.artefacts import ARTEFACTS, EVERYTHING
from fedbac_paper.claims import Claim
from fedbac_paper.paper import READINGS
from fedbac_paper.results import Results, read_results
from fedbac_paper.settings import CALIBRATED
from fedbac_paper.tables import NONE, code, details, literal, runs_in_words, table
from fedbac_paper.tasks import FORMAT_1, task_name
from fedbac_paper.verdicts import RULES, Verdict

HOW = "how.md"
"""The page that says once what holds for all of them."""
FROM_RESULTS = "--results results --pages docs/reproduce"
READ_AS = "\n".join(
    [
        "Fed-BAC is run in three readings, which differ in four choices:",
        "",
        "- **Reward of Thompson sampling**: `paper-figures` and `paper-text` use accuracy on the test data that are "
        "reported, as the paper does (C.29). `fed-bac` uses validation data.",
        "- **Reassignment of edges**: every round in `paper-figures`, every 20 rounds in the other two (C.21).",
        "- **Start on Fashion-MNIST**: one cluster for all edges in `paper-*`, one per edge in `fed-bac` (C.28).",
        "- **The round after a move**: it counts for Thompson sampling in `paper-*`, and does not in `fed-bac` "
        "(`method.selection.skip_after_move`, C.30).",
    ]
)


def write_pages(names: Sequence[str], results_folder: Path, folder: Path) -> list[Path]:
    """Write the page, and the figure if there is one, of every artefact that has results."""
    written = []
    for name in names:
        results = read_results(name, results_folder)
        if results is None:
            continue
        make_folder(folder)
        draw = ARTEFACTS[name].figure
        if draw is not None and results.findings:
            from fedbac.report import canvas  # it imports matplotlib, which is slow

            with _rendering(results):
                canvas.save(draw(results), folder / f"{name}.svg")
        path = folder / f"{name}.md"
        write_whole(path, page(results))
        written.append(path)
    if written:
        write_whole(folder / HOW, how())
    return written


def how() -> str:
    """Return the page of rules: how verdicts are reached, how Fed-BAC is read, and where data differ."""
    parts = ["# How verdicts are reached", RULES, "## Readings", READ_AS, "## SVHN", FORMAT_1]
    return "\n\n".join(parts) + "\n"


@contextmanager
def _rendering(results: Results) -> Iterator[None]:
    """Name the result file whose numbers no run can have shown, such as traffic of zero bytes."""
    try:
        yield
    except (ArithmeticError, LookupError) as error:
        raise ConfigError(
            f"{results.artefact}.json: no page can be made of its numbers ({type(error).__name__}: {error}); "
            "remove it and collect again"
        ) from error


def page(results: Results) -> str:
    """Return the page of an artefact: verdicts first, then the numbers, then how they were obtained."""
    artefact = ARTEFACTS[results.artefact]
    parts = [f"# {heading(results)}", _place(artefact, results)]
    drawn = artefact.figure is not None and results.findings
    with _rendering(results):
        claims, body = artefact.claims(results), artefact.body(artefact, results)
    if claims:
        parts += [
            "## Verdicts" + (f" ({results.kind.lower()})" if results.changes else ""),
            f"{tally(claims).capitalize()}.",
            verdict_table(claims),
            *([details("The evidence for each part", evidence_table(claims))] if any(map(_parted, claims)) else []),
            f"[How verdicts are reached]({HOW}).",
        ]
    parts += ["## Numbers", *([f"![{artefact.title}]({artefact.name}.svg)"] if drawn else []), *body]
    parts += ["## How it was run", _origin(artefact, results)]
    parts += [f"Fed-BAC is run in [three readings]({HOW}#readings)."] if set(READINGS) & set(artefact.variants) else []
    parts += [f"[How SVHN was read]({HOW}#svhn)."] if any(task.startswith("svhn") for task in artefact.tasks) else []
    return "\n\n".join(parts) + "\n"


def heading(results: Results) -> str:
    """Return a page's title; a pass that is no reproduction says so there."""
    title = ARTEFACTS[results.artefact].title
    return (
        f"{results.kind}, not a reproduction ({', '.join(map(literal, results.changes))}): {title}"
        if results.changes
        else title
    )


def progress(results: Results) -> str:
    """Return how many runs there are of those that verdicts need; the calibration needs no certain number."""
    count = len(results.findings)
    if results.artefact not in EVERYTHING:
        return runs_in_words(count)
    cells = ARTEFACTS[results.artefact].cells
    needed = sum(min(FEWEST_SEEDS, len(results.of(cell.task, cell.variant))) for cell in cells)
    more = f" and {count - needed} of further seeds" if count > needed else ""
    return f"{needed} of {runs_in_words(FEWEST_SEEDS * len(cells))}{more}"


def tally(claims: Sequence[Claim]) -> str:
    """Return how many claims have which verdict."""
    counts = Counter(claim.verdict.word for claim in claims)
    return ", ".join(f"{word}: {count}" for word, count in sorted(counts.items())) or NONE


def verdict_table(claims: Sequence[Claim]) -> str:
    """Return claims with their verdicts in short; those made of every reading of Fed-BAC have a column for each."""
    by_sentence: dict[str, dict[str, Claim]] = {}
    for claim in claims:
        if claim.subject in READINGS:
            by_sentence.setdefault(claim.sentence, {})[claim.subject] = claim
    of_readings = [
        [sentence.format("Fed-BAC"), *(in_short(found[reading].verdict) for reading in READINGS)]
        for sentence, found in by_sentence.items()
    ]
    others = [[claim.text, in_short(claim.verdict)] for claim in claims if claim.subject not in READINGS]
    tables = [table(["Fed-BAC, read as", *map(code, READINGS)], of_readings)] if of_readings else []
    tables += [table(["claim" if not of_readings else "other claims", "verdict"], others)] if others else []
    return "\n\n".join(tables)


def in_short(verdict: Verdict) -> str:
    """Return a verdict's word, and in how many parts or by how much, unless there is nothing to judge by."""
    if verdict.word in {"not run", "too few seeds"}:
        return f"**{verdict.word}**"
    much = extent(verdict)
    if verdict.word == "holds":
        much = much.removeprefix("holds ")
    return f"**{verdict.word}**, {much}".removesuffix(", ")


def extent(verdict: Verdict) -> str:
    """Return in how many parts a claim holds or by how much, without the parts."""
    return verdict.detail.partition(";")[0]


def _parted(claim: Claim) -> bool:
    return claim.verdict.detail != extent(claim.verdict)


def evidence_table(claims: Sequence[Claim]) -> str:
    """Return claims of several parts with the evidence for each part; of others the verdict says everything."""
    parts = [(claim.text, claim.verdict.detail) for claim in filter(_parted, claims)]
    return table(["claim", "evidence"], [[text, detail.replace("; ", "<br>")] for text, detail in parts])


def _place(artefact: Artefact, results: Results) -> str:
    if results.changes:
        return "This pass changes what the paper does, so nothing on this page tells whether a claim holds."
    return f"{artefact.place}."


def _origin(artefact: Artefact, results: Results) -> str:
    lines = []
    if not results.changes:
        most = max((found.seed + 1 for found in results.findings), default=0)
        seeds_wanted = f"--seeds {most} " if most > FEWEST_SEEDS else ""
        command = f"fedbac reproduce {artefact.name} {seeds_wanted}{FROM_RESULTS}"
        lines += [f"This page is written from `results/{artefact.name}.json`; do not edit it.", ""]
        lines += ["```", command, f"{command} --render-only", "```", ""]
    if not results.findings:
        return "\n".join([*lines, "No run is finished yet."])
    seeds = sorted({found.seed for found in results.findings})
    machines = Counter(f"{literal(found.machine)}, trainer {code(found.trainer)}" for found in results.findings)
    hours = sum(found.seconds for found in results.findings) / 3600
    lines.append(f"{progress(results)}, seeds {', '.join(map(str, seeds))}, {hours:.1f} hours in total, on:")
    lines += ["", *(f"- {machine} ({runs_in_words(count)})" for machine, count in sorted(machines.items()))]
    datasets = {cell.dataset for cell in artefact.cells if cell.calibrated}
    used = [dataset for dataset in CALIBRATED if dataset in datasets and results.settings]
    if used:
        lines += ["", "Settings that the paper leaves open, the same for all methods (others at their defaults):", ""]
        for dataset in used:
            chosen = ", ".join(map(code, results.settings.get(dataset, ()))) or "the defaults"
            lines.append(f"- {task_name(dataset, alpha=False)}: {chosen}")
    return "\n".join(lines)
