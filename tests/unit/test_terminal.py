"""What the commands say beside their results."""

from pathlib import Path

import pytest
import torch

from fedbac.cli.terminal import say_if_runs_take_turns


@pytest.mark.parametrize(
    ("device", "jobs", "gpu", "service", "said"),
    [
        ("cuda", 3, True, False, True),
        ("auto", 3, True, False, True),
        ("auto", 3, True, True, False),
        ("auto", 1, True, False, False),
        ("auto", 3, False, False, False),
        ("cpu", 3, True, False, False),
    ],
)
def test_several_runs_on_one_gpu_are_told_of_the_service_that_lets_them_share_it(
    device: str,
    jobs: int,
    gpu: bool,
    service: bool,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if service:
        (tmp_path / "control").touch()
    say_if_runs_take_turns(device, jobs)
    assert ("3 runs at a time" in capsys.readouterr().err) == said
