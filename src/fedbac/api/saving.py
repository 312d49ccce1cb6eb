"""Files that runs leave: models and tables, and the libraries that some of them need."""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedbac.errors import ConfigError
from fedbac.files import replacing
from fedbac.runs.models import Predictor


def save(model: Predictor, example: Tensor, path: Path) -> Path:
    """Write a model into a file, by its suffix."""
    ways = {".safetensors": _save_weights, ".pt2": _save_program, ".onnx": _save_onnx}
    if path.suffix not in ways:
        raise ConfigError(f"{path}: a model is saved as {', '.join(ways)}; end the name with one of them")
    with replacing(path) as partial:
        ways[path.suffix](model, example, partial)
    return path


def pandas() -> Any:
    """Return pandas, which is an extra."""
    try:
        import pandas as found
    except ImportError as error:
        raise ConfigError("frames need pandas, which is not installed: pip install 'fedbac[frames]'") from error
    return found


def _save_weights(model: Predictor, example: Tensor, path: Path) -> None:
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)


def _save_program(model: Predictor, example: Tensor, path: Path) -> None:
    several = torch.cat([example, example])  # a dimension of 1 would be taken for fixed
    program = torch.export.export(model, (several,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with path.open("wb") as file:
        torch.export.save(program, file)


def _save_onnx(model: Predictor, example: Tensor, path: Path) -> None:
    try:
        import onnx  # noqa: F401 (torch needs it)
    except ImportError as error:
        raise ConfigError(f"{path}: ONNX needs a package that is not installed: pip install onnx") from error
    names: dict[str, Any] = {"input_names": ["examples"], "output_names": ["logits"]}
    axes = {"examples": {0: "batch"}, "logits": {0: "batch"}}
    with warnings.catch_warnings():  # of torch, about its own exporters
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (example,), str(path), dynamo=False, dynamic_axes=axes, **names)
