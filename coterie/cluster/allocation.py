"""Memory allocation in the workers of Dask."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of two settings in the C library of Linux (mallopt)."""
LARGEST_KEPT = 32 << 20
"""Size of a block of memory up to which the C library adapts itself to a program that frees such blocks."""


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensor, as in a process that Dask has not started.

    Dask starts workers with MALLOC_TRIM_THRESHOLD_, which makes the C library return all freed memory to the operating
    system at once. Computations with large temporary tensors then take up to twice as long.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        return
    with suppress(OSError, AttributeError, TypeError):  # other systems have no such function
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(TRIM_THRESHOLD, 2 * LARGEST_KEPT)
