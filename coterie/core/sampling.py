"""Which clients are asked in a round."""

from __future__ import annotations

import numpy as np

from coterie.core.keys import Purpose, Words, keys_for_clients
from coterie.core.shard import Positions


def choose(hashes: Words, share: float, seed: int, round_: int) -> Positions:
    """A uniform sample without replacement of round(share * m) clients, at least one, in ascending order.

    Each client's key for the round decides, so the sample does not depend on the order of the clients.
    """
    count = max(1, round(share * len(hashes)))
    if count == len(hashes):
        return np.arange(len(hashes))
    keys = keys_for_clients(seed, Purpose.PARTICIPATION, round_, hashes)
    return np.sort(np.argpartition(keys, count - 1)[:count])
