"""idx files: hand-written bytes give exact arrays; what is cut, long or foreign is refused."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from coterie.data.loaders.idx import parse_idx, read_idx_folder
from coterie.errors import InputError
from tests.data.loaders.make import equal, idx_files, images

TWO_BY_TWO = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 10, 20, 30, 255])


def test_hand_written_bytes():
    # magic 0 0 8, three axes of 2, 1 and 2, then four values
    assert parse_idx(TWO_BY_TWO, "f").tolist() == [[[10, 20]], [[30, 255]]]
    assert parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "f").tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f is no idx file"),
        (b"PK\x03\x04", r"must begin with 0 0 8, got \[80, 75, 3\]"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 7]), "must begin with 0 0 8"),  # 13: floats
        (TWO_BY_TWO[:9], "ends inside its header"),
        (TWO_BY_TWO[:-1], "promises 4 values .* but holds 3"),
        (TWO_BY_TWO + b"\0", "promises 4 values .* but holds 5"),
    ],
)
def test_damaged_bytes_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        parse_idx(data, "f")


@pytest.mark.parametrize("inside", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_folders_plain_and_zipped(tmp_path, inside, zipped):
    data = images("mnist", 6, 3)
    place = tmp_path / inside
    place.mkdir(parents=True, exist_ok=True)
    for name, content in idx_files(data).items():
        if zipped:
            (place / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (place / name.replace("-idx", ".idx")).write_bytes(content)
    assert equal(read_idx_folder("mnist", tmp_path, "MNIST"), data)


def test_a_missing_file_is_named(tmp_path):
    for name, content in list(idx_files(images("mnist", 6, 3)).items())[:3]:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="must hold t10k-labels-idx1-ubyte"):
        read_idx_folder("mnist", tmp_path, "MNIST")


def test_a_truncated_gz_is_refused(tmp_path):
    for name, content in idx_files(images("mnist", 6, 3)).items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content)[:-20])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz is no whole \.gz file"):
        read_idx_folder("mnist", tmp_path, "MNIST")


def test_the_arrays_are_bytes():
    assert parse_idx(TWO_BY_TWO, "f").dtype == np.uint8
