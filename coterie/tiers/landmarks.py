"""Groups of many clients by their distances: made among some of them, and the others join the nearest.

Distances of all pairs of m clients take time and memory with the square of m. So above a bound groups are made among as
many as that, drawn by keys, and everybody else joins the group to which it is nearest in the mean. Up to the bound all
are compared. A group so small that nobody of it is drawn is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from coterie.core.keys import Words
from coterie.core.shard import Positions

Floats = npt.NDArray[np.float64]
MOST = 1000
"""Clients that are compared with each other, unless somebody says otherwise: their distances are 8 MB."""
WITNESSES = 50
"""Members whom the others are compared with, of all groups together; of each at least one."""


def drawn(keys: Words, most: int) -> Positions:
    """Places of the `most` least keys (m,), ascending; all places where there are no more."""
    return np.sort(np.argsort(keys, kind="stable")[:most])


def with_the_rest(
    parts: Sequence[Positions], everybody: Positions, apart: Callable[[Positions], Floats]
) -> list[Positions]:
    """The parts with those of `everybody` who are in none, each in the one of least mean distance, ties to the first.

    apart: distances (n, n) between the clients at n places. Places come in the order of hashes, so the first members of
    a part are any, and they stand for it.
    """
    rest = everybody[~np.isin(everybody, np.concatenate(parts))]
    each = max(1, WITNESSES // len(parts))
    witnesses = [part[:each] for part in parts]
    count = sum(map(len, witnesses))
    labels = np.zeros(len(rest), dtype=np.int64)
    for first in range(0, len(rest), count):  # as many as there are witnesses, or most of the pairs are of no use
        some = rest[first : first + count]
        table = apart(np.concatenate([*witnesses, some]))[count:, :count]
        columns = np.split(table, np.cumsum([len(part) for part in witnesses])[:-1], axis=1)
        labels[first : first + count] = np.stack([c.mean(axis=1) for c in columns]).argmin(axis=0)
    return [np.concatenate([part, rest[labels == k]]) for k, part in enumerate(parts)]
