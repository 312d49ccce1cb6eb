"""One module for each class of attack; ``benchmarks/soak.py`` runs them.

Each defines ``trials(count: int, seed: int, folder: Path) -> Iterator[str | None]``, which yields one item per trial:
None if nothing was lost, no traceback was shown and no number changed in silence, else the complaint in one line.
``folder`` is empty and the module's own.
"""
