"""The idx format of MNIST and its relatives.

Bytes 0 0, the type (8: unsigned bytes), the number of axes, a big-endian 32-bit size for each axis, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coterie.data.loaders.images import Bytes, Images
from coterie.errors import InputError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def parse_idx(data: bytes, where: str) -> Bytes:
    """Return the array in an idx file of unsigned bytes."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise InputError(f"{where} is no idx file of bytes: it must begin with 0 0 8, got {list(data[:3])}")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise InputError(f"{where} ends inside its header ({len(data)} bytes): it is truncated, copy it again")
    shape = struct.unpack(f">{data[3]}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise InputError(
            f"{where} promises {math.prod(shape)} values {shape} but holds {len(data) - header}: it is damaged, "
            "copy it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def images_from_idx(name: str, files: Mapping[str, bytes]) -> Images:
    """Return a data set from the bytes of its four files, by their usual names."""
    x_train, y_train, x_test, y_test = (parse_idx(files[file], file) for file in FILES)
    return Images(name, x_train, y_train, x_test, y_test)


def read_idx_folder(name: str, folder: Path, inside: str) -> Images:
    """Return the data of four files, plain or .gz, in `folder`, its raw, or its `inside`/raw (as in torchvision)."""
    places = [folder, folder / "raw", folder / inside / "raw"]
    for place in places:
        found = {file: _find(place, file) for file in FILES}
        if all(found.values()):
            return images_from_idx(name, {file: _content(path) for file, path in found.items() if path})
    missing = next(file for file in FILES if _find(folder, file) is None)
    raise InputError(
        f"{folder} must hold {missing} (plain or .gz) and its three companions, here, in raw or in {inside}/raw"
    )


def _find(folder: Path, file: str) -> Path | None:
    """Return the file of this name, which some copies write as `train-images.idx3-ubyte`."""
    names = [file, file.replace("-idx", ".idx")]
    paths = [folder / (name + ending) for name in names for ending in ("", ".gz")]
    return next((path for path in paths if path.is_file()), None)


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return unzipped(data, str(path)) if path.suffix == ".gz" else data


def unzipped(data: bytes, where: str) -> bytes:
    """Return the content of a .gz file."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where} is no whole .gz file ({error}): copy it again") from None
