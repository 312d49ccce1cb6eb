"""Tasks and methods by name."""

DEFAULT_TASK = "fashion-mnist-mini"
