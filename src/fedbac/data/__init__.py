"""Data sets, their partition over edges and clients, noisy labels, and augmentation."""

from fedbac.data.augment import Augment
from fedbac.data.datasets import Dataset
from fedbac.data.partition import Partition, class_counts, deal_test, partition
from fedbac.data.shards import Noise, Shards, add_noise
from fedbac.data.sources import Available, available, check, fetch, load
from fedbac.data.synthetic import planted_groups, toy

__all__ = [
    "Augment", "Available", "Dataset", "Noise", "Partition", "Shards", "add_noise", "available", "check",
    "class_counts", "deal_test", "fetch", "load", "partition", "planted_groups", "toy",
]  # fmt: skip
