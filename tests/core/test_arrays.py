"""Conversion of arrays with any memory layout to tensors."""

from itertools import product

import numpy as np
import pytest

from coterie.core.arrays import native, tensor_of

SHAPES = [(0,), (1,), (4,), (0, 3), (1, 3), (3, 1), (2, 3), (1, 1), (1, 2, 1), (2, 0, 3)]
STEPS = [slice(None), slice(None, None, -1), slice(None, None, 2), slice(None, None, -2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f8", ">f8", "f4", ">i2", "?"])
def test_every_view_becomes_the_tensor_of_its_values(shape, dtype):
    """Every combination of steps along the axes, in C and Fortran order, including axes of length 0 and 1."""
    whole = np.arange(np.prod([2 * n for n in shape])).reshape([2 * n for n in shape]).astype(dtype)
    for order, steps in product("CF", product(STEPS, repeat=len(shape))):
        view = np.array(whole, order=order)[steps]
        view = view[tuple(slice(0, n) for n in shape)]
        view.flags.writeable = False
        assert tensor_of(view).tolist() == view.tolist()
        assert native(view).dtype.isnative
