"""What the paper leaves open, fixed once per data set for all methods, and the candidates it was chosen from.

The choice is made on HierFAVG (``fedbac reproduce calibration``); docs/decisions/0009-calibration.md says how.
"""

SETTINGS: dict[str, tuple[str, ...]] = {
    "cifar10": ("task.training.batch_size=48", "task.augment={}"),
    "svhn": ("task.training.batch_size=128",),
    "fashion-mnist": ("task.training.batch_size=192",),
}
"""Per data set, the settings that differ from the package's defaults."""

CANDIDATES: dict[str, tuple[str, ...]] = {
    "batch 32": ("task.training.batch_size=32",),
    "batch 64": ("task.training.batch_size=64",),
    "batch 128": ("task.training.batch_size=128",),
    "batch 192": ("task.training.batch_size=192",),
    "batch 256": ("task.training.batch_size=256",),
    "batch 64, crops and flips": ("task.training.batch_size=64", "task.augment={}"),
    "batch 48, crops and flips": ("task.training.batch_size=48", "task.augment={}"),
    "batch 32, crops and flips": ("task.training.batch_size=32", "task.augment={}"),
    "batch 16, crops and flips": ("task.training.batch_size=16", "task.augment={}"),
    "batch 64, per-class Dirichlet": ("task.training.batch_size=64", "task.partition.mode=per_class"),
    "batch 256, per-class Dirichlet": ("task.training.batch_size=256", "task.partition.mode=per_class"),
}
"""The rows of the calibration; a candidate stands alone, without the settings above."""

TRAINING_EXAMPLES = {"cifar10": 50_000, "svhn": 73_257, "fashion-mnist": 60_000}
"""For estimates of the work before any data are read."""
