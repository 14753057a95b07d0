"""The local round: clients train models of the clusters on their data and send the changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coterie.client.assigned import train_assigned
from coterie.client.group import ClientGroup
from coterie.client.one_pass import reply_in_one_pass, runs_in_one_pass
from coterie.client.private_round import check_private_round
from coterie.client.reply import ReplyBuilder
from coterie.client.resample import fresh_parts
from coterie.client.round import ClientAlgorithm, ClientRound, RoundSettings
from coterie.core.blocks import Block, Memory, cut
from coterie.core.clusters import Clusters
from coterie.core.expected import Expected, RunFacts, Slots, Spec, clusters_dtype, expected_changes
from coterie.core.keys import Purpose, Words, keys_for_clients
from coterie.core.messages import ALL, Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Positions, Shard
from coterie.core.task import Task
from coterie.learners.base import Learner, trains_together

ROUNDING = 1e-3
"""Relative tolerance by which rounding may increase the norm of a clipped change."""
SHARED_BY = 8
"""Minimum mean number of clients for each model for which clients with the same assigned models form separate blocks;
with fewer clients, such blocks would be too small."""


@register("local-round")
@dataclass(frozen=True, kw_only=True)
class LocalRound(RoundSettings, Task):
    """One round of local training.

    Sums: the training loss of each restart and its number of samples; slotted by cluster, the weighted changes and
    their mass; slotted by restart, the change of the shared body. Rows: the cluster that each client trained.

    The loss is that of the received models, weighted if there are several. For mini-batch training of a single model,
    it is the running loss of the mini-batches, so that clients with an assigned model need no separate evaluation. No
    loss is sent if clients add noise to their replies.
    """

    assignment: ClientAlgorithm
    """Tier 2 of the method."""
    trains: ClassVar[bool] = True

    def divides_itself(self, clients: ClientGroup, broadcast: Broadcast) -> bool:
        return runs_in_one_pass(self, self.assignment, clients, broadcast)

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        reply = None
        if runs_in_one_pass(self, self.assignment, clients, broadcast):
            reply = reply_in_one_pass(self, self.assignment, clients, broadcast)
        return self._in_blocks(clients, broadcast) if reply is None else reply

    def _in_blocks(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        """Run the round block by block, for all learners and client algorithms."""
        shard = clients.train
        check_private_round(self, self.assignment, broadcast.clusters)
        keys = shard.hashes  # full batches are not drawn
        if self.work.full_batch_steps is None:
            keys = keys_for_clients(self.seed, Purpose.BATCHES, broadcast.round, shard.hashes)
        builder = ReplyBuilder(broadcast.clusters, len(shard), self.objective.summed, send_loss=not self.adds_noise)
        work = ClientRound(clients.learner, self, broadcast, shard, clients.states, builder, clients.noise)
        for assigned, positions in _parties(broadcast, len(shard)):
            part = shard if len(positions) == len(shard) else shard.take(positions)
            memory = clients.memory if part is shard else None  # parts differ between rounds, so a cache is useless
            for scored, block in self._samples(clients.learner, part, keys[positions], broadcast, memory):
                places = positions[block.positions]
                if assigned:
                    train_assigned(work, places, block)
                else:
                    self.assignment.client_round(work, places, scored, block)
        return builder.reply(shard)

    def _samples(
        self, learner: Learner, shard: Shard, keys: Words, broadcast: Broadcast, memory: Memory | None
    ) -> Iterator[tuple[Block, Block]]:
        """Yield blocks of samples for choosing a cluster and for training, which are the same unless resampled."""
        together = not self.assignment.member_of_one and trains_together(learner, self.work)
        model_bytes = _copied_bytes(broadcast.clusters, together)
        if self.resample is None:
            return ((block, block) for block in cut(shard, keys, model_bytes, memory))
        choosing, training = fresh_parts(shard, self.seed, broadcast.round, self.resample)
        # equal sizes give equal blocks
        return zip(cut(choosing, keys, model_bytes), cut(training, keys, model_bytes), strict=True)

    def reveals(self) -> dict[str, str]:
        """Return the rows of a reply, with the information that each reveals to the server about a client."""
        rows = self.assignment.client_reveals(self) | self.objective.reveals
        sent = {} if self.distance is None else self.distance.round_rows
        return rows | {name: words for name, words in sent.items() if name not in rows}

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        clusters = broadcast.clusters
        R, K = clusters.restarts, clusters.K
        own = self.assignment.server_expects(self, clusters, run)
        sums = {"samples": Spec((), low=0, whole=True, total="samples")}
        if not self.adds_noise:
            sums["loss"] = Spec((R,), low=-1.0, missing="shared" if R > 1 else "never")
        rows = {"cluster": Spec((R,), torch.int64, 0, K - 1), **own.rows}
        if self.distance is not None:
            rows |= self.distance.server_expects(run)
        pooled = self._expected_pool(clusters)
        slotted = pooled or {**own.slotted, **_expected_common(clusters)}
        clip = math.inf if self.privacy is None or self.privacy.local else self.privacy.clip * (1 + ROUNDING)
        return Expected(
            sums={**sums, **own.sums},
            slotted=slotted,
            rows=rows,
            uniform=self.client_weight == "uniform",
            longest_change=clip,
            compares_changes=self.privacy is None,  # refusing a reply for its norm would reveal something
        )

    def _expected_pool(self, clusters: Clusters) -> dict[str, Slots]:
        """Return the expected form of the pooled moments if the server solves for the heads; else empty."""
        if not self.work.pools_heads or "body.weight" not in clusters.shared:
            return {}
        dtype = clusters_dtype(clusters)
        width, features = clusters.shared["body.weight"].shape[1:]
        mass = Spec((), low=0, total="mass")
        pooled = {"gram": Spec((features, width), dtype), "cross": Spec((features,), dtype), "mass": mass}
        return {"pooled": Slots(clusters.restarts * clusters.K, pooled)}


def _expected_common(clusters: Clusters) -> dict[str, Slots]:
    """Return the expected form of the changes of the shared body and the overall model."""
    parts = {"body": clusters.shared, "overall": clusters.overall or {}}
    return {name: Slots(clusters.restarts, expected_changes(params)) for name, params in parts.items() if params}


def _copied_bytes(clusters: Clusters, together: bool) -> int:
    """Return the number of bytes of a client's copies of models: one for each restart, or all if trained together."""
    copies = clusters.restarts * (clusters.K if together else 1)
    return copies * clusters.slot_bytes + clusters.restarts * clusters.common_bytes


def _parties(broadcast: Broadcast, count: int) -> list[tuple[bool, Positions]]:
    """Divide clients into those that choose their models and groups with the same assigned models.

    Returns:
        Pairs of whether the models are assigned, and the positions of the clients.
    """
    everyone = np.arange(count)
    if broadcast.only is None:
        return [(False, everyone)]
    assigned = (broadcast.only != ALL).all(dim=1).numpy()
    choosing = [(False, everyone[~assigned])] if not assigned.all() else []
    kinds, kind = np.unique(broadcast.only.numpy()[assigned], axis=0, return_inverse=True)
    if len(kinds) * SHARED_BY > assigned.sum():
        kinds, kind = kinds[:1], np.zeros(int(assigned.sum()), dtype=np.int64)
    return choosing + [(True, everyone[assigned][kind.reshape(-1) == index]) for index in range(len(kinds))]
