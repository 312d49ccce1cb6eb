"""One page a table or figure, written from the result files alone."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from fedbac_paper.tables import NONE, code, comma_separated, each, literal, runs_in_words, table
from fedbac_paper.tasks import FORMAT_1, task_name
from fedbac_paper.verdicts import RULES, Verdict

HOW = "how.md"
"""The page that says once what holds for all of them."""
READ_AS = """Fed-BAC is run in three readings:

| | `paper-figures` | `paper-text` | `fed-bac` |
| --- | --- | --- | --- |
| Thompson sampling is rewarded on (C.29) | reported test data | reported test data | validation data |
| edges choose clusters every (C.21) | round | 20 rounds | 20 rounds |
| clusters at the start on Fashion-MNIST (C.28) | one for all | one for all | one per edge |
| the round after a move is rewarded (C.30) | yes | yes | no |"""
RATIOS = """Ratios are geometric means over seeds, ×/÷ their geometric standard deviation. A run that misses its target
counts with its whole length, so the ratio is a bound: “>” if HierFAVG misses it in some seed, “<” if the method does,
“~” if both do; “–” or an empty cell if nobody reaches it."""
OPEN = "Settings that the paper leaves open, the same for all methods"


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
        for file, text in files(results).items():
            write_whole(folder / file, text)
        written.append(folder / f"{name}.md")
    if written:
        write_whole(folder / HOW, how())
    return written


def how() -> str:
    """Return the page of what holds for all: rules of verdicts, readings of Fed-BAC, ratios, and settings."""
    sections = {
        "Readings": READ_AS,
        "Ratios": RATIOS,
        "Settings": f"{OPEN}: {_chosen(CALIBRATED)}.",
        "SVHN": FORMAT_1,
    }
    parts = ["# How verdicts are reached", RULES, *(f"## {title}\n\n{text}" for title, text in sections.items())]
    return "\n\n".join(parts) + "\n"


def _chosen(settings: Mapping[str, Sequence[str]]) -> str:
    found = {data: ", ".join(map(code, chosen)) or "the defaults" for data, chosen in settings.items()}
    return "; ".join(f"{task_name(data, alpha=False)}: {chosen}" for data, chosen in found.items())


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


def files(results: Results) -> dict[str, str]:
    """Return the page of an artefact, all its numbers and the evidence for each part of its claims, by file name."""
    artefact = ARTEFACTS[results.artefact]
    with _rendering(results):
        claims, body = artefact.claims(results), artefact.body(artefact, results)
    name = artefact.name
    parts = [f"# {heading(results)}", _place(artefact, results)]
    written = {f"{name}.csv": comma_separated(body.rows)}
    if claims:
        evidence = f"{name}-evidence.csv"
        written[evidence] = comma_separated([["claim", "verdict", "evidence"], *evidence_of(claims)])
        parts += [
            "## Verdicts" + (f" ({results.kind.lower()})" if results.changes else ""),
            f"[Rules and readings]({HOW}), [evidence]({evidence}).",
            verdict_table(claims),
        ]
    drawn = artefact.figure is not None and results.findings
    parts += ["## Numbers", *([f"![{artefact.title}]({name}.svg)"] if drawn else []), *body.shown]
    parts.append(f"[All numbers]({name}.csv). {_origin(artefact, results)}")
    return {f"{name}.md": "\n\n".join(parts) + "\n", **written}


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
    wanted = FEWEST_SEEDS * len(cells)
    return f"{needed} of " * (needed < wanted) + f"{runs_in_words(wanted)}{more}"


def tally(claims: Sequence[Claim]) -> str:
    """Return how many claims have which verdict."""
    counts = Counter(claim.verdict.word for claim in claims)
    return ", ".join(f"{word}: {count}" for word, count in sorted(counts.items())) or NONE


def verdict_table(claims: Sequence[Claim]) -> str:
    """Return claims with their verdicts in short; those made of several methods have a column for each."""
    by_sentence: dict[tuple[str, bool], dict[str, Claim]] = {}
    for claim in claims:
        by_sentence.setdefault((claim.sentence, claim.subject in READINGS), {})[claim.subject] = claim
    columns: dict[tuple[str, ...], list[list[str]]] = {}
    others = []
    for (sentence, of_readings), found in by_sentence.items():
        if len(found) == 1:
            others += [[claim.text, in_short(claim.verdict)] for claim in found.values()]
            continue
        subject = "Fed-BAC" if of_readings else "it"
        row = [sentence.format(subject), *(in_short(claim.verdict) for claim in found.values())]
        columns.setdefault(tuple(found), []).append(row)
    tables = [
        table(["Fed-BAC, read as" if subjects == READINGS else "claim", *map(code, subjects)], rows)
        for subjects, rows in columns.items()
    ]
    tables += [table(["other claims" if tables else "claim", "verdict"], others)] if others else []
    return "\n\n".join(tables)


def in_short(verdict: Verdict) -> str:
    """Return a verdict's word, and in how many parts or by how much, unless there is nothing to judge by."""
    if verdict.word in {"not run", "too few seeds"}:
        return f"**{verdict.word}**"
    told = re.sub(r"^holds in (\d+) of (\d+)", r"\1/\2", extent(verdict))
    told = re.sub(r"refuted in (\d+)$", r"\1 refuted", told)
    return f"**{verdict.word}**, {told}".removesuffix(", ")


def extent(verdict: Verdict) -> str:
    """Return in how many parts a claim holds or by how much, without the parts."""
    return verdict.detail.partition(";")[0]


def evidence_of(claims: Sequence[Claim]) -> Iterator[list[str]]:
    """Go through claims and the evidence for each part of theirs."""
    for claim in claims:
        for part in claim.verdict.detail.split("; "):
            yield [claim.text, claim.verdict.word, part]


def _place(artefact: Artefact, results: Results) -> str:
    if results.changes:
        return "This pass changes what the paper does, so nothing on this page tells whether a claim holds."
    return f"{artefact.place}."


def _origin(artefact: Artefact, results: Results) -> str:
    """Return what was run on which machines, and with which settings."""
    if not results.findings:
        return "No run is finished yet."
    numbers = sorted({found.seed for found in results.findings})
    seeds = (
        each(numbers)
        if len(numbers) < 4 or numbers[-1] - numbers[0] >= len(numbers)
        else f"{numbers[0]} to {numbers[-1]}"
    )
    machines = Counter(literal(found.machine) for found in results.findings)
    each_count = len(machines) > 1
    on = ", ".join(
        f"{machine}{f': {runs_in_words(count)}' * each_count}" for machine, count in sorted(machines.items())
    )
    told = [f"{progress(results)}, seeds {seeds}, on {on}."]
    usual = {cell.dataset: CALIBRATED[cell.dataset] for cell in artefact.cells if cell.calibrated}
    chosen = {data: results.settings.get(data, ()) for data in usual}
    told += [f"{OPEN}: {_chosen(chosen)}."] if results.settings and chosen != usual else []
    return "\n".join(told)
