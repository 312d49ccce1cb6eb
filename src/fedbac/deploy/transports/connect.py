"""A kit's links: to its parent and to its children, by the transport that the federation uses."""

import threading
from functools import partial
from pathlib import Path

from fedbac.deploy.metrics import METRICS
from fedbac.deploy.pki.kits import Kit, credentials_of
from fedbac.deploy.protocol.handshake import check_hello, hello
from fedbac.deploy.transports.base import Answer, Children, Counted, Handshake
from fedbac.files import make_folder


def children_of(kit: Kit, handshake: Handshake, listen: str | None = None, folder: Path | None = None) -> Counted:
    """Listen for the children of a site; ``listen`` in place of what the kit says. Long messages go to a folder."""
    site, proof = kit.site, credentials_of(kit.folder, kit.site, *kit.site.children)
    heartbeat = site.deploy.heartbeat
    if site.deploy.transport == "nvflare":
        from fedbac.deploy.transports.nvflare.children import NvflareChildren, Trust
        from fedbac.deploy.transports.nvflare.parent import here

        children: Children = NvflareChildren(here(), site.children, handshake, Trust(proof), heartbeat=heartbeat)
    else:
        from fedbac.deploy.transports.grpc import GrpcChildren  # an extra, imported only when needed

        address = listen or site.listen or ""
        children = GrpcChildren(
            address,
            proof,
            site.children,
            handshake,
            heartbeat=heartbeat,
            limit=site.deploy.max_bytes,
            folder=folder and make_folder(folder),
        )
    return Counted(children, partial(METRICS.moved, "edges" if site.role == "cloud" else "clients"))


def serve_parent(kit: Kit, answer: Answer, stop: threading.Event, address: str | None = None) -> None:
    """Answer a site's parent until ``stop`` is set; ``address`` in place of what the kit says."""
    site, name = kit.site, kit.site.parent or ""
    if site.deploy.transport == "nvflare":
        from fedbac.deploy.transports.nvflare.parent import here

        serve = here().serve
    else:
        from fedbac.deploy.transports.grpc import GrpcParent

        to, proof = address or site.parent_address or "", credentials_of(kit.folder, site, name)
        deploy = site.deploy
        serve = GrpcParent(to, name, site.name, proof, heartbeat=deploy.heartbeat, limit=deploy.max_bytes).serve
    said = (lambda: hello(site.name), lambda said: check_hello(name, said), answer)
    serve(**METRICS.parent("cloud" if site.role == "edge" else "edge", *said), stop=stop)
