"""How much memory a problem would take, asked before it is taken."""

from __future__ import annotations

from pathlib import Path

from coterie.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
UNKNOWN = 4 * 2**30
"""Taken for the available memory where the system does not say."""


def default_limit() -> int:
    """Half of the memory that is available now, in bytes."""
    return _available() // 2


def _available() -> int:
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return UNKNOWN


def bytes_for_distances(m: int) -> int:
    """All distances of m points, and two copies while they are linked."""
    return 3 * 8 * (m * (m - 1) // 2)


def bytes_for_duals(K: int, d: int) -> int:
    """Three vectors for each pair of K nodes: the dual, the one before it, and a copy while a set is proved to be
    fused."""
    return 3 * 8 * d * (K * (K - 1) // 2)


def check_memory(needed: int, limit: int | None, what: str) -> None:
    """Refuse what would not fit."""
    limit = default_limit() if limit is None else limit
    if needed > limit:
        raise ConfigError(
            f"{what} would need up to {needed / 1e9:.3g} GB of memory, the limit is {limit / 1e9:.3g} GB: take fewer "
            "points, fewer features (a projection), weights='knn' or a larger lam, or raise memory_limit (bytes)"
        )
