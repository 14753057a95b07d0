"""The client side of one exchange: looks a task up by name and serves it for a shard of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch

from coterie.client.evaluate import evaluate, finetuned, score, weights
from coterie.client.introduce import introduce
from coterie.client.moments import anchor_step, moment_product
from coterie.client.regression import curvature, meats, moments
from coterie.client.round import local_round
from coterie.client.solve import local_solve
from coterie.client.summary import summary
from coterie.core.blocks import Memory
from coterie.core.client_state import ClientStates
from coterie.core.dataset import FederatedDataset
from coterie.core.messages import ROUND, Broadcast, Reply, Task
from coterie.core.shard import Positions, Shard
from coterie.core.validation import split_validation
from coterie.errors import unknown_name
from coterie.learners.base import Learner
from coterie.privacy.noise import SECRET, Noise


@dataclass(frozen=True)
class ClientSide:
    """One or many clients that live together, and the learner they use."""

    learner: Learner
    train: Shard
    test: Shard | None
    validation: Shard | None = None
    """Held-out training samples; a client may have none."""
    memory: Memory | None = None
    """What is kept of the training samples from round to round; None: nothing."""
    states: ClientStates | None = None
    """What the clients keep for themselves from round to round; None: nothing."""
    noise: Noise = SECRET
    """What hides their answers in a private run; only a simulation may draw it from its seed."""

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
    ) -> ClientSide:
        """The clients of a population, computing in `dtype` on `device`.

        validation: which share of the training samples is held out, if any; `seed` decides which.
        keeps: whether clients keep something for themselves from round to round.
        """
        train, held_out = data.train, None
        if validation is not None:
            parts = split_validation(data, validation, seed)
            train, held_out = parts.train, parts.test
        train = train.to(dtype, device)
        test, held_out = (None if part is None else part.to(dtype, device) for part in (data.test, held_out))
        return cls(learner, train, test, held_out, states=ClientStates.of(len(train)) if keeps else None)

    def take(self, positions: Positions, remember: bool = True) -> Self:
        """Only these clients; with `remember` they will be together again, so what they keep is worth keeping."""
        test, validation = (None if part is None else part.take(positions) for part in (self.test, self.validation))
        memory = self.memory if remember else None
        states = None if self.states is None else self.states.take(positions)
        train = self.train.take(positions)
        return replace(self, train=train, test=test, validation=validation, memory=memory, states=states)

    def evaluated(self, task: Task) -> Shard:
        """The samples that scores are about; for want of test samples those for validation, else for training."""
        if self.test is None or task.settings.get("on") == "validation":
            return self.validation or self.train
        return self.test

    def serve(self, task: Task, broadcast: Broadcast) -> Reply:
        """Do the task for every client of the shard. Row i of `broadcast.only` is for client i."""
        if task.name not in TASKS:
            raise unknown_name("client task", task.name, TASKS)
        return TASKS[task.name](self, task, broadcast)


TASKS: dict[str, Callable[[ClientSide, Task, Broadcast], Reply]] = {
    ROUND: lambda side, task, broadcast: local_round(
        side.learner, side.train, task, broadcast, side.memory, side.states, side.noise
    ),
    "score": lambda side, task, broadcast: score(side.learner, side.train, broadcast),
    "evaluate": lambda side, task, broadcast: evaluate(
        side.learner, side.evaluated(task), task, broadcast, side.states
    ),
    "finetune": lambda side, task, broadcast: finetuned(
        side.learner, side.train, side.evaluated(task), task, broadcast
    ),
    "weights": lambda side, task, broadcast: weights(side.train, task, broadcast, side.states),
    "moment-product": lambda side, task, broadcast: moment_product(side.learner, side.train, task, broadcast),
    "anchor-step": lambda side, task, broadcast: anchor_step(side.learner, side.train, task, broadcast),
    "regression-moments": lambda side, task, broadcast: moments(side.learner, side.train, broadcast),
    "regression-meats": lambda side, task, broadcast: meats(side.learner, side.train, broadcast),
    "local-solve": lambda side, task, broadcast: local_solve(side.learner, side.train, task, broadcast),
    "introduce": lambda side, task, broadcast: introduce(side.learner, side.train, task, broadcast),
    "summary": lambda side, task, broadcast: summary(side.learner, side.train, task),
    "curvature": lambda side, task, broadcast: curvature(side.learner, side.train),
}
