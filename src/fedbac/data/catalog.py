"""The data sets fedbac knows by name: how each may lie in a folder, and where it officially comes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    md5: str
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


_IDX = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
_CIFAR = tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
_SVHN = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
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
                f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz",
                md5,
                f"FashionMNIST/raw/{name}.gz",
            )
            for name, md5 in _IDX.items()
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
                "c58f30108f718f92721af3b95e74349a",
                "cifar-10-python.tar.gz",
                members=_CIFAR,
            ),
        ),
    ),
    "svhn": Source(
        description="99,289 colour images of house-number digits, 32x32, by Netzer et al.",
        licence="research, non-commercial",
        layouts=(Layout(("svhn.npz",), read_npz), Layout(tuple(_SVHN), read_svhn)),
        downloads=tuple(
            Download(f"http://ufldl.stanford.edu/housenumbers/{name}", md5, name) for name, md5 in _SVHN.items()
        ),
    ),
}
