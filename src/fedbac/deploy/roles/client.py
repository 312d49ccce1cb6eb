"""A client: waits for its edge, and has a process of its own do the work. Imports no torch."""

import logging
import threading
from pathlib import Path
from typing import Any

from fedbac.deploy.pki.kits import Kit
from fedbac.deploy.transports.connect import serve_parent
from fedbac.deploy.transports.pipes import Worker

log = logging.getLogger("fedbac")


def run_client(
    kit: Kit,
    source: str,
    stop: threading.Event,
    *,
    address: str | None = None,
    state: Path | None = None,
    idle: float = 60.0,
    runtime: dict[str, Any] | None = None,
) -> None:
    """Serve the client's edge until ``stop`` is set. The data are read once at the start, to see that they can be."""
    site = kit.site
    says = {"name": site.name, "number": site.number, "edge": site.edge, "source": source}
    more = {
        "kit": str(kit.folder),
        "state": str(state or kit.folder / "state"),
        "runtime": {"workers": 1, **(runtime or {})},
    }
    worker = Worker(says | more, idle)
    try:
        worker.start()
        log.info("its data can be read; dialling %s at %s", site.parent, address or site.parent_address)
        serve_parent(kit, worker.ask, stop, address)
    finally:
        worker.close()
