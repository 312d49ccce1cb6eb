"""What runs show: a table, figures, and one self-contained HTML page.

``figures`` and ``canvas`` alone import matplotlib, which takes a second; nothing else imports them until it draws.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from fedbac.errors import ConfigError, quoted
from fedbac.files import as_path
from fedbac.report.groups import begun
from fedbac.report.outcome import final, outcome, warnings
from fedbac.report.page import write_report
from fedbac.report.table import table
from fedbac.runs.store import StoredRun


class _Report(ModuleType):
    """This package, which can be called: Python gives its name in ``fedbac`` to the package once it is imported, and
    ``fedbac.report(runs)`` must go on to work."""

    def __call__(self, runs: StoredRun | Sequence[StoredRun], path: Path | str = "report.html") -> Path:
        given = [runs] if isinstance(runs, StoredRun) else runs
        if not isinstance(given, Sequence) or not all(isinstance(run, StoredRun) for run in given):
            raise ConfigError(f"runs: {quoted(given)} is neither a run nor a list of some; fedbac.load reads them")
        return write_report(begun(given), as_path("path", path))


sys.modules[__name__].__class__ = _Report

__all__ = ["final", "outcome", "table", "warnings", "write_report"]
