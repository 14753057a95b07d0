"""A Grid in this process: no SuperLink, no other process, every message through Flower's own bytes. For tests.

It is the only code that touches what Flower keeps private: the identity of a task, without which no message can be
made, and the id of a message, which a SuperLink would give.
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
"""Flower's code of the error that an app raised."""
OVER = 3
"""Flower's code for a message whose time is over."""

Deliver = Callable[[Message, Message], Sequence[tuple[float, Message]]]
"""What becomes of an answer on its way, from message and answer: (delay in seconds, answer), none or several."""

Travelling = TypeVar("Travelling", bound=Any)


def at_once(message: Message, answer: Message) -> Sequence[tuple[float, Message]]:
    """Nothing goes wrong."""
    return [(0.0, answer)]


class InProcessGrid(Grid):
    """Nodes as client apps in this process; each serves a message when it is pushed.

    As at a SuperLink, a message whose time (`ttl`) is over is answered with an error, whatever its node has said since.
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
        """Public keys of nodes; a SuperLink knows all of them."""
        self.apps = dict(apps)
        """By node id; a node that is taken out is no longer connected."""
        self.configs = dict(configs or {})
        self.deliver = deliver
        self.clock = clock
        self._pushed: dict[str, tuple[float, Message]] = {}
        """Messages that were not answered yet, and until when they live."""
        self._on_the_way: list[tuple[float, Message]] = []
        self._count = 0
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    def set_run(self, run: Run) -> None:
        """There is one run only."""

    @property
    def run(self) -> Run:
        """Nobody needs it here."""
        raise NotImplementedError("a grid in this process has no run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As Flower's own grids do."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Those that are connected."""
        return list(self.apps)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Those that are connected, with their public keys."""
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.apps]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Serve every message; the answers can be pulled when they are due."""
        return [self._serve(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to these messages that have come by now; each is handed out once."""
        wanted, now = set(message_ids), self.clock()
        over = {name for name in wanted if name in self._pushed and self._pushed[name][0] < now}
        answers = [Message(Error(OVER, "its time is over"), reply_to=self._pushed[name][1]) for name in sorted(over)]
        found = [(at, a) for at, a in self._on_the_way if a.metadata.reply_to_message_id in wanted - over and at <= now]
        self._on_the_way = [pair for pair in self._on_the_way if pair not in found]
        answers += [answer for _, answer in found]
        for name in {answer.metadata.reply_to_message_id for answer in answers}:
            del self._pushed[name]
        return [through_bytes(answer) for answer in answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push and pull once."""
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
        except Exception as error:  # as Flower does, whatever an app raises
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def through_bytes(value: Travelling) -> Travelling:
    """A copy of a message or a part of it, made from the bytes that Flower sends."""
    with no_object_id_recompute():  # as Flower does: else each part is hashed again for every part that contains it
        return _through_bytes(value)


def _through_bytes(value: Travelling) -> Travelling:
    children = {name: _through_bytes(child) for name, child in (value.children or {}).items()}
    copy: Travelling = type(value).inflate(value.deflate(), children)
    return copy
