"""Random selection of the clients that participate in a round."""

from __future__ import annotations

import numpy as np

from coterie.core.keys import Purpose, Words, keys_for_clients
from coterie.core.shard import Positions


def choose(hashes: Words, share: float, seed: int, round_: int) -> Positions:
    """Return the positions of the participants of a round, drawn uniformly without replacement, in ascending order.

    The clients with the smallest random keys participate, so the sample does not depend on the order of the clients.

    Args:
        hashes: Hash of each client's id, (m,).
        share: Share of participants. Their number is `round(share * m)`, but at least one.
        seed: Seed of the run.
        round_: Number of the round.
    """
    count = max(1, round(share * len(hashes)))
    if count == len(hashes):
        return np.arange(len(hashes))
    keys = keys_for_clients(seed, Purpose.PARTICIPATION, round_, hashes)
    return np.sort(np.argpartition(keys, count - 1)[:count])
