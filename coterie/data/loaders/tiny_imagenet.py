"""A Tiny-ImageNet folder: train/<class>/images/*.JPEG, and val as the test part (test labels are unpublished)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from coterie.data.loaders.images import Bytes, Images
from coterie.errors import InputError

SHAPE = (3, 64, 64)

Decode = Callable[[Path], Bytes]
"""Function that decodes an image file to pixels, (64, 64, 3)."""


def read_tiny_imagenet(name: str, folder: Path, decode: Decode | None = None) -> Images:
    """Return the data set in a folder; classes are numbered in the order of their sorted names."""
    if not (folder / "train").is_dir() or not (folder / "val" / "val_annotations.txt").is_file():
        raise InputError(f"{folder} must hold train/<class>/images/*.JPEG and val/val_annotations.txt")
    decode = decode or pillow()
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    train = [(file, label) for label, wnid in enumerate(classes) for file in _files(folder / "train" / wnid / "images")]
    return Images(name, *_decoded(train, decode), *_decoded(_held_out(folder / "val", classes), decode))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.JPEG"))


def _held_out(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Return the images of val_annotations.txt, whose lines have a file name, a class and an unused box."""
    pairs = []
    for line in (folder / "val_annotations.txt").read_text().splitlines():
        file, wnid, *_ = [*line.split("\t"), "", ""]
        if wnid not in classes:
            raise InputError(f"{folder / 'val_annotations.txt'}: class {wnid!r} of {file!r} has no folder in train")
        pairs.append((folder / "images" / Path(file).name, classes.index(wnid)))
    return pairs


def _decoded(pairs: Sequence[tuple[Path, int]], decode: Decode) -> tuple[Bytes, Bytes]:
    """Return images (n, 3, 64, 64) and classes (n,), filled in place: the whole set is above a gigabyte."""
    x, y = np.empty((len(pairs), *SHAPE), np.uint8), np.array([label for _, label in pairs], np.int64)
    for index, (file, _) in enumerate(pairs):
        try:
            pixels = decode(file)
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read ({error}): copy it again") from None
        if pixels.shape != (64, 64, 3):
            raise InputError(f"{file} must be 64 x 64 pixels in colour, got shape {pixels.shape}")
        x[index] = np.moveaxis(pixels, -1, 0)
    return x, y.astype(np.uint8)


def pillow() -> Decode:
    """Return a decoder by Pillow, which Coterie itself does not need."""
    try:
        library = import_module("PIL.Image")
    except ImportError:
        raise InputError(
            "Tiny-ImageNet is JPEG files, which need Pillow: 'pip install pillow', or import an npz with x_train, "
            "y_train, x_test, y_test"
        ) from None

    def decode(path: Path) -> Bytes:
        with library.open(path) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)

    return decode
