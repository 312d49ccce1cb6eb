"""The transport over NVFlare, for organizations that run it.

NVFlare brings its own certificates, links and processes. A relay is the way into an edge, and an NVFlare client beside
it is the edge itself. What fedbac says travels as bytes between published methods of a job that holds no code.
Importing this package needs no NVFlare; its modules do.
"""

from importlib.util import find_spec

from fedbac.errors import ConfigError


def require() -> None:
    """Refuse to go on where NVFlare is not installed."""
    if find_spec("nvflare") is None:
        raise ConfigError("deploy.transport: nvflare needs the package nvflare; pip install 'fedbac[nvflare]'")
