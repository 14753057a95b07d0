"""What clients tell about their samples for a distance, before anything is trained."""

from __future__ import annotations

import torch

from coterie.core.blocks import cut
from coterie.core.clusters import Params
from coterie.core.messages import Reply, Task
from coterie.core.shard import Shard
from coterie.learners.base import Learner
from coterie.tiers.method import read_distance


def summary(learner: Learner, shard: Shard, task: Task) -> Reply:
    """The rows of a distance that needs no more than inputs and labels, {name: (m, ...)}."""
    distance = read_distance(task.settings["distance"])
    rows: Params = {}
    for block in cut(shard, shard.hashes, model_bytes=0):  # nothing is drawn, so the keys do not matter
        places = torch.from_numpy(block.positions)
        for name, found in distance.client_summary(None, block, learner.classes).items():
            rows.setdefault(name, found.new_zeros(len(shard), *found.shape[1:]))[places] = found
    return Reply(clients=shard.ids, rows=rows)
