"""Audits by canaries: a promise that is kept is not disproved, and without noise hardly anything is left to promise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import fedbac
from fedbac import ConfigError, Experiment, Runtime
from fedbac.data import toy
from fedbac.runs.audit import audit, least_epsilon, p_value
from fedbac.runs.configure import Inputs, configure
from tests.test_cli import SMALL, Shell
from tests.unit.tiny import tiny_task

CPU = Runtime(device="cpu", workers=1)


def experiment(
    *settings: str, rounds: int = 2, clients: int = 40, seed: int = 0, size: int = 4
) -> tuple[Experiment, Inputs]:
    partition = fedbac.Partition(dirichlet_server=50, dirichlet_client=50, min_client_samples=1, min_edge_test=5)
    task = tiny_task(rounds=rounds, clients_per_edge=clients, partition=partition)
    inputs = Inputs(dataset=toy(size=size, train=max(800, 10 * clients), test=60))
    settings = ("method.privacy.delta=1e-3", *settings)
    return configure("hierfavg", task, seed=seed, settings=settings, inputs=inputs), inputs


def found(*settings: str, canaries: int | None = 60, **task: Any) -> Any:
    asked, inputs = experiment(*settings, **task)
    return audit(asked, canaries, runtime=CPU, inputs=inputs)


def test_without_noise_every_coin_is_guessed() -> None:
    audited = found("method.privacy.noise_multiplier=0")
    assert audited.promised is None
    assert audited.right == audited.guesses == audited.canaries == 60
    assert audited.at_least > 2
    assert not audited.broken  # nothing was promised


@pytest.mark.parametrize("setting", ["epsilon=1", "epsilon=1 where=clients"])
def test_a_promise_that_is_kept_is_not_disproved(setting: str) -> None:
    audited = found(*(f"method.privacy.{one}" for one in setting.split()))
    assert audited.promised == pytest.approx(1, abs=1e-6)
    assert audited.at_least <= audited.promised
    assert not audited.broken


def test_a_promise_that_is_broken_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tenth of the noise that it takes."""
    asked, inputs = experiment("method.privacy.epsilon=1")
    assert asked.promise is not None
    object.__setattr__(asked.promise, "noise_multiplier", asked.promise.noise_multiplier / 10)
    monkeypatch.setattr("fedbac.privacy.Promise.spent", lambda promise, round_: 1.0)
    audited = audit(asked, 60, runtime=CPU, inputs=inputs)
    assert audited.at_least > 1
    assert audited.broken


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("settings", [(), ("method.selection={kind: poisson, fraction: 0.5}",)])
def test_many_canaries_disprove_nothing_that_is_kept(settings: tuple[str, ...], seed: int) -> None:
    """The bound holds with 95 %, by a margin: the best guesser there could be is not far below the promise. Images are
    large, so that the network has more weights than there are canaries, which would drown each other."""
    many: dict[str, Any] = {"canaries": 300, "clients": 150, "seed": seed, "size": 16}
    audited = found("method.privacy.epsilon=3", *settings, **many)
    assert 0 <= audited.at_least <= 3
    loud = found("method.privacy.noise_multiplier=0.05", *settings, **many)
    assert loud.at_least > (2 if not settings else 0.5)  # a quarter of those that should come are never chosen


def test_guesses_prove_what_the_binomial_says() -> None:
    """With δ = 0 and all of 10 guesses right, ε is at least where (e^ε / (1 + e^ε))^10 is the doubt."""
    least = least_epsilon(10, 10, 10, 0.0, 0.05)
    chance = 0.05**0.1
    assert least == pytest.approx(np.log(chance / (1 - chance)))
    assert least_epsilon(10, 10, 5, 0.0, 0.05) == 0
    assert least_epsilon(100, 100, 100, 1e-3, 0.05) < least_epsilon(100, 100, 100, 0.0, 0.05)
    assert p_value(50, 20, 15, 0.7, 0.0) == pytest.approx(binom.sf(14, 20, 1 / (1 + np.exp(-0.7))))


def test_what_cannot_be_audited_is_said() -> None:
    asked, inputs = experiment("method.privacy={guarantee: example, epsilon: 1}")
    with pytest.raises(ConfigError, match="an audit needs a guarantee for clients"):
        audit(asked, runtime=CPU, inputs=inputs)
    asked, inputs = experiment("method.privacy.epsilon=1")
    with pytest.raises(ConfigError, match="--canaries: 81 cannot be among 80 clients"):
        audit(asked, 81, runtime=CPU, inputs=inputs)


def test_the_commands_say_what_is_promised_and_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedbac = Shell(tmp_path, monkeypatch, capsys)
    private = ("--set", "method.privacy={epsilon: 2, delta: 1.0e-3}", "--rounds", "2")
    shown = fedbac("show", "hierfavg", "--set", "method.privacy={noise_multiplier: 20}")
    assert "# privacy of every client: epsilon 1.356 at delta 1e-05 after 50 rounds; noise of 20 times" in shown
    said = " ".join(fedbac("audit", "hierfavg", *private, *SMALL[4:]).split())
    assert "Promised: epsilon 2. Of " in said
    assert "with 95 % confidence" in said
    ran = " ".join(fedbac("run", "hierfavg", "--out", "a", *private, *SMALL).split())
    assert "ε 2" in ran
    assert "privacy of every client: epsilon 2 at delta 0.001" in (tmp_path / "a" / "report.html").read_text()
