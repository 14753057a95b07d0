"""Tier 2: how clients are given to clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

Way = Literal["choose", "respond", "move", "personal"]
"""What a client does in a round: choose a cluster (or be told) and train its model; give each sample to all of them in
part and train every model; train its cluster's model and move to the nearest; train a model of its own."""


class AssignmentRule(Protocol):
    """Which cluster each client works on."""

    name: ClassVar[str]
    way: ClassVar[Way]
    assigned: ClassVar[bool]
    """Whether the server says which cluster a client belongs to."""
    keeps: ClassVar[bool]
    """Whether a client keeps something for itself from round to round."""


class Choosing(AssignmentRule, Protocol):
    """One cluster for all of a client's samples, or a share of each."""

    def client_choose(self, scores: Tensor) -> Tensor:
        """The cluster of each client in each restart, (B, R), from its mean scores (B, R, K); ties to the lowest."""
        ...

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        """What each cluster counts for each client, (B, R, K), sums to one over K; None where only the chosen does."""
        ...


class Sharing(AssignmentRule, Protocol):
    """A client has a model of its own, near its mixture of the clusters' models."""

    @property
    def every(self) -> int:
        """Rounds between two times that shares are found."""
        ...

    def client_share(self, losses: Tensor, real: Tensor, before: Tensor) -> Tensor:
        """What each cluster counts for each client, (B, R, K), sums to one over K; ties to the lowest.

        losses: of the samples under the models received, (B, n, R, K); real (B, n) is False for padding; before: what
        the client kept, (B, R, K), equal shares at first.
        """
        ...


class Responding(AssignmentRule, Protocol):
    """Every sample has shares of its own; the client keeps its mean ones."""

    def client_respond(self, cost: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """gamma (B, n, R, P), sums to one over P, and the log-likelihood of each sample under the mixture, (B, n, R).

        cost: -log L, (B, n, R, P). weights: of each client, (B, 1, R, P), or of each sample, (B, n, R, P).
        """
        ...


@dataclass(frozen=True)
class SingleCluster:
    """Everybody is in the one cluster there is."""

    name: ClassVar[str] = "one-cluster"
    way: ClassVar[Way] = "choose"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = False

    def client_choose(self, scores: Tensor) -> Tensor:
        return torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class LowestLoss:
    """A client joins the cluster whose model explains its own training data best (IFCA's j-hat)."""

    name: ClassVar[str] = "hard-by-loss"
    way: ClassVar[Way] = "choose"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = False

    def client_choose(self, scores: Tensor) -> Tensor:
        return best(scores)

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class SoftmaxLoss:
    """lambda_k proportional to exp(score_k / temperature): the mean loss plus that times the negative entropy is least.

    A client trains every model, with lambda_k on its loss. As the temperature falls this becomes `hard-by-loss`.
    """

    temperature: float
    name: ClassVar[str] = "soft-by-loss"
    way: ClassVar[Way] = "choose"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = False

    def client_choose(self, scores: Tensor) -> Tensor:
        return best(scores)

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        known = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        lost = (known == -torch.inf).all(dim=2, keepdim=True)  # fits nowhere: no cluster is any better
        return torch.softmax(torch.where(lost, 0.0, known) / self.temperature, dim=2)


@dataclass(frozen=True)
class NearestParameters:
    """A client trains the model of its cluster, then joins the cluster whose model is nearest to what came out.

    It keeps its cluster from round to round; in the first it is the one of least loss. (FeSEM)
    """

    name: ClassVar[str] = "hard-by-distance"
    way: ClassVar[Way] = "move"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = True

    def client_begin(self, losses: Tensor) -> Tensor:
        """The first cluster of each client and restart, (B, R), from mean losses (B, R, K); ties to the lowest."""
        return best(-losses)

    def client_nearest(self, squared: Tensor) -> Tensor:
        """The cluster of each client in each restart, (B, R), from squared distances (B, R, K); ties to the lowest."""
        return best(-squared)


LEAST = 1e-12
"""What a weight counts at least inside the logarithm: one that has become zero can come back."""


@dataclass(frozen=True)
class EMMixture:
    """Each sample belongs to every cluster a little: gamma_jk proportional to w_k L_k(x_j, y_j); w_k is its mean.

    The client keeps w from round to round. It trains every model, with gamma on each sample's loss. (FedEM)
    With mu every sample keeps weights of its own, w_j = mu gamma_j + (1 - mu) w, which take the place of w in gamma; w
    itself goes by what gamma would be without them. (HCFL+)
    """

    mu: float = 0.0
    """mu-tilde: 0, all of a client's samples share its weights; 1, every sample is on its own."""
    name: ClassVar[str] = "soft-by-em"
    way: ClassVar[Way] = "respond"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = True

    def client_respond(self, cost: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Where no cluster explains a sample at all, all do equally."""
        joint = weights.clamp_min(LEAST).log() - cost
        joint = joint.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        likelihood = torch.logsumexp(joint, dim=3, keepdim=True)
        gamma = torch.where(likelihood == -torch.inf, 1 / joint.shape[3], (joint - likelihood).exp_())
        return gamma, likelihood[..., 0]


@dataclass(frozen=True)
class CountShares:
    """u_k is the share of a client's samples that cluster k's model explains best; it is counted every few rounds.

    The client trains a model of its own, pulled to the mixture of the clusters' models by u; a cluster's model is the
    mean of those models by u. (FedSoft)
    """

    every: int = 1
    """tau: rounds between two counts."""
    least: float = 1e-4
    """sigma: the share of a cluster that explains no sample best, before shares are made to sum to one."""
    name: ClassVar[str] = "soft-by-counts"
    way: ClassVar[Way] = "personal"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = True

    def client_share(self, losses: Tensor, real: Tensor, before: Tensor) -> Tensor:
        """u (B, R, K); what was before does not matter."""
        first = losses.nan_to_num(nan=torch.inf).argmin(dim=3)
        won = torch.nn.functional.one_hot(first, losses.shape[3]).to(losses) * real[..., None, None].to(losses)
        shares = won.sum(dim=1) / real.sum(dim=1).to(losses)[:, None, None]
        shares = torch.where(shares > 0, shares, self.least)
        return shares / shares.sum(dim=2, keepdim=True)


@dataclass(frozen=True)
class PersonalEM:
    """w_k is the mean responsibility of cluster k for a client's samples, as in `soft-by-em`; for all else the client
    does as in `soft-by-counts`: it trains one model of its own, pulled to the mixture by w. (HCFL+ with FedSoft)"""

    every: ClassVar[int] = 1
    name: ClassVar[str] = "personal-by-em"
    way: ClassVar[Way] = "personal"
    assigned: ClassVar[bool] = False
    keeps: ClassVar[bool] = True

    def client_share(self, losses: Tensor, real: Tensor, before: Tensor) -> Tensor:
        """w (B, R, K): one step of EM from the weights before."""
        gamma, _ = EMMixture().client_respond(losses, before[:, None])
        counted = torch.where(real[..., None, None], gamma, 0)
        return counted.sum(dim=1) / real.sum(dim=1).to(losses)[:, None, None]


def best(scores: Tensor) -> Tensor:
    """The cluster of the largest score, ties to the lowest."""
    return scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).argmax(dim=2)


@dataclass(frozen=True)
class Assigned:
    """The server gives each client its cluster and sends it no other model."""

    name: ClassVar[str] = "assigned"
    way: ClassVar[Way] = "choose"
    assigned: ClassVar[bool] = True
    keeps: ClassVar[bool] = False

    def client_choose(self, scores: Tensor) -> Tensor:
        raise AssertionError("an assigned client is told its cluster and never chooses")

    def client_weigh(self, scores: Tensor) -> Tensor | None:
        return None


ASSIGNMENTS: dict[str, Callable[..., AssignmentRule]] = {
    m.name: m
    for m in (SingleCluster, LowestLoss, NearestParameters, SoftmaxLoss, EMMixture, CountShares, PersonalEM, Assigned)
}
