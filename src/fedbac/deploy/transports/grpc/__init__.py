"""The transport over gRPC with mutual TLS.

A child dials its parent and keeps one bidirectional stream of frames. Both ends send signs of life, so that either
knows within three heartbeats that the other is gone, whatever the network hides.
"""

from fedbac.deploy.transports.grpc.children import GrpcChildren
from fedbac.deploy.transports.grpc.parent import GrpcParent

__all__ = ["GrpcChildren", "GrpcParent"]
