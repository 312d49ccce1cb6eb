"""Settings of runs that more than one table or figure uses."""

CALIBRATED: dict[str, tuple[str, ...]] = {
    "cifar10": ("task.training.batch_size=48", "task.augment={}"),
    "svhn": ("task.training.batch_size=128",),
    "fashion-mnist": ("task.training.batch_size=192",),
}
"""What the paper leaves open, fixed once per data set for all methods; other settings keep the package's defaults.

The choice is made on HierFAVG (``fedbac reproduce calibration``); docs/decisions/0009-calibration.md says how."""

CONSTANT_SHARE = ("method.sharing={kind: towards_mean, share: 0.1}",)
"""Clusters always share a tenth of their networks."""
NOTHING_SHARED = ("method.sharing=apart",)
"""Clusters share nothing."""
