"""Texts as rows of tokens, for a language model that tells the next one of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedbac.data.datasets import Array
from fedbac.data.natural import FAMILIES, held, udhr_texts
from fedbac.data.readers import Natural
from fedbac.language import tokens_of
from fedbac.losses import IGNORED

STEPS = 64
"""Tokens of an example."""


def read_udhr_tokens(paths: Sequence[Path], groups: Mapping[str, Sequence[str]] = FAMILIES) -> Natural:
    """Return languages in tokens of SmolLM2: an edge is a language, a client a part of its text."""
    texts = udhr_texts(paths, groups)
    rows = [_windows(tokens) for tokens in tokens_of([one.text for one in texts])]
    family = {code: group for group, codes in groups.items() for code in codes}
    train, test, tiers = held(texts, rows, family)
    return _read(train), train[:, 1:], _read(test), test[:, 1:], tiers


def _windows(tokens: Sequence[int]) -> Array:
    """Return a text as rows of tokens, each with the one that follows on its last; the end of the last row is empty."""
    starts = range(0, len(tokens) - 1, STEPS)
    found = np.full((len(starts), STEPS + 1), IGNORED)
    for row, start in zip(found, starts, strict=True):
        some = tokens[start : start + STEPS + 1]
        row[: len(some)] = some
    return found


def _read(rows: Array) -> Array:
    return np.where(rows[:, :-1] == IGNORED, 0, rows[:, :-1])
