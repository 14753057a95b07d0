"""Tier 4: how far apart two clients are. The base class is in `client/interfaces.py`."""

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
"""Eigenvalues of a Gram matrix below this share of the largest are rounding, and their directions arbitrary."""


@register("update-cosine")
@dataclass(frozen=True)
class UpdateCosine(Distance):
    """1 - cos of what two clients changed. (CFL)"""

    needs: ClassVar[Needs] = "updates"
    reveals: ClassVar[dict[str, str]] = {"change": "how it changed the models it trained"}

    def server_pairwise(self, rows: Params) -> Floats:
        return apart_by_angle(rows["own_change"])


@register("prototypes")
@dataclass(frozen=True)
class Prototypes(Distance):
    """1 - cos of the mean features of a class, the largest over classes that both clients have. (HCFL+)

    Under `cscp` that is all: clients are apart if p(y|x) differs. Under `ascp` the mean feature of all samples counts
    as well, so that any shift sets clients apart.
    """

    principle: Literal["cscp", "ascp"] = "cscp"
    reduce: Literal["max", "mean"] = "max"
    """Over common classes."""
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
        one_hot = labels_of(block, classes)
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
            apart = torch.where(both, by_class, 0).amax(dim=2)
        else:
            apart = torch.where(both, by_class, 0).sum(dim=2) / both.sum(dim=2).clamp_min(1)
        found = cleaned(apart)
        if self.principle == "ascp":
            found = np.maximum(found, apart_by_angle(rows["mean_feature"]))
        return found


@register("parameters")
@dataclass(frozen=True)
class Parameters(Distance):
    """|W_i - W_j|, of what two clients have made of the parameters of their cluster: the whole model, or its head where
    all clusters share the body.

    Both began with the same model, so their changes are as far apart as what they are changes of. It is a length that
    depends on the model, the step size and the local work, so that a threshold made for another distance says nothing.
    """

    needs: ClassVar[Needs] = "updates"
    reveals: ClassVar[dict[str, str]] = {
        "change": "how it changed the models it trained, and so its model, since the server knows what it began with"
    }

    def server_pairwise(self, rows: Params) -> Floats:
        vectors = rows["own_change"].double()
        return cleaned(torch.cdist(vectors, vectors), np.inf)


@register("feature-norm")
@dataclass(frozen=True)
class FeatureNorm(Distance):
    """The difference of the lengths of two clients' mean features, under the body that all clusters share.

    Lengths see how strongly features answer and nothing of their direction, so that clients whose classes are swapped
    are in one place.
    """

    weighted: bool = True
    needs: ClassVar[Needs] = "features"
    reveals: ClassVar[dict[str, str]] = {"feature_norm": "the length of the mean feature of all its samples"}

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Row `feature_norm`, (B, 1)."""
        assert features is not None, "checked when the method is built"
        return {"feature_norm": block.mean(features).double().norm(dim=1, keepdim=True)}

    def server_expects(self, run: RunFacts) -> Specs:
        return {"feature_norm": Spec((1,), low=0)}

    def server_pairwise(self, rows: Params) -> Floats:
        lengths = rows["feature_norm"]  # (a, 1)
        return cleaned((lengths - lengths.T).abs(), np.inf)


@register("label-histogram")
@dataclass(frozen=True)
class LabelHistogram(Distance):
    """Total variation of two clients' shares of the classes, sum_c |p_c - q_c| / 2: what part of one's labels would
    have to be others for the shares to be equal.

    It is 1 where no class is common, and follows the shares linearly. Hellinger's distance takes their roots, by which
    a rare class that one of two small clients lacks by chance counts for much. Only p(y) is seen.
    """

    weighted: bool = True
    needs: ClassVar[Needs] = "labels"
    reveals: ClassVar[dict[str, str]] = {"class_counts": "how many samples of each class it has"}

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Row `class_counts`, (B, C)."""
        return {"class_counts": labels_of(block, classes).sum(dim=1)}

    def server_expects(self, run: RunFacts) -> Specs:
        return {"class_counts": Spec((run.classes,), low=0, total="samples")}

    def server_pairwise(self, rows: Params) -> Floats:
        counts = rows["class_counts"]  # (a, C)
        shares = counts / counts.sum(dim=1, keepdim=True)
        return cleaned(torch.cdist(shares, shares, p=1) / 2)


@register("principal-angles")
@dataclass(frozen=True)
class PrincipalAngles(Distance):
    """Degrees between the subspaces that hold most of two clients' samples. (PACFL)

    Only p(x) counts: clients that label the same inputs in another way are in one place. Class by class, `least` takes
    the least angle over all pairs of classes, so that a swap of labels is not seen either; `sum` compares like with
    like, and sees it.
    """

    p: int = 3
    """Directions of a subspace; fewer where the samples span fewer."""
    per_class: bool = False
    angle: Literal["least", "sum"] = "least"
    """The least principal angle, or the sum of all; class by class the mean of that over the classes of both."""
    needs: ClassVar[Needs] = "inputs"
    reveals: ClassVar[dict[str, str]] = {
        "subspace": "the leading directions of its samples (of each class, with per_class): the first is nearly their "
        "mean, and what few samples look like can be read off"
    }

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Row `subspace`: orthonormal columns for each of G parts, the classes or one, (B, G, d, p)."""
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
        apart = torch.zeros(len(bases), len(bases), dtype=torch.float64)
        for i in range(len(bases)):  # one client with those after it, which bounds the memory
            apart[i, i:] = apart[i:, i] = compare(bases[i], bases[i:])
        return cleaned(apart, 90.0 * self.p)

    def _least(self, one: Tensor, others: Tensor) -> Tensor:
        """Angles (b,) of bases (G, d, p) and (b, G, d, p): the least over all pairs of parts."""
        cosines = torch.linalg.svdvals(torch.einsum("gdp,bhdq->bghpq", one, others))
        return degrees(cosines.flatten(1).amax(dim=1))

    def _sum(self, one: Tensor, others: Tensor) -> Tensor:
        """Angles (b,) of bases (G, d, p) and (b, G, d, p): summed for each part, and the mean over parts of both."""
        cosines = torch.linalg.svdvals(torch.einsum("gdp,bgdq->bgpq", one, others))
        ranks = torch.minimum(dimensions(one), dimensions(others))  # (b, G): so many angles there are
        there = torch.arange(self.p) < ranks[..., None]
        sums = torch.where(there, degrees(cosines), 0.0).sum(dim=2)
        both = (ranks > 0).sum(dim=1)
        return torch.where(both > 0, sums.sum(dim=1) / both.clamp_min(1), 90.0 * self.p)


@register("cosine-gaps")
@dataclass(frozen=True)
class CosineGaps(Distance):
    """Mean difference of two clients' update cosines with every third client. (FedGroup's MADC)"""

    needs: ClassVar[Needs] = "updates"
    reveals: ClassVar[dict[str, str]] = {"change": "how it changed the models it trained"}

    def server_pairwise(self, rows: Params) -> Floats:
        cosines = 1 - torch.from_numpy(apart_by_angle(rows["own_change"]))
        # z = i and z = j add |1 - cos| each to the sum over all z
        gaps = torch.cdist(cosines, cosines, p=1) - 2 * (1 - cosines)
        return cleaned(gaps / max(1, len(cosines) - 2))


@register("anchor-cosine")
@dataclass(frozen=True)
class AnchorCosine(Distance):
    """1 - cos of what one epoch of two clients makes of the same frozen model, told once. (StoCFL)

    Vectors of different rounds can be compared, which those of models in training cannot.
    """

    needs: ClassVar[Needs] = "anchor"
    reveals: ClassVar[dict[str, str]] = {"anchor": "how one epoch of its own changes a model that nobody trains, once"}

    def server_pairwise(self, rows: Params) -> Floats:
        return apart_by_angle(rows["anchor"])


def labels_of(block: Block, classes: int | None) -> Tensor:
    """(B, n, C) in float64: 1 for the class of each sample, 0 for padding."""
    one_hot = torch.nn.functional.one_hot(block.y, classes or 0).double()
    return one_hot if block.mask is None else one_hot * block.mask[..., None]


def decomposed_cosines(updates: Tensor, K: int) -> Tensor:
    """Cosines (n, K) of updates (n, P) with their K leading directions, K at most n. (FedGroup's EDC)

    Clients become points, which k-means needs and pairwise distances are not; so this is no member of the tier.
    """
    directions = leading_directions(updates.double(), K)
    return torch.nn.functional.normalize(updates.double(), dim=1) @ directions


def leading_directions(x: Tensor, p: int) -> Tensor:
    """The first p left singular vectors of the matrix with columns x (n, d), (d, p); zeros where its rank is less.

    By the smaller Gram matrix, which for images is 2 to 10 times faster than a decomposition of x itself.
    """
    wide = len(x) < x.shape[1]
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)  # ascending
    values, vectors = values.flip(0)[:p], vectors.flip(1)[:, :p]
    vectors = vectors[:, values > NO_DIRECTION * values[:1]]
    found = torch.nn.functional.normalize(x.T @ vectors, dim=0) if wide else vectors
    return torch.nn.functional.pad(found, (0, p - found.shape[1]))


def dimensions(bases: Tensor) -> Tensor:
    """How many columns of (..., d, p) are directions and no zeros, (...)."""
    return (bases != 0).any(dim=-2).sum(dim=-1)


def degrees(cosines: Tensor) -> Tensor:
    """Angles of cosines, those that rounding has put above 1 included."""
    return torch.rad2deg(torch.arccos(cosines.clamp(0, 1)))


def apart_by_angle(vectors: Tensor) -> Floats:
    """1 - cos between rows (a, P); a row of zeros is at 1 from everything."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return cleaned(1 - unit @ unit.T)


def cleaned(apart: Tensor, most: float = 2.0) -> Floats:
    """Symmetric, within [0, most], with an exact zero diagonal."""
    found: Floats = apart.double().cpu().numpy()
    found = np.clip((found + found.T) / 2, 0, most)
    np.fill_diagonal(found, 0)
    return found
