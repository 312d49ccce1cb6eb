"""Hierarchical, clustered, personalized federated learning with learned decisions."""
