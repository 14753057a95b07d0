"""Assignment by parameters: a client trains its cluster's model and then joins the cluster of the nearest. (FeSEM)"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.kept import KEPT_CLUSTER, as_rows, kept_clusters
from coterie.client.reply import Assignment, TrainingPass
from coterie.client.round import ClientRound
from coterie.client.shared_body import evaluate_heads, features_under, head_of, train_heads
from coterie.core.blocks import Block
from coterie.core.clusters import Clusters, Params, take_rows
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models, weigh
from coterie.tiers.assignment.base import AssignmentRule, best


@register("nearest-parameters")
@dataclass(frozen=True)
class NearestParameters(AssignmentRule):
    """A client trains its cluster's model, then joins the cluster whose model is nearest to the trained one.

    It keeps its cluster from round to round; in the first round it joins the cluster with the lowest loss. (FeSEM)

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import NearestParameters
        >>> Tiered(assignment=NearestParameters(), clusters=3).tiers().assignment.keeps
        True
    """

    keeps: ClassVar[bool] = True
    trains_heads: ClassVar[bool] = True
    cluster_row: ClassVar[str] = "the cluster it is in"
    not_private: ClassVar[str] = "a cluster that depends on the model they trained"

    def client_first(self, losses: Tensor) -> Tensor:
        """Return the first cluster of each client, (B, R), from mean losses (B, R, K); ties go to the lowest index."""
        return best(-losses)

    def client_nearest(self, squared: Tensor) -> Tensor:
        """Return the cluster of each client, (B, R), from squared distances (B, R, K); ties go to the lowest index."""
        return best(-squared)

    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        """Train the model of the client's cluster and join the nearest cluster."""
        if work.broadcast.clusters.shared:
            self._train_head(work, places, block)
        else:
            self._train_model(work, places, block)

    def _train_model(self, work: ClientRound, places: Positions, block: Block) -> None:
        clusters = work.broadcast.clusters
        losses = clusters.by_restart(block.mean(work.learner.score(clusters.params, block).losses))
        before = self._slot_before(work, places, losses)
        theta = take_rows(clusters.params, before)
        change = work.learner.descend(theta, block, work.settings.work, work.lr)
        trained = {name: p + change[name] for name, p in theta.items()}
        joined = self._join(work, places, block, _at(losses, before - work.first), trained, {})
        work.summarise(places, block, features_under(work, block, joined[:, 0]))

    def _train_head(self, work: ClientRound, places: Positions, block: Block) -> None:
        """Train the head of the client's cluster together with the shared body; one restart only."""
        clusters, shared = work.broadcast.clusters, evaluate_heads(work, places, block)
        losses = block.mean(shared.losses)
        before = self._slot_before(work, places, losses)
        theta = take_rows(clusters.params, before)
        one = torch.ones_like(shared.losses[..., 0, :1])
        body, change = train_heads(work, shared, head_of(shared.learner, theta), block, one)
        moved = change.params(shared.learner.head)
        trained = {name: p + moved[name] for name, p in theta.items()}
        self._join(work, places, block, _at(losses, before), trained, body)
        work.summarise(places, block, shared.z)

    def _slot_before(self, work: ClientRound, places: Positions, losses: Tensor) -> Tensor:
        """Return the slot (B, R) that each client trains: its kept cluster, or the best by mean losses (B, R, K)."""
        return work.first + kept_clusters(work.kept, places, work.broadcast, losses.cpu(), self.client_first)

    def _join(
        self, work: ClientRound, places: Positions, block: Block, loss: Tensor, trained: Params, body: Params
    ) -> Tensor:
        """Join the cluster whose parameters are nearest to the trained ones, and count as one of its members.

        Args:
            work: The round of the whole group.
            places: Positions of the block's clients in the group, (B,).
            block: Samples that the clients trained on.
            loss: Mean loss of each client under the model that it trained, (B, R).
            trained: Trained parameters {name: (B, R, ...)}.
            body: Update of the shared body, {name: (B, ...)}; empty if nothing is shared.

        Returns:
            Slots of the joined clusters, (B, R).
        """
        clusters = work.broadcast.clusters
        after = work.first + self.client_nearest(squared_distances(trained, clusters)).cpu()
        models = take_rows(clusters.params, after)
        moved = {name: value - models[name] for name, value in trained.items()}
        assignment = Assignment(torch.arange(clusters.restarts * clusters.K), clusters.params, after, loss)
        weight = work.weight(places, block, assignment)
        finite = finite_models(moved | {name: p[:, None] for name, p in body.items()})
        weight = torch.where(finite, weight, 0)
        work.builder.start(places, block.sizes, assignment)
        if body:
            work.builder.add_body(body, weight[:, 0])
        restarts = torch.arange(clusters.restarts)
        if work.settings.send_each:
            work.builder.accept(places, restarts, (weight > 0).cpu())
            work.builder.paths.add(work.settings.work.path("by-client"))
            work.builder.add_rows(places, {"change": as_rows(moved, weight)})
        else:
            given = weigh(
                moved, after.to(weight.device), weight, len(assignment.slots), work.settings.work.path("by-client")
            )
            work.builder.add(places, assignment, TrainingPass(restarts, after, weight, weight), given)
        work.keep(places, {KEPT_CLUSTER: after - work.first})
        return after


def _at(losses: Tensor, cluster: Tensor) -> Tensor:
    """Return the mean losses (B, R) of one cluster per client and restart, from mean losses (B, R, K)."""
    return losses.gather(2, cluster[..., None].to(losses.device)).squeeze(2)


def squared_distances(trained: Params, clusters: Clusters) -> Tensor:
    """Return |W_i - c_k|^2 over all of a cluster's own parameters, (B, R, K), of models {name: (B, R, ...)}."""
    columns = []
    for k in range(clusters.K):
        centres = {name: p[k :: clusters.K] for name, p in clusters.params.items()}  # (R, ...)
        parts = [
            ((trained[name] - centres[name]) ** 2).reshape(*trained[name].shape[:2], -1).sum(dim=2) for name in trained
        ]
        columns.append(reduce(torch.add, parts))
    return torch.stack(columns, dim=2)
