"""Mixture assignment: the samples of a client belong to all clusters in part. (FedEM, FedGMM, FedRC)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.interfaces import Objective
from coterie.client.kept import KEPT_SAMPLES, KEPT_WEIGHTS, LEAST, as_vectors, kept_samples, kept_weights
from coterie.client.predictors import Mixture, Predictor
from coterie.client.reply import Assignment
from coterie.client.round import ClientRound, RoundSettings, expected_sums, expected_vectors, expected_weights
from coterie.client.shared_body import evaluate_heads, features_under, train_heads, with_features
from coterie.core.blocks import Block
from coterie.core.clusters import Clusters, Params
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.registry import register
from coterie.core.regroup import Changes
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models
from coterie.learners.deviance import deviance
from coterie.learners.heads import Heads
from coterie.server.aggregate import RoundReplies, changes_of_all
from coterie.tiers.assignment.base import AssignmentRule, best


@dataclass(frozen=True)
class Responsibilities:
    """Responsibilities of the components for the samples of a block's clients."""

    gamma: Tensor
    """Responsibilities of the components, (B, n, R, P)."""
    by_client: Tensor
    """Responsibilities under the client's weights alone, (B, n, R, P); their mean is the client's new weights."""
    shares: Tensor
    """Gamma summed by cluster, (B, n, R, K)."""
    likelihood: Tensor
    """Log-likelihood of each sample under the client's mixture, (B, n, R)."""
    penalty: Tensor | None
    """Mean of (1 - mu) / mu KL(w, w_j) over a client's samples, with its previous weights, (B, R); None if mu is 0."""
    seen: Tensor | None
    """Input of the objective besides the labels."""


@register("em-mixture")
@dataclass(frozen=True)
class EMMixture(AssignmentRule):
    """Each sample belongs to every cluster in part: gamma_jk is proportional to w_k L_k(x_j, y_j); w_k is its mean.

    The client keeps w from round to round. It trains every model, with each sample's loss weighted by gamma. (FedEM)
    With mu > 0 every sample has its own weights w_j = mu gamma_j + (1 - mu) w, which replace w in gamma; w itself is
    computed as if they did not exist. (HCFL+)

    Example:
        >>> import torch
        >>> from coterie.tiers import EMMixture
        >>> cost = torch.tensor([0.0, torch.inf])[None, None, None]  # the second cluster excludes the sample
        >>> gamma, likelihood = EMMixture().client_respond(cost, torch.full((1, 1, 1, 2), 0.5))
        >>> gamma.tolist()
        [[[[1.0, 0.0]]]]
    """

    mu: float = 0.0
    """mu-tilde: with 0, all samples of a client share its weights; with 1, every sample has its own."""
    keeps: ClassVar[bool] = True
    member_of_one: ClassVar[bool] = False
    mixture: ClassVar[bool] = True
    trains_heads: ClassVar[bool] = True
    cluster_row: ClassVar[str] = "the cluster with its largest weight"
    not_private: ClassVar[str] = "weighted updates of all models"

    @property
    def mixes_all(self) -> bool:
        return type(self) is EMMixture and self.mu == 0  # a subclass may do something else

    def client_reveals(self, settings: RoundSettings) -> dict[str, str]:
        rows = super().client_reveals(settings)
        if not settings.send_each:
            return rows
        return rows | {"change": "the updates of the clusters' models", "weights": "its weight of each cluster"}

    def client_respond(self, cost: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return responsibilities gamma (B, n, R, P) and the log-likelihood of each sample, (B, n, R).

        gamma sums to one over P; it is uniform if no cluster explains a sample at all.

        Args:
            cost: -log L, (B, n, R, P).
            weights: Weights of each client, (B, 1, R, P), or of each sample, (B, n, R, P).
        """
        joint = weights.clamp_min(LEAST).log() - cost
        joint = joint.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        likelihood = torch.logsumexp(joint, dim=3, keepdim=True)
        gamma = torch.where(likelihood == -torch.inf, 1 / joint.shape[3], (joint - likelihood).exp_())
        return gamma, likelihood[..., 0]

    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        """Compute the responsibilities under the received models, train every model, and keep the new weights."""
        if work.broadcast.clusters.shared:
            self._train_heads(work, places, block)
        else:
            self._train_models(work, places, block)

    def _train_models(self, work: ClientRound, places: Positions, block: Block) -> None:
        clusters = work.broadcast.clusters
        scored = work.learner.score(clusters.all_models(), block)
        losses = clusters.by_restart(scored.losses)
        found = self._respond(work, places, block, losses)
        own = block.mean(found.shares)
        assignment = Assignment(
            torch.arange(clusters.restarts * clusters.K),
            clusters.all_models(),
            work.first + best(own).cpu(),
            _weighted_loss(block, found, losses),
            scored.memo,
            share=own.flatten(1),
            gamma=found.shares.flatten(2),
            likelihood=block.mean(found.likelihood),
        )
        work.train(places, block, assignment, scored.memo)
        self._finish(work, places, block, found, features_under(work, block, best(own)[:, 0]))

    def _train_heads(self, work: ClientRound, places: Positions, block: Block) -> None:
        """Train all heads together with the shared body; one restart only."""
        clusters, shared = work.broadcast.clusters, evaluate_heads(work, places, block)
        found = self._respond(work, places, block, shared.losses)
        own = block.mean(found.shares)
        loss = _weighted_loss(block, found, shared.losses)
        likelihood = block.mean(found.likelihood)
        assignment = Assignment(torch.arange(clusters.K), {}, best(own).cpu(), loss, likelihood=likelihood)
        work.builder.start(places, block.sizes, assignment)
        body, heads = train_heads(work, shared, shared.heads, block, found.shares[:, :, 0])
        _send_heads(work, places, block, loss, own[:, 0], body, heads)
        self._finish(work, places, block, found, shared.z)

    def _respond(self, work: ClientRound, places: Positions, block: Block, losses: Tensor) -> Responsibilities:
        """Return the responsibilities of every sample, from losses (B, n, R, K) and the clients' kept weights."""
        objective, broadcast = work.settings.objective, work.broadcast
        z = objective.client_see(work.learner, block)
        usual = broadcast.common["loss"][:, None]  # loss of each restart in the previous round
        cost = objective.client_cost(deviance(work.learner, losses, usual), block, z, broadcast.common)
        before = kept_weights(work.kept, places, broadcast, (cost.shape[2], cost.shape[3])).to(cost)
        by_client, likelihood = self.client_respond(cost, before[:, None])
        gamma, penalty = by_client, None
        if self.mu:
            samples = kept_samples(work.kept, places, broadcast, before, block.y.shape[1]).to(cost)
            gamma, likelihood = self.client_respond(cost, samples)
            penalty = block.mean(self.client_penalty(before[:, None], samples))
        shares = objective.client_by_cluster(gamma, broadcast.clusters.K)
        return Responsibilities(gamma, by_client, shares, likelihood, penalty, z)

    def client_penalty(self, weights: Tensor, samples: Tensor) -> Tensor:
        """Return the penalty of each sample in eq. 2 of HCFL+: (1 - mu) / mu times KL(w, w_j).

        Args:
            weights: Weights w of each client, (B, 1, R, P).
            samples: Weights w_j of each sample, (B, n, R, P).
        """
        own, each = weights.double().clamp_min(LEAST), samples.double().clamp_min(LEAST)
        return (1 - self.mu) / self.mu * (own * (own / each).log()).sum(dim=3)

    def _finish(
        self, work: ClientRound, places: Positions, block: Block, found: Responsibilities, features: Tensor | None
    ) -> None:
        """Send counts and weights, and keep the weights; features (B, n, d) if there is a body."""
        objective, builder = work.settings.objective, work.builder
        real = found.gamma if block.mask is None else found.gamma * block.mask[..., None, None]
        builder.count(places, objective.client_counts(real, block, found.seen, work.learner.classes))
        if found.penalty is not None:
            builder.add_sums(places, {"penalty": found.penalty * block.sizes.to(found.penalty)[:, None]})
        own = block.mean(found.by_client).double()
        if work.settings.send_each:
            builder.add_rows(places, {"weights": objective.client_by_cluster(own, work.broadcast.clusters.K)})
        work.summarise(places, block, features)
        rows = {KEPT_WEIGHTS: own}
        if self.mu:  # w_ij = mu gamma_ij + (1 - mu) w_i
            shared = (1 - self.mu) * own[:, None].to(found.gamma.device)
            rows[KEPT_SAMPLES] = self.mu * found.gamma.double() + shared
        work.keep(places, rows)

    def client_predictor(self, objective: Objective, restart: int, restarts: int) -> Predictor:
        return Mixture(objective, restart, restarts)

    def server_expects(self, settings: RoundSettings, clusters: Clusters, run: RunFacts) -> Expected:
        R, K, objective = clusters.restarts, clusters.K, settings.objective
        value = Spec((R,), missing="shared" if R > 1 else "never")
        sums = {"likelihood": value} | ({"penalty": value} if self.mu else {})
        counts = objective.server_expects(R, K, run)
        added, rows = (counts, {}) if objective.summed else ({}, counts)
        if not settings.send_each:
            return Expected({**sums, **added}, {"clusters": expected_sums(clusters)}, rows)
        each = {"change": expected_vectors(clusters, K), "weights": expected_weights(clusters)}
        return Expected({**sums, **added}, rows={**rows, **each})

    def server_changes(self, replies: RoundReplies) -> Changes:
        return changes_of_all(replies, replies.reply.rows["change"])


def _weighted_loss(block: Block, found: Responsibilities, losses: Tensor) -> Tensor:
    """Return the mean loss (B, R) of the clients' mixtures, from losses (B, n, R, K)."""
    return block.mean(torch.where(found.shares > 0, found.shares * losses, 0).sum(dim=3))


def _send_heads(
    work: ClientRound, places: Positions, block: Block, loss: Tensor, own: Tensor, body: Params, heads: Heads
) -> None:
    """Add the updates of the body and of all heads to the reply; those of the heads as rows if the server needs them.

    own (B, K): weights of the clusters; body {name: (B, ...)}; loss (B, 1).
    """
    named = heads.params(with_features(work.learner).head)
    finite = finite_models({n: p[:, None] for n, p in body.items()}) & loss.isfinite()
    finite = finite & finite_models({n: p.flatten(1)[:, None] for n, p in named.items()})
    work.builder.accept(places, torch.zeros(1, dtype=torch.int64), finite.cpu())
    mass = torch.where(finite[:, 0], work.mass(places, block), 0)
    work.builder.add_body(body, mass)
    work.builder.paths.add(work.settings.work.path("heads"))
    if work.settings.send_each:
        work.builder.add_rows(places, {"change": as_vectors(named)})
        return
    held = mass[:, None] * own
    work.builder.add_heads(named, held if work.settings.by_share else mass[:, None].expand(held.shape), held)
