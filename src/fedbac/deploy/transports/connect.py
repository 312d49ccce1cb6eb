"""A kit's links: to its parent and to its children, by the transport that the federation uses."""

from functools import partial

from fedbac.deploy.metrics import METRICS
from fedbac.deploy.pki.kits import CERTIFICATE_FILE, Kit, credentials_of
from fedbac.deploy.transports.base import Counted, Handshake, Parent

MIB = 2**20


def children_of(kit: Kit, handshake: Handshake, listen: str | None = None) -> Counted:
    """Listen for the children of a site; ``listen`` in place of what the kit says."""
    moved = partial(METRICS.moved, "edges" if kit.site.role == "cloud" else "clients")
    if kit.site.deploy.transport == "nvflare":
        from fedbac.deploy.transports.nvflare.children import NvflareChildren, Trust
        from fedbac.deploy.transports.nvflare.parent import here

        trust, heartbeat = Trust(credentials_of(kit.folder, kit.site, *kit.site.children)), kit.site.deploy.heartbeat
        return Counted(NvflareChildren(here(), kit.site.children, handshake, trust, heartbeat=heartbeat), moved)
    from fedbac.deploy.transports.grpc import GrpcChildren  # an extra, imported only when needed

    address = listen or kit.site.listen
    assert address is not None
    children = GrpcChildren(
        address,
        credentials_of(kit.folder, kit.site, *kit.site.children),
        kit.site.children,
        handshake,
        heartbeat=kit.site.deploy.heartbeat,
        limit=_limit(kit),
    )
    return Counted(children, moved)


def parent_of(kit: Kit, address: str | None = None) -> Parent:
    """Return the way to a site's parent; ``address`` in place of what the kit says."""
    if kit.site.deploy.transport == "nvflare":
        from fedbac.deploy.transports.nvflare.parent import NvflareParent, here

        return NvflareParent(here(), kit.folder / CERTIFICATE_FILE)
    from fedbac.deploy.transports.grpc import GrpcParent

    to = address or kit.site.parent_address
    assert to is not None
    assert kit.site.parent is not None
    proof = credentials_of(kit.folder, kit.site, kit.site.parent)
    return GrpcParent(to, kit.site.parent, kit.site.name, proof, heartbeat=kit.site.deploy.heartbeat, limit=_limit(kit))


def _limit(kit: Kit) -> int:
    return int(kit.site.deploy.max_message_mib * MIB)
