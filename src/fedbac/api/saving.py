"""Files that runs leave: models and tables, and the libraries that some of them need."""

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from fedbac.errors import ConfigError
from fedbac.files import write_whole
from fedbac.runs.models import Predictor


def save(model: Predictor, example: Tensor, path: Path) -> Path:
    """Write a model into a file, by its suffix."""
    ways = {".safetensors": _weights, ".pt2": _program, ".onnx": _onnx}
    if path.suffix not in ways:
        raise ConfigError(f"{path}: a model is saved as {', '.join(ways)}; end the name with one of them")
    write_whole(path, ways[path.suffix](model, example))
    return path


def pandas() -> Any:
    """Return pandas, which is an extra."""
    try:
        import pandas as found
    except ImportError as error:
        raise ConfigError("frames need pandas, which is not installed: pip install 'fedbac[frames]'") from error
    return found


def _weights(model: Predictor, example: Tensor) -> bytes:
    return to_safetensors({name: value.contiguous() for name, value in model.state_dict().items()})


def _program(model: Predictor, example: Tensor) -> bytes:
    several = torch.cat([example, example])  # a dimension of 1 would be taken for fixed
    program = torch.export.export(model, (several,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    content = io.BytesIO()
    torch.export.save(program, content)
    return bytes(content.getvalue())


def _onnx(model: Predictor, example: Tensor) -> bytes:
    try:
        import onnx  # noqa: F401 (torch needs it)
    except ImportError as error:
        raise ConfigError("ONNX needs a package that is not installed: pip install onnx") from error
    content: Any = io.BytesIO()  # torch says that it wants a path
    axes = {"examples": {0: "batch"}, "logits": {0: "batch"}}
    with warnings.catch_warnings():  # of torch, about its own exporters
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (example,), content, dynamo=False,
            input_names=["examples"], output_names=["logits"], dynamic_axes=axes,
        )  # fmt: skip
    return bytes(content.getvalue())
