"""LEAF's FEMNIST: exact pixels, both layouts, a split that holds no image twice."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coterie.data.loaders.leaf import read_leaf
from coterie.errors import InputError
from tests.data.loaders.make import leaf_file


def drawn(first: int, count: int) -> np.ndarray:
    """Image i has the value first + i everywhere."""
    return np.repeat(np.arange(first, first + count, dtype=np.uint8), 784).reshape(-1, 28, 28)


def test_a_split_of_leaf_is_taken_as_it_is(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", {"w2": (drawn(10, 2), [3, 61])})
    leaf_file(tmp_path / "train" / "b.json", {"w1": (drawn(20, 1), [0])})
    leaf_file(tmp_path / "test" / "a.json", {"w1": (drawn(30, 1), [5]), "w2": (drawn(40, 1), [6])})
    found = read_leaf("femnist", tmp_path)
    assert found.writers.ids == ("w1", "w2")
    assert found.x_train[:, 0, 0].tolist() == [20, 10, 11]
    assert found.x_train.dtype == np.uint8
    assert found.y_train.tolist() == [0, 3, 61]
    assert found.writers.train.tolist() == [0, 1, 1]
    assert (found.y_test.tolist(), found.writers.test.tolist()) == ([5, 6], [0, 1])


def test_every_tenth_image_is_held_out_without_a_split(tmp_path):
    path = leaf_file(tmp_path / "all.json", {"w": (drawn(0, 25), [0] * 25), "v": (drawn(100, 3), [1] * 3)})
    found = read_leaf("femnist", path)
    # v: the last of three; w: number 9 and 19
    assert found.x_test[:, 0, 0].tolist() == [102, 9, 19]
    assert found.x_train[:, 0, 0].tolist() == [100, 101, *(i for i in range(25) if i not in (9, 19))]
    assert found.writers.test.tolist() == [0, 1, 1]


def test_the_first_image_that_leaf_stores_twice_is_taken_once(tmp_path):
    doubled = np.concatenate([drawn(5, 1), drawn(5, 3)])
    found = read_leaf("femnist", leaf_file(tmp_path / "all.json", {"w": (doubled, [4, 4, 5, 6])}))
    assert found.x_train[:, 0, 0].tolist() == [5, 6]
    assert found.x_test[:, 0, 0].tolist() == [7]


def content(**changes: object) -> str:
    entry = {"x": [[0.5] * 784] * 2, "y": [1, 2]} | changes
    return json.dumps({"users": ["w"], "user_data": {"w": entry}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no LEAF file"),
        ("[]", "is no LEAF file"),
        ('{"users": ["w"], "user_data": {}}', "is no LEAF file"),
        (content(x=[[0.5] * 783] * 2), r"rows of 784 numbers with one y each, got \(2, 783\)"),
        (content(y=[1]), r"got \(2, 784\) and \(1,\)"),
        (content(y=[1, 62]), "y must be whole numbers 0 to 61, got 1 to 62"),
        (content(y=[1, 2.5]), "y must be whole numbers"),
        (content(x=[[2] * 784] * 2), "x must be numbers from 0 to 1, got 2 to 2"),
        (content(x=[[float("nan")] * 784] * 2), "x must be numbers from 0 to 1"),
        (content(x=[[0.5] * 784], y=[1]), "writer 'w' has fewer than 2 images"),
    ],
)
def test_what_is_no_femnist_is_refused(tmp_path, text, message):
    (tmp_path / "all.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_leaf("femnist", tmp_path / "all.json")


def test_a_split_by_user_is_refused(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", {"w1": (drawn(0, 2), [0, 0])})
    leaf_file(tmp_path / "test" / "a.json", {"w2": (drawn(0, 2), [0, 0])})
    with pytest.raises(InputError, match="'w1' is only in one of train and test; split by sample"):
        read_leaf("femnist", tmp_path)


def test_a_writer_in_two_files_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.json files"):
        read_leaf("femnist", tmp_path)
    for name in "ab":
        leaf_file(tmp_path / f"{name}.json", {"w1": (drawn(0, 2), [0, 0])})
    with pytest.raises(InputError, match="'w1' was in a file before"):
        read_leaf("femnist", tmp_path)
