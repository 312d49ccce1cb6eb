"""``fedbac export``: the numbers of runs for other programs."""

import csv
import io
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbac.cli.reporting import run_folders
from fedbac.cli.terminal import err, say
from fedbac.errors import ConfigError, visible
from fedbac.files import replacing, write_whole

if TYPE_CHECKING:
    from fedbac.runs.store import Run

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "σ": r"$\sigma$", "–": "--",
}  # fmt: skip


Format = StrEnum("Format", ["CSV", "LATEX", "PARQUET"])
"""What a file holds: every round (csv, parquet), or the final table (latex)."""
Per = StrEnum("Per", {"ROUND": "round", "EDGE": "edge"})
"""What a row is about."""


def export(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that contain run folders.")
    ],
    format_: Annotated[
        Format, typer.Option("--format", help="csv or parquet for every round, latex for the final table (booktabs).")
    ] = Format.CSV,
    per: Annotated[
        Per, typer.Option("--per", help="What a row of csv or parquet is: a round, or an edge in a round.")
    ] = (Per.ROUND),
    out_file: Annotated[
        Path | None, typer.Option("--out", help="File to write to. Default: print to the terminal.")
    ] = None,
) -> None:
    """Export the numbers of runs, finished or not, for use in other programs."""
    from fedbac.api.results import pandas, rows
    from fedbac.report.groups import begun, labels

    runs = begun([place.read() for place in run_folders(folders)])
    if format_ is Format.PARQUET:
        if out_file is None:
            raise ConfigError("--out: a parquet file cannot be printed; name the file")
        frame = pandas().DataFrame(rows(runs, labels(runs), per.value))
        try:
            with replacing(out_file) as partial:
                frame.to_parquet(partial, engine="pyarrow", index=False)
        except ImportError as error:
            raise ConfigError("parquet needs pyarrow, which is not installed: pip install pyarrow") from error
    else:
        text = _latex(runs) if format_ is Format.LATEX else _csv(rows(runs, labels(runs), per.value))
        if out_file is None:
            typer.echo(text, nl=False)
            return
        write_whole(out_file, text)
    say(f"Exported: {out_file}", err)


def _csv(found: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in found for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def _latex(runs: Sequence["Run"]) -> str:
    from fedbac.report import final  # matplotlib is slow to import

    (header, lines), best = final(runs)
    written = [" & ".join(map(_escaped, header)) + r" \\", r"\midrule"]
    for index, line in enumerate(lines):
        cells = [rf"\textbf{{{_escaped(cell)}}}" if index == best else _escaped(cell) for cell in line]
        written.append(" & ".join(cells) + r" \\")
    columns = "l" + "r" * (len(header) - 1)
    body = "\n".join([r"\toprule", *written, r"\bottomrule"])
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in visible(text).replace("\n", " "))
