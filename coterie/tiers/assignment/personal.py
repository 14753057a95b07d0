"""Personal models: each client trains its own model, pulled towards a mixture of the clusters' models. (FedSoft)"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.interfaces import Objective
from coterie.client.kept import KEPT_MODEL, KEPT_WEIGHTS, as_vectors, kept_models, kept_weights, mixed_models
from coterie.client.predictors import PersonalModel, Predictor
from coterie.client.reply import Assignment
from coterie.client.round import ClientRound, RoundSettings, expected_vectors, expected_weights
from coterie.client.shared_body import evaluate_heads, features_under, head_of, train_heads
from coterie.core.blocks import Block
from coterie.core.client_state import NEVER
from coterie.core.clusters import Clusters, Params, flat
from coterie.core.expected import Expected, RunFacts
from coterie.core.registry import register
from coterie.core.regroup import Changes
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models
from coterie.learners.heads import head_losses
from coterie.server.aggregate import RoundReplies, Update, changes_of_all, update_from_models
from coterie.tiers.assignment.base import AssignmentRule, best
from coterie.tiers.assignment.em_mixture import EMMixture


class PersonalModels(AssignmentRule):
    """Base class of rules by which a client has a personal model near its mixture of the clusters' models.

    The client sends its model and its cluster weights; a cluster's model is the weighted mean of these models.
    """

    keeps: ClassVar[bool] = True
    member_of_one: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    trains_heads: ClassVar[bool] = True
    cluster_row: ClassVar[str] = "the cluster with its largest weight"
    not_private: ClassVar[str] = "personal models"

    def client_reveals(self, settings: RoundSettings) -> dict[str, str]:
        return {
            "cluster": self.cluster_row,
            "weights": "the share of its samples that each cluster explains best",
            "model": "its personal model",
        }

    @property
    def rounds_between(self) -> int:
        """Number of rounds from one computation of the weights to the next."""
        return 1

    @abstractmethod
    def client_share(self, losses: Tensor, real: Tensor, before: Tensor) -> Tensor:
        """Return the weight of each cluster for each client, (B, R, K), which sums to one over K.

        Args:
            losses: Losses of the samples under the received models, (B, n, R, K).
            real: (B, n) False for padding.
            before: The client's kept weights, (B, R, K); equal weights at first.
        """

    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        """Train the personal model, pulled towards the mixture of the client's weights; send and keep both."""
        if work.broadcast.clusters.shared:
            self._train_head(work, places, block)
        else:
            self._train_model(work, places, block)

    def _train_model(self, work: ClientRound, places: Positions, block: Block) -> None:
        clusters = work.broadcast.clusters
        shares = self._shares(
            work, places, block, lambda: clusters.by_restart(work.learner.score(clusters.params, block).losses)
        )
        centre = mixed_models(clusters, shares)
        own = kept_models(work.kept, places, work.accepted(places), centre)
        loss = _mean_losses(work, own, block)
        change = work.learner.descend(own, block, work.settings.work, work.lr, towards=centre)
        trained = {name: p + change[name] for name, p in own.items()}
        _send(work, places, block, shares, loss, trained, {})
        work.summarise(places, block, features_under(work, block, best(shares)[:, 0]))

    def _train_head(self, work: ClientRound, places: Positions, block: Block) -> None:
        """Train a personal head together with the shared body; one restart only."""
        clusters, shared = work.broadcast.clusters, evaluate_heads(work, places, block)
        shares = self._shares(work, places, block, lambda: shared.losses)
        centre = mixed_models(clusters, shares)
        own = kept_models(work.kept, places, work.accepted(places), centre)
        head, towards = head_of(shared.learner, own), head_of(shared.learner, centre)
        losses = head_losses(shared.learner, head, shared.z, block.y)  # (B, n, 1)
        body, change = train_heads(work, shared, head, block, torch.ones_like(losses), towards)
        moved = change.params(shared.learner.head)
        trained = {name: p + moved[name] for name, p in own.items()}
        _send(work, places, block, shares, block.mean(losses), trained, body)
        work.summarise(places, block, shared.z)

    def _shares(self, work: ClientRound, places: Positions, block: Block, losses: Callable[[], Tensor]) -> Tensor:
        """Return the weights (B, R, K): recomputed every few rounds and in a client's first round, otherwise kept.

        `losses` returns the losses of the samples under all received models, (B, n, R, K); it is called only if needed.
        """
        clusters = work.broadcast.clusters
        before = kept_weights(work.kept, places, work.broadcast, (clusters.restarts, clusters.K)).to(block.x)
        new = (work.accepted(places) == NEVER).to(block.x.device)
        due = work.broadcast.round % self.rounds_between == 0
        if not due and not bool(new.any()):
            return before
        real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
        found = self.client_share(losses(), real, before)
        return found if due else torch.where(new[:, None, None], found, before)

    def client_predictor(self, objective: Objective, restart: int, restarts: int) -> Predictor:
        return PersonalModel(restart, restarts)

    def server_expects(self, settings: RoundSettings, clusters: Clusters, run: RunFacts) -> Expected:
        models = expected_vectors(clusters, clusters.restarts)
        return Expected(rows={"model": models, "weights": expected_weights(clusters)})

    def server_changes(self, replies: RoundReplies) -> Changes:
        """Return the differences of the clients' models and every cluster's model, in the form of updates."""
        models = replies.reply.rows["model"]  # (a, 1, P)
        return changes_of_all(replies, models - flat(replies.clusters.params).to(models))

    def server_aggregate(self, replies: RoundReplies) -> Update:
        return update_from_models(replies)


@register("count-shares")
@dataclass(frozen=True)
class CountShares(PersonalModels):
    """u_k is the share of a client's samples that cluster k's model explains best; it is recounted every few rounds.

    The client trains a personal model, pulled towards the mixture of the clusters' models with weights u. A cluster's
    model is the mean of the personal models, weighted by u. (FedSoft)

    Example:
        >>> from coterie.tiers import CountShares
        >>> CountShares(every=2).personal
        True
    """

    every: int = 1
    """tau: number of rounds between two counts."""
    least: float = 1e-4
    """sigma: share of a cluster that explains no sample best, before the shares are normalised."""

    @property
    def rounds_between(self) -> int:
        return self.every

    def client_share(self, losses: Tensor, real: Tensor, before: Tensor) -> Tensor:
        """Return u (B, R, K); it does not depend on earlier weights."""
        first = losses.nan_to_num(nan=torch.inf).argmin(dim=3)
        won = torch.nn.functional.one_hot(first, losses.shape[3]).to(losses) * real[..., None, None].to(losses)
        shares = won.sum(dim=1) / real.sum(dim=1).to(losses)[:, None, None]
        shares = torch.where(shares > 0, shares, self.least)
        return shares / shares.sum(dim=2, keepdim=True)


@register("personal-em")
@dataclass(frozen=True)
class PersonalEM(PersonalModels):
    """w_k is the mean responsibility of cluster k for a client's samples, as in `em-mixture`. (HCFL+ with FedSoft)

    As in `count-shares`, the client trains one personal model, pulled towards the mixture with weights w.

    Example:
        >>> from coterie.tiers import PersonalEM
        >>> PersonalEM().personal
        True
    """

    def client_share(self, losses: Tensor, real: Tensor, before: Tensor) -> Tensor:
        """Return w (B, R, K): one step of EM from the kept weights."""
        gamma, _ = EMMixture().client_respond(losses, before[:, None])
        counted = torch.where(real[..., None, None], gamma, 0)
        return counted.sum(dim=1) / real.sum(dim=1).to(losses)[:, None, None]


def _mean_losses(work: ClientRound, own: Params, block: Block) -> Tensor:
    """Return the mean losses (B, R) of the models {name: (B, R, ...)} from which the clients start."""
    columns = [
        work.learner.losses({name: p[:, r] for name, p in own.items()}, block.x, block.y)
        for r in range(work.broadcast.clusters.restarts)
    ]
    return block.mean(torch.stack(columns, dim=2))


def _send(
    work: ClientRound, places: Positions, block: Block, shares: Tensor, loss: Tensor, trained: Params, body: Params
) -> None:
    """Add the personal models {name: (B, R, ...)} and the weights to the reply as rows, and keep them; loss (B, R).

    `body` is the update of the shared body, {name: (B, ...)}; empty if nothing is shared.
    """
    clusters = work.broadcast.clusters
    assignment = Assignment(torch.arange(clusters.restarts * clusters.K), {}, work.first + best(shares).cpu(), loss)
    finite = finite_models(trained | {name: p[:, None] for name, p in body.items()}) & loss.isfinite()
    work.builder.start(places, block.sizes, assignment)
    work.builder.accept(places, torch.arange(clusters.restarts), finite.cpu())
    work.builder.paths.add(work.settings.work.path("by-client"))
    if body:
        work.builder.add_body(body, torch.where(finite, work.weight(places, block, assignment), 0)[:, 0])
    rows = {KEPT_MODEL: as_vectors(trained), KEPT_WEIGHTS: shares.double()}
    work.builder.add_rows(places, rows)
    work.keep(places, rows)
