"""Cross-validation of models of groups, and the Newton steps that fit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.group import ClientGroup
from coterie.client.own_models import FOLDS, nearby_models
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("cross-validate-groups")
@dataclass(frozen=True)
class CrossValidateGroups(Task):
    """Every fold of a client's samples is predicted by the model that fits its other folds best.

    The server sends `changes` (folds, L, r): for each fold the models of several numbers of groups, one after the
    other. Rows: `losses` (numbers,), the summed loss of the predictions for each number of groups. Sums: `score`
    (folds, L, r) and `hessian` (folds, L, r, r) of the clients that chose a model, without the fold's samples.
    """

    seed: int
    numbers: tuple[int, ...]
    """Numbers of groups; their sum is L."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, changes = clients.train, broadcast.common["changes"]
        _, models, r = changes.shape
        losses = torch.zeros(len(shard), len(self.numbers), dtype=torch.float64)
        sums = {
            "score": torch.zeros(FOLDS, models, r, dtype=torch.float64),
            "hessian": torch.zeros(FOLDS, models, r, r, dtype=torch.float64),
        }
        for nearby, fold in nearby_models(shard, broadcast, self.seed):
            places, valid = torch.from_numpy(nearby.samples.block.positions), nearby.samples.valid
            for left_out in range(FOLDS):
                kept = valid * (fold != left_out)
                each = torch.stack([nearby.losses(change.expand(len(fold), -1)) for change in changes[left_out]])
                fit, missed = (each * kept).sum(dim=2), (each * (valid - kept)).sum(dim=2)
                first = 0
                for index, number in enumerate(self.numbers):
                    chosen = first + fit[first : first + number].argmin(dim=0)
                    losses[places, index] += missed.gather(0, chosen[None])[0]
                    score, hessian = nearby.derivatives(changes[left_out, chosen], kept)
                    sums["score"][left_out].index_add_(0, chosen, score.sum(dim=1))
                    sums["hessian"][left_out].index_add_(0, chosen, hessian)
                    first += number
        return Reply(clients=shard.ids, sums=sums, rows={"losses": losses})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        folds, models, r = broadcast.common["changes"].shape
        sums = {"score": Spec((folds, models, r)), "hessian": Spec((folds, models, r, r))}
        return Expected(sums=sums, rows={"losses": Spec((len(self.numbers),), low=0)})
