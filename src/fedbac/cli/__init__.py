"""The command ``fedbac``."""
