"""The local round: choose a cluster, train its model on the client's own data, send back the change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from coterie.client.headed import respond_with_heads
from coterie.client.mixing import respond
from coterie.client.moving import move, move_with_head
from coterie.client.personal import train_own, train_own_head
from coterie.client.reply import Assignment, ReplyBuilder
from coterie.client.resample import fresh_parts
from coterie.client.work import Work
from coterie.core.blocks import Block, Memory, cut
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Clusters
from coterie.core.keys import Purpose, Words, keys_for_clients
from coterie.core.messages import ALL, Broadcast, Reply, Task
from coterie.core.shard import Positions, Shard
from coterie.learners.base import Learner
from coterie.privacy.client import check_askable, said
from coterie.privacy.noise import SECRET, Noise
from coterie.tiers.assignment import Choosing, Way
from coterie.tiers.method import RoundSettings


def local_round(
    learner: Learner,
    shard: Shard,
    task: Task,
    broadcast: Broadcast,
    memory: Memory | None = None,
    states: ClientStates | None = None,
    noise: Noise = SECRET,
) -> Reply:
    """One round for every client of the shard.

    Sums: the training loss of each restart and the samples behind it; slotted by cluster, the weighted changes and
    their mass; slotted by restart, the change of the shared body. Rows: the cluster each client worked on.

    The loss is that under the models sent, weighted where several count; with mini-batches on a single one that of the
    samples stepped on, each when it was: so clients that have nothing to choose need no scores. No loss is told
    where clients hide their answers themselves.
    """
    settings = RoundSettings.read(task.settings)
    check_askable(settings, broadcast.clusters)
    keys = keys_for_clients(settings.seed, Purpose.BATCHES, broadcast.round, shard.hashes)
    tally = ReplyBuilder(broadcast.clusters, len(shard), settings.objective.summed, tells_loss=not settings.hides)
    work = Work(learner, settings, broadcast, shard, states, tally, noise)
    for told, positions in _parties(broadcast, len(shard)):
        part = shard if len(positions) == len(shard) else shard.take(positions)
        kept = memory if part is shard else None  # what varies from round to round is not worth keeping
        way = train_as_told if told else _way(settings.weights.way, broadcast.clusters)
        for judged, block in _samples(part, keys[positions], settings, broadcast, kept):
            way(work, positions[block.positions], judged, block)
    return tally.reply(shard)


def train_as_told(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Train the one model of each restart that the server sent."""
    assert work.broadcast.only is not None
    only = work.broadcast.only[torch.from_numpy(places)]
    settings, clusters = work.settings, work.broadcast.clusters
    batched = settings.work.full_batch_steps is None
    # with mini-batches the loss comes with the steps, unless every client's change is needed by itself
    stepped = batched and not settings.each and not clusters.overall and settings.privacy is None
    visit = _told(work.learner, clusters, only, block, scored=not stepped and not settings.hides)
    work.train(places, block, visit, visit.memo)
    work.tell(places, block)


def choose(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Choose a cluster in each restart, and train its model."""
    clusters, batched = work.broadcast.clusters, work.settings.work.full_batch_steps is None
    stepped = batched and work.settings.privacy is None
    if clusters.K == 1 and (stepped or work.settings.hides):
        only = torch.arange(clusters.restarts).repeat(len(places), 1)
        visit = _told(work.learner, clusters, only, block, scored=work.settings.each)
    else:
        visit = _choose(work, places, judged)
    # the memo belongs to the samples that were scored
    work.train(places, block, visit, visit.memo if judged is block else None)
    work.tell(places, block)


def _way(name: Way, clusters: Clusters) -> Served:
    return ON_A_BODY.get(name, WAYS[name]) if clusters.shared else WAYS[name]


Served = Callable[[Work, Positions, Block, Block], None]
WAYS: Mapping[Way, Served] = {
    "choose": choose,
    "respond": respond,
    "move": move,
    "personal": train_own,
}
"""What the clients of a block do: with the places of its clients in the shard, samples to judge by and to train on."""
ON_A_BODY: Mapping[Way, Served] = {
    "respond": respond_with_heads,
    "move": move_with_head,
    "personal": train_own_head,
}
"""The same where all clusters share a body; those who choose train whole models, whatever is shared."""


def _samples(
    shard: Shard, keys: Words, settings: RoundSettings, broadcast: Broadcast, memory: Memory | None
) -> Iterator[tuple[Block, Block]]:
    """Block by block the samples to choose a cluster by and those to train on: the same ones, unless resampled."""
    room = _copied_bytes(broadcast.clusters)
    if settings.resample is None:
        return ((block, block) for block in cut(shard, keys, room, memory))
    choosing, training = fresh_parts(shard, settings.seed, broadcast.round, settings.resample)
    return zip(cut(choosing, keys, room), cut(training, keys, room), strict=True)  # equal sizes, so the same blocks


def _copied_bytes(clusters: Clusters) -> int:
    """Memory a client's work takes for its copies of models: one a restart, and its change."""
    return clusters.restarts * (clusters.slot_bytes + clusters.common_bytes)


SHARED_BY = 8
"""Clients told to train the same models are worked on together once so many share them; else blocks would be small."""


def _parties(broadcast: Broadcast, count: int) -> list[tuple[bool, Positions]]:
    """The clients that choose themselves (False), and those told what to train (True), apart by what they share."""
    everyone = np.arange(count)
    if broadcast.only is None:
        return [(False, everyone)]
    told = (broadcast.only != ALL).all(dim=1).numpy()
    free = [(False, everyone[~told])] if not told.all() else []
    kinds, kind = np.unique(broadcast.only.numpy()[told], axis=0, return_inverse=True)
    if len(kinds) * SHARED_BY > told.sum():
        kinds, kind = kinds[:1], np.zeros(int(told.sum()), dtype=np.int64)
    return free + [(True, everyone[told][kind.reshape(-1) == index]) for index in range(len(kinds))]


def _told(learner: Learner, clusters: Clusters, chosen: Tensor, block: Block, scored: bool) -> Assignment:
    """Clients that train the slots (B, R) they were told, and hold no other model."""
    slots = torch.unique(chosen)
    models = clusters.at(slots)
    if not scored:
        return Assignment(slots, models, chosen)
    if len(slots) == chosen.shape[1]:  # all of the block hold the same models, one a restart
        known = learner.score(models, block)
        loss = block.mean(known.losses).gather(1, torch.searchsorted(slots, chosen).to(block.x.device))
        return Assignment(slots, models, chosen, loss, known.memo)
    theta = clusters.at(chosen)
    columns = [learner.losses({n: p[:, r] for n, p in theta.items()}, block.x, block.y) for r in range(chosen.shape[1])]
    return Assignment(slots, models, chosen, block.mean(torch.stack(columns, dim=-1)))


def _choose(work: Work, places: Positions, block: Block) -> Assignment:
    """Clients that choose one cluster in each restart."""
    clusters, objective, weights = (
        work.broadcast.clusters,
        work.settings.objective,
        cast(Choosing, work.settings.weights),
    )
    models = clusters.all_models()
    scored = work.learner.score(models, block)
    losses = clusters.by_restart(scored.losses)
    cost = objective.client_cost(losses, block, objective.client_see(work.learner, block), {})
    table = block.mean(losses)
    ranking = -(table if cost is losses else block.mean(cost))
    chosen, share = weights.client_choose(ranking), weights.client_weigh(ranking)
    if work.settings.hides:
        chosen = _said(work, places, chosen)
    loss = table.gather(2, chosen[..., None]).squeeze(2)
    if share is not None:
        loss = torch.where(share > 0, share * table, 0).sum(dim=2)
        share = share.flatten(1)
    slots = torch.arange(clusters.restarts * clusters.K)
    return Assignment(slots, models, work.first + chosen.cpu(), loss, scored.memo, share)


def _said(work: Work, places: Positions, chosen: Tensor) -> Tensor:
    """The clusters (B, 1) that clients say they have chosen, and train: one may be wrong, so that none is certain."""
    privacy = work.settings.privacy
    assert privacy is not None
    assert privacy.choice is not None
    uniforms = work.noise.uniforms(work.broadcast.round, work.shard.hashes[places])
    return said(chosen[:, 0].cpu(), work.broadcast.clusters.K, privacy.choice, uniforms)[:, None].to(chosen.device)
