"""Evaluation of models that clients fine-tune locally."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.scoring import blocks_of, score_and_loss
from coterie.client.tasks.evaluate import expected_scores
from coterie.core.blocks import cut
from coterie.core.clusters import Params, take_rows
from coterie.core.expected import Expected, RunFacts
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.local_training import LocalTraining


@register("finetune")
@dataclass(frozen=True)
class FineTune(Task):
    """Evaluation of each client's model after fine-tuning on its training samples.

    Rows: `score` and `loss`, as in `Evaluate`. Fine-tuned models are neither stored nor sent. Outputs that are not
    finite count as wrong.
    """

    work: LocalTraining
    """Local training for fine-tuning."""
    seed: int
    """Seed of the run."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, judged = clients.learner, clients.evaluated("test")
        columns = {name: torch.zeros(len(judged), dtype=torch.float64) for name in ("score", "loss")}
        for positions, personal in self.models(clients, broadcast):
            for part in blocks_of(judged.take(positions.numpy()), broadcast):
                places = torch.from_numpy(part.positions)
                outputs = learner.outputs(take_rows(personal, places), part.x)
                found = score_and_loss(learner, outputs, part)
                wrong = torch.inf if learner.classes is None else 0.0
                found["score"] = torch.where(found["loss"].isfinite(), found["score"], wrong)
                for name, value in found.items():
                    columns[name][positions[places]] = value.double().cpu()
        return Reply(clients=clients.train.ids, rows=columns)

    def models(self, clients: ClientGroup, broadcast: Broadcast) -> Iterator[tuple[Tensor, Params]]:
        """Yield positions of clients and their fine-tuned models, block by block."""
        keys = keys_for_clients(self.seed, Purpose.BATCHES, broadcast.round, clients.train.hashes)
        for block in cut(clients.train, keys, 2 * (broadcast.clusters.slot_bytes + broadcast.clusters.body_bytes)):
            positions = torch.from_numpy(block.positions)
            theta = broadcast.clusters.at(broadcast.each["own"][positions, None])
            change = clients.learner.descend(theta, block, self.work, broadcast.scalars["lr"])
            yield positions, {name: (p + change[name])[:, 0] for name, p in theta.items()}

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows=expected_scores(run))
