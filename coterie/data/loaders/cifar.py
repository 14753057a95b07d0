"""Binary version of CIFAR: one record for each image, with labels, then 1024 bytes each of red, green and blue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.data.loaders.images import Bytes, Images
from coterie.errors import InputError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Layout of the records of a CIFAR data set."""

    folder: str
    train: tuple[str, ...]
    test: str
    labels: int
    """Number of label bytes of a record; the last one is the class."""
    pickled: tuple[str, ...]
    """Files and folders of the version for Python, which is never opened: a pickle can run code."""


CIFAR10 = Layout(
    "cifar-10-batches-bin",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    1,
    ("cifar-10-batches-py", "data_batch_1"),
)
CIFAR100 = Layout("cifar-100-binary", ("train.bin",), "test.bin", 2, ("cifar-100-python", "train"))


def parse_records(data: bytes, labels: int, where: str) -> tuple[Bytes, Bytes]:
    """Return images (n, 3, 32, 32) and classes (n,) of a binary batch."""
    length = labels + PIXELS
    if not data or len(data) % length:
        raise InputError(f"{where} must be whole records of {length} bytes, got {len(data)} bytes: copy it again")
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    return records[:, labels:].reshape(-1, *SHAPE), records[:, labels - 1]


def to_records(x: Bytes, y: Bytes) -> bytes:
    """Return the binary batch of images (n, 3, 32, 32) and classes (n,), as CIFAR-10 publishes it."""
    return np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1).tobytes()


def read_cifar_folder(name: str, folder: Path, layout: Layout) -> Images:
    """Return the .bin files in `folder` or in the subfolder that the archive makes."""
    for place in (folder, folder / layout.folder):
        if all((place / file).is_file() for file in (*layout.train, layout.test)):
            return _read(name, place, layout)
    _refuse_pickles(folder, layout)
    missing = next(file for file in (*layout.train, layout.test) if not (folder / file).is_file())
    raise InputError(f"{folder} must hold {missing} and its companions, here or in {layout.folder}")


def _refuse_pickles(folder: Path, layout: Layout) -> None:
    pickled = folder.name in layout.pickled or any((folder / name).exists() for name in layout.pickled)
    if pickled:
        raise InputError(
            f"{folder} holds the version for Python, which is a pickle and could run code: take the binary version "
            f"({layout.folder})"
        )


def _read(name: str, folder: Path, layout: Layout) -> Images:
    parts = [parse_records((folder / file).read_bytes(), layout.labels, str(folder / file)) for file in layout.train]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    test = folder / layout.test
    return Images(name, x, y, *parse_records(test.read_bytes(), layout.labels, str(test)))
