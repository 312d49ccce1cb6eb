"""What carries messages: gRPC, NVFlare, and the pipe to a worker's process."""
