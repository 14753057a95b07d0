"""Assignment by loss: a client chooses a cluster by its losses under all models and trains its model. (IFCA)"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.assigned import fixed_assignment
from coterie.client.reply import Assignment
from coterie.client.round import ClientRound
from coterie.core.blocks import Block
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.privacy.client import randomised_choice
from coterie.tiers.assignment.base import AssignmentRule, best


class Choosing(AssignmentRule):
    """Base class of rules by which a client chooses one cluster for all its samples, or a weight for each cluster."""

    @abstractmethod
    def client_choose(self, scores: Tensor) -> Tensor:
        """Return the cluster of each client, (B, R), from its mean scores (B, R, K); ties go to the lowest index."""

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        """Return the weight of each cluster for each client, (B, R, K), which sums to one over K.

        By default it returns None: only the chosen cluster counts.
        """
        return None

    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        """Choose a cluster in each restart and train its model."""
        settings, clusters = work.settings, work.broadcast.clusters
        stepped = settings.work.full_batch_steps is None and settings.privacy is None
        if clusters.K == 1 and (stepped or settings.adds_noise):  # no choice to make, and training computes the loss
            only = torch.arange(clusters.restarts).repeat(len(places), 1)
            assignment = fixed_assignment(work.learner, clusters, only, block, scored=settings.send_each)
        else:
            assignment = self._choose(work, places, scored)
        # the memo is valid only for the samples that were scored
        work.train(places, block, assignment, assignment.memo if scored is block else None)
        work.summarise(places, block)

    def _choose(self, work: ClientRound, places: Positions, block: Block) -> Assignment:
        clusters, objective = work.broadcast.clusters, work.settings.objective
        models = clusters.all_models()
        scored = work.learner.score(models, block)
        losses = clusters.by_restart(scored.losses)
        cost = objective.client_cost(losses, block, objective.client_see(work.learner, block), {})
        table = block.mean(losses)
        ranking = -(table if cost is losses else block.mean(cost))
        chosen, share = self.client_choose(ranking), self.client_weigh(ranking)
        if work.settings.adds_noise:
            chosen = _randomised(work, places, chosen)
        loss = table.gather(2, chosen[..., None]).squeeze(2)
        if share is not None:
            loss = torch.where(share > 0, share * table, 0).sum(dim=2)
            share = share.flatten(1)
        slots = torch.arange(clusters.restarts * clusters.K)
        return Assignment(slots, models, work.first + chosen.cpu(), loss, scored.memo, share)


def _randomised(work: ClientRound, places: Positions, chosen: Tensor) -> Tensor:
    """Return the clusters (B, 1) that clients report and train, randomised for privacy."""
    privacy = work.settings.privacy
    assert privacy is not None
    assert privacy.choice is not None
    uniforms = work.noise.uniforms(work.broadcast.round, work.shard.hashes[places])
    K = work.broadcast.clusters.K
    return randomised_choice(chosen[:, 0].cpu(), K, privacy.choice, uniforms)[:, None].to(chosen.device)


@register("single-cluster")
@dataclass(frozen=True)
class SingleCluster(Choosing):
    """All clients are members of the only cluster.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import SingleCluster
        >>> Tiered(assignment=SingleCluster()).tiers().K
        1
    """

    single: ClassVar[bool] = True
    cluster_row: ClassVar[str] = "always 0"

    @property
    def takes_best(self) -> bool:
        return type(self) is SingleCluster  # a subclass may do something else

    def client_choose(self, scores: Tensor) -> Tensor:
        return torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)


@register("lowest-loss")
@dataclass(frozen=True)
class LowestLoss(Choosing):
    """A client joins the cluster whose model explains its own training data best (IFCA's j-hat).

    Example:
        >>> import torch
        >>> from coterie.tiers import LowestLoss
        >>> scores = torch.tensor([[[-1.0, -0.2, -0.5]]])  # minus the losses of one client in one restart
        >>> LowestLoss().client_choose(scores).tolist()
        [[1]]
    """

    @property
    def takes_best(self) -> bool:
        return type(self) is LowestLoss  # a subclass may do something else

    def client_choose(self, scores: Tensor) -> Tensor:
        return best(scores)


@register("softmax-loss")
@dataclass(frozen=True)
class SoftmaxLoss(Choosing):
    """Weights lambda_k proportional to exp(score_k / temperature), which minimise the mean loss plus an entropy term.

    The term is the negative entropy of lambda times the temperature. A client trains every model, with its loss
    weighted by lambda_k. As the temperature goes to 0, this becomes `lowest-loss`.

    Example:
        >>> import torch
        >>> from coterie.tiers import SoftmaxLoss
        >>> SoftmaxLoss(temperature=1.0).client_weigh(torch.zeros(1, 1, 4)).tolist()
        [[[0.25, 0.25, 0.25, 0.25]]]
    """

    temperature: float
    """Temperature of the softmax; the lower it is, the more the best cluster dominates."""
    member_of_one: ClassVar[bool] = False
    not_private: ClassVar[str] = "weighted updates of all models"

    def client_choose(self, scores: Tensor) -> Tensor:
        return best(scores)

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        known = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        lost = (known == -torch.inf).all(dim=2, keepdim=True)  # no finite score: all clusters are equal
        return torch.softmax(torch.where(lost, 0.0, known) / self.temperature, dim=2)
