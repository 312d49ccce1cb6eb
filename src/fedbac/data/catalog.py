"""The data sets fedbac knows by name: how each may lie in a folder, and where it officially comes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedbac.data.readers import Arrays, read_cifar, read_idx, read_npz, read_svhn

MINI = "fashion-mnist-mini"


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies in a folder: files that must all be there, and their reader."""

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], Arrays]

    @property
    def label(self) -> str:
        """The name to show a user: the file, or the subfolder that holds the files."""
        folder = Path(self.files[0]).parent.as_posix()
        return f"{folder}/" if folder != "." else " + ".join(self.files)


@dataclass(frozen=True)
class Download:
    """One official file, its checksum, and its place in the folder; ``members`` are what to unpack from an archive."""

    url: str
    sha256: str
    path: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A data set by name; all have ten classes."""

    description: str
    licence: str
    layouts: tuple[Layout, ...]
    downloads: tuple[Download, ...] = ()
    system_folders: tuple[Path, ...] = ()
    num_classes: int = 10


# The checksums are those that TensorFlow Datasets (cifar10: Keras) holds the same official files to. With them it does
# not matter that a host serves its files without encryption only.
_IDX = {
    "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_CIFAR = tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
_SVHN = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}

SOURCES = {
    MINI: Source(
        description="13,000 images of Fashion-MNIST, class-balanced, embedded in this package",
        licence="MIT",
        layouts=(Layout(("fashion_mnist_mini.npz",), read_npz),),
    ),
    "fashion-mnist": Source(
        description="70,000 grey images of clothes, 28x28, by Zalando",
        licence="MIT",
        layouts=(
            Layout(("fashion_mnist.npz",), read_npz),
            Layout(("fashion-mnist.npz",), read_npz),
            *(
                Layout(tuple(f"{folder}{name}{suffix}" for name in _IDX), read_idx)
                for folder in ("FashionMNIST/raw/", "")
                for suffix in ("", ".gz")
            ),
        ),
        downloads=tuple(
            Download(
                f"https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/{name}.gz",
                sha256,
                f"FashionMNIST/raw/{name}.gz",
            )
            for name, sha256 in _IDX.items()
        ),
        system_folders=(Path("/usr/share/datasets/fashion-mnist"),),  # of Debian's package dataset-fashion-mnist
    ),
    "cifar10": Source(
        description="60,000 colour images of animals and vehicles, 32x32, by Krizhevsky",
        licence="none stated",
        layouts=(Layout(("cifar10.npz",), read_npz), Layout(_CIFAR, read_cifar)),
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                "cifar-10-python.tar.gz",
                members=_CIFAR,
            ),
        ),
    ),
    "svhn": Source(
        description="99,289 colour images of house-number digits, 32x32, by Netzer et al.",
        licence="research, non-commercial",
        layouts=(
            Layout(("svhn.npz",), read_npz),
            Layout(tuple(_SVHN), partial(read_svhn, official=frozenset(_SVHN.values()))),
        ),
        downloads=tuple(
            Download(f"http://ufldl.stanford.edu/housenumbers/{name}", sha256, name) for name, sha256 in _SVHN.items()
        ),
    ),
}
