"""Where NVFlare's folders are in a kit, and its names for sites."""

FOLDER, RELAY, ADMIN = "nvflare", "nvflare-relay", "nvflare-admin"
"""Workspaces of NVFlare: in every kit, in that of an edge, and in that of the cloud."""
ADMINISTRATOR = "cloud@fedbac.local"
"""Who submits the job."""


def relay_name(edge: int) -> str:
    """Return the name of the relay that is the way into an edge."""
    return f"relay-{edge}"
