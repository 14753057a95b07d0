"""How well clients are predicted by the best of several linear models, chosen on other samples of theirs."""

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
    """Sums over clients with two samples or more: `loss` (G,), `products` (G, G) of these losses, and `clients`.

    The broadcast holds models `centre` (N, p) and `members` (G, N), which of them are in each of G collections. Of each
    collection a client takes the model with the least squared error on every other sample of its own, and its loss is
    that model's mean squared error on the samples between; then the other way round. The loss is the mean of both.
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
    """Return the mean errors (B, N) of the samples at even and at odd places, from (B, N, n) with zeros for padding."""
    sizes = block.counts
    odd = (sizes / 2).floor()
    even = sizes - odd
    return errors[..., ::2].sum(dim=2) / even[:, None], errors[..., 1::2].sum(dim=2) / odd.clamp_min(1)[:, None]


def _chosen(by: Tensor, measured: Tensor, members: Tensor) -> Tensor:
    """Return (B, G): `measured` (B, N) at the member of each collection where `by` (B, N) is least."""
    best = torch.where(members, by[:, None], torch.inf).argmin(dim=2)
    return measured.gather(1, best)
