"""Small data sets and files in the real formats, byte by byte."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coterie.data.loaders.images import Images, Writers

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def images(name: str, train: int, test: int, shape: Sequence[int] = (28, 28), classes: int = 10) -> Images:
    """Random pixels; labels go round through the classes."""
    random = np.random.default_rng(5)
    return Images(
        name,
        random.integers(0, 256, (train, *shape), dtype=np.uint8),
        (np.arange(train) % classes).astype(np.uint8),
        random.integers(0, 256, (test, *shape), dtype=np.uint8),
        (np.arange(test) % classes).astype(np.uint8),
    )


def written(owners_train: Sequence[int], owners_test: Sequence[int], ids: Sequence[str]) -> Images:
    """FEMNIST with these writers of the images, in this order."""
    plain = images("femnist", len(owners_train), len(owners_test), classes=62)
    writers = Writers(np.array(owners_train), np.array(owners_test), tuple(ids))
    return Images("femnist", plain.x_train, plain.y_train, plain.x_test, plain.y_test, writers)


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def idx_files(data: Images) -> dict[str, bytes]:
    arrays = (data.x_train, data.y_train, data.x_test, data.y_test)
    return {name: idx_bytes(values) for name, values in zip(IDX_NAMES, arrays, strict=True)}


def png_bytes(rows: Sequence[tuple[int, bytes]], width: int, header: Sequence[int] = (8, 2, 0, 0, 0)) -> bytes:
    """A PNG of already filtered rows: (filter, bytes)."""
    raw = b"".join(bytes([kind]) + row for kind, row in rows)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    packed = zlib.compress(raw, 1)
    half = len(packed) // 2  # several IDAT chunks are one stream
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), *header))
        + chunk(b"IDAT", packed[:half])
        + chunk(b"IDAT", packed[half:])
        + chunk(b"IEND", b"")
    )


def tar_file(path: Path, members: Mapping[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def leaf_file(path: Path, users: Mapping[str, tuple[np.ndarray, Sequence[int]]]) -> Path:
    """LEAF's JSON from {writer: (uint8 images (n, 28, 28), labels)}."""
    data = {u: {"x": (x.reshape(len(x), -1) / 255).tolist(), "y": list(y)} for u, (x, y) in users.items()}
    content = {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def program(folder: Path, name: str, source: str) -> None:
    """An executable that is a Python script, to stand in for npm and its like."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport os, shutil, sys\n{source}\n")
    os.chmod(file, 0o755)  # noqa: PTH101


def equal(one: Images, two: Images) -> bool:
    same = one.arrays.keys() == two.arrays.keys()
    return same and all(np.array_equal(one.arrays[key], two.arrays[key]) for key in one.arrays)
