"""The local round: train models of the clusters on the clients' own data, and send back the changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coterie.client.given import train_given
from coterie.client.group import ClientGroup
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

ROUNDING = 1e-3
"""Part by which rounding may lengthen a change that was clipped."""
SHARED_BY = 8
"""Clients that were assigned the same models form blocks of their own from this mean number of clients per model on;
with fewer, such blocks would be too small."""


@register("local-round")
@dataclass(frozen=True, kw_only=True)
class LocalRound(RoundSettings, Task):
    """One round of training for every client of a group.

    Sums: the training loss of each restart and the number of samples behind it; slotted by cluster, the weighted
    changes and their mass; slotted by restart, the change of the shared body. Rows: the cluster each client worked on.

    The loss is that under the models sent, weighted where several count; with mini-batches on a single model it is that
    of the samples stepped on, each at its step, so that clients without a choice need no scores. No loss is sent where
    clients add noise to their replies.
    """

    assignment: ClientAlgorithm
    trains: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        check_private_round(self, self.assignment, broadcast.clusters)
        keys = keys_for_clients(self.seed, Purpose.BATCHES, broadcast.round, shard.hashes)
        builder = ReplyBuilder(broadcast.clusters, len(shard), self.objective.summed, send_loss=not self.adds_noise)
        work = ClientRound(clients.learner, self, broadcast, shard, clients.states, builder, clients.noise)
        for given, positions in _parties(broadcast, len(shard)):
            part = shard if len(positions) == len(shard) else shard.take(positions)
            memory = clients.memory if part is shard else None  # a part that varies by round is not worth caching
            for scored, block in self._samples(part, keys[positions], broadcast, memory):
                places = positions[block.positions]
                if given:
                    train_given(work, places, block)
                else:
                    self.assignment.client_round(work, places, scored, block)
        return builder.reply(shard)

    def _samples(
        self, shard: Shard, keys: Words, broadcast: Broadcast, memory: Memory | None
    ) -> Iterator[tuple[Block, Block]]:
        """Yield the samples to choose a cluster by and those to train on: the same ones, unless resampled."""
        room = _copied_bytes(broadcast.clusters)
        if self.resample is None:
            return ((block, block) for block in cut(shard, keys, room, memory))
        choosing, training = fresh_parts(shard, self.seed, broadcast.round, self.resample)
        return zip(cut(choosing, keys, room), cut(training, keys, room), strict=True)  # equal sizes, so equal blocks

    def reveals(self) -> dict[str, str]:
        """Return the rows of a reply, and what each reveals to the server about a client."""
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
            compares_changes=self.privacy is None,  # dropping a reply by its length would reveal something
        )

    def _expected_pool(self, clusters: Clusters) -> dict[str, Slots]:
        """Return the form of the pooled moments from which the server solves for the heads, if it does."""
        if not self.work.pools_heads or "body.weight" not in clusters.shared:
            return {}
        dtype = clusters_dtype(clusters)
        width, features = clusters.shared["body.weight"].shape[1:]
        mass = Spec((), low=0, total="mass")
        pooled = {"gram": Spec((features, width), dtype), "cross": Spec((features,), dtype), "mass": mass}
        return {"pooled": Slots(clusters.restarts * clusters.K, pooled)}


def _expected_common(clusters: Clusters) -> dict[str, Slots]:
    """Return the form of the changes of what a restart has besides its clusters."""
    parts = {"body": clusters.shared, "overall": clusters.overall or {}}
    return {name: Slots(clusters.restarts, expected_changes(params)) for name, params in parts.items() if params}


def _copied_bytes(clusters: Clusters) -> int:
    """Return the bytes of a client's copies of models: one per restart, and its change."""
    return clusters.restarts * (clusters.slot_bytes + clusters.common_bytes)


def _parties(broadcast: Broadcast, count: int) -> list[tuple[bool, Positions]]:
    """Return the clients that decide themselves (False), and those with assigned models (True), by what they share."""
    everyone = np.arange(count)
    if broadcast.only is None:
        return [(False, everyone)]
    given = (broadcast.only != ALL).all(dim=1).numpy()
    free = [(False, everyone[~given])] if not given.all() else []
    kinds, kind = np.unique(broadcast.only.numpy()[given], axis=0, return_inverse=True)
    if len(kinds) * SHARED_BY > given.sum():
        kinds, kind = kinds[:1], np.zeros(int(given.sum()), dtype=np.int64)
    return free + [(True, everyone[given][kind.reshape(-1) == index]) for index in range(len(kinds))]
