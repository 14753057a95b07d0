"""Tier 1: how well a cluster explains a sample. The base class is in `client/interfaces.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.interfaces import Objective as Objective
from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.expected import RunFacts, Spec, Specs
from coterie.core.keys import Purpose, generator, key_for
from coterie.core.registry import register
from coterie.core.state_array import Share, StateArray
from coterie.learners.base import Learner, has_features


@register("conditional")
@dataclass(frozen=True)
class Conditional(Objective):
    """L_k = p_k(y|x): a cluster is judged by its predictions alone.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import Conditional, LowestLoss
        >>> Tiered(objective=Conditional(), assignment=LowestLoss(), clusters=4).tiers().K
        4
    """

    plain: ClassVar[bool] = True

    def client_cost(self, losses: Tensor, block: Block, z: Tensor | None, common: Params) -> Tensor:
        return losses


CLASS_FLOOR = 1e-8
"""Lower limit of a class's count in a cluster, before its shares are normalised."""


@register("ratio")
@dataclass(frozen=True)
class Ratio(Objective):
    """L_k = p_k(y|x) / P_k(y), where P_k are the class shares of cluster k.

    A cluster gains nothing from containing much of a class, so that p(y|x) separates clients and not their labels.
    (FedRC)

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import EMMixture, Ratio
        >>> Tiered(objective=Ratio(), assignment=EMMixture(), clusters=3).tiers().objective.counts
        ('labels',)
    """

    counts: ClassVar[tuple[str, ...]] = ("labels",)
    reveals: ClassVar[dict[str, str]] = {
        "labels": "its number of samples of each class in each cluster, which add up to its label counts"
    }

    def client_cost(self, losses: Tensor, block: Block, z: Tensor | None, common: Params) -> Tensor:
        if "label_shares" not in common:  # before the first counts, all classes count as equally frequent
            return losses
        shares = common["label_shares"].to(losses)  # (R, K, C)
        return losses + shares.log().permute(2, 0, 1)[block.y]

    def client_counts(self, gamma: Tensor, block: Block, z: Tensor | None, classes: int | None) -> Params:
        one_hot = torch.nn.functional.one_hot(block.y, classes or 0).to(gamma)
        return {"labels": torch.einsum("bnrk,bnc->brkc", gamma, one_hot)}

    def server_keep(self, kept: Params, counts: Params, answered: Tensor, clients: int) -> Mapping[str, StateArray]:
        """Return the last counts of every client, zeros before its first reply, {name: (m, R, K, C)}."""
        rows = counts["labels"]
        before = kept.get("labels", rows.new_zeros(clients, *rows.shape[1:]))
        table = before.index_copy(0, answered, rows)
        return {"labels": StateArray(table, ("client", "restart", "cluster", None), Share())}

    def server_combine(self, kept: Params) -> Params:
        if not kept:
            return {}
        counts = kept["labels"].sum(dim=0).clamp_min(CLASS_FLOOR)
        return {"label_shares": counts / counts.sum(dim=2, keepdim=True)}

    def server_expects(self, restarts: int, K: int, run: RunFacts) -> Specs:
        return {"labels": Spec((restarts, K, run.classes), None, low=0, total="samples", axes=1)}


VARIANCE_FLOOR = 1e-3
"""Lower limit of a Gaussian's variance, as a share of the variance of all samples."""
FEW_INPUTS, PROJECTED = 64, 32
"""Largest number of inputs that are used directly, and the number of random mixtures of more inputs."""
EMBEDDINGS = ("auto", "inputs", "random", "start")
"""The embeddings of `joint`."""


@register("joint")
@dataclass(frozen=True)
class Joint(Objective):
    """L = N(z(x); mu_a, Sigma_a) p_b(y|x): a cluster also models the distribution of the inputs. (FedGMM)

    z is an embedding that is never trained; the Sigma_a are diagonal. Without `gaussians`, each cluster has one
    Gaussian (a = b); with it, every Gaussian is paired with every model, and the component is p = a K + b.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import EMMixture, Joint
        >>> Tiered(objective=Joint(embedding="inputs"), assignment=EMMixture()).tiers().objective.models_features
        True
    """

    embedding: str = "auto"
    """`inputs`: the features themselves; `random`: 32 random mixtures of them; `start`: the input of the head of the
    first, untrained model, as for pretrained networks; `auto`: inputs if there are few, else random."""
    gaussians: int | None = None
    """Number of Gaussians (G); None for one per cluster."""
    seed: int = 0
    """Seed of the run, so that all clients draw the same embedding."""
    counts: ClassVar[tuple[str, ...]] = ("moments",)
    models_features: ClassVar[bool] = True
    summed: ClassVar[bool] = True

    def server_with_seed(self, seed: int) -> Joint:
        return replace(self, seed=seed)

    def client_see(self, learner: Learner, block: Block) -> Tensor | None:
        return block.recall(f"embedding {self.embedding}", lambda: self.client_embed(learner, block.x))

    def client_components(self, K: int) -> int:
        return K * (self.gaussians or 1)

    def client_by_cluster(self, shares: Tensor, K: int) -> Tensor:
        return shares.reshape(*shares.shape[:-1], -1, K).sum(dim=-2)

    def client_cost(self, losses: Tensor, block: Block, z: Tensor | None, common: Params) -> Tensor:
        assert z is not None
        if self.gaussians is None:
            return losses if "means" not in common else losses - log_density(z, common).to(losses)
        log_densities = (
            self._random_directions(block, z, losses.shape[2]) if "means" not in common else log_density(z, common)
        )
        return (losses[..., None, :] - log_densities[..., None].to(losses)).flatten(3)

    def client_prior(self, weights: Tensor, z: Tensor | None, common: Params, K: int) -> Tensor:
        if "means" not in common:
            return self.client_by_cluster(weights, K)
        assert z is not None
        density = log_density(z, common)[:, :, 0]  # (B, n, G)
        likely = density if self.gaussians is None else density.repeat_interleave(K, dim=-1)
        joint = weights.to(likely).clamp_min(torch.finfo(likely.dtype).tiny).log()[:, None] + likely
        return self.client_by_cluster(torch.softmax(joint, dim=-1), K)

    def client_counts(self, gamma: Tensor, block: Block, z: Tensor | None, classes: int | None) -> Params:
        """Return the sums of gamma, gamma z and gamma z^2 for each Gaussian, (B, R, G, 1 + 2 d)."""
        assert z is not None
        own = gamma if self.gaussians is None else gamma.reshape(*gamma.shape[:-1], self.gaussians, -1).sum(dim=-1)
        z = z.double()
        seen = torch.cat([torch.ones_like(z[..., :1]), z, z**2], dim=-1)
        return {"moments": torch.einsum("bnrg,bnd->brgd", own.double(), seen)}

    def server_keep(self, kept: Params, counts: Params, answered: Tensor, clients: int) -> Mapping[str, StateArray]:
        """Return the moments of this round; a Gaussian without samples keeps its previous moments."""
        new = counts["moments"]
        moments = torch.where(new[..., :1] > 0, new, kept["moments"]) if "moments" in kept else new
        if self.gaussians is None:
            return {"moments": StateArray(moments, ("restart", "cluster", None), Share())}
        return {"moments": StateArray(moments, ("restart", None, None))}

    def server_combine(self, kept: Params) -> Params:
        """Return mu_a and the diagonal of Sigma_a, (R, G, d) each."""
        if not kept:
            return {}
        moments = kept["moments"]
        width = (moments.shape[-1] - 1) // 2
        pooled_moments = moments.sum(dim=1, keepdim=True)
        mean, variance = _gaussian(moments, width)
        pooled_mean, pooled = _gaussian(pooled_moments, width)
        # the lower limit of an input that never varies comes from the other inputs
        floor = VARIANCE_FLOOR * torch.maximum(pooled, VARIANCE_FLOOR * pooled.mean(dim=-1, keepdim=True))
        empty = moments[..., :1] <= 0
        return {
            "means": torch.where(empty, pooled_mean, mean),
            "variances": torch.where(empty, pooled, torch.maximum(variance, floor)).clamp_min(1e-12),
        }

    def _random_directions(self, block: Block, z: Tensor, restarts: int) -> Tensor:
        """Return the log-density (B, n, R, G), 0 or -inf, before there are Gaussians.

        Each sample belongs to the one of G random directions from its client's mean in which it lies. Gaussians that
        start equal would stay equal.
        """
        random = generator(key_for(self.seed, Purpose.EMBEDDING, 1))
        directions = torch.from_numpy(random.standard_normal((restarts, self.gaussians or 1, z.shape[2]))).to(z)
        along = torch.einsum("bnd,rgd->bnrg", z - block.mean(z)[:, None], directions)
        return torch.full_like(along, -torch.inf).scatter(3, along.argmax(dim=3, keepdim=True), 0)

    def client_embed(self, learner: Learner, x: Tensor) -> Tensor:
        """Return z(x), (B, n, ...) to (B, n, d); it is the same on every client."""
        width = x[0, 0].numel()
        if self.embedding == "start":
            assert has_features(learner), "checked when the run is planned"
            first = learner.start([key_for(self.seed, Purpose.START, 0, 0)], x.dtype)
            first = {name: p.to(x.device) for name, p in first.items()}
            return torch.cat([learner.features(first, one[None]) for one in x])
        if self.embedding == "inputs" or (self.embedding == "auto" and width <= FEW_INPUTS):
            return x.flatten(2)
        random = generator(key_for(self.seed, Purpose.EMBEDDING, 0))
        mixing = torch.from_numpy(random.standard_normal((width, PROJECTED)) / width**0.5).to(x)
        return x.flatten(2) @ mixing


def log_density(z: Tensor, common: Params) -> Tensor:
    """Return log N(z; mu_a, Sigma_a), (B, n, R, G), from z (B, n, d) and Gaussians {means, variances: (R, G, d)}."""
    means, variances = common["means"].to(z.device), common["variances"].to(z.device)  # in float64, as all that follows
    precise = 1 / variances
    z = z.double()
    square = torch.einsum("bnd,rgd->bnrg", z**2, precise) - 2 * torch.einsum("bnd,rgd->bnrg", z, means * precise)
    square = square + (means**2 * precise).sum(dim=2)
    return -(square + (2 * torch.pi * variances).log().sum(dim=2)) / 2


def _gaussian(moments: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance from sums of 1, z and z^2, (..., 1 + 2 d)."""
    count = moments[..., :1].clamp_min(torch.finfo(moments.dtype).tiny)
    mean = moments[..., 1 : 1 + width] / count
    return mean, (moments[..., 1 + width :] / count - mean**2).clamp_min(0)
