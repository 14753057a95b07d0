"""CIFAR's binary records: exact bytes, both label layouts, no pickles."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.loaders.cifar import CIFAR10, CIFAR100, parse_records, read_cifar_folder, to_records
from coterie.errors import InputError
from tests.data.loaders.make import equal, images

PLANES = bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024


def test_a_hand_written_record():
    x, y = parse_records(bytes([7]) + PLANES, 1, "f")
    assert y.tolist() == [7]
    assert x.shape == (1, 3, 32, 32)
    assert [np.unique(x[0, colour]).tolist() for colour in range(3)] == [[1], [2], [3]]


def test_cifar100_takes_the_second_label():
    # the coarse label 4 comes first, the fine one 99 second
    assert parse_records(bytes([4, 99]) + PLANES, 2, "f")[1].tolist() == [99]


def test_rows_of_pixels_stay_rows():
    record = bytes([0]) + bytes(range(32)) + bytes(3072 - 32)
    assert parse_records(record, 1, "f")[0][0, 0, 0].tolist() == list(range(32))


def test_records_go_back_to_the_same_bytes():
    data = bytes([7]) + PLANES + bytes([1]) + PLANES[::-1]
    assert to_records(*parse_records(data, 1, "f")) == data


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_other_lengths_are_refused(size):
    with pytest.raises(InputError, match=f"whole records of 3073 bytes, got {size} bytes"):
        parse_records(bytes(size), 1, "f")


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_a_folder_of_batches_in_their_order(tmp_path, inside):
    data = images("cifar10", 10, 2, (3, 32, 32))
    place = tmp_path / inside
    place.mkdir(exist_ok=True)
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        (place / f"data_batch_{number + 1}.bin").write_bytes(to_records(data.x_train[part], data.y_train[part]))
    (place / "test_batch.bin").write_bytes(to_records(data.x_test, data.y_test))
    assert equal(read_cifar_folder("cifar10", tmp_path, CIFAR10), data)
    (place / "data_batch_4.bin").unlink()
    with pytest.raises(InputError, match=r"must hold data_batch_"):
        read_cifar_folder("cifar10", tmp_path, CIFAR10)


def test_cifar100_from_its_two_files(tmp_path):
    (tmp_path / "train.bin").write_bytes(bytes([4, 99]) + PLANES)
    (tmp_path / "test.bin").write_bytes(bytes([4, 98]) + PLANES)
    found = read_cifar_folder("cifar100", tmp_path, CIFAR100)
    assert (found.y_train.tolist(), found.y_test.tolist()) == ([99], [98])


@pytest.mark.parametrize(("layout", "name"), [(CIFAR10, "cifar-10-batches-py"), (CIFAR100, "cifar-100-python")])
def test_the_pickled_version_is_refused_unopened(tmp_path, layout, name):
    pickled = tmp_path / name
    pickled.mkdir()
    (pickled / layout.pickled[1]).write_bytes(b"cos\nsystem\n(S'touch gotcha'\ntR.")
    for path in (tmp_path, pickled):
        with pytest.raises(InputError, match=f"pickle and could run code: take the binary version .{layout.folder}"):
            read_cifar_folder(layout.folder, path, layout)
