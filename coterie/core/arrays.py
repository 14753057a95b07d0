"""Conversion of array-like values from users to NumPy arrays and torch tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import InputError

NUMBERS = "fiub"
"""Kind codes of the NumPy types that count as numbers."""


def as_array(values: object, what: str) -> npt.NDArray[Any]:
    """Return array-like values as a plain NumPy array.

    Args:
        values: Array, nested list, or any object that NumPy can convert.
        what: Name of the values in error messages.

    Raises:
        InputError: if NumPy cannot convert the values, or they are a masked array.
    """
    if _is_masked(values):
        raise InputError(f"{what} is a masked array: fill in the masked values or drop them, and pass a plain array")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", category=np.exceptions.VisibleDeprecationWarning)
            return np.asarray(values)
    except MemoryError:
        raise InputError(f"{what} is too large for the memory of this machine: pass fewer samples") from None
    except Exception as error:  # any object may be passed, and its conversion may raise anything
        raise InputError(
            f"{what} is not an array of numbers ({first_line(error)}): pass a rectangular array or nested lists"
        ) from None


def native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array in native byte order and C order without negative strides; a copy only if necessary."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    # NumPy considers an axis of length 0 or 1 contiguous whatever its stride; torch does not
    return plain.copy() if any(stride < 0 for stride in plain.strides) else plain


def tensor_of(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor that shares memory with the array or with its `native` copy; it must not be modified."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(native(array))


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, or the name of the error's type if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _is_masked(values: object) -> bool:
    """Return whether the values are or contain a masked array, whose mask NumPy would silently drop."""
    if isinstance(values, list | tuple):
        return any(_is_masked(value) for value in values)
    return isinstance(values, np.ma.MaskedArray)
