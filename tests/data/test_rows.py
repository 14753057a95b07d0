"""Flat arrays, also in a file, taken without a copy."""

import numpy as np
import pytest

import coterie
from coterie.errors import InputError

SIZES = [3, 1, 4]
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((8, 2)).astype(np.float32)
Y = X @ np.array([1.0, -2.0])


def test_a_file_is_not_copied_and_gives_what_arrays_give(tmp_path):
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=X.shape)
    file[:] = X
    data = coterie.from_rows(file, Y, SIZES, ids=["a", "b", "c"])
    assert np.shares_memory(data.train.x.numpy(), file)
    stops = np.cumsum(SIZES)
    clients = {c: (X[b - n : b], Y[b - n : b]) for c, b, n in zip("abc", stops, SIZES, strict=True)}
    options = {"learner": "linear", "rounds": 3, "clusters": 2, "dtype": "float32", "lr": 0.05}
    one = coterie.fit(data, "ifca", **options)
    other = coterie.fit(coterie.from_arrays(clients), "ifca", **options)
    assert all(np.array_equal(a["weight"], b["weight"]) for a, b in zip(one.models, other.models, strict=True))
    assert one.assignments == other.assignments


@pytest.mark.parametrize(
    ("x", "y", "sizes", "more", "message"),
    [
        (X.tolist(), Y, SIZES, {}, "x must be an array .* got list"),
        (X.astype(int), Y, SIZES, {}, "float32 or float64, got int64"),
        (X, Y, [3, 0, 5], {}, "sizes must be whole numbers of at least 1"),
        (X, Y, [3, 1, 5], {}, "8 rows of x, 8 of y, and sizes that add up to 9"),
        (X, Y, SIZES, {"ids": ["a", "a", "b"]}, "2 different ids for 3 clients"),
        (np.where(X[5, 0] == X, np.nan, X), Y, SIZES, {}, "x from row 0 on has 1 NaN .* sample 5"),
    ],
)
def test_mistakes_are_explained(x, y, sizes, more, message):
    with pytest.raises(InputError, match=message):
        coterie.from_rows(x, y, sizes, **more)
