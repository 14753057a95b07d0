"""Small federations with known differences."""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data import from_arrays


def federation(
    classes: int | None = None, groups: int = 1, distance: float = 1.5, clients: int = 24, smooth: bool = False, seed=0
) -> FederatedDataset:
    """Clients of 1 to 60 samples of three features; the first coefficient differs by group, or by client if smooth."""
    random = np.random.default_rng(seed)
    arrays = []
    for i, size in enumerate(random.integers(20, 61, clients)):
        n = 1 if i == 0 else int(size)
        x = random.standard_normal((n, 3))
        own = random.standard_normal() * distance if smooth else distance * (i % groups - (groups - 1) / 2)
        signal = x @ np.array([own, 0.5, -0.5])
        if classes is None:
            y = 2 + signal + 0.5 * random.standard_normal(n)
        else:
            y = (2 * signal + random.logistic(size=n) > 0).astype(np.int64)
        arrays.append((x, y))
    return from_arrays(arrays, truth=[i % groups for i in range(clients)])
