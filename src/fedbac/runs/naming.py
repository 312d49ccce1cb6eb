"""Folders named after what is in them, within what file systems take."""

import hashlib
from pathlib import Path

from fedbac.errors import ConfigError, quoted

LONGEST, KEPT = 200, 160
"""Bytes of a name that we make, and how many stay of a longer one; file systems take 255."""


def shortened(name: str) -> str:
    """Return a folder's name; of one that is too long its beginning, and a hash that tells it from others like it."""
    raw = name.encode(errors="surrogatepass")
    if len(raw) <= LONGEST:
        return name
    return f"{raw[:KEPT].decode(errors='ignore')}-{hashlib.sha256(raw).hexdigest()[:12]}"


def usable(path: Path | str) -> Path:
    """Return a path, or raise a ConfigError where no file system could have it."""
    path = Path(path)
    if "\0" in str(path):
        raise ConfigError(f"{quoted(str(path))}: a folder's name cannot hold the character NUL; choose another")
    for part in path.parts:
        if len(part.encode(errors="surrogatepass")) > 255:
            raise ConfigError(f"{quoted(part)}: a folder's name has at most 255 bytes; choose a shorter one")
    return path
