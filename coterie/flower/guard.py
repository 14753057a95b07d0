"""Privacy limits that a node enforces on every request, so that its clients need not trust the server.

::

    FOLDER/answers/CLIENT      named by a digest; one byte for each answer of the client, over all runs
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

FAILED = "this node could not answer: see its log for the reason"
"""Text of every unexpected error of a guarded node, since the original text could reveal samples or labels."""


@dataclass(frozen=True)
class Guard:
    """Least privacy that the clients of a node require, and the number of answers that each of them gives.

    Args:
        noise: Smallest allowed `privacy_noise` of a run.
        answers: Largest number of answers of one client, over all runs.
        choice: Largest allowed `privacy_choice`. None: clients answer only methods in which they choose no cluster.

    Raises:
        ConfigError: if a value is not above 0.

    Example:
        >>> from coterie.flower.guard import Guard
        >>> round(Guard(noise=20.0, answers=10).epsilon(delta=1e-5), 2)
        1.2
    """

    noise: float
    answers: int
    choice: float | None = None

    def __post_init__(self) -> None:
        if not self.noise > 0 or self.answers < 1 or (self.choice is not None and not self.choice > 0):
            raise ConfigError(f"a guard needs noise and choice above 0 and at least one answer, got {self}")

    def epsilon(self, delta: float) -> float:
        """Return the privacy loss epsilon of all answers of a client together, whatever the servers do.

        Args:
            delta: Probability with which the bound may fail.
        """
        return epsilon(Answer(Privacy("local", 1.0, self.noise).ratio, self.choice), self.answers, delta)

    def check(self, task: Task) -> None:
        """Raise RefusedError for a task whose replies are not private enough."""
        privacy = getattr(task, "privacy", None)  # a task that makes its replies private has this field
        if not isinstance(privacy, Privacy) or not privacy.local:
            raise RefusedError(
                f"this node answers only requests with local differential privacy, but {task.name!r} has none: run "
                "with privacy=local"
            )
        if privacy.noise < self.noise:
            raise RefusedError(
                f"this node requires privacy_noise of at least {self.noise:g}, but the run has {privacy.noise:g}"
            )
        if privacy.choice is not None and (self.choice is None or privacy.choice > self.choice):
            allowed = "no privacy_choice" if self.choice is None else f"privacy_choice of at most {self.choice:g}"
            raise RefusedError(f"this node allows {allowed}, but the run has privacy_choice={privacy.choice:g}")

    def count(self, folder: Path, clients: Sequence[ClientId]) -> None:
        """Count one answer of each client before it is given, and raise RefusedError if there are too many.

        The byte is appended before the file's length is read, so that two simultaneous requests are both counted.
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
                    f"client {client!r} has already given the {self.answers} answers that it gives over all runs"
                )
