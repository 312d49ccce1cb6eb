"""What is published: the wheel, the source distribution and the image of a site."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUN = ("run", "fed-bac", "--rounds", "1", "--out", "run", "--set", "task.training.epochs=1")
pytestmark = pytest.mark.full


@pytest.fixture
def installed(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs Python where nothing but an installed package of ours is found."""

    def run(*words: str) -> str:
        env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def test_the_wheel_holds_everything_and_serves_every_python(tmp_path: Path, installed: Callable[..., str]) -> None:
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=280, cwd=tmp_path)
    (wheel,) = tmp_path.glob("fedbac-*-py3-none-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {"fedbac/data/embedded/fashion_mnist_mini.npz", "fedbac/data/embedded/LICENSE"} <= set(names)
    assert {"fedbac/py.typed", "fedbac_paper/py.typed", "fedbac_paper/paper.json"} <= set(names)
    assert wheel.stat().st_size < 8_000_000
    for kernel in (tmp_path / "site" / "fedbac" / "native").glob("_kernel*.so"):
        kernel.rename(kernel.with_name("_kernel.cpython-399-elsewhere.so"))  # as another Python would find it
    assert "CPU: native" in installed("-m", "fedbac", "--version")
    installed("-m", "fedbac", *RUN)
    assert "12 of 12 runs to go" in installed("-m", "fedbac", "reproduce", "noisy", "--plan")
    assert installed("-c", "import fedbac; print(fedbac.__file__)").startswith(str(tmp_path / "site"))


def test_the_source_distribution_installs_without_a_compiler(tmp_path: Path, installed: Callable[..., str]) -> None:
    copy = tmp_path / "copy"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if name.startswith("src/") or "/" not in name:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, timeout=120, capture_output=True)
    (sdist,) = tmp_path.glob("fedbac-*.tar.gz")
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"), str(sdist)]
    without = os.environ | {"CC": "false", "CXX": "false"}
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=280, cwd=tmp_path, env=without)
    assert "CPU: torch, as it was not built" in installed("-m", "fedbac", "--version")
    installed("-m", "fedbac", *RUN)


@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("buildah") and shutil.which("mmdebstrap")),
    reason="an image is built by root with buildah and mmdebstrap",
)
def test_the_image_is_built_and_plays_a_federation(tmp_path: Path) -> None:
    """Build it on a Debian made here, as no registry need be reached, and run it as its user: all in a chroot."""
    store, run = tmp_path / "store", tmp_path / "run"
    build = ["buildah", "--storage-driver", "vfs", "--root", str(store), "--runroot", str(run)]

    def do(*words: str) -> str:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.strip()

    packages = "python3,python3-venv,python-is-python3,ca-certificates"
    do("mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(tmp_path / "base.tar"))
    base = do(*build, "from", "scratch")
    do(*build, "add", "--quiet", base, str(tmp_path / "base.tar"), "/")
    do(*build, "commit", "--quiet", base, "localhost/base")
    here = [path for path in (Path("/etc/pip.conf"), Path("/etc/ssl/certs"), *Path("/opt").iterdir()) if path.exists()]
    mounts = [word for path in here for word in ("--volume", f"{path}:{path}:ro")]  # where this machine has packages
    if (settings := Path.home() / ".config" / "pip" / "pip.conf").exists():
        mounts += ["--volume", f"{settings}:/etc/xdg/pip/pip.conf:ro"]
    do(
        *build, "bud", "--isolation", "chroot", "--network", "host", "--build-arg", "BASE=localhost/base", *mounts,
        "--file", "containers/Dockerfile", "--ignorefile", "containers/Dockerfile.dockerignore", "--tag", "fedbac", ".",
    )  # fmt: skip
    site = do(*build, "from", "localhost/fedbac")
    script = (
        "cd /state && fedbac=/opt/fedbac/bin/fedbac && id -un && $fedbac --version && "
        "$fedbac federation init hospital --edges 2 --clients 2 --keys && "
        "$fedbac federation try hospital --rounds 1"
    )
    told = do(*build, "run", "--isolation", "chroot", "--user", "fedbac", site, "--", "sh", "-c", script)
    assert told.startswith("fedbac\n")
    assert "CPU: native" in told
    assert "distributed accuracy in its last round" in told.replace("\n", " ")
