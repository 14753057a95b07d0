"""Rows of numbers that belong to clients: read from npz and MATLAB files, checked, kept next to the images."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.io import savemat

from coterie import ConfigError, InputError
from coterie.data import loaders as datasets
from coterie.data.loaders.rows import Rows

X = np.column_stack([np.arange(5 * 27.0).reshape(5, 27), np.ones(5)])
Y = np.array([10.0, 20, 30, 40, 50])
TASK = np.array([0, 0, 1, 1, 1])


def cells(path, xs, ys):
    """A MATLAB file as MALSAR writes it: cells of small whole numbers."""
    x, y = np.empty((1, len(xs)), dtype=object), np.empty((1, len(xs)), dtype=object)
    for i in range(len(xs)):
        x[0, i], y[0, i] = xs[i], ys[i]
    savemat(path, {"X": x, "Y": y})
    return path


def test_matlab_cells_and_npz_give_the_same_rows(tmp_path, folder):
    small = X.astype(np.uint8)
    path = cells(tmp_path / "school.mat", [small[:2], small[2:]], [Y[:2, None].astype(np.uint8), Y[2:, None]])
    kept, same = datasets.import_copy("school", path)
    first = datasets.load_rows("school")
    np.savez(tmp_path / "own.npz", x=X.astype(np.float32), y=Y, task=TASK.astype(np.uint8))
    datasets.import_copy("school", tmp_path / "own.npz")
    second = datasets.load_rows("school")
    assert (kept, same) == (folder / "school.npz", False)
    for rows in (first, second):
        assert np.array_equal(rows.x, X)
        assert np.array_equal(rows.y, Y)
        assert np.array_equal(rows.task, TASK)
        assert rows.x.dtype == np.float64
    assert first.digest() == second.digest()
    facts = json.loads((folder / "school.json").read_text())
    assert (facts["rows"], facts["clients"]) == (5, 2)


def test_the_digest_sees_every_number():
    plain = Rows("school", X, Y, TASK)
    other = X.copy()
    other[4, 26] += 1
    digests = {plain.digest(), Rows("school", other, Y, TASK).digest(), Rows("school", X, Y, 1 - TASK).digest()}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[:, :5], "y": Y, "task": TASK}, r"x must have shape \(n, 28\), got \(5, 5\)"),
        ({"x": X[:0], "y": Y[:0], "task": TASK[:0]}, r"x must have shape \(n, 28\)"),
        ({"x": X, "y": Y[:4], "task": TASK}, r"5 rows of x, but y has shape \(4,\)"),
        ({"x": X, "y": np.where(Y > 40, np.nan, Y), "task": TASK}, "y must hold numbers, none missing"),
        ({"x": X, "y": Y, "task": TASK / 2}, "task must hold numbers, none missing, got type float64"),
        ({"x": X, "y": Y, "task": TASK * 2}, r"task must be 0 to m-1, every one of them present, got \[0, 2\]"),
        ({"x": X, "y": Y}, "has no task: expected x, y, task"),
    ],
)
def test_rows_that_make_no_sense_are_refused(tmp_path, folder, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InputError, match=message):
        datasets.import_copy("school", tmp_path / "own.npz")
    assert not folder.exists()


def test_a_file_that_is_no_matlab_file_is_refused(tmp_path):
    (tmp_path / "school.mat").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="no MATLAB file with cells X and Y"):
        datasets.import_copy("school", tmp_path / "school.mat")
    savemat(tmp_path / "other.mat", {"Z": X})
    with pytest.raises(InputError, match="no MATLAB file with cells X and Y"):
        datasets.import_copy("school", tmp_path / "other.mat")


def test_images_and_rows_are_not_taken_for_each_other():
    with pytest.raises(ConfigError, match="school holds rows of numbers, no images"):
        datasets.load("school")
    with pytest.raises(ConfigError, match="mnist holds images, no rows"):
        datasets.load_rows("mnist")
