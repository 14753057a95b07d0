"""All clients in this process, vectorised over shards: the default engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.core.federation import Replies
from coterie.core.messages import Broadcast, Reply, merge
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.core.threads import one_thread
from coterie.engines.in_process import InProcess
from coterie.engines.missing import answering
from coterie.engines.threads import in_threads

PART_BYTES = 4 << 20
"""Features that a thread of its own is worth: for less, the threads wait for each other more than they gain."""


@dataclass(frozen=True)
class Simulated(InProcess):
    """Clients are served a shard at a time, several shards side by side; how they are cut does not change the result.

    There are as many shards as torch has threads, and each is served by one thread.
    """

    shards: int | None = None
    """How many; None: as many as threads, fewer where there is little to do."""

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        places = answering(self.clients, asked, broadcast.round, self.missing)

        def serve(part: Positions) -> Reply:
            whole = np.array_equal(asked[part], np.arange(len(self.clients)))
            group = self.group if whole else self.group.take(asked[part], remember=len(asked) == len(self.clients))
            return group.serve(task, broadcast.to(part))

        with one_thread() as threads:
            count = self.shards or self._worth(asked[places], threads)
            parts = [part for part in np.array_split(places, count) if len(part)]
            reply = merge(in_threads(serve, parts, threads))
        return Replies(reply, reply.nbytes, broadcast.bytes_for(len(asked)))

    def _worth(self, asked: Positions, threads: int) -> int:
        """How many of the threads pay for these clients, by the size of their features and nothing that varies."""
        x = self.group.train.x
        features = int(self.sizes[asked].sum()) * x[:1].numel() * x.element_size()
        return max(1, min(threads, features // PART_BYTES)) if x.device.type == "cpu" else 1
