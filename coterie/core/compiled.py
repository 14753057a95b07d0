"""Compilation of numerical loops by Numba, with a cache on disk. Import this module only where loops are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

SUMS_IN_ANY_ORDER = {"reassoc", "contract"}
"""Allow vectorised sums, but keep the semantics of NaN and infinity."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call for the types of its arguments; it releases the interpreter lock.

    The compiled code is stored next to the source file, or in the user's cache folder if that is not writable.
    """
    return _with_cache(function, SUMS_IN_ANY_ORDER)


def compiled_in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose sums must be computed in the written order; a product and a sum may be fused."""
    return _with_cache(function, {"contract"})


def _with_cache(function: Callable[..., Any], fastmath: set[str]) -> Callable[..., Any]:
    compiler: Any = numba.njit  # whose types describe neither the names of flags nor the result
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        found: Callable[..., Any] = compiler(cache=True, **options)(function)
    except RuntimeError:  # no writable cache folder at all
        found = compiler(**options)(function)
    return found
