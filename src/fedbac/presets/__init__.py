"""Tasks and methods by name."""
