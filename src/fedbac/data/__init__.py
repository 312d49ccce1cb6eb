"""Data sets, their partition over edges and clients, noisy labels, and augmentation."""

from fedbac.data.augment import Augment
from fedbac.data.datasets import Dataset, Tiers, fixed_normalization
from fedbac.data.partition import Partition, by_nature, class_counts, deal_test, partition
from fedbac.data.shards import Noise, Shards, add_noise, flip_labels
from fedbac.data.sources import Available, DataName, OwnData, available, check, fetch, load
from fedbac.data.synthetic import planted_groups, toy

__all__ = [
    "Augment", "Available", "DataName", "Dataset", "Noise", "OwnData", "Partition", "Shards", "Tiers", "add_noise",
    "available", "by_nature", "check", "class_counts", "deal_test", "fetch", "fixed_normalization", "flip_labels",
    "load", "partition", "planted_groups", "toy",
]  # fmt: skip
