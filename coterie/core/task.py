"""The base class of client tasks: what a server can ask clients to do.

A task is a frozen dataclass; its fields are its settings and travel as plain values. The tasks of this package are in
`coterie/client/tasks`. A task of your own is registered in the same way and works on every engine::

    @register("class-counts")
    @dataclass(frozen=True)
    class ClassCounts(Task):
        def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply: ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from coterie.core.expected import Expected, RunFacts
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import Registered


class Task(Registered, ABC, family="client task"):
    """Work that clients do next to their data when the server asks for it."""

    trains: ClassVar[bool] = False
    """Whether the replies are changes of the clusters' models."""
    evaluates: ClassVar[bool] = False
    """Whether the task only evaluates models: its rows are the same for all methods and enter no model."""

    @property
    def send_each(self) -> bool:
        """Whether every client's change is a row of its own, instead of a part of a sum."""
        return False

    @abstractmethod
    def run(self, clients: Any, broadcast: Broadcast) -> Reply:
        """Do the work for every client of a group.

        Args:
            clients: A `coterie.client.group.ClientGroup`. The type is open here, since this layer does not know it.
            broadcast: What the server sent; row i of `broadcast.only` and `broadcast.each` is for client i.

        Returns:
            Sums and rows of these clients.
        """

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected | None:
        """Return the form of a sound reply, against which replies of remote clients are checked.

        None, the default, declares nothing: a reply must then only be finite and have the same arrays as most others.
        """
        return None
