"""Images in memory, and the requirements on them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import InputError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

KEYS = ("x_train", "y_train", "x_test", "y_test")
WRITER_KEYS = ("w_train", "w_test", "writer_ids")


@dataclass(frozen=True)
class Writers:
    """Writer of each image."""

    train: Numbers
    """Position in `ids`, (n,)."""
    test: Numbers
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Images:
    """Images as published: whole numbers from 0 to 255, in the original order."""

    name: str
    x_train: Bytes = field(repr=False)
    """Training images, (n, H, W) or (n, channels, H, W)."""
    y_train: Bytes = field(repr=False)
    """Classes from 0 to C-1, (n,)."""
    x_test: Bytes = field(repr=False)
    y_test: Bytes = field(repr=False)
    writers: Writers | None = None

    @property
    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """All arrays by their names in npz files."""
        named: dict[str, npt.NDArray[np.generic]] = {
            "x_train": self.x_train,
            "y_train": self.y_train,
            "x_test": self.x_test,
            "y_test": self.y_test,
        }
        if self.writers is not None:
            named |= {"w_train": self.writers.train, "w_test": self.writers.test}
            named["writer_ids"] = np.array(self.writers.ids)
        return named

    @property
    def counts(self) -> dict[str, int]:
        """Counts of images, clients and classes."""
        return {"train_images": len(self.y_train), "test_images": len(self.y_test)}

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the content, for users."""
        shape = "x".join(map(str, self.x_train.shape[1:]))
        lines = {"data": f"{len(self.y_train)} training and {len(self.y_test)} test images of {shape}"}
        return lines if self.writers is None else lines | {"writers": str(len(self.writers.ids))}

    def digest(self) -> str:
        """SHA-256 of all images and labels, which does not depend on the format of the file."""
        total = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            total.update(str(array.shape).encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()


@dataclass(frozen=True)
class ImageKind:
    """Requirements on the images of one data set."""

    shape: tuple[int, ...]
    """Shape of an image: (H, W) or (channels, H, W)."""
    classes: int
    written: bool = False
    """Whether every image has a writer."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the arrays in an npz file."""
        return (*KEYS, *WRITER_KEYS) if self.written else KEYS

    def read_npz(self, name: str, arrays: dict[str, npt.NDArray[Any]], where: str) -> Images:
        """Return the images in the arrays of an npz file."""
        writers = _writers(arrays, where) if self.written else None
        return Images(name, arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], writers)

    def checked(self, content: object, where: str) -> Images:
        """Return the same images if they can be this data set."""
        assert isinstance(content, Images)
        return checked(content, self.shape, self.classes, where)


def _writers(arrays: dict[str, npt.NDArray[Any]], where: str) -> Writers:
    for key in ("w_train", "w_test"):
        if arrays[key].dtype.kind not in "iu" or arrays[key].ndim != 1:
            raise InputError(f"{where}: {key} must be whole numbers, one an image, got type {arrays[key].dtype}")
    ids = tuple(str(writer) for writer in arrays["writer_ids"])
    return Writers(arrays["w_train"].astype(np.int64), arrays["w_test"].astype(np.int64), ids)


def checked(images: Images, shape: tuple[int, ...], classes: int, where: str) -> Images:
    """Return the images if they have this shape and labels below `classes`; colours may be the last axis."""
    parts = []
    for part, x, y in (("train", images.x_train, images.y_train), ("test", images.x_test, images.y_test)):
        x = _colours_first(_whole(x, f"{where}: x_{part}"), shape)
        y = _whole(y, f"{where}: y_{part}")
        _check_part(x, y, shape, classes, f"{where}: {part}")
        parts += [x, y]
    images = replace(images, x_train=parts[0], y_train=parts[1], x_test=parts[2], y_test=parts[3])
    if images.writers is not None:
        _check_writers(images, images.writers, where)
    return images


def _whole(values: npt.NDArray[np.generic], where: str) -> Bytes:
    """Return the values as uint8; raise an error if the conversion would change them."""
    if values.dtype.kind not in "iu":
        raise InputError(f"{where} must hold whole numbers 0 to 255, got type {values.dtype}: give the raw pixels")
    if values.size and (int(values.min()) < 0 or int(values.max()) > 255):
        raise InputError(f"{where} must lie in 0 to 255, got {int(values.min())} to {int(values.max())}")
    return values.astype(np.uint8, copy=False)


def _colours_first(x: Bytes, shape: tuple[int, ...]) -> Bytes:
    last = (*shape[1:], shape[0])
    if len(shape) == 3 and x.shape[1:] == last != shape:
        return np.ascontiguousarray(np.moveaxis(x, -1, 1))
    return x


def _check_part(x: Bytes, y: Bytes, shape: tuple[int, ...], classes: int, where: str) -> None:
    if x.shape[1:] != shape:
        raise InputError(f"{where} images must have shape {shape}, got {x.shape[1:]}: is this another data set?")
    if y.shape != (len(x),):
        raise InputError(f"{where} has {len(x)} images but labels of shape {y.shape}: there must be one label an image")
    if not len(x):
        raise InputError(f"{where} has no images: give at least one")
    if int(y.max()) >= classes:
        raise InputError(f"{where} labels must be 0 to {classes - 1}, got {int(y.max())}: is this another data set?")


def _check_writers(images: Images, writers: Writers, where: str) -> None:
    count = len(writers.ids)
    if len(set(writers.ids)) != count:
        raise InputError(f"{where}: two writers have the same id; give every writer a different id")
    for part, w, y in (("train", writers.train, images.y_train), ("test", writers.test, images.y_test)):
        if w.shape != y.shape:
            raise InputError(f"{where}: {part} has {len(y)} images but writers of shape {w.shape}; one an image")
        if int(w.min()) < 0 or int(w.max()) >= count:
            raise InputError(f"{where}: w_{part} must be 0 to {count - 1}, the places in writer_ids")
        missing = np.flatnonzero(np.bincount(w, minlength=count) == 0)
        if len(missing):
            raise InputError(
                f"{where}: writer {writers.ids[missing[0]]!r} has no {part} images; every writer needs some in both "
                "parts, so split by sample and not by user"
            )
