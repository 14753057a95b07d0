"""Sequential engine: one client at a time with serialised messages; slow and simple, the reference of other engines."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from coterie.core.federation import Replies
from coterie.core.messages import (
    Broadcast,
    decode_broadcast,
    decode_reply,
    encode_broadcast,
    encode_reply,
    merge,
)
from coterie.core.plain import from_plain, to_plain
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.engines.in_process import InProcess
from coterie.engines.missing import answering


@dataclass(frozen=True)
class Sequential(InProcess):
    """Engine in which each client receives its own serialised message, sees nothing else, and sends its own reply."""

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        decoded: Task = from_plain(Task, json.loads(json.dumps(to_plain(task))))
        replies = []
        for place in answering(self.clients, asked, broadcast.round, self.missing):
            one = np.array([place])
            received = decode_broadcast(encode_broadcast(broadcast.to(one)))
            client = self.group.take(asked[one])
            reply = client.carries_out(decoded).run(client, received)
            replies.append(decode_reply(encode_reply(reply)))
        return Replies(merge(replies), sum(r.nbytes for r in replies), broadcast.bytes_for(len(asked)))
