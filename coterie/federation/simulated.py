"""All clients in this process, vectorised over shards: the default engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.core.federation import Replies
from coterie.core.messages import Broadcast, Task, merge
from coterie.core.shard import Positions
from coterie.federation.in_process import InProcess
from coterie.federation.missing import answering


@dataclass(frozen=True)
class Simulated(InProcess):
    """Clients are served a shard at a time; how they are cut into shards does not change the result."""

    shards: int = 1

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
