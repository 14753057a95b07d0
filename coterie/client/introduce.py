"""How a client introduces itself, once: by what it would make of a model that nobody ever trains."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from coterie.client.kept import as_vectors
from coterie.core.blocks import cut
from coterie.core.clusters import row_bytes
from coterie.core.keys import Purpose, key_for, keys_for_clients
from coterie.core.messages import Broadcast, Reply, Task
from coterie.core.plain import from_plain
from coterie.core.shard import Shard
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining


def introduce(learner: Learner, shard: Shard, task: Task, broadcast: Broadcast) -> Reply:
    """Row `anchor`: Psi_i, the anchor less what the client's steps make of it, as one vector, (m, P).

    Everybody draws the anchor from the seed, so that no model is sent. Neither the anchor nor a client's batches
    depend on the round: it says the same whenever it is asked. A client whose vector is not finite is rejected.
    """
    seed, work = int(cast(int, task.settings["seed"])), from_plain(LocalTraining, task.settings["work"])
    anchor = learner.start([key_for(seed, Purpose.INTRODUCTION)], shard.x.dtype)
    keys = keys_for_clients(seed, Purpose.INTRODUCTION, 0, shard.hashes)
    rows = torch.zeros(len(shard), row_bytes(anchor) // shard.x.element_size(), dtype=shard.x.dtype)
    for block in cut(shard, keys, row_bytes(anchor)):
        count = len(block.positions)
        tracks = {name: p.to(block.x.device).expand(count, *p.shape[1:])[:, None] for name, p in anchor.items()}
        change = learner.descend(tracks, block, work, broadcast.scalars["lr"])
        rows[torch.from_numpy(block.positions)] = -as_vectors(change)[:, 0].cpu()
    return _of_the_sound(shard, rows)


def _of_the_sound(shard: Shard, rows: Tensor) -> Reply:
    sound = rows.isfinite().all(dim=1)
    accepted, rejected = (tuple(shard.ids[i] for i in flags.nonzero().flatten().tolist()) for flags in (sound, ~sound))
    return Reply(clients=accepted, rows={"anchor": rows[sound]} if accepted else {}, rejected=rejected)
