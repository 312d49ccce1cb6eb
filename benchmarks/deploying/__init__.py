"""A federation as processes on this machine, as the benchmarks of deployments use it."""
