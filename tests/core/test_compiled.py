"""Compilation of loops."""

import numpy as np

from coterie.core.compiled import compiled


def test_functions_without_a_file_are_compiled_without_a_cache():
    space: dict[str, object] = {}
    exec("def double(x):\n    return 2 * x", space)
    assert compiled(space["double"])(21) == 42


def test_sums_in_any_order_keep_nan_and_infinity():
    space: dict[str, object] = {}
    exec("def total(x):\n    s = 0.0\n    for i in range(len(x)):\n        s += x[i]\n    return s", space)
    total = compiled(space["total"])
    assert np.isnan(total(np.array([1.0, np.nan, 2.0])))
    assert total(np.array([1.0, np.inf, 2.0])) == np.inf
