"""Build the optional native kernel; everything else is in pyproject.toml."""

import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNEL = Path("src/fedbac/native")

# No -march and no -ffast-math: the instruction set is chosen at run time, and NaN must stay NaN.
FLAGS = [
    "-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden",
    "-pthread", "-g0",
]  # fmt: skip
# Only where the compiler knows them; Clang refuses this one. Predictive commoning would carry pixels from one position
# to the next in the registers that the sums need.
GCC_FLAGS = ["-fno-predictive-commoning"]


class BuildKernel(build_ext):
    """Build with GCC or Clang, each with the flags it knows."""

    def build_extension(self, ext: Extension) -> None:
        """Raise an error that ``optional`` turns into a warning where the kernel cannot be built."""
        if sys.platform == "win32":
            raise CompileError("it needs GCC or Clang on Linux, macOS or another Unix")
        ext.extra_compile_args = [*FLAGS, *filter(self._knows, GCC_FLAGS)]
        super().build_extension(ext)

    def _knows(self, flag: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.cpp")
            empty.touch()
            try:
                self.compiler.compile([str(empty)], output_dir=folder, extra_postargs=[flag])
            except CompileError:
                return False
        return True


class AnyPython(bdist_wheel):
    """Name the platform alone: the kernel is loaded with ctypes, so one wheel serves every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of the wheel."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            # A plain shared library, loaded with ctypes: it needs neither Python's headers nor torch to build.
            "fedbac.native._kernel",
            sources=[str(KERNEL / "kernel.cpp")],
            depends=[str(path) for path in sorted(KERNEL.glob("*.[hi]*"))],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,  # where it cannot be built the package installs all the same and trains through torch
        )
    ],
)
