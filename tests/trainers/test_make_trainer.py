"""Which schemes our kernels take, and what is said where they cannot."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import pytest
from torch import nn

from fedbac.config.experiment import Runtime
from fedbac.core.parts import Part, Parts, Phase, Pull, Scope
from fedbac.core.settings import Settings
from fedbac.errors import ConfigError
from fedbac.local import LoopTrainer, NativeTrainer, make_trainer
from fedbac.models import Perceptron
from fedbac.personalization import Additive, Shared
from tests.schemes import InTurns, Layered, Personal
from tests.support import NO_KERNEL, deal, federate
from tests.trainers.reference import DATA

DEEP = Perceptron(hidden=(6, 5))


class InThree(Settings):
    """One network in three parts, of which a test says how they move."""

    kind: Literal["in_three"] = "in_three"
    parts: ClassVar[Mapping[str, Part]] = {
        "first": Part("cloud", "main", slice(0, 1)),
        "middle": Part("client", "main", slice(1, 2)),
        "last": Part("cloud", "main", slice(2, None)),
        "other": Part("client", "other"),
    }
    terms: ClassVar[tuple[str, ...]] = ("main",)
    phase: Any

    def init(self, build: Callable[[int], nn.Module], owners: Mapping[Scope, int]) -> Parts:
        raise AssertionError("making a trainer starts no network")

    def phases(self) -> tuple[Phase, ...]:
        return (self.phase,)


def made(scheme: Any, trainer: Literal["auto", "native"]) -> Any:
    federation = federate(DATA, deal(DATA, [[10, 10]]), network=DEEP)
    runtime = Runtime(device="cpu", workers=1, trainer=trainer)
    return make_trainer(federation.network, scheme, federation.examples, runtime)


@NO_KERNEL
@pytest.mark.parametrize(
    "scheme",
    [
        Shared(),
        Shared(proximal=0.1),
        Additive(),
        InTurns(),
        Personal(),
        Layered(),
        Layered(in_turns=True),
        InThree(phase=Phase(moves=("middle", "last"))),
        InThree(phase=Phase(moves=("other", "middle"), terms=("main", "other"))),
    ],
    ids=repr,
)
def test_sums_of_networks_of_which_runs_of_layers_move_are_for_the_kernel(scheme: Any) -> None:
    assert isinstance(made(scheme, "auto"), NativeTrainer)


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (Phase(moves=("first", "last")), "'in_three': layers of network 'main' that do not lie side by side"),
        (
            Phase(moves=("first", "middle"), pull={"first": Pull(0.1)}),
            "'in_three': layers of network 'main'.* pulled",
        ),
    ],
)
def test_others_go_through_torch(phase: Phase, reason: str) -> None:
    assert isinstance(made(InThree(phase=phase), "auto"), LoopTrainer)
    with pytest.raises(ConfigError, match=rf"runtime\.trainer: .*{reason}.*use torch or auto"):
        made(InThree(phase=phase), "native")


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (
            Phase(moves=("other",)),
            "moves part 'other', so one of its networks .other., and only one, must be among the terms",
        ),
        (
            Phase(moves=("first",), pull={"first": Pull(0.1, to="last")}),
            "'first' is pulled to part 'last', which",
        ),
    ],
)
def test_phases_that_make_no_sense_are_refused_before_any_work(phase: Phase, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(InThree(phase=phase), "auto")
