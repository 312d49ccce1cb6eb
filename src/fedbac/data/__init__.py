"""Data sets, their partition over edges and clients, and augmentation."""

from fedbac.data.augment import Augment
from fedbac.data.datasets import Dataset
from fedbac.data.partition import Partition, Shards, class_counts, partition
from fedbac.data.sources import Available, available, fetch, load
from fedbac.data.synthetic import planted_groups, toy

__all__ = [
    "Augment",
    "Available",
    "Dataset",
    "Partition",
    "Shards",
    "available",
    "class_counts",
    "fetch",
    "load",
    "partition",
    "planted_groups",
    "toy",
]
