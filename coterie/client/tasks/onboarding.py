"""Onboarding of clients that participate for the first time: the change of a fixed random model by local training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.client.group import ClientGroup
from coterie.client.kept import as_vectors
from coterie.core.blocks import cut
from coterie.core.clusters import row_bytes
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.keys import Purpose, key_for, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.local_training import LocalTraining


@register("onboarding")
@dataclass(frozen=True)
class Onboarding(Task):
    """Change of a fixed random model, the anchor, by local training.

    Row: `anchor` (m, P), the anchor minus the anchor after local training (Psi_i), as a vector.

    Every client draws the anchor from the seed, so that no model is sent. Neither the anchor nor the client's batches
    depend on the round, so the row of a client is the same in every round. A client whose vector is not finite is
    rejected.
    """

    work: LocalTraining
    """Local training."""
    seed: int
    """Seed of the run."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, shard = clients.learner, clients.train
        anchor = learner.start([key_for(self.seed, Purpose.ONBOARDING)], shard.x.dtype)
        keys = keys_for_clients(self.seed, Purpose.ONBOARDING, 0, shard.hashes)
        rows = torch.zeros(len(shard), row_bytes(anchor) // shard.x.element_size(), dtype=shard.x.dtype)
        for block in cut(shard, keys, row_bytes(anchor)):
            count = len(block.positions)
            tracks = {name: p.to(block.x.device).expand(count, *p.shape[1:])[:, None] for name, p in anchor.items()}
            change = learner.descend(tracks, block, self.work, broadcast.scalars["lr"])
            rows[torch.from_numpy(block.positions)] = -as_vectors(change)[:, 0].cpu()
        return Reply(clients=shard.ids, rows={"anchor": rows}).only(rows.isfinite().all(dim=1))

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows={"anchor": Spec((run.model_width,), run.torch_dtype)})
