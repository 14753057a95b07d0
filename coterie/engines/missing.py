"""Log of clients that did not reply, which a simulation can replay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from coterie.core.shard import ClientId, Positions

Missing = Mapping[int, Collection[ClientId]]
"""Clients that were asked and did not reply, by round."""


def answering(clients: tuple[ClientId, ...], asked: Positions, round_: int, missing: Missing) -> Positions:
    """Return the positions in `asked` of the clients that reply in this round.

    Args:
        clients: Ids of all clients.
        asked: Positions of the asked clients.
        round_: Number of the round.
        missing: Log of clients that do not reply.
    """
    absent = missing.get(round_, ())
    if not absent:
        return np.arange(len(asked))
    return np.array([place for place, i in enumerate(asked) if clients[i] not in absent], dtype=np.int64)
