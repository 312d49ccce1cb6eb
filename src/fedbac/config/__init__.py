"""The configuration tree, and the fields whose value is chosen by its kind."""
