"""Cutting samples and clients into parts. A partition ends, is exact, and never leaves a client empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.errors import ConfigError


def equal_parts(total: int, parts: int, what: str = "clients") -> list[int]:
    """Sizes that differ by at most one and sum to `total`; an error if a part would be empty."""
    if parts < 1 or parts > total:
        raise ConfigError(f"{total} samples cannot be cut into {parts} {what} with at least one sample each")
    return [total // parts + (index < total % parts) for index in range(parts)]


def by_shares(total: int, shares: Sequence[float], what: str = "groups") -> list[int]:
    """Whole numbers in proportion to `shares` that sum to `total` (largest remainders), none of them zero."""
    if not np.isfinite(shares).all() or min(shares) <= 0:
        raise ConfigError(f"shares must be above 0, got {list(shares)}")
    if total < len(shares):
        raise ConfigError(f"{total} clients cannot fill {len(shares)} {what}: every one needs at least one")
    exact = np.asarray(shares, dtype=np.float64) / sum(shares) * total
    counts = np.maximum(1, np.floor(exact)).astype(int)
    while counts.sum() < total:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > total:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return [int(c) for c in counts]
