"""Where a run comes from: the date, the versions and the command, as its ``config.yaml`` has them.

They are written once, when the run is laid out, and never change: records vouch for the file.
"""

import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from fedbac.version import __version__


def written() -> dict[str, str]:
    """Return the facts of this moment and this process."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "fedbac": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def _command() -> str:
    """Return the command as it was typed, without the folders that its program is in."""
    program = Path(sys.argv[0] if sys.argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m
    return shlex.join([name or "python", *sys.argv[1:]])
