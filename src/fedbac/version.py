"""The version, in one place, and the code that it stands for at the moment."""

import functools
import hashlib
from pathlib import Path

__version__ = "1.0.0"


@functools.cache
def full_version() -> str:
    """Return the version with a hash of the package's sources, be they of a repository, an sdist or a wheel."""
    package, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(file for kind in ("*.py", "*.cu") for file in package.rglob(kind)):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(package).as_posix()} {content}\n".encode())
    return f"{__version__}+{digest.hexdigest()[:12]}"
