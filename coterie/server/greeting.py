"""Before a round: clients that take part for the first time introduce themselves and are placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie.core.clusters import Clusters
from coterie.core.federation import Federation, Note, positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import ClientId, Positions
from coterie.server.regrouping import regroup
from coterie.tiers.method import Method
from coterie.tiers.view import View


@dataclass(frozen=True)
class Greeted:
    """What the server knows once they have."""

    view: View
    rejected: tuple[ClientId, ...] = ()
    """Whose introduction was not finite."""
    events: tuple[Mapping[str, object], ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    notes: tuple[Note, ...] = ()


def greet(method: Method, federation: Federation, view: View, chosen: Positions, seed: int) -> Greeted:
    """Ask those of the `chosen` that have no cluster who they are, and let the procedure place them.

    The procedure decides in every round: clusters that have united may be alike now.
    """
    strangers = chosen[(view.choice[torch.from_numpy(chosen)] < 0).numpy()]
    greeted = Greeted(replace(view, rows={"anchor": view.portraits[:0]}, distance=method.distance))
    if len(strangers):
        greeted = _introduced(method, federation, greeted.view, strangers, seed)
    after = regroup(method, greeted.view, {}, torch.zeros(0, 0, 0))
    return replace(greeted, view=after.view, events=after.events)


def _introduced(method: Method, federation: Federation, view: View, strangers: Positions, seed: int) -> Greeted:
    """With the rows of those who answered, in the order of their hashes."""
    broadcast = Broadcast(view.round, Clusters({}, K=1), scalars={"lr": method.rate(0)})
    replies = federation.ask(method.introduction(seed), broadcast, strangers)
    reply = replies.reply
    if reply.clients:
        answered = positions_of(federation, reply.clients)
        order = np.argsort(federation.hashes[answered], kind="stable")
        rows = reply.rows["anchor"].cpu()[torch.from_numpy(order)]
        portraits = view.portraits if len(view.portraits) else rows.new_zeros(view.K, rows.shape[1])
        view = replace(view, answered=answered[order], rows={"anchor": rows}, portraits=portraits)
    return Greeted(view, reply.rejected, (), replies.bytes_up, replies.bytes_down, replies.notes)
