"""Estimates of the memory that convex clustering needs, for a check before it starts."""

from __future__ import annotations

from pathlib import Path

from coterie.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
UNKNOWN = 4 * 2**30
"""Assumed available memory in bytes if the system does not report it."""


def default_limit() -> int:
    """Return half of the available memory, in bytes."""
    return _available() // 2


def _available() -> int:
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return UNKNOWN


def bytes_for_distances(m: int) -> int:
    """Return the number of bytes for all distances of m points, with two copies during hierarchical clustering."""
    return 3 * 8 * (m * (m - 1) // 2)


def bytes_for_duals(K: int, d: int) -> int:
    """Return the number of bytes for three vectors of each pair of K nodes: dual, previous dual, copy in a proof."""
    return 3 * 8 * d * (K * (K - 1) // 2)


def check_memory(needed: int, limit: int | None, what: str) -> None:
    """Raise ConfigError if a problem needs more memory than allowed.

    Args:
        needed: Number of bytes that the problem needs.
        limit: Maximum number of bytes; None: half of the available memory.
        what: Description of the problem.
    """
    limit = default_limit() if limit is None else limit
    if needed > limit:
        raise ConfigError(
            f"{what} would need up to {needed / 1e9:.3g} GB of memory, but the limit is {limit / 1e9:.3g} GB: use "
            "fewer points, fewer features (a projection), weights='knn' or a larger lam, or a larger memory_limit"
        )
