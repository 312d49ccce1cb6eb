"""Hostile inputs, by the thousand: whatever is typed, written or passed, the answer is a value or an error of ours."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import fedbac
from fedbac.cli.main import main
from fedbac.cli.terminal import shown
from fedbac.config.experiment import Runtime
from fedbac.config.explain import parse
from fedbac.config.text import to_yaml
from fedbac.data import Shards, load
from fedbac.errors import visible
from fedbac.runs.configure import configure, runtime_in
from fedbac.runs.sweep import grid
from fedbac_paper.pages import files
from fedbac_paper.results import read_results, write_results
from tests.data import layouts
from tests.reproduce.invented import results

LONGEST_MESSAGE = 20_000

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
VALUES = [
    "2001-99-99", "2001-01-01", "!!bool x", "!!int ''", "!!float _", "!!timestamp x", "!!binary '='", "!!set {a}",
    "!!python/object/apply:os.system [false]", "!!map [1]", "!!str [1]", "0x_", "0b_", "-0x", "9" * 5000,
    "0x" + "f" * 5000, "[" * 3000, "{" * 3000, "- " * 300, "&a [*a]", "*a", "{1: 2}", "{[1]: 2}", "{a: 1, a: 2}",
    "{<<: {a: 1}}", "<<", "=", "1:30", "190:20:30.15", ".inf", "-.inf", ".nan", "1e400", "1e-400", "-1", "0", "1.5",
    "true", "null", "~", "''", "' '", "[]", "{}", "[1, 2, 3, 4]", "[[[]]]", "{kind: 1}", "{kind: [1]}", "{kind: {}}",
    "{kind: lenet5, kind: mlp}", "18446744073709551617", "18446744073709551616", "9223372036854775808", "-9" * 9,
    "1000000000", "1000", "1e30", "1e300", "/tmp/x", "../../x", "..", ".", "x" * 256, "'\\0'", '"\\0"', '"\\e[31m"',
    '"\\u202e"', '"a\\nb"', "'[/bold]'", "'[red]x'", "<script>", "a|b", "`a`", "\x1b[31m", "\ud800", "é" * 200, "%",
    "{x: &y 1, z: *y}", BOMB, "? a\n: b", "--- 1\n--- 2", "!!null x", "1_0", "\t", "'", '"', "#", "@", "linucb", "mlp",
]  # fmt: skip
"""What has broken something, here or elsewhere, or looks as if it might."""
OBJECTS: list[Any] = [
    -1, 0, 2**31, 2**63, 2**64 + 1, 10**5000, -1.5, float("nan"), float("inf"), 1e300, "1", "x", "", "\0", "a" * 300,
    None, True, [], [1], {}, (), object(), b"x", np.int64(3), np.nan, 1j, lambda: 1,
]  # fmt: skip


def _tree(method: str) -> dict[str, Any]:
    experiment = fedbac.configure(method, "demo", settings=["task.augment={flip: true}", "task.noise={labels: 0.5}"])
    return {"experiment": experiment.model_dump(mode="json"), "runtime": Runtime().model_dump(mode="json")}


def _paths(tree: Any, prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


class Attacks:
    """Draws inputs of every kind from seeded random numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.trees = {method: _tree(method) for method in ("fed-bac", "fedbac-plus", "cfl-edges", "ditto")}
        self.paths = [path for tree in self.trees.values() for path in _paths(tree["experiment"])]
        self.results = write_results(results("table-fairness"), folder / "written").read_text()
        self.kinds: dict[str, Callable[[Random], None]] = {
            "set": self.set, "file": self.file, "task": self.task, "grid": self.grid, "python": self.python,
            "shards": self.shards, "command": self.command, "data": self.data, "page": self.page, "name": self.name,
        }  # fmt: skip

    def complaint(self, seed: object) -> str | None:
        """Try one input; return what it broke, or None."""
        rng = Random(f"{seed}")
        kind = rng.choice(list(self.kinds))
        try:
            self.kinds[kind](rng)
        except fedbac.Error as error:
            if len(str(error)) > LONGEST_MESSAGE:
                return f"input {seed} ({kind}): a message of {len(str(error))} characters"
        except Exception as error:  # everything else is a finding
            return f"input {seed} ({kind}): {type(error).__name__}: {error!s:.200}".replace("\n", " ")
        return None

    def setting(self, rng: Random) -> str:
        """Return a ``path=value`` that may be anything."""
        path = rng.choice(self.paths) if rng.random() < 0.9 else rng.choice([*VALUES, "", ".", "task.", "a.b.c"])
        value = rng.choice(VALUES) if rng.random() < 0.8 else mutated(rng, rng.choice(VALUES))
        return rng.choice([f"{path}={value}"] * 20 + [path, f"={value}", f"{path}.x={value}", value])

    def set(self, rng: Random) -> None:
        settings = [self.setting(rng) for _ in range(rng.randint(1, 3))]
        fedbac.configure(rng.choice(list(fedbac.METHODS)), "demo", settings=settings)

    def file(self, rng: Random) -> None:
        text = to_yaml(rng.choice(list(self.trees.values())))
        path = self.write("config.yaml", mutated(rng, text))
        configure(path)
        runtime_in(path)

    def task(self, rng: Random) -> None:
        text = to_yaml(rng.choice(list(self.trees.values()))["experiment"]["task"])
        fedbac.configure("ifca-edges", self.write("task.yaml", mutated(rng, text)))

    def grid(self, rng: Random) -> None:
        axes = [",".join([self.setting(rng), *rng.sample(VALUES, 2)]) for _ in range(rng.randint(0, 2))]
        listed = [" ".join(self.setting(rng) for _ in range(2)) for _ in range(rng.randint(0, 2))]
        grid(["ifca-edges"], "demo", axes, listed, [0, 1], None, [], self.folder)

    def python(self, rng: Random) -> None:
        arguments = {
            name: rng.choice(OBJECTS) for name in rng.sample(["seed", "num_rounds", "method", "task", "settings"], 2)
        }
        runtime = {name: rng.choice(OBJECTS) for name in rng.sample(sorted(Runtime.model_fields), 2)}
        parse(Runtime, runtime, "runtime")
        fedbac.configure(**{"method": "fed-bac", "task": "demo", **arguments})

    def shards(self, rng: Random) -> None:
        good: list[Any] = [np.arange(3), np.arange(3, 5), [5], range(2), np.zeros(0)]
        bad: list[Any] = [np.array([0.5]), np.array([-1]), [2**70], np.zeros((2, 2), int), [[1], [2, 3]], "ab", [None]]
        whole = (None, 3, "abc", (), [1, 2])

        def groups(count: int) -> Any:
            if rng.random() < 0.05:
                return rng.choice(whole)
            return tuple(rng.choice(good if rng.random() < 0.9 else [*bad, *OBJECTS]) for _ in range(count))

        noisy: Any = rng.choice([(), (0,), (9,), None])
        Shards(groups(2), groups(2), groups(1), groups(1), noisy).checked(6, 6)

    def command(self, rng: Random) -> None:
        """Type it: the exit status is 0 or 2, and nothing that moves the cursor comes out."""
        words = rng.choice(
            [["show", "fed-bac"], ["show", rng.choice(VALUES)], ["tasks"], ["resume"], [rng.choice(VALUES)]]
        )
        words += [word for _ in range(rng.randint(0, 2)) for word in ("--set", self.setting(rng))]
        said, before, code = StringIO(), sys.argv, None
        try:
            sys.argv = ["fedbac", *(word.replace("\0", "") for word in words)]
            with redirect_stdout(said), redirect_stderr(said):
                main()
        except SystemExit as end:
            code = end.code
        finally:
            sys.argv = before
        text = said.getvalue()
        assert code in (0, 2), f"exit status {code}: {text[-200:]}"
        assert "Traceback" not in text
        assert visible(text) == text, repr(text)

    def data(self, rng: Random) -> None:
        """A data file with some bytes changed gives data or one error, whatever they say."""
        where = self.folder / "data"
        where.mkdir(exist_ok=True)
        for old in sorted(where.rglob("*"), reverse=True):
            old.unlink() if old.is_file() else old.rmdir()
        name = rng.choice(["fashion-mnist", "cifar10", "svhn"])
        if name == "fashion-mnist":
            layouts.write_idx(where, layouts.arrays(28, 28), rng.choice(["", ".gz"]))
        elif name == "cifar10":
            layouts.write_cifar(where, layouts.arrays(32, 32, 3), layouts.python3_pickle)
        else:
            layouts.write_npz(where / "svhn.npz", layouts.arrays(32, 32, 3))
        victim = rng.choice([path for path in sorted(where.rglob("*")) if path.is_file()])
        raw = bytearray(victim.read_bytes())
        for _ in range(rng.randint(1, 8)):
            raw[rng.randrange(min(len(raw), rng.choice([64, 1024, len(raw)])))] = rng.randrange(256)
        victim.write_bytes(raw[: rng.choice([len(raw), rng.randrange(len(raw))])])
        load(name, where)

    def page(self, rng: Random) -> None:
        """A result file with values changed gives a page without HTML of its own, or one error."""
        tree = json.loads(self.results)
        marked = "<script>alert(1)</script>|`x`\n# forged"
        values = [
            marked,
            [marked],
            {marked: [marked]},
            -1,
            0,
            2**64,
            1e300,
            float("nan"),
            0.5,
            7,
            "",
            "\0",
            None,
            [],
            {},
        ]
        nodes = [tree, rng.choice(tree["findings"]), rng.choice(tree["findings"])["bytes"]]
        for _ in range(rng.randint(1, 3)):
            node = rng.choice(nodes)
            node[rng.choice(list(node))] = rng.choice(values)
        path = self.folder / "read" / "table-fairness.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(tree, default=str))
        found = read_results("table-fairness", path.parent)
        assert found is not None
        text = "".join(files(found).values())
        assert "<script" not in text
        assert "\n# forged" not in text

    def name(self, rng: Random) -> None:
        """What a file calls a run comes out as one line without control characters."""
        text = shown(mutated(rng, rng.choice(VALUES)))
        assert text.isprintable(), repr(text)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_bytes(text.encode(errors="surrogatepass"))
        return path


def mutated(rng: Random, text: str) -> str:
    """Return a text with a few changes: values replaced, lines cut, moved or doubled, signs put in."""
    for _ in range(rng.randint(1, 4)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        how = rng.randrange(6)
        if how == 0:
            lines[at] = lines[at].partition(":")[0] + ": " + rng.choice(VALUES)
        elif how == 1:
            del lines[at]
        elif how == 2:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif how == 3:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:place] + chr(rng.choice([0, 9, 27, 38, 42, 58, 91, 123, 0xD800, 0x202E])) + lines[at][place:]
            )
        elif how == 4:
            lines[at] = rng.choice(["  ", "- ", "? ", "!!int "]) + lines[at]
        else:
            lines = lines[: at + 1]
        text = "\n".join(lines)
    return text
