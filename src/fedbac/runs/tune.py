"""The same tuning effort for every method: as many points each on tuning seeds, the best frozen, others to compare on.

    tuning.json     what was asked for, and of every point its settings, its accuracy at each rung, when it was dropped
    tuning/         the runs that choose: paused at a rung, resumed for the next, so all are parts of full runs
    METHOD.yaml     the best point of a method, written before the first confirming run
    confirmed/      the runs that compare

All that is decided follows from the records of runs, so the same call goes on wherever it was ended.
"""

import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from fedbac.config.experiment import Experiment, Method, Task
from fedbac.config.explain import changes_of, parse
from fedbac.config.text import to_yaml
from fedbac.core.parts import Anatomy, Scope
from fedbac.core.rng import stream
from fedbac.core.runtime import sealed
from fedbac.core.settings import MAX_EDGES, MAX_ROUNDS, Settings
from fedbac.errors import ConfigError, Error, RunFolderError, quoted
from fedbac.federation import assemble
from fedbac.files import make_folder, read_json, write_whole
from fedbac.models import Build
from fedbac.runs.configure import SHOWN_DIFFERENCES, Changes, Inputs, common_file, configure, is_file
from fedbac.runs.store import RunFolder, StoredRun, differences, read_config
from fedbac.runs.summary import leaves, summarize
from fedbac.runs.sweep import MOST_POINTS, Point, folder_name, full_name, refuse_repeats

NOTES = "tuning.json"
BUDGET = 20
SEEDS, CONFIRM = (0,), tuple(range(20, 25))
GO_ON, CUTS = 3, 2
"""One in so many points goes on from a rung to the next, which is so many times as long; a ninth is the first."""
FACTOR, WHOLE_FACTOR = 10.0, 4.0
"""How far from the preset's a number is drawn, on a logarithmic scale; a whole number."""
AT_ONCE = 2
"""Numbers of its own that a point of a method changes beside η: with all of them at once, a method that has many would
hardly ever come near its preset."""
TRIES = 50
"""Draws for each point that is wanted: some are refused, some were drawn before."""
RATE = "method.learning_rate"
TUNED = ("clustering", "selection", "sharing", "personalization", "aggregation", "cloud_aggregation", "step")
WORK = {"fraction", "epochs", "head_epochs", "body_epochs", "inner_steps", "first_passes", "d_factor"}
"""Fields that buy accuracy with more work. A method keeps its own, unless its user says ``over``."""
SECRECY = {"threshold", "bound"}
"""Of what only adds up: how it does so in secret."""

Play = Callable[[Sequence[Point], Path, int | None], Sequence[StoredRun]]
"""Lays out runs in a folder, plays them up to a round or their end, and returns them; raises where one fails."""


class Candidate(NamedTuple):
    """A point of a method."""

    settings: Mapping[str, Any]
    """What is not as in the preset."""
    experiment: Experiment
    """With the first tuning seed."""


class Number(NamedTuple):
    """A setting that is tuned."""

    name: str
    value: float
    low: float
    high: float

    def drawn(self, seed: int, place: int) -> float:
        """Return a number near the preset's: of a share the odds, of others themselves are drawn log-uniformly.

        Numbers of one name and value are drawn alike: the learning rates of all methods, and FedDyn's α, which clients
        and cloud must agree on.
        """
        whole = isinstance(self.value, int)
        power = stream(seed, f"tuning {self.name}={self.value}", place).uniform(-1, 1)
        near = self.value * (WHOLE_FACTOR if whole else FACTOR) ** power
        if self.high <= 1 and not whole:
            near = near / (1 - self.value + near)
        near = min(max(near, self.low), self.high)
        return round(near) if whole else float(f"{near:.3g}")


def space(experiment: Experiment) -> dict[str, Number]:
    """Return by path what is tuned: η, and the numbers of a method's policies.

    What is switched off (0, a share of all, one cluster) stays off. Choices stay too: another choice is another method.
    """
    method, rounds = experiment.method, experiment.task.rounds
    rate = method.learning_rate or experiment.task.training.learning_rate
    found = {RATE: Number("η", rate, 0, math.inf)}
    for column in TUNED:
        policy = getattr(method, column)
        fields = policy.model_json_schema()["properties"] if isinstance(policy, Settings) else {}
        for name in fields.keys() - WORK - (SECRECY if getattr(policy, "needs", None) == "sum" else set()):
            value, options = getattr(policy, name), fields[name].get("anyOf", [fields[name]])
            limits: dict[str, Any] = next(
                (one for one in options if one.get("type") in ("integer", "number")), {"enum": 0}
            )
            if isinstance(value, bool) or not isinstance(value, int | float) or "enum" in limits:
                continue
            low = limits.get("minimum", limits.get("exclusiveMinimum", -math.inf))
            high = limits.get("maximum", limits.get("exclusiveMaximum", math.inf))
            high = rounds if high == MAX_ROUNDS else high  # what happens after the last round changes nothing
            off = value <= 0 or (value == 1 and high in (1, MAX_EDGES))
            if not off:
                found[f"method.{column}.{name}"] = Number(name, value, low, high)
    return dict(sorted(found.items()))


def rungs(budget: int, rounds: int) -> list[tuple[int, int]]:
    """Return up to which round each rung is played, and with how many points; the last has two or more, or is none."""
    cuts = max((n for n in range(CUTS + 1) if budget > GO_ON**n), default=None)
    if cuts is None:
        return []
    return [(-(-rounds // GO_ON ** (cuts - n)), -(-budget // GO_ON**n)) for n in range(cuts + 1)]


@dataclass(frozen=True)
class Plan:
    """What is to be tuned and compared."""

    out: Path
    budget: int
    rungs: Sequence[tuple[int, int]]
    seeds: Sequence[int]
    confirm: Sequence[int]
    candidates: Mapping[str, Sequence[Candidate]]
    """By method; the first is the preset."""

    @property
    def effort(self) -> str:
        """What every method has had, in a line."""
        ends = [0, *(until for until, _ in self.rungs)]
        rounds = len(self.seeds) * sum((end - begin) * n for begin, (end, n) in zip(ends, self.rungs, strict=False))
        return (
            f"Each method had the same budget: {self.budget} point{'s' * (self.budget > 1)}, {rounds:,} rounds of "
            f"tuning on seed{_listed(self.seeds)}. Compared on seed{_listed(self.confirm)}, which chose nothing."
        )

    def runs(self, folder: str, places: Mapping[str, Sequence[int]], seeds: Sequence[int]) -> list[Point]:
        """Return the runs of candidates on seeds."""
        found = []
        wanted = [(name, place) for name, some in places.items() for place in some]
        for (name, place), seed in product(wanted, seeds):
            experiment, apart = self.candidates[name][place].experiment, (f"point={place}",)
            path = self.out / folder / folder_name(full_name(name, apart, seed))
            plain = {name: getattr(experiment, name) for name in Experiment.model_fields}  # not what it has worked out
            found.append(Point(parse(Experiment, plain | {"seed": seed}), RunFolder(path), apart))
        return found


def _listed(seeds: Sequence[int]) -> str:
    return f"{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def plan(
    methods: Sequence[str | Method | Path],
    task: str | Task | Path | None,
    out: Path,
    *,
    budget: int = BUDGET,
    over: Sequence[Sequence[tuple[str, Any]]] = (),
    seeds: Sequence[int] = SEEDS,
    confirm: Sequence[int] = CONFIRM,
    rounds: int | None = None,
    settings: Changes = (),
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
) -> Plan:
    """Return the points of every method, each checked before any of them runs.

    ``over`` lists settings to combine, each as its path and its values, for the methods that have them; for others,
    points are drawn from their ``space``.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ConfigError(f"budget: {quoted(budget)} is no number of points; give 1 or more")
    for option, values in (("seed", seeds), ("confirm", confirm), ("methods", methods)):
        if not values:
            raise ConfigError(f"{option}: it is empty; give at least one")
        refuse_repeats(option, [str(value) for value in values])
    if both := sorted({*seeds} & {*confirm}):
        raise ConfigError(
            f"confirm: seed {both[0]} is a tuning seed too; methods are compared on seeds that chose nothing, so leave "
            "it out of one of them"
        )
    if budget * len(methods) * len(seeds) > MOST_POINTS:
        raise ConfigError(f"budget, seed: they make more than {MOST_POINTS:,} runs; give fewer")
    beside = common_file(methods, inputs)
    fixed = {change.path: change.value for change in changes_of(settings)}
    axes = {axis[0][0]: [change.value for one in axis for change in changes_of(dict([one]))] for axis in over}
    if common := [path for path in axes if not path.startswith("method.")]:
        raise ConfigError(f"over: {quoted(common[0])} is the same for all methods; set it with --set (settings=)")
    candidates: dict[str, Sequence[Candidate]] = {}
    for method in methods:

        def made(chosen: Mapping[str, Any], method: str | Method | Path = method) -> Experiment:
            changes = {**fixed, **chosen}
            return configure(method, task, seed=seeds[0], rounds=rounds, settings=changes, inputs=inputs, beside=beside)

        preset = made({})
        with sealed():
            build = assemble(preset, **vars(inputs)).build
        own = Path(str(method)).stem if is_file(method) else preset.method.name
        if own in candidates:
            raise ConfigError(f"methods: {quoted(own)} is there twice; give every method once, or rename a file")
        candidates[own] = _candidates(preset, made, build, budget, axes)
    for path in axes:
        if not any(_has(some[0].experiment, path) for some in candidates.values()):
            raise ConfigError(f"over: {quoted(path)} is a setting of none of these methods (see: fedbac show METHOD)")
    return Plan(out, budget, rungs(budget, preset.task.rounds), tuple(seeds), tuple(confirm), candidates)


def _has(experiment: Experiment, path: str) -> bool:
    return any(f"{leaf}.".startswith(f"{path}.") for leaf in leaves(experiment.model_dump(mode="json")))


def _candidates(
    preset: Experiment, made: Callable[[Mapping[str, Any]], Experiment], build: Build, budget: int,
    over: Mapping[str, Sequence[Any]],
) -> list[Candidate]:  # fmt: skip
    """Return the preset and other points; what is refused, or equal to one before, is drawn again."""
    axes = {path: values for path, values in over.items() if _has(preset, path)}
    found = [Candidate({}, preset)]
    for settings in _settings(preset, axes, budget):
        if len(found) == budget:
            break
        try:
            experiment = made(settings)
            scheme = experiment.method.personalization
            Anatomy(scheme, build(0))  # whether the network has as many layers as the parts want
            scheme.init(build, dict.fromkeys(get_args(Scope), 1))
        except Error:
            if axes:
                raise
            continue
        if all(experiment != other.experiment for other in found):
            found.append(Candidate(settings, experiment))
    if len(found) < budget:
        raise ConfigError(
            f"over, budget: there are {len(found)} points of {preset.method.name}, its preset among them, but every "
            f"method must have as many; give more values, or budget {len(found)}"
        )
    return found


def _settings(preset: Experiment, axes: Mapping[str, Sequence[Any]], budget: int) -> Iterator[Mapping[str, Any]]:
    """Yield all combinations of values, in an order drawn at random; without any, η and a few of a method's numbers."""
    if axes:
        if math.prod(map(len, axes.values())) > MOST_POINTS:
            raise ConfigError(f"over: there are more than {MOST_POINTS:,} combinations; give fewer values")
        combined = list(product(*axes.values()))
        for place in stream(preset.seed, "tuning").permutation(len(combined)):
            yield dict(zip(axes, combined[place], strict=True))
        return
    numbers = space(preset)
    own = sorted({number[:2] for path, number in numbers.items() if path != RATE})
    for place in range(TRIES * budget):
        some = stream(preset.seed, "tuning", place).permutation(len(own))[:AT_ONCE]
        chosen = {numbers[RATE][:2], *(own[one] for one in some)}
        yield {path: one.drawn(preset.seed, place) for path, one in numbers.items() if one[:2] in chosen}


# ---------------------------------------------------------------------------------------------------- tuning


def tune(plan: Plan, play: Play, tell: Callable[[str], None]) -> Sequence[StoredRun]:
    """Play the points of all methods rung by rung, freeze the best of each, and return the runs that compare them."""
    points: dict[str, list[dict[str, Any]]] = {
        name: [{"settings": dict(one.settings), "accuracy": {}, "dropped_after": None} for one in some]
        for name, some in plan.candidates.items()
    }
    presets = {name: some[0].experiment.model_dump(mode="json") for name, some in plan.candidates.items()}
    asked = {"budget": plan.budget, "seeds": plan.seeds, "confirm": plan.confirm, "rungs": plan.rungs}
    notes: dict[str, Any] = {**asked, "presets": presets, "points": points, "frozen": None}
    file = plan.out / NOTES
    before = _before(file, notes)

    def note() -> None:
        if not before.get("frozen"):
            write_whole(make_folder(plan.out) / file.name, json.dumps(notes, indent=1) + "\n")

    note()
    left = {name: list(range(plan.budget)) for name in points}
    for until, count in plan.rungs:
        left = {name: places[:count] for name, places in left.items()}
        tell(f"Tuning: {count} points of each method, up to round {until}")
        runs = iter(play(plan.runs("tuning", left, plan.seeds), plan.out / "tuning", until))
        for name, places in left.items():
            score = {}
            for place in places:
                ended = [
                    summarize(run.config["experiment"], run.records[:until]) for run in islice(runs, len(plan.seeds))
                ]
                score[place] = float(np.mean([summary["accuracy"] for summary in ended]))
                points[name][place]["accuracy"][str(until)] = score[place]
                points[name][place]["dropped_after"] = until
            places.sort(key=score.__getitem__, reverse=True)  # of equals the first stays first, such as the preset
        note()
    notes["frozen"] = best = {name: places[0] for name, places in left.items()}
    for name, place in best.items():
        points[name][place]["dropped_after"] = None
    now = json.loads(json.dumps(notes))
    if before.get("frozen") and any(before[key] != now[key] for key in ("points", "frozen")):
        raise RunFolderError(f"{file}: the runs beside it say otherwise; what is frozen may not change: restore them")
    note()
    for name, place in best.items():
        settings = [
            f"{path.removeprefix('method.')}={value}" for path, value in points[name][place]["settings"].items()
        ]
        tell(f"Frozen: {_freeze(plan, name, place)} ({', '.join(settings) or 'the preset'})")
    tell(f"Confirming: the best of each method on seed{_listed(plan.confirm)}")
    chosen = {name: [place] for name, place in best.items()}
    return play(plan.runs("confirmed", chosen, plan.confirm), plan.out / "confirmed", None)


def _before(file: Path, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier call noted, if there was one; one that was asked for something else is refused."""
    try:
        before: dict[str, Any] = read_json(file)
        there, here = _asked(before), _asked(json.loads(json.dumps(notes)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(f"{file}: it cannot be read ({error}); restore it, or choose another folder") from error
    if there != here:
        lines = [textwrap.shorten(line, 100) for line in differences(there, here)[:SHOWN_DIFFERENCES]]
        raise ConfigError(
            f"{file.parent}: another tuning is in this folder ({'; '.join(lines)}); choose another --out (out= in "
            "Python), or ask for the same"
        )
    return before


def _asked(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tuning was asked for."""
    settings = {name: {str(i): one["settings"] for i, one in enumerate(some)} for name, some in notes["points"].items()}
    presets = {name: parse(Experiment, one).model_dump(mode="json") for name, one in notes["presets"].items()}
    plain = {key: notes[key] for key in ("budget", "confirm", "seeds")}
    return {**plain, "methods": list(notes["points"]), "points": settings, "presets": presets}


def _freeze(plan: Plan, name: str, place: int) -> Path:
    """Write the best point as ``fedbac show`` would; see that it is still the same if it was written before."""
    path, best = plan.out / f"{folder_name(name)}.yaml", plan.candidates[name][place].experiment
    if not path.exists():
        write_whole(path, to_yaml({"experiment": best.model_dump(mode="json")}))
    elif parse(Experiment, read_config(path)["experiment"]) != best:
        raise RunFolderError(f"{path}: it was changed after it was frozen; restore it, or delete it to have it again")
    return path
