"""Groups of many clients by their distances: form groups among a sample, then let the others join the nearest group.

The distances of all pairs of m clients take time and memory proportional to m^2. Above a limit, groups are therefore
formed among a random sample of clients; every other client joins the group with the smallest mean distance. Up to the
limit all clients are compared. A group of which no client is drawn is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from coterie.core.keys import Words
from coterie.core.shard import Positions

Floats = npt.NDArray[np.float64]
MAX_COMPARED = 1000
"""Default of the largest number of clients that are compared with each other; their distances take 8 MB."""
REPRESENTATIVES = 50
"""Number of group members with which the other clients are compared, over all groups; at least one per group."""


def lowest_keys(keys: Words, most: int) -> Positions:
    """Return the positions of the `most` lowest keys (m,), ascending; all positions if there are no more keys."""
    return np.sort(np.argsort(keys, kind="stable")[:most])


def assign_to_nearest_part(
    parts: Sequence[Positions], members: Positions, distances: Callable[[Positions], Floats]
) -> list[Positions]:
    """Return the parts, to which every other member is added at its smallest mean distance; ties go to the first part.

    Args:
        parts: Positions of the members that have been compared, by part.
        members: Positions of all members, in the order of their hashes: the first members of a part are therefore a
            random choice and represent it.
        distances: Returns the distances (n, n) between the members at n positions.
    """
    rest = members[~np.isin(members, np.concatenate(parts))]
    each = max(1, REPRESENTATIVES // len(parts))
    representatives = [part[:each] for part in parts]
    count = sum(map(len, representatives))
    labels = np.zeros(len(rest), dtype=np.int64)
    for first in range(0, len(rest), count):  # blocks of this size waste the fewest pairs
        some = rest[first : first + count]
        table = distances(np.concatenate([*representatives, some]))[count:, :count]
        columns = np.split(table, np.cumsum([len(part) for part in representatives])[:-1], axis=1)
        labels[first : first + count] = np.stack([c.mean(axis=1) for c in columns]).argmin(axis=0)
    return [np.concatenate([part, rest[labels == k]]) for k, part in enumerate(parts)]
