"""Simulated engine, the default: all clients in this process, vectorised over shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coterie.core.federation import Replies
from coterie.core.messages import Broadcast, Reply, merge
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.core.threads import Workers, one_thread
from coterie.engines.in_process import InProcess
from coterie.engines.missing import answering
from coterie.engines.threads import in_threads
from coterie.learners.base import CountsProducts

PART_BYTES = 4 << 20
"""Minimum size of the features for each thread: with less work, synchronisation costs more than a thread saves."""

PART_PRODUCTS = 4 << 20
"""Number of multiplications of a forward pass for each thread above which smaller features suffice, as in networks."""


@dataclass(frozen=True)
class Simulated(InProcess):
    """Engine that processes shards of clients in parallel threads: one for each thread, or fewer for little work."""

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        places = answering(self.clients, asked, broadcast.round, self.missing)

        def serve(part: Positions, workers: Workers | None = None) -> Reply:
            everyone = np.array_equal(asked[part], np.arange(len(self.clients)))
            group = self.group if everyone else self.group.take(asked[part], remember=len(asked) == len(self.clients))
            return group.carries_out(task).run(replace(group, workers=workers or Workers()), broadcast.to(part))

        with one_thread() as threads:
            count = self._shard_count(asked[places], threads)
            if len(places) and task.divides_itself(self.group, broadcast):
                reply = serve(places, Workers(count, partial(in_threads, threads=count)))
                return Replies(reply, reply.nbytes, broadcast.bytes_for(len(asked)))
            if count == 1 and len(places):
                reply = serve(places)
            else:
                parts = [part for part in np.array_split(places, count) if len(part)]
                reply = merge(in_threads(serve, parts, threads))
        return Replies(reply, reply.nbytes, broadcast.bytes_for(len(asked)))

    def _shard_count(self, asked: Positions, threads: int) -> int:
        """Return the number of shards for these clients, which depends on the amount of work only."""
        x, learner = self.group.train.x, self.group.learner
        if x.device.type != "cpu":
            return 1
        samples = int(self.sizes[asked].sum())
        parts = samples * x[:1].numel() * x.element_size() // PART_BYTES
        if isinstance(learner, CountsProducts):
            parts = max(parts, samples * learner.products // PART_PRODUCTS)
        return max(1, min(threads, parts))
