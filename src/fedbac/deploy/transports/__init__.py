"""What carries messages: gRPC and NVFlare."""
