"""Playing experiments: the federation, the run folder, single runs and sweeps."""
