"""The statistics of a diagnosis for samples with random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.aspects import ASPECTS, DOUBTS, aspect_of, signed
from coterie.client.group import ClientGroup
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("shift-draws")
@dataclass(frozen=True)
class ShiftDraws(Task):
    """Sum `statistics` (aspects, weights, draws): the weighted pairs U with random signs after refits.

    The server sends `refit/ASPECT` (draws, k c), the change of the pooled fit that the signs cause.
    """

    seed: int
    draws: int
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        found = torch.zeros(len(ASPECTS), len(DOUBTS), self.draws, dtype=torch.float64)
        doubts = torch.tensor(DOUBTS, dtype=torch.float64)
        for samples, signs in signed(clients.train, broadcast, self.seed, self.draws):
            weights = 1 / (1 + doubts[:, None] * samples.counts)
            for index, name in enumerate(ASPECTS):
                pairs = aspect_of(name, samples, broadcast).pairs(signs, broadcast.common[f"refit/{name}"])
                found[index] += weights @ pairs
        return Reply(clients=clients.train.ids, sums={"statistics": found})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(sums={"statistics": Spec((len(ASPECTS), len(DOUBTS), self.draws))})
