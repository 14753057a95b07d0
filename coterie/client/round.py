"""The local round: choose a cluster, train its model on the client's own data, send back the change."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import ALL, Broadcast, Reply, Slotted, Task
from coterie.core.shard import Positions, Shard
from coterie.learners.base import Learner
from coterie.tiers.method import RoundSettings
from coterie.tiers.objective import OBJECTIVES, Objective
from coterie.tiers.weights import WEIGHTS, Weights


def local_round(learner: Learner, shard: Shard, task: Task, broadcast: Broadcast) -> Reply:
    """One round for every client of the shard.

    Sums: the training loss of each lane and the samples behind it; slotted by cluster, the weighted changes and
    their mass; slotted by lane, the change of the shared body. Rows: the cluster each client worked on.
    """
    settings = RoundSettings.read(task.settings)
    objective, weights = OBJECTIVES[settings.objective](), WEIGHTS[settings.weights]()
    keys = keys_for_clients(settings.seed, Purpose.BATCHES, broadcast.round, shard.hashes)
    tally = _Tally(broadcast.clusters, len(shard))
    for told, positions in _told_and_free(broadcast, len(shard)):
        part = shard if len(positions) == len(shard) else shard.take(positions)
        for block in cut(part, keys[positions], _copied_bytes(broadcast.clusters)):
            places = positions[block.positions]
            if told:
                assert broadcast.only is not None
                slots = broadcast.only[torch.from_numpy(places)]
                loss = _losses_at(learner, broadcast.clusters.at(slots), block)
            else:
                slots, loss = _choose(learner, objective, weights, broadcast.clusters, block)
            change = learner.descend(broadcast.clusters.at(slots), block, settings.work, broadcast.scalars["lr"])
            mass = block.sizes if settings.client_weight == "samples" else torch.ones_like(block.sizes)
            tally.add(places, block, slots, loss, change, mass)
    return tally.reply(shard)


def _copied_bytes(clusters: Clusters) -> int:
    """Memory a client's work takes for its copies of models: one a lane, and its change."""
    return clusters.lanes * (clusters.slot_bytes + clusters.body_bytes)


def _told_and_free(broadcast: Broadcast, count: int) -> list[tuple[bool, Positions]]:
    """The clients that were told their cluster, and those that choose it themselves."""
    everyone = np.arange(count)
    if broadcast.only is None:
        return [(False, everyone)]
    told = (broadcast.only != ALL).all(dim=1).numpy()
    return [(flag, everyone[told == flag]) for flag in (False, True) if (told == flag).any()]


def _losses_at(learner: Learner, theta: Params, block: Block) -> Tensor:
    """Each client's mean loss under its own model of each lane, (B, R)."""
    lanes = next(iter(theta.values())).shape[1]
    columns = [learner.losses({n: p[:, r] for n, p in theta.items()}, block.x, block.y) for r in range(lanes)]
    return block.mean(torch.stack(columns, dim=-1))


def _choose(
    learner: Learner, objective: Objective, weights: Weights, clusters: Clusters, block: Block
) -> tuple[Tensor, Tensor]:
    """The slot of each client in each lane, (B, R), and its mean loss there, (B, R)."""
    first = torch.arange(clusters.lanes) * clusters.K
    if not weights.needs_scores:
        blank = torch.zeros(len(block.positions), clusters.lanes, clusters.K)
        slots = first + weights.client_choose(blank)
        return slots, _losses_at(learner, clusters.at(slots), block)
    losses = learner.losses_of_all(clusters.all_models(), block)
    shape = (-1, clusters.lanes, clusters.K)
    scores = block.mean(objective.client_score(-losses)).reshape(shape)
    chosen = weights.client_choose(scores).cpu()
    loss = block.mean(losses).reshape(shape).gather(2, chosen[..., None].to(losses.device)).squeeze(2)
    return first + chosen, loss


class _Tally:
    """The shard's running sums. A contribution that is not finite never enters them."""

    def __init__(self, clusters: Clusters, count: int) -> None:
        self.clusters = clusters
        held = next(iter(clusters.params.values())).shape[0]
        self.slots = torch.arange(held) if clusters.slots is None else clusters.slots
        self.sums = {name: torch.zeros_like(p) for name, p in clusters.params.items()}
        self.body = {name: torch.zeros_like(p) for name, p in clusters.shared.items()}
        self.mass, self.count = torch.zeros(held, dtype=torch.float64), torch.zeros(held, dtype=torch.int64)
        self.loss = torch.zeros(clusters.lanes, dtype=torch.float64)
        self.samples = torch.zeros((), dtype=torch.float64)
        self.cluster = torch.zeros(count, clusters.lanes, dtype=torch.int64)
        self.accepted = np.zeros(count, dtype=bool)

    def add(self, places: Positions, block: Block, slots: Tensor, loss: Tensor, change: Params, mass: Tensor) -> None:
        """slots and loss (B, R), change {name: (B, R, ...)}, mass (B,)."""
        finite = loss.isfinite()
        for value in change.values():
            finite &= value.flatten(2).isfinite().all(dim=2) if value.dim() > 2 else value.isfinite()
        rows = torch.searchsorted(self.slots, slots)
        lanes = torch.div(slots, self.clusters.K, rounding_mode="floor")
        weight = torch.where(finite, mass[:, None], 0).to(loss.dtype)
        for name, value in change.items():
            shaped = weight.reshape(*weight.shape, *(1,) * (value.dim() - 2))
            weighted = torch.where(finite.reshape(shaped.shape), value * shaped, 0).flatten(0, 1)
            total, index = (self.body[name], lanes) if name in self.body else (self.sums[name], rows)
            total.index_add_(0, index.flatten().to(total.device), weighted)
        self.mass.index_add_(0, rows.flatten(), weight.flatten().double().cpu())
        self.count.index_add_(0, rows.flatten(), finite.flatten().long().cpu())
        # a client that fails in every lane is left out; one that fails in some makes those lanes the worst
        alive = finite.any(dim=1)
        spoilt = torch.where(alive[:, None], torch.inf, 0.0)
        self.loss += torch.where(finite, loss.double(), spoilt).mul(block.sizes[:, None]).sum(dim=0).cpu()
        self.samples += block.sizes[alive].sum().cpu()
        self.accepted[places] = alive.cpu().numpy()
        self.cluster[torch.from_numpy(places)] = slots - lanes * self.clusters.K

    def reply(self, shard: Shard) -> Reply:
        accepted = torch.from_numpy(self.accepted)
        used = torch.nonzero(self.count).flatten()
        changes = {f"change/{name}": value[used] for name, value in self.sums.items()}
        slotted = {"clusters": Slotted(self.slots[used], changes | {"mass": self.mass[used]}, self.count[used])}
        if self.body:
            lanes = torch.arange(self.clusters.lanes)
            counts = torch.zeros_like(lanes).index_add_(0, self.slots // self.clusters.K, self.count)
            slotted["body"] = Slotted(lanes, {f"change/{name}": value for name, value in self.body.items()}, counts)
        everybody = bool(self.accepted.all())
        return Reply(
            clients=shard.ids if everybody else tuple(c for c, ok in zip(shard.ids, self.accepted, strict=True) if ok),
            sums={"loss": self.loss, "samples": self.samples},
            slotted=slotted,
            rows={"cluster": self.cluster[accepted]},
            rejected=() if everybody else tuple(c for c, ok in zip(shard.ids, self.accepted, strict=True) if not ok),
        )
