"""Groups of clients in one process, with everything that they need to run a task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch

from coterie.core.blocks import Memory
from coterie.core.client_state import ClientStates
from coterie.core.dataset import FederatedDataset
from coterie.core.shard import Positions, Shard
from coterie.core.task import Task
from coterie.core.threads import Workers
from coterie.core.validation import split_validation
from coterie.learners.base import Learner
from coterie.privacy.noise import SYSTEM_NOISE, Noise


@dataclass(frozen=True)
class ClientGroup:
    """One or several clients in one process, with their data and their learner."""

    learner: Learner
    """Model family that the clients train."""
    train: Shard
    """Training samples."""
    test: Shard | None = None
    """Test samples."""
    validation: Shard | None = None
    """Validation samples, held out from the training samples; a client may have none."""
    memory: Memory | None = None
    """Cache of tensors that depend on the training samples only; None: no cache."""
    states: ClientStates | None = None
    """State that the clients keep from round to round; None: they keep none."""
    noise: Noise = SYSTEM_NOISE
    """Source of the noise for differential privacy; only a simulation may derive it from its seed."""
    compiles: bool = False
    """Whether compiled code may be used; False if the run is too short for the time that compilation takes."""
    workers: Workers = Workers()
    """Threads for a task that divides its work itself."""

    @classmethod
    def of(
        cls,
        data: FederatedDataset,
        learner: Learner,
        dtype: torch.dtype,
        device: torch.device,
        validation: float | None,
        seed: int,
        keeps: bool,
    ) -> ClientGroup:
        """Return the clients of a data set.

        Args:
            data: Training and test samples of the clients.
            learner: Model family that they train.
            dtype: Floating-point dtype of all computations.
            device: Device of all computations.
            validation: Share of validation samples; None: no validation split.
            seed: Seed of the validation split.
            keeps: Whether clients keep a state from round to round.
        """
        train, held_out = data.train, None
        if validation is not None:
            parts = split_validation(data, validation, seed)
            train, held_out = parts.train, parts.test
        train = train.to(dtype, device)
        test, held_out = (None if part is None else part.to(dtype, device) for part in (data.test, held_out))
        return cls(learner, train, test, held_out, states=ClientStates.of(len(train)) if keeps else None)

    def take(self, positions: Positions, remember: bool = True) -> Self:
        """Return some of the clients.

        Args:
            positions: Positions of the clients in this group.
            remember: Whether the same clients will be taken together again, so that the cache is useful.
        """
        test, validation = (None if part is None else part.take(positions) for part in (self.test, self.validation))
        memory = self.memory if remember else None
        states = None if self.states is None else self.states.take(positions)
        train = self.train.take(positions)
        return replace(self, train=train, test=test, validation=validation, memory=memory, states=states)

    def evaluated(self, on: Literal["test", "validation"]) -> Shard:
        """Return the samples for evaluation.

        Args:
            on: Preferred samples. Without test samples, validation samples are used; without these, training samples.
        """
        if self.test is None or on == "validation":
            return self.validation or self.train
        return self.test

    @property
    def held_out(self) -> Shard | None:
        """Samples that are not used for training: test samples, else validation samples, else None."""
        return self.validation if self.test is None else self.test

    def carries_out(self, task: Task) -> Task:
        """Return the task that these clients carry out when they are asked for `task`; attackers may differ."""
        return task
