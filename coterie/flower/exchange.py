"""One exchange over a Grid: push messages, poll until the deadline, and drop late, duplicate and failed answers.

A message expires at the deadline (`ttl`), and a node that has not started to process it by then skips it. A node that
has started is busy for an unknown time: a SuperLink deletes an expired message whatever the node does. So a node that
has missed a deadline only receives a cheap request, the task `list-clients`, and takes part again in the first exchange
after it has answered that one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from coterie.errors import ConfigError
from coterie.flower.untrusted import one_line
from coterie.flower.wire import onboarding_content

EXPIRED = (3, 4)
"""Flower's error codes for a message or an answer that has expired."""
APP_FAILED = (1, 2, 6, 7, 8)
"""Flower's codes for an app that cannot be loaded, raised an error, refused the message, is invalid, or crashed."""
RAISED = re.compile(r"^<class '(?:.*\.)?(\w+)'>:<'(.*)'>$")
"""Flower's text for an error that an app raised."""

Trouble = tuple[int, str]
"""A node, and one sentence about a problem with it."""


@dataclass(frozen=True)
class Received:
    """Answers that arrived before the deadline."""

    contents: Mapping[int, RecordDict]
    """Content of the answer of each node."""
    sent: frozenset[int]
    """Nodes that a message was sent to."""
    troubles: tuple[Trouble, ...]
    """Problems with nodes."""


@dataclass
class Exchange:
    """Connection to the nodes, which sends at most one message to a node at a time and waits for the answers."""

    grid: Grid
    deadline: float = 600.0
    """Seconds from sending to the end of waiting."""
    poll: float = 0.2
    """Seconds between two polls for answers."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    outstanding: dict[str, int] = field(default_factory=dict)
    """Messages whose answers are no longer awaited, but which nodes may still be processing: {message id: node}."""
    possibly_busy: set[int] = field(default_factory=set)
    """Nodes that may be busy with a message that the grid has deleted."""
    failed: set[int] = field(default_factory=set)
    """Nodes whose app failed on the last message that they answered."""

    def __post_init__(self) -> None:
        if not self.deadline > 0 or not self.poll > 0:
            raise ConfigError(
                f"deadline and poll must be numbers of seconds above 0, got {self.deadline!r} and {self.poll!r}"
            )
        self._probes: set[str] = set()
        self._unreported: list[Trouble] = []

    def nodes(self) -> frozenset[int]:
        """Return the connected nodes."""
        return frozenset(self.grid.get_node_ids())

    def keys(self) -> dict[int, bytes]:
        """Return the public keys of the connected nodes, as far as the grid knows them."""
        return {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}

    def free(self, nodes: Collection[int]) -> set[int]:
        """Return the nodes that are not busy; nodes that may be busy are probed without waiting for the answers."""
        self._unreported += self._collect({}, {})
        self._probe(self.possibly_busy & set(nodes))
        return set(nodes) - self._busy()

    def send(self, contents: Mapping[int, RecordDict]) -> Received:
        """Send each of these nodes its content and wait for the answers, at most until the deadline.

        Busy nodes are left out; if all are busy, the exchange waits for one of them first.
        """
        unreported, self._unreported = self._unreported, []
        troubles = unreported + self._wait_for_one_of(contents.keys())
        busy = self._busy() & contents.keys()
        troubles += [(node, "is still busy with an earlier exchange and was not asked") for node in sorted(busy)]
        fresh = {node: content for node, content in contents.items() if node not in busy}
        waiting, unsent = self._push(fresh, self.deadline)
        troubles += [(node, "was not asked, because the SuperLink did not accept its message") for node in unsent]
        sent, received = frozenset(waiting.values()), dict[int, RecordDict]()
        end = self.clock() + self.deadline
        while waiting:
            troubles += self._collect(waiting, received)
            left = end - self.clock()
            if left <= 0 or not waiting:
                break
            self.sleep(min(self.poll, left))
        troubles += [(node, self._too_late()) for node in waiting.values()]
        self.outstanding |= waiting
        return Received(received, sent, tuple(troubles))

    def _wait_for_one_of(self, nodes: Collection[int]) -> list[Trouble]:
        """Wait until one of the nodes is free, at most until the deadline."""
        troubles, end = self._collect({}, {}), self.clock() + self.deadline
        self._probe(self.possibly_busy & set(nodes))
        while nodes and self._busy() >= set(nodes) and self.clock() < end:
            self.sleep(min(self.poll, end - self.clock()))
            troubles += self._collect({}, {})
            self._probe(self.possibly_busy & set(nodes))
        return troubles

    def _too_late(self) -> str:
        return f"has not answered within {self.deadline:g} s"

    def _busy(self) -> set[int]:
        return self.possibly_busy | set(self.outstanding.values())

    def _probe(self, nodes: Iterable[int]) -> None:
        """Send these nodes a cheap request, whose answer shows that they are not busy.

        A node may still be busy with an expired probe when the next one arrives. So a probe lives for two deadlines: a
        node that answers within one deadline can answer two probes in a row.
        """
        sent, _ = self._push({node: onboarding_content() for node in nodes}, 2 * self.deadline)
        self.outstanding |= sent
        self._probes |= sent.keys()
        self.possibly_busy -= set(sent.values())

    def _push(self, contents: Mapping[int, RecordDict], ttl: float) -> tuple[dict[str, int], list[int]]:
        """Send messages; return {message id: node}, and the nodes whose messages were not accepted."""
        nodes = sorted(contents)
        messages = [Message(contents[node], node, MessageType.TRAIN, ttl=ttl) for node in nodes]
        ids: list[str | None] = list(self.grid.push_messages(messages)) if messages else []
        ids += [None] * (len(nodes) - len(ids))  # a grid that refuses all messages returns no ids
        sent = {name: node for name, node in zip(ids, nodes, strict=True) if name}
        return sent, [node for name, node in zip(ids, nodes, strict=True) if not name]

    def _collect(self, waiting: dict[str, int], received: dict[int, RecordDict]) -> list[Trouble]:
        """Add the awaited answers that have arrived to `received`, and drop all others with a reason."""
        found: list[Trouble | None] = []
        for asked in (*waiting, *self.outstanding):
            found += self._pull(asked, waiting, received)
        return sorted(trouble for trouble in found if trouble is not None)  # notes do not depend on arrival order

    def _pull(self, asked: str, waiting: dict[str, int], received: dict[int, RecordDict]) -> list[Trouble | None]:
        """Pull the answers to one message by itself, since a damaged answer makes the whole pull fail."""
        try:
            messages = list(self.grid.pull_messages([asked]))
        except (httpx.HTTPError, OSError):  # the SuperLink itself failed, not a node
            raise
        except Exception as error:
            node = waiting.pop(asked, None)
            node = self.outstanding.pop(asked) if node is None else node
            self._probes.discard(asked)
            return [(node, f"sent a message that Flower cannot decode ({_error_text(error)}): refused")]
        return [self._take(message, waiting, received) for message in messages]

    def _take(self, message: Message, waiting: dict[str, int], received: dict[int, RecordDict]) -> Trouble | None:
        """Store an awaited answer in `received`; return the problem with any other answer."""
        asked = message.metadata.reply_to_message_id
        over = message.has_error() and message.error.code in EXPIRED
        if asked in self.outstanding:
            node = self.outstanding.pop(asked)
            self.possibly_busy |= {node} if over else set()
            silent = over or asked in self._probes
            self._probes.discard(asked)
            return None if silent else (node, "answered an earlier exchange after its deadline: dropped")
        if asked not in waiting:
            return message.metadata.src_node_id, "answered twice or without a request: dropped"
        node = waiting.pop(asked)
        self.failed.discard(node)
        if not message.has_error():
            received[node] = message.content
            return None
        if over:
            self.possibly_busy.add(node)
            return node, self._too_late()
        if message.error.code in APP_FAILED:
            self.failed.add(node)
        # the reason may be a whole traceback, or any other text
        reason = RAISED.sub(r"\1: \2", one_line(str(message.error.reason or ""))) or "no reason given"
        return node, f"answered with error {int(message.error.code)}: {reason}"


def _error_text(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__
