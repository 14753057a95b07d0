"""Onboarding by halves: the changes of a fixed random model by training on each half of a client's samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.kept import as_vectors
from coterie.client.resample import halves
from coterie.core.blocks import cut
from coterie.core.clusters import Params, row_bytes
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.keys import Purpose, generator, key_for, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Shard
from coterie.core.task import Task
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining

SKETCH = 256
"""Maximum length of the vector for each half; longer changes are reduced to this length by a random projection."""


@register("onboarding-halves")
@dataclass(frozen=True)
class OnboardingHalves(Task):
    """Changes of a fixed random model, the anchor, by training on each of two random halves of a client's samples.

    Row: `anchor` (m, 2 W), the changes for both halves.

    Changes of more than `SKETCH` numbers are projected: every parameter is added with a random sign to one of `SKETCH`
    sums, which almost preserves the directions of differences between changes. As in `Onboarding`, nothing depends on
    the round. For a client with a single sample, the second half is zeros. A client whose row is not finite is
    rejected.
    """

    work: LocalTraining
    """Local training."""
    seed: int
    """Seed of the run."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        anchor = clients.learner.start([key_for(self.seed, Purpose.ONBOARDING)], shard.x.dtype)
        width = row_bytes(anchor) // shard.x.element_size()
        length = min(width, SKETCH)
        rows = torch.zeros(len(shard), 2, length, dtype=shard.x.dtype)
        paired, single = np.flatnonzero(shard.sizes >= 2), np.flatnonzero(shard.sizes == 1)
        one, two = halves(shard.take(paired), self.seed, 0)
        for part, half, places in ((one, 0, paired), (two, 1, paired), (shard.take(single), 0, single)):
            if len(part):
                rows[torch.from_numpy(places), half] = self._changes(clients.learner, part, anchor, broadcast, width)
        return Reply(clients=shard.ids, rows={"anchor": rows.flatten(1)}).only(rows.isfinite().flatten(1).all(dim=1))

    def _changes(self, learner: Learner, shard: Shard, anchor: Params, broadcast: Broadcast, width: int) -> Tensor:
        """Return the projected change of the anchor by each client of a shard, (m, W)."""
        keys = keys_for_clients(self.seed, Purpose.ONBOARDING, 0, shard.hashes)
        rows = torch.zeros(len(shard), width, dtype=shard.x.dtype)
        for block in cut(shard, keys, row_bytes(anchor)):
            count = len(block.positions)
            tracks = {name: p.to(block.x.device).expand(count, *p.shape[1:])[:, None] for name, p in anchor.items()}
            change = learner.descend(tracks, block, self.work, broadcast.scalars["lr"])
            rows[torch.from_numpy(block.positions)] = as_vectors(change)[:, 0].cpu()
        return folded(rows, self.seed)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        width = None if run.model_width is None else 2 * min(run.model_width, SKETCH)
        return Expected(rows={"anchor": Spec((width,), run.torch_dtype)})


def folded(rows: Tensor, seed: int) -> Tensor:
    """Return rows (m, P) unchanged if P is at most `SKETCH`, else their random projection, (m, SKETCH)."""
    width = rows.shape[1]
    if width <= SKETCH:
        return rows
    random = generator(key_for(seed, Purpose.ONBOARDING, 1))
    places = torch.from_numpy(random.integers(0, SKETCH, width))
    signs = torch.from_numpy(random.choice([-1.0, 1.0], width)).to(rows)
    return rows.new_zeros(len(rows), SKETCH).index_add_(1, places, rows * signs)
