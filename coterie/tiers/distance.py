"""Tier 4: the distance between two clients. The base class is in `client/interfaces.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.client.interfaces import Distance as Distance
from coterie.client.interfaces import Floats, Needs
from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.expected import RunFacts, Spec, Specs
from coterie.core.registry import register

NO_DIRECTION = 1e-12
"""Eigenvalues of a Gram matrix below this share of the largest are rounding errors with arbitrary directions."""


@register("update-cosine")
@dataclass(frozen=True)
class UpdateCosine(Distance):
    """1 - cos of two clients' updates. (CFL)

    Example:
        >>> import torch
        >>> from coterie.tiers import UpdateCosine
        >>> UpdateCosine().server_pairwise({"own_change": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """

    needs: ClassVar[Needs] = "updates"
    reveals: ClassVar[dict[str, str]] = {"change": "the update of the models it trained"}

    def server_pairwise(self, rows: Params) -> Floats:
        return cosine_distances(rows["own_change"])


@register("prototypes")
@dataclass(frozen=True)
class Prototypes(Distance):
    """1 - cos of two clients' mean features of a class, the largest over their common classes. (HCFL+)

    Under `cscp` nothing else counts: clients are far apart if p(y|x) differs. Under `ascp` the mean feature of all
    samples also counts, so that any distribution shift separates clients.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import Prototypes
        >>> Tiered(distance=Prototypes("ascp")).tiers().distance.principle
        'ascp'
    """

    principle: Literal["cscp", "ascp"] = "cscp"
    reduce: Literal["max", "mean"] = "max"
    """How the distances of the common classes are combined."""
    weighted: bool = True
    per_class: ClassVar[bool] = True
    needs: ClassVar[Needs] = "features"
    reveals: ClassVar[dict[str, str]] = {
        "prototypes": "the mean feature of each of its classes",
        "class_counts": "how many samples of each class it has",
        "mean_feature": "the mean feature of all its samples",
    }

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        assert features is not None, "checked when the method is built"
        z = features.double()
        one_hot = one_hot_labels(block, classes)
        counts = one_hot.sum(dim=1)
        sums = one_hot.transpose(1, 2) @ z
        means = sums / counts.clamp_min(1)[..., None]
        return {
            "prototypes": means,
            "class_counts": counts,
            "mean_feature": sums.sum(dim=1) / counts.sum(dim=1)[:, None],
        }

    def server_expects(self, run: RunFacts) -> Specs:
        return {
            "prototypes": Spec((run.classes, None)),
            "class_counts": Spec((run.classes,), low=0, total="samples"),
            "mean_feature": Spec((None,)),
        }

    def server_pairwise(self, rows: Params) -> Floats:
        means, counts = rows["prototypes"], rows["class_counts"]  # (a, C, d), (a, C)
        unit = torch.nn.functional.normalize(means, dim=2)
        by_class = 1 - torch.einsum("acd,bcd->abc", unit, unit)
        both = (counts[:, None] > 0) & (counts[None] > 0)
        if self.reduce == "max":
            distances = torch.where(both, by_class, 0).amax(dim=2)
        else:
            distances = torch.where(both, by_class, 0).sum(dim=2) / both.sum(dim=2).clamp_min(1)
        found = as_distances(distances)
        if self.principle == "ascp":
            found = np.maximum(found, cosine_distances(rows["mean_feature"]))
        return found


@register("parameters")
@dataclass(frozen=True)
class Parameters(Distance):
    """|W_i - W_j| of two clients' trained parameters: the whole model, or its head if all clusters share the body.

    Members of a cluster start from the same model, so the distance of their updates is that of their parameters. It
    depends on the model, the step size and the local work; thresholds of other distances do not apply.

    Example:
        >>> import torch
        >>> from coterie.tiers import Parameters
        >>> Parameters().server_pairwise({"own_change": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}).tolist()
        [[0.0, 5.0], [5.0, 0.0]]
    """

    needs: ClassVar[Needs] = "updates"
    reveals: ClassVar[dict[str, str]] = {
        "change": "the update of the models it trained, and so its model, since the server knows the initial one"
    }

    def server_pairwise(self, rows: Params) -> Floats:
        vectors = rows["own_change"].double()
        return as_distances(torch.cdist(vectors, vectors), np.inf)


@register("feature-norm")
@dataclass(frozen=True)
class FeatureNorm(Distance):
    """Difference of the lengths of two clients' mean features under the body that all clusters share.

    A length shows how strongly features respond but not their direction, so clients whose classes are swapped are at
    distance zero.

    Example:
        >>> import torch
        >>> from coterie.tiers import FeatureNorm
        >>> FeatureNorm().server_pairwise({"feature_norm": torch.tensor([[5.0], [1.0]])}).tolist()
        [[0.0, 4.0], [4.0, 0.0]]
    """

    weighted: bool = True
    needs: ClassVar[Needs] = "features"
    reveals: ClassVar[dict[str, str]] = {"feature_norm": "the length of the mean feature of all its samples"}

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Return the row `feature_norm`, (B, 1)."""
        assert features is not None, "checked when the method is built"
        return {"feature_norm": block.mean(features).double().norm(dim=1, keepdim=True)}

    def server_expects(self, run: RunFacts) -> Specs:
        return {"feature_norm": Spec((1,), low=0)}

    def server_pairwise(self, rows: Params) -> Floats:
        lengths = rows["feature_norm"]  # (a, 1)
        return as_distances((lengths - lengths.T).abs(), np.inf)


@register("label-histogram")
@dataclass(frozen=True)
class LabelHistogram(Distance):
    """Total variation of two clients' class shares, sum_c |p_c - q_c| / 2; it compares p(y) only.

    This is the part of one client's labels that would have to change to make the shares equal. It is 1 if no class is
    common, and linear in the shares. The Hellinger distance takes square roots of the shares and would overweight a
    rare class that one of two small clients lacks by chance.

    Example:
        >>> import torch
        >>> from coterie.tiers import LabelHistogram
        >>> LabelHistogram().server_pairwise({"class_counts": torch.tensor([[2.0, 2.0], [4.0, 0.0]])}).tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """

    weighted: bool = True
    needs: ClassVar[Needs] = "labels"
    reveals: ClassVar[dict[str, str]] = {"class_counts": "how many samples of each class it has"}

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Return the row `class_counts`, (B, C)."""
        return {"class_counts": one_hot_labels(block, classes).sum(dim=1)}

    def server_expects(self, run: RunFacts) -> Specs:
        return {"class_counts": Spec((run.classes,), low=0, total="samples")}

    def server_pairwise(self, rows: Params) -> Floats:
        counts = rows["class_counts"]  # (a, C)
        shares = counts / counts.sum(dim=1, keepdim=True)
        return as_distances(torch.cdist(shares, shares, p=1) / 2)


@register("principal-angles")
@dataclass(frozen=True)
class PrincipalAngles(Distance):
    """Angle in degrees between the subspaces that contain most of two clients' samples. (PACFL)

    Only p(x) counts: clients that label the same inputs differently are at distance zero. With `per_class`, `least` is
    the smallest angle over all pairs of classes, which does not see swapped labels either; `sum` compares equal classes
    and does.

    Example:
        >>> from coterie.tiers import PrincipalAngles
        >>> PrincipalAngles(p=3).needs
        'inputs'
    """

    p: int = 3
    """Number of directions of a subspace; fewer if the samples span fewer."""
    per_class: bool = False
    """Whether there is one subspace for each class."""
    angle: Literal["least", "sum"] = "least"
    """The smallest principal angle, or the sum of all; `sum` with `per_class` takes the mean over common classes."""
    needs: ClassVar[Needs] = "inputs"
    reveals: ClassVar[dict[str, str]] = {
        "subspace": "the leading directions of its samples (of each class, with per_class): the first is close to "
        "their mean, and the appearance of few samples can be reconstructed"
    }

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Return the row `subspace`: orthonormal columns for each of G parts (one, or the classes), (B, G, d, p)."""
        found = []
        for x, y, size in zip(block.x.flatten(2), block.y, block.sizes.tolist(), strict=True):
            own, labels = x[:size].double(), y[:size]
            parts = [own[labels == c] for c in range(classes or 0)] if self.per_class else [own]
            found.append(torch.stack([leading_directions(part, self.p) for part in parts]))
        return {"subspace": torch.stack(found).to(block.x.dtype)}

    def server_expects(self, run: RunFacts) -> Specs:
        return {"subspace": Spec((None, math.prod(run.features), None), None, low=-1.001, high=1.001)}

    def server_pairwise(self, rows: Params) -> Floats:
        bases = rows["subspace"].double().cpu()  # (a, G, d, p)
        compare = self._least if self.angle == "least" else self._sum
        distances = torch.zeros(len(bases), len(bases), dtype=torch.float64)
        for i in range(len(bases)):  # one client against all later ones, which bounds the memory
            distances[i, i:] = distances[i:, i] = compare(bases[i], bases[i:])
        return as_distances(distances, 90.0 * self.p)

    def _least(self, one: Tensor, others: Tensor) -> Tensor:
        """Return angles (b,) of bases (G, d, p) and (b, G, d, p): the smallest over all pairs of parts."""
        cosines = torch.linalg.svdvals(torch.einsum("gdp,bhdq->bghpq", one, others))
        return degrees(cosines.flatten(1).amax(dim=1))

    def _sum(self, one: Tensor, others: Tensor) -> Tensor:
        """Return angles (b,) of bases (G, d, p) and (b, G, d, p): the sum for each part, averaged over common parts."""
        cosines = torch.linalg.svdvals(torch.einsum("gdp,bgdq->bgpq", one, others))
        ranks = torch.minimum(dimensions(one), dimensions(others))  # (b, G) number of principal angles
        valid = torch.arange(self.p) < ranks[..., None]
        sums = torch.where(valid, degrees(cosines), 0.0).sum(dim=2)
        both = (ranks > 0).sum(dim=1)
        return torch.where(both > 0, sums.sum(dim=1) / both.clamp_min(1), 90.0 * self.p)


@register("cosine-gaps")
@dataclass(frozen=True)
class CosineGaps(Distance):
    """Mean difference of two clients' update cosines with every third client. (FedGroup's MADC)"""

    needs: ClassVar[Needs] = "updates"
    reveals: ClassVar[dict[str, str]] = {"change": "the update of the models it trained"}

    def server_pairwise(self, rows: Params) -> Floats:
        cosines = 1 - torch.from_numpy(cosine_distances(rows["own_change"]))
        # the terms z = i and z = j each add |1 - cos| to the sum over all z
        gaps = torch.cdist(cosines, cosines, p=1) - 2 * (1 - cosines)
        return as_distances(gaps / max(1, len(cosines) - 2))


@register("anchor-cosine")
@dataclass(frozen=True)
class AnchorCosine(Distance):
    """1 - cos of two clients' updates after one epoch on the same frozen model, which each client sends once. (StoCFL)

    Such vectors can be compared across rounds; updates of models that are being trained cannot.

    Example:
        >>> import torch
        >>> from coterie.tiers import AnchorCosine
        >>> AnchorCosine().server_pairwise({"anchor": torch.tensor([[2.0, 0.0], [0.0, 1.0]])}).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """

    needs: ClassVar[Needs] = "anchor"
    reveals: ClassVar[dict[str, str]] = {"anchor": "the update of a frozen model by one epoch, sent once"}

    def server_pairwise(self, rows: Params) -> Floats:
        return cosine_distances(rows["anchor"])


def one_hot_labels(block: Block, classes: int | None) -> Tensor:
    """Return one-hot labels (B, n, C) in float64, zeros for padding."""
    one_hot = torch.nn.functional.one_hot(block.y, classes or 0).double()
    return one_hot if block.mask is None else one_hot * block.mask[..., None]


def decomposed_cosines(updates: Tensor, K: int) -> Tensor:
    """Return the cosines (n, K) of updates (n, P) with their K leading directions, K at most n. (FedGroup's EDC)

    This turns clients into points for k-means. It does not give pairwise distances and so is not a member of the tier.
    """
    directions = leading_directions(updates.double(), K)
    return torch.nn.functional.normalize(updates.double(), dim=1) @ directions


def leading_directions(x: Tensor, p: int) -> Tensor:
    """Return the first p left singular vectors (d, p) of the matrix with columns x (n, d); zeros beyond its rank.

    Uses the smaller Gram matrix, which for images is 2 to 10 times faster than a decomposition of x itself.
    """
    wide = len(x) < x.shape[1]
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)  # ascending
    values, vectors = values.flip(0)[:p], vectors.flip(1)[:, :p]
    vectors = vectors[:, values > NO_DIRECTION * values[:1]]
    found = torch.nn.functional.normalize(x.T @ vectors, dim=0) if wide else vectors
    return torch.nn.functional.pad(found, (0, p - found.shape[1]))


def dimensions(bases: Tensor) -> Tensor:
    """Return the number of nonzero columns of (..., d, p), (...)."""
    return (bases != 0).any(dim=-2).sum(dim=-1)


def degrees(cosines: Tensor) -> Tensor:
    """Return the angles of cosines in degrees; cosines above 1 from rounding count as 1."""
    return torch.rad2deg(torch.arccos(cosines.clamp(0, 1)))


def cosine_distances(vectors: Tensor) -> Floats:
    """Return 1 - cos between rows (a, P); a row of zeros has distance 1 from all others."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return as_distances(1 - unit @ unit.T)


def as_distances(distances: Tensor, most: float = 2.0) -> Floats:
    """Return the matrix made symmetric, within [0, most], with an exact zero diagonal."""
    found: Floats = distances.double().cpu().numpy()
    found = np.clip((found + found.T) / 2, 0, most)
    np.fill_diagonal(found, 0)
    return found
