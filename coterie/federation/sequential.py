"""One client at a time, every message through bytes: slow and plain, the oracle for the fast engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coterie.client.side import ClientSide
from coterie.core.federation import Replies
from coterie.core.keys import Words
from coterie.core.messages import (
    Broadcast,
    Task,
    decode_broadcast,
    decode_reply,
    encode_broadcast,
    encode_reply,
    merge,
)
from coterie.core.shard import ClientId, Positions
from coterie.federation.missing import Missing, answering


@dataclass(frozen=True)
class Sequential:
    """Each client gets its own message, sees nothing else, and sends its own reply."""

    side: ClientSide
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
        for place in places:
            one = np.array([place])
            received = decode_broadcast(encode_broadcast(broadcast.to(one)))
            reply = self.side.take(asked[one]).serve(task, received)
            replies.append(decode_reply(encode_reply(reply)))
        return Replies(merge(replies), sum(r.nbytes for r in replies), broadcast.bytes_for(len(asked)))
