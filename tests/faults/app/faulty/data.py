"""Nine small clients in two groups, divided among the nodes."""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import from_arrays

SIZES = (4, 9, 6, 12, 5, 20, 8, 15, 7)


def names(node: int, of: int) -> tuple[str, ...]:
    """Return the clients of one node; `of` is the number of nodes."""
    return tuple(f"site-{i}" for i in range(node, len(SIZES), of))


def population(*nodes: int, of: int) -> FederatedDataset:
    """Return the data of the clients of some nodes; `of` is the number of nodes.

    The target has two classes, because a run of linear models has more exchanges after its last round.
    """
    random = np.random.default_rng(5)
    teachers = random.standard_normal((2, 4))
    samples = [random.standard_normal((size, 4)) for size in SIZES]
    all_clients = {f"site-{i}": (x, (x @ teachers[i % 2] > 0).astype(np.int64)) for i, x in enumerate(samples)}
    chosen = {name for node in nodes for name in names(node, of)}
    return from_arrays({name: arrays for name, arrays in all_clients.items() if name in chosen})
