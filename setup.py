"""Build the optional native kernel; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

KERNEL = Path("src/fedbac/native")

setup(
    ext_modules=[
        Extension(
            # A plain shared library, loaded with ctypes: it needs neither Python's headers nor torch to build.
            "fedbac.native._kernel",
            sources=[str(KERNEL / "kernel.cpp")],
            depends=[str(path) for path in sorted(KERNEL.glob("*.[hi]*"))],
            # No -march and no -ffast-math: the instruction set is chosen at run time, and NaN must stay NaN. Predictive
            # commoning would carry pixels from one position to the next in the registers that the sums need.
            extra_compile_args=[
                "-std=c++17", "-O3", "-fno-predictive-commoning", "-ffp-contract=fast", "-fno-math-errno",
                "-fno-trapping-math", "-fvisibility=hidden", "-pthread", "-g0",
            ],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,  # without a compiler the package installs all the same and trains through torch
        )
    ]
)  # fmt: skip
