"""What runs show: a table, figures, and one self-contained HTML page.

The only part of the package that draws; ``import fedbac`` does not load it.
"""

from fedbac.report.figures import figures, save_figures
from fedbac.report.outcome import outcome
from fedbac.report.page import write_report
from fedbac.report.table import best, final, table

__all__ = ["best", "figures", "final", "outcome", "save_figures", "table", "write_report"]
