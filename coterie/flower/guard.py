"""What a node demands of every question, whoever asks: a server that need not be trusted does not set its own limits.

::

    FOLDER/answers/CLIENT      by digest; as many bytes as the client has given answers, in all runs
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.core.shard import ClientId
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.flower.limits import RefusedError
from coterie.flower.state import digest
from coterie.privacy.accountant import Answer, epsilon
from coterie.privacy.mechanism import Privacy

FAILED = "this node could not answer: its own log says why"
"""The one text for whatever goes wrong at a guarded node, since the text of an error may show samples or labels."""


@dataclass(frozen=True)
class Guard:
    """The least privacy that the clients of a node go by, and how often they answer."""

    noise: float
    """The least `privacy_noise`."""
    answers: int
    """How many answers a client gives at most, in all runs together."""
    choice: float | None = None
    """The largest `privacy_choice`; None: clients answer only where they have no cluster to choose."""

    def __post_init__(self) -> None:
        if not self.noise > 0 or self.answers < 1 or (self.choice is not None and not self.choice > 0):
            raise ConfigError(f"a guard needs noise and choice above 0 and at least one answer, got {self}")

    def epsilon(self, delta: float) -> float:
        """What all answers of a client give away together, whatever the servers do that it answers."""
        return epsilon(Answer(Privacy("local", 1.0, self.noise).ratio, self.choice), self.answers, delta)

    def check(self, task: Task) -> None:
        """Refuse every task whose replies are not private enough."""
        privacy = getattr(task, "privacy", None)  # a task that makes its replies private has this field
        if not isinstance(privacy, Privacy) or not privacy.local:
            raise RefusedError(
                f"the clients of this node answer private questions only, but {task.name!r} is none: run with "
                "privacy=local"
            )
        if privacy.noise < self.noise:
            raise RefusedError(
                f"the clients of this node answer with privacy_noise of at least {self.noise:g}, but the run has "
                f"{privacy.noise:g}"
            )
        if privacy.choice is not None and (self.choice is None or privacy.choice > self.choice):
            most = "say no cluster" if self.choice is None else f"say their cluster with at most {self.choice:g}"
            raise RefusedError(f"the clients of this node {most}, but the run has privacy_choice={privacy.choice:g}")

    def count(self, folder: Path, clients: Sequence[ClientId]) -> None:
        """Count an answer of each of these clients before it is given; refuse if it is one too many.

        A byte is appended first and the length looked at then, so that two questions at a time are both counted.
        """
        home = folder / "answers"
        home.mkdir(parents=True, exist_ok=True)
        for client in clients:
            with open(home / digest(client), "ab") as file:
                file.write(b".")
                file.flush()
                os.fsync(file.fileno())
                given = os.fstat(file.fileno()).st_size
            if given > self.answers:
                raise RefusedError(
                    f"client {client!r} has given the {self.answers} answers that it gives in all runs together"
                )
