"""A Grid for tests that runs in this process, without a SuperLink; every message is serialised as Flower does it.

This is the only module that uses private parts of Flower: the identity of a task, without which no message can be
created, and the id of a message, which a SuperLink would assign.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RAISED = 2
"""Flower's code for an error that an app raised."""
EXPIRED = 3
"""Flower's code for a message that has expired."""

Deliver = Callable[[Message, Message], Sequence[tuple[float, Message]]]
"""Function of a message and its answer that simulates the delivery: pairs (delay in seconds, answer), or none."""

Travelling = TypeVar("Travelling", bound=Any)


def at_once(message: Message, answer: Message) -> Sequence[tuple[float, Message]]:
    """Deliver the answer without delay."""
    return [(0.0, answer)]


class InProcessGrid(Grid):
    """Grid whose nodes are client apps in this process; each serves a message when it is pushed.

    As with a SuperLink, a message that has expired (`ttl`) is answered with an error, even if its node answers later.

    Args:
        apps: Client app of each node, by node id.
        configs: Node config of each node; by default empty.
        deliver: Function that delays, drops or changes answers.
        clock: Function that returns the time in seconds.
        keys: Public keys of the nodes.

    Example:
        >>> import coterie
        >>> from coterie.flower.clients import clients_of
        >>> from coterie.flower.in_process import InProcessGrid
        >>> from coterie.flower.node import make_client_app
        >>> data = coterie.scenario("mixed-regression", clients=4)
        >>> grid = InProcessGrid({1: make_client_app(lambda context: data)})
        >>> len(clients_of(grid).clients)
        4
    """

    def __init__(
        self,
        apps: Mapping[int, ClientApp],
        configs: Mapping[int, UserConfig] | None = None,
        deliver: Deliver = at_once,
        clock: Callable[[], float] = time.monotonic,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        self.keys = dict(keys or {})
        self.apps = dict(apps)
        """Client apps by node id; a node is disconnected when it is removed."""
        self.configs = dict(configs or {})
        self.deliver = deliver
        self.clock = clock
        self._pushed: dict[str, tuple[float, Message]] = {}
        """Messages without an answer, with the time at which they expire."""
        self._on_the_way: list[tuple[float, Message]] = []
        self._count = 0
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    def set_run(self, run: Run) -> None:
        """Do nothing: the grid has a single run."""

    @property
    def run(self) -> Run:
        """Not available: the grid has no run of Flower's."""
        raise NotImplementedError("a grid in this process has no run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes."""
        return list(self.apps)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected nodes with their public keys."""
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.apps]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Serve every message and return the message ids; answers can be pulled after their delays."""
        return [self._serve(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages that have arrived; each is returned once."""
        wanted, now = set(message_ids), self.clock()
        over = {name for name in wanted if name in self._pushed and self._pushed[name][0] < now}
        answers = [Message(Error(EXPIRED, "it has expired"), reply_to=self._pushed[name][1]) for name in sorted(over)]
        found = [(at, a) for at, a in self._on_the_way if a.metadata.reply_to_message_id in wanted - over and at <= now]
        self._on_the_way = [pair for pair in self._on_the_way if pair not in found]
        answers += [answer for _, answer in found]
        for name in {answer.metadata.reply_to_message_id for answer in answers}:
            del self._pushed[name]
        return [through_bytes(answer) for answer in answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push the messages and pull their answers once."""
        return self.pull_messages(self.push_messages(messages))

    def _serve(self, message: Message) -> str:
        self._count += 1
        name = f"message-{self._count}"
        received, node = through_bytes(message), message.metadata.dst_node_id
        received.metadata.__dict__["_message_id"] = name
        self._pushed[name] = (self.clock() + message.metadata.ttl, received)
        if node in self.apps:
            answer = self._answer(node, received)
            self._on_the_way += [(self.clock() + delay, one) for delay, one in self.deliver(received, answer)]
        return name

    def _answer(self, node: int, message: Message) -> Message:
        context = Context(1, node, dict(self.configs.get(node, {})), RecordDict(), {})
        try:
            return self.apps[node](message, context)
        except Exception as error:  # Flower also turns every error of an app into an answer
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def through_bytes(value: Travelling) -> Travelling:
    """Return a copy of a message or a part of it, made from the bytes that Flower sends."""
    with no_object_id_recompute():  # as in Flower: otherwise each part is hashed once more for every enclosing part
        return _through_bytes(value)


def _through_bytes(value: Travelling) -> Travelling:
    children = {name: _through_bytes(child) for name, child in (value.children or {}).items()}
    copy: Travelling = type(value).inflate(value.deflate(), children)
    return copy
