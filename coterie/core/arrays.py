"""Arrays from outside the library: one conversion, whatever their layout."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import InputError

NUMBERS = "fiub"
"""Kinds of NumPy types that count as numbers."""


def as_array(values: object, what: str) -> npt.NDArray[Any]:
    """Return `values` as a plain NumPy array; raise InputError for what NumPy cannot read and for masked arrays."""
    if _is_masked(values):
        raise InputError(f"{what} is a masked array: fill in the masked values or drop them, and pass a plain array")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", category=np.exceptions.VisibleDeprecationWarning)
            return np.asarray(values)
    except MemoryError:
        raise InputError(f"{what} is too large for the memory of this machine: pass fewer samples") from None
    except Exception as error:  # any object may be passed, and its conversion may raise anything
        raise InputError(f"{what} is no array of numbers ({first_line(error)})") from None


def native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array in native byte order and C order, with no negative stride; the array itself if it is so."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    # NumPy counts an axis of length 0 or 1 as contiguous whatever its stride is; torch does not
    return plain.copy() if any(stride < 0 for stride in plain.strides) else plain


def tensor_of(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor that shares memory with the array, or with its `native` copy. Nobody writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(native(array))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _is_masked(values: object) -> bool:
    """Whether this is a masked array, or a list that holds one; NumPy would drop the masks."""
    if isinstance(values, list | tuple):
        return any(_is_masked(value) for value in values)
    return isinstance(values, np.ma.MaskedArray)
