"""All clients in this process, vectorised over shards: the default engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coterie.client.side import ClientSide
from coterie.core.federation import Replies
from coterie.core.keys import Words
from coterie.core.messages import Broadcast, Task, merge
from coterie.core.shard import ClientId, Positions
from coterie.federation.missing import Missing, answering


@dataclass(frozen=True)
class Simulated:
    """Clients are served a shard at a time; how they are cut into shards does not change the result."""

    side: ClientSide
    shards: int = 1
    missing: Missing = field(default_factory=dict)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.side.train.ids

    @property
    def hashes(self) -> Words:
        return self.side.train.hashes

    @property
    def sizes(self) -> Positions:
        return self.side.train.sizes

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        places = answering(self.clients, asked, broadcast.round, self.missing)
        replies = []
        for part in np.array_split(places, self.shards):
            if len(part):
                whole = np.array_equal(asked[part], np.arange(len(self.clients)))
                side = self.side if whole else self.side.take(asked[part])
                replies.append(side.serve(task, broadcast.to(part)))
        reply = merge(replies)
        return Replies(reply, reply.nbytes, broadcast.bytes_for(len(asked)))
