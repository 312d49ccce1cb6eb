"""The package as Python code uses it: playing runs, and looking at what came out."""

from fedbac.api.calls import compare, load, play, report, resume, run, sweep, tune, verify
from fedbac.api.playing import Playing
from fedbac.api.results import Run, Runs

__all__ = ["Playing", "Run", "Runs", "compare", "load", "play", "report", "resume", "run", "sweep", "tune", "verify"]
