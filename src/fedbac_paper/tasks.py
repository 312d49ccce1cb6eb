"""The tasks of the study: which there are, and how pages and figures call them."""

MODERATE = ("cifar10", "svhn", "fashion-mnist")
"""The three data sets at α = 0.5."""
SEVERE = tuple(f"{task}-severe" for task in MODERATE)
"""The same at α = 0.1."""
PAIRS = dict(zip(MODERATE, SEVERE, strict=True))
"""For each task at α = 0.5, the one at α = 0.1."""
SIX = tuple(task for pair in PAIRS.items() for task in pair)
"""The settings of the paper's main table."""

_DATA = {"cifar10": "CIFAR-10", "svhn": "SVHN", "fashion-mnist": "Fashion-MNIST"}

_SMALL = {
    "planted": "Fashion-MNIST mini, 20 edges that share 4 class mixes",
    "noisy": "Fashion-MNIST mini, noisy labels at 4 of 10 clients",
}

FORMAT_1 = (
    "The digits are cut out of the full images (Format 1) by the data set's own crop-and-resize rule. Labels and "
    "counts are exact; about 18 of 305 million pixel values differ from the official files, by one grey level."
)


def task_name(task: str, alpha: bool = True) -> str:
    """Return the name of a task, with its heterogeneity; short, as it heads columns."""
    if task in _SMALL:
        return _SMALL[task]
    dataset = next(key for key in _DATA if task.startswith(key))
    name = _DATA[dataset]
    rest = {"": "α = 0.5", "-severe": "α = 0.1", "-500": "α = 0.5, N = 500"}[task.removeprefix(dataset)]
    return f"{name}, {rest}" if alpha else name
