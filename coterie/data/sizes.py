"""Division of samples and clients into parts, of which none is empty."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from coterie.errors import ConfigError


def equal_parts(total: int, parts: int, what: str = "clients") -> list[int]:
    """Return sizes that differ by at most one and sum to `total`; an error if a part would be empty."""
    if parts < 1 or parts > total:
        raise ConfigError(f"{total} samples cannot be cut into {parts} {what} with at least one sample each")
    return [total // parts + (index < total % parts) for index in range(parts)]


def by_shares(total: int, shares: Sequence[float], what: str = "groups") -> list[int]:
    """Return whole numbers in proportion to `shares` that sum to `total` (largest remainders), none of them zero."""
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


def described_sizes(text: str, clients: int, random: np.random.Generator) -> np.ndarray:
    """Return the sizes of a text: `50` for all, `10-200` drawn uniformly, `900x10+20x50` by numbers of clients."""
    if re.fullmatch(r"\d+", text):
        sizes = np.full(clients, int(text))
    elif match := re.fullmatch(r"(\d+)-(\d+)", text):
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise ConfigError(f"samples={text!r}: the first number must not exceed the second")
        sizes = random.integers(low, high + 1, clients)
    elif re.fullmatch(r"\d+x\d+(\+\d+x\d+)*", text):
        pairs = [tuple(map(int, part.split("x"))) for part in text.split("+")]
        if sum(count for count, _ in pairs) != clients:
            raise ConfigError(f"samples={text!r} describes {sum(c for c, _ in pairs)} clients, but clients={clients}")
        sizes = random.permutation(np.repeat([size for _, size in pairs], [count for count, _ in pairs]))
    else:
        raise ConfigError(f"samples must look like 50, 10-200 or 900x10+20x50, got {text!r}")
    if sizes.min() < 1:
        raise ConfigError(f"samples={text!r} would leave a client without samples: the smallest size is 1")
    return np.asarray(sizes, dtype=np.int64)
