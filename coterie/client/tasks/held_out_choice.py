"""Cross-validated loss of choosing one of several linear models for each client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.residuals import residuals
from coterie.core.blocks import Block, cut
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.linear import as_linear


@register("held-out-choice")
@dataclass(frozen=True)
class HeldOutChoice(Task):
    """Cross-validated loss of collections of models, from each of which a client chooses the best model.

    The broadcast contains N models `centre` (N, p) and the indicators `members` (G, N) of G collections. In each
    collection, a client selects the model with the smallest squared error on every other sample; the loss is the mean
    squared error of this model on the remaining samples. The loss is averaged over both choices of the samples.

    Sums over clients with at least two samples: `loss` (G,), `products` (G, G) of these losses, and `clients`.
    """

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        linear, shard = as_linear(clients.learner), clients.train
        centres, members = broadcast.clusters.params["centre"], broadcast.common["members"] > 0
        loss = torch.zeros(len(members), dtype=torch.float64)
        products = torch.zeros(len(members), len(members), dtype=torch.float64)
        count = torch.zeros((), dtype=torch.float64)
        for block in cut(shard, shard.hashes, broadcast.clusters.slot_bytes):
            one, other = _halves(residuals(linear.features(block.x), block, centres) ** 2, block)
            found = (_chosen(one, other, members) + _chosen(other, one, members)) / 2
            found = found[(block.sizes >= 2) & found.isfinite().all(dim=1)].double().cpu()
            loss += found.sum(dim=0)
            products += found.T @ found
            count = count + len(found)
        return Reply(clients=shard.ids, sums={"loss": loss, "products": products, "clients": count})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        G = len(broadcast.common["members"])
        count = Spec((), low=0, whole=True)
        return Expected({"loss": Spec((G,), low=0), "products": Spec((G, G), low=0), "clients": count})


def _halves(errors: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Return the mean errors of samples with even and with odd indices, both (B, N).

    Args:
        errors: Squared errors, (B, N, n), 0 for padding.
        block: Samples of B clients.
    """
    sizes = block.counts
    odd = (sizes / 2).floor()
    even = sizes - odd
    return errors[..., ::2].sum(dim=2) / even[:, None], errors[..., 1::2].sum(dim=2) / odd.clamp_min(1)[:, None]


def _chosen(by: Tensor, measured: Tensor, members: Tensor) -> Tensor:
    """Return `measured` (B, N) for the member of each collection with the smallest `by` (B, N), (B, G)."""
    best = torch.where(members, by[:, None], torch.inf).argmin(dim=2)
    return measured.gather(1, best)
