"""One exchange over a Grid: push, poll until the deadline, drop what is late, double or an error, and say so.

A message lives as long as the deadline (`ttl`), so a node that has not begun with it by then never will. A node that
has begun is busy: it gets nothing new before its answer to the old exchange has come (and was dropped) or the grid says
that none will.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from coterie.errors import ConfigError

Trouble = tuple[int, str]
"""A node, and one sentence on what went wrong there."""


@dataclass(frozen=True)
class Heard:
    """What came back in time."""

    contents: Mapping[int, RecordDict]
    """By node."""
    sent: frozenset[int]
    """The nodes that a message went to."""
    troubles: tuple[Trouble, ...]


@dataclass
class Exchange:
    """Sends at most one message to a node at a time, and waits for the answers."""

    grid: Grid
    deadline: float = 600.0
    """Seconds from sending to the end of waiting."""
    poll: float = 0.2
    """Seconds between two looks."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    outstanding: dict[str, int] = field(default_factory=dict)
    """Messages of exchanges that are over, not answered yet: {message id: node}."""

    def __post_init__(self) -> None:
        if not self.deadline > 0 or not self.poll > 0:
            raise ConfigError(
                f"deadline and poll are seconds above 0, got {self.deadline!r} and {self.poll!r}: wait some time"
            )

    def nodes(self) -> frozenset[int]:
        """The nodes that are connected."""
        return frozenset(self.grid.get_node_ids())

    def send(self, contents: Mapping[int, RecordDict]) -> Heard:
        """Send each of these nodes its content and wait for the answers, at most until the deadline."""
        troubles: list[Trouble] = list(self._late())
        busy = set(self.outstanding.values()) & contents.keys()
        troubles += [(node, "is still busy with an earlier exchange and was not asked") for node in sorted(busy)]
        waiting, unsent = self._push({node: content for node, content in contents.items() if node not in busy})
        troubles += [(node, "could not be sent its message") for node in unsent]
        heard: dict[int, RecordDict] = {}
        sent = frozenset(waiting.values())
        end = self.clock() + self.deadline
        while waiting:
            for message in self._pull([*waiting, *self.outstanding]):
                trouble = self._take(message, waiting, heard)
                troubles += [] if trouble is None else [trouble]
            left = end - self.clock()
            if left <= 0 or not waiting:
                break
            self.sleep(min(self.poll, left))
        troubles += [(node, f"has not answered within {self.deadline:g} s") for node in waiting.values()]
        self.outstanding |= waiting
        return Heard(heard, sent, tuple(troubles))

    def _push(self, contents: Mapping[int, RecordDict]) -> tuple[dict[str, int], list[int]]:
        """{message id: node} of what was sent, and the nodes that it could not be sent to."""
        nodes = sorted(contents)
        messages = [Message(contents[node], node, MessageType.TRAIN, ttl=self.deadline) for node in nodes]
        ids: list[str | None] = list(self.grid.push_messages(messages)) if messages else []
        ids += [None] * (len(nodes) - len(ids))  # a grid that refuses them all returns none
        sent = {name: node for name, node in zip(ids, nodes, strict=True) if name}
        return sent, [node for name, node in zip(ids, nodes, strict=True) if not name]

    def _pull(self, ids: Iterable[str]) -> list[Message]:
        """In the order of nodes: that in which answers come tells nothing."""
        return sorted(self.grid.pull_messages(list(ids)), key=lambda message: message.metadata.src_node_id)

    def _late(self) -> list[Trouble]:
        """Forget the answers to earlier exchanges that have come by now."""
        found = [self._take(message, {}, {}) for message in self._pull(self.outstanding)] if self.outstanding else []
        return [trouble for trouble in found if trouble is not None]

    def _take(self, message: Message, waiting: dict[str, int], heard: dict[int, RecordDict]) -> Trouble | None:
        """Keep the content of an answer that was waited for; else say why it is dropped."""
        asked, source = message.metadata.reply_to_message_id, message.metadata.src_node_id
        if asked in self.outstanding:
            return self.outstanding.pop(asked), "answered an earlier exchange after its deadline: dropped"
        if asked not in waiting:
            return source, "answered twice or without being asked: dropped"
        node = waiting.pop(asked)
        if message.has_error():
            # the reason may be a whole traceback
            reason = (message.error.reason or "no reason given").strip().splitlines()[-1]
            return node, f"answered with error {message.error.code}: {reason}"
        heard[node] = message.content
        return None
