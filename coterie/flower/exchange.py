"""One exchange over a Grid: push, poll until the deadline, drop what is late, double or an error, and say so.

A message lives as long as the deadline (`ttl`), and a node that has not begun with it by then leaves it. A node that
has begun is busy, and nobody can see until when: a SuperLink forgets a message when its time is over, whatever the
node does. So a node that has missed a deadline is sent nothing but a question that costs nothing (`hello`), and takes
part again in the first exchange before which it has answered that.
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
from coterie.flower.wire import hello_content

EXPIRED = (3, 4)
"""Flower's codes for a message, or its answer, whose time is over."""
APP_FAILED = (1, 2, 6, 7, 8)
"""Flower's codes for an app that cannot be loaded, raised an error, refused the message, is invalid, or crashed."""
RAISED = re.compile(r"^<class '(?:.*\.)?(\w+)'>:<'(.*)'>$")
"""Flower's form of an error that an app raised."""

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
    """Messages that nobody waits for any more and that may still be worked on: {message id: node}."""
    doubtful: set[int] = field(default_factory=set)
    """Nodes of which the grid no longer knows whether they are busy."""
    failed: set[int] = field(default_factory=set)
    """Nodes whose app failed on the last message that they answered."""

    def __post_init__(self) -> None:
        if not self.deadline > 0 or not self.poll > 0:
            raise ConfigError(
                f"deadline and poll are seconds above 0, got {self.deadline!r} and {self.poll!r}: wait some time"
            )
        self._questions: set[str] = set()
        self._untold: list[Trouble] = []

    def nodes(self) -> frozenset[int]:
        """The nodes that are connected."""
        return frozenset(self.grid.get_node_ids())

    def keys(self) -> dict[int, bytes]:
        """Return the public keys of the connected nodes, as far as the grid knows them."""
        return {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}

    def free(self, nodes: Collection[int]) -> set[int]:
        """Those of the nodes that are not busy; who may be so is asked for a sign of life, and not waited for."""
        self._untold += self._look({}, {})
        self._question(self.doubtful & set(nodes))
        return set(nodes) - self._busy()

    def send(self, contents: Mapping[int, RecordDict]) -> Heard:
        """Send each of these nodes its content and wait for the answers, at most until the deadline.

        Busy nodes are left out; if all are, one of them is waited for.
        """
        untold, self._untold = self._untold, []
        troubles = untold + self._wait_for_one_of(contents.keys())
        busy = self._busy() & contents.keys()
        troubles += [(node, "is still busy with an earlier exchange and was not asked") for node in sorted(busy)]
        fresh = {node: content for node, content in contents.items() if node not in busy}
        waiting, unsent = self._push(fresh, self.deadline)
        troubles += [(node, "could not be sent its message") for node in unsent]
        sent, heard = frozenset(waiting.values()), dict[int, RecordDict]()
        end = self.clock() + self.deadline
        while waiting:
            troubles += self._look(waiting, heard)
            left = end - self.clock()
            if left <= 0 or not waiting:
                break
            self.sleep(min(self.poll, left))
        troubles += [(node, self._too_late()) for node in waiting.values()]
        self.outstanding |= waiting
        return Heard(heard, sent, tuple(troubles))

    def _wait_for_one_of(self, nodes: Collection[int]) -> list[Trouble]:
        """Wait until one of the nodes is free, at most until the deadline."""
        troubles, end = self._look({}, {}), self.clock() + self.deadline
        self._question(self.doubtful & set(nodes))
        while nodes and self._busy() >= set(nodes) and self.clock() < end:
            self.sleep(min(self.poll, end - self.clock()))
            troubles += self._look({}, {})
            self._question(self.doubtful & set(nodes))
        return troubles

    def _too_late(self) -> str:
        return f"has not answered within {self.deadline:g} s"

    def _busy(self) -> set[int]:
        return self.doubtful | set(self.outstanding.values())

    def _question(self, nodes: Iterable[int]) -> None:
        """Ask these nodes for a sign of life.

        A node may be busy with the question before, whose time was over, when the next one comes. So a question lives
        for two deadlines: who answers within one of them can answer two in a row.
        """
        sent, _ = self._push({node: hello_content() for node in nodes}, 2 * self.deadline)
        self.outstanding |= sent
        self._questions |= sent.keys()
        self.doubtful -= set(sent.values())

    def _push(self, contents: Mapping[int, RecordDict], ttl: float) -> tuple[dict[str, int], list[int]]:
        """{message id: node} of what was sent, and the nodes that it could not be sent to."""
        nodes = sorted(contents)
        messages = [Message(contents[node], node, MessageType.TRAIN, ttl=ttl) for node in nodes]
        ids: list[str | None] = list(self.grid.push_messages(messages)) if messages else []
        ids += [None] * (len(nodes) - len(ids))  # a grid that refuses them all returns none
        sent = {name: node for name, node in zip(ids, nodes, strict=True) if name}
        return sent, [node for name, node in zip(ids, nodes, strict=True) if not name]

    def _look(self, waiting: dict[str, int], heard: dict[int, RecordDict]) -> list[Trouble]:
        """Take what has come: answers that were waited for are heard, all others dropped with a reason."""
        found: list[Trouble | None] = []
        for asked in (*waiting, *self.outstanding):
            found += self._pull(asked, waiting, heard)
        return sorted(trouble for trouble in found if trouble is not None)  # the order of answers tells nothing

    def _pull(self, asked: str, waiting: dict[str, int], heard: dict[int, RecordDict]) -> list[Trouble | None]:
        """Take the answers to one message, which is pulled by itself: a damaged one would take others with it."""
        try:
            messages = list(self.grid.pull_messages([asked]))
        except (httpx.HTTPError, OSError):  # the SuperLink itself, and no node
            raise
        except Exception as error:
            node = waiting.pop(asked, None)
            node = self.outstanding.pop(asked) if node is None else node
            self._questions.discard(asked)
            return [(node, f"sent a message that Flower cannot decode ({_said(error)}): refused")]
        return [self._take(message, waiting, heard) for message in messages]

    def _take(self, message: Message, waiting: dict[str, int], heard: dict[int, RecordDict]) -> Trouble | None:
        asked = message.metadata.reply_to_message_id
        over = message.has_error() and message.error.code in EXPIRED
        if asked in self.outstanding:
            node = self.outstanding.pop(asked)
            self.doubtful |= {node} if over else set()
            silent = over or asked in self._questions
            self._questions.discard(asked)
            return None if silent else (node, "answered an earlier exchange after its deadline: dropped")
        if asked not in waiting:
            return message.metadata.src_node_id, "answered twice or without being asked: dropped"
        node = waiting.pop(asked)
        self.failed.discard(node)
        if not message.has_error():
            heard[node] = message.content
            return None
        if over:
            self.doubtful.add(node)
            return node, self._too_late()
        if message.error.code in APP_FAILED:
            self.failed.add(node)
        # the reason may be a whole traceback, or any text that a node likes
        reason = RAISED.sub(r"\1: \2", one_line(str(message.error.reason or ""))) or "no reason given"
        return node, f"answered with error {int(message.error.code)}: {reason}"


def _said(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__
