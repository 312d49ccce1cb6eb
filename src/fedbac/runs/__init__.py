"""Experiments from names to results: configuring, playing, stopping, the run folder, several runs at once."""
