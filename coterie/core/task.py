"""Base class of client tasks: work that the server can request from clients.

A task is a frozen dataclass whose fields are sent to the clients as plain values. The tasks of Coterie are in
`coterie/client/tasks`. A user-defined task is registered in the same way and works on every engine.

Example:
    >>> from dataclasses import dataclass
    >>> import torch
    >>> import coterie
    >>> from coterie.extend import Reply, Task
    >>> @coterie.register("sample-counts")
    ... @dataclass(frozen=True)
    ... class SampleCounts(Task):
    ...     def run(self, clients, broadcast):
    ...         return Reply(clients.train.ids, rows={"count": torch.from_numpy(clients.train.sizes)})
    >>> SampleCounts.name
    'sample-counts'
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from coterie.core.expected import Expected, RunFacts
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import Registered


class Task(Registered, ABC, family="client task"):
    """Work that clients do on their local data at the request of the server."""

    trains: ClassVar[bool] = False
    """Whether the replies are changes of the clusters' models."""
    evaluates: ClassVar[bool] = False
    """Whether the task only evaluates models. Its rows are the same for all methods and are not used for training."""

    @property
    def send_each(self) -> bool:
        """Whether every client's change is a separate row instead of a part of a sum."""
        return False

    def divides_itself(self, clients: Any, broadcast: Broadcast) -> bool:
        """Return whether the task divides its work among threads itself, so that it should get all clients at once.

        Args:
            clients: As in `run`; `clients.workers` are the threads.
            broadcast: As in `run`.
        """
        return False

    @abstractmethod
    def run(self, clients: Any, broadcast: Broadcast) -> Reply:
        """Do the work for all clients of a group.

        Args:
            clients: A `coterie.client.group.ClientGroup` (the core package must not import this type).
            broadcast: Message of the server; row i of `broadcast.only` and `broadcast.each` is for client i.

        Returns:
            Sums and rows of these clients.
        """

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected | None:
        """Return the expected form of a reply, against which replies of remote clients are checked.

        Args:
            broadcast: Message of the server.
            run: Facts about the run.

        Returns:
            The expected form, or None (the default) if it is not declared. A reply must then be finite and have the
            same arrays as the majority of the replies.
        """
        return None
