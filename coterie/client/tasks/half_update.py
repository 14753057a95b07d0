"""Change of a cluster's model by training on one half of each client's samples, for a test on the other half."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.client.group import ClientGroup
from coterie.client.interfaces import Distance
from coterie.client.kept import as_vectors
from coterie.client.resample import HALF, halves, keys_of_halves
from coterie.client.shared_body import compared_features
from coterie.core.blocks import Block, cut
from coterie.core.clusters import Params, row_bytes
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.base import Learner
from coterie.learners.local_training import LocalTraining


@register("half-update")
@dataclass(frozen=True)
class HalfUpdate(Task):
    """Change of the assigned model by local training on the first half of each client's samples.

    Rows: `change`, and the rows of the distance for the same half. A client needs at least two samples. No state is
    stored, and the server uses the replies for comparisons only, not for training.
    """

    work: LocalTraining
    """Local training."""
    seed: int
    """Seed of the run."""
    distance: Distance | None = None
    """Distance whose rows are sent; None: none."""
    draw: int = 0
    """Number of the halving in the round."""
    held_out: float = HALF
    """Share of the samples in the second half, which tests models and trains none."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        assert broadcast.only is not None, "every client receives the model of its cluster"
        learner, clusters = clients.learner, broadcast.clusters
        shard, _ = halves(clients.train, self.seed, broadcast.round, self.draw, self.held_out)
        keys = keys_of_halves(shard, self.seed, broadcast.round, self.draw)
        rows: Params = {}
        for block in cut(shard, keys, 2 * row_bytes(clusters.params)):
            places = torch.from_numpy(block.positions)
            theta = clusters.at(broadcast.only[places])
            change = learner.descend(theta, block, self.work, broadcast.scalars["lr"])
            found = {"change": as_vectors(change)[:, 0], **self._summary(learner, theta, block)}
            for name, value in found.items():
                rows.setdefault(name, value.new_zeros(len(shard), *value.shape[1:]).cpu())[places] = value.cpu()
        return Reply(clients=shard.ids, rows=rows).only(rows["change"].isfinite().all(dim=1))

    def _summary(self, learner: Learner, theta: Params, block: Block) -> Params:
        """Return the rows of the distance, whose features are computed with the body of each client's model."""
        if self.distance is None:
            return {}
        features = None
        if self.distance.needs == "features":
            features = compared_features(learner, {name: p[:, 0] for name, p in theta.items()}, block.x)
        return self.distance.client_summary(features, block, learner.classes)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        own = {} if self.distance is None else self.distance.server_expects(run)
        return Expected(rows={"change": Spec((run.model_width,), run.torch_dtype), **own})
