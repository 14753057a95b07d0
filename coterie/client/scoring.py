"""Scores of models on the samples of a shard, block by block."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.messages import Broadcast
from coterie.core.shard import Shard
from coterie.learners.base import Learner


def blocks_of(shard: Shard, broadcast: Broadcast) -> Iterator[Block]:
    """Yield one block at a time: those of ragged clients are copies."""
    return cut(shard, shard.hashes, broadcast.clusters.slot_bytes + broadcast.clusters.body_bytes)


def models_held(broadcast: Broadcast) -> int:
    """Return the number of models that a client is scored under: the one it was sent, or all."""
    if broadcast.only is not None:
        return 1
    return next((len(p) for p in broadcast.clusters.params.values()), 0)


def score_and_loss(learner: Learner, outputs: Tensor, block: Block) -> dict[str, Tensor]:
    """Return each client's accuracy or mean squared error as `score`, and its mean `loss`, (B,) both."""
    hit = (outputs - block.y) ** 2 if learner.classes is None else (outputs.argmax(dim=-1) == block.y).double()
    return {"score": block.mean(hit), "loss": block.mean(learner.loss(outputs, block.y))}
