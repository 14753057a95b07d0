"""Evaluation of models on the samples of a shard, block by block."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.messages import Broadcast
from coterie.core.shard import Shard
from coterie.learners.base import Learner


def blocks_of(shard: Shard, broadcast: Broadcast) -> Iterator[Block]:
    """Yield the blocks of a shard one at a time, since blocks may be copies of the samples."""
    return cut(shard, shard.hashes, broadcast.clusters.slot_bytes + broadcast.clusters.body_bytes)


def models_held(broadcast: Broadcast) -> int:
    """Return the number of models on which a client is evaluated: 1 if it received a single model, else all."""
    if broadcast.only is not None:
        return 1
    return next((len(p) for p in broadcast.clusters.params.values()), 0)


def score_and_loss(learner: Learner, outputs: Tensor, block: Block) -> dict[str, Tensor]:
    """Return the evaluation of a block's clients.

    Args:
        learner: Model family of the run.
        outputs: Outputs for all samples, (B, n, ...).
        block: Samples of the clients.

    Returns:
        Accuracy or mean squared error (`score`) and mean `loss` of each client, both (B,).
    """
    hit = (outputs - block.y) ** 2 if learner.classes is None else (outputs.argmax(dim=-1) == block.y).double()
    return {"score": block.mean(hit), "loss": block.mean(learner.loss(outputs, block.y))}
