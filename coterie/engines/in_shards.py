"""Engine that cuts the clients into a fixed number of shards, all in this process; the reference of `engine=dask`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coterie.client.group import ClientGroup
from coterie.core.federation import Replies
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.core.threads import one_thread
from coterie.engines.clients import memory_for
from coterie.engines.in_process import InProcess
from coterie.engines.missing import answering
from coterie.engines.shards import Answer, CommonPart, Cut, ShardPart, ask_shards, reduce_pairwise, serve
from coterie.engines.threads import in_threads


@dataclass(frozen=True)
class InShards(InProcess):
    """Engine with a fixed number of shards; sums are rounded in the same way on any number of threads or workers.

    The samples are stored twice: as they were given, and shard by shard, since rounding depends on the memory layout.
    """

    shards: int = field(kw_only=True)
    """Number of shards, at most the number of clients."""

    @cached_property
    def cut(self) -> Cut:
        """Division of the clients into shards."""
        return Cut.of(self.sizes, min(self.shards, len(self.clients)))

    @cached_property
    def _groups(self) -> list[ClientGroup]:
        return [alone(self.group, self.cut.positions(shard)) for shard in range(len(self.cut))]

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        places = answering(self.clients, asked, broadcast.round, self.missing)
        replies, _ = ask_shards(self, self.cut, task, broadcast, asked, places, self._answer)
        return replies

    def _answer(self, common: bytes, parts: Sequence[tuple[int, bytes]]) -> Answer:
        decoded, groups = CommonPart.decode(common), self._groups

        def one(question: tuple[int, bytes]) -> Answer:
            shard, part = question
            return serve(groups[shard], decoded, ShardPart.decode(part))

        with one_thread() as threads:
            return reduce_pairwise(in_threads(one, parts, threads), Answer.join)


def alone(group: ClientGroup, positions: Positions) -> ClientGroup:
    """Return some of the clients with a copy of their samples only, and an empty cache."""
    part = group.take(positions)
    test, validation = (None if each is None else each.alone() for each in (part.test, part.validation))
    part = replace(part, train=part.train.alone(), test=test, validation=validation)
    return replace(part, memory=memory_for(part))
