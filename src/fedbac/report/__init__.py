"""What runs show: a table, figures, and one self-contained HTML page.

The only part of the package that draws; ``import fedbac`` does not load it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from fedbac.report.figures import figures, save_figures
from fedbac.report.groups import begun
from fedbac.report.outcome import failures, final, outcome
from fedbac.report.page import write_report
from fedbac.report.table import table
from fedbac.runs.store import Run


class _Report(ModuleType):
    """This package, which can be called: Python gives its name in ``fedbac`` to the package once it is imported, and
    ``fedbac.report(runs)`` must go on to work."""

    def __call__(self, runs: Run | Sequence[Run], path: Path | str = "report.html") -> Path:
        return write_report(begun([runs] if isinstance(runs, Run) else list(runs)), Path(path))


sys.modules[__name__].__class__ = _Report

__all__ = ["failures", "figures", "final", "outcome", "save_figures", "table", "write_report"]
