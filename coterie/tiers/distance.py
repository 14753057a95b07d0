"""Tier 4: how far apart two clients are. Always a distance: symmetric, zero for a client and itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params

Floats = npt.NDArray[np.float64]


class Distance(Protocol):
    """What a client tells for it, and what the server makes of that."""

    name: ClassVar[str]
    needs: ClassVar[Literal["updates", "features", "labels"]]
    """updates: each client's change is sent as a row; features: a body that all clusters share; labels: classes."""
    reveals: ClassVar[dict[str, str]]
    """The rows it needs and what they tell the server about a client."""

    @property
    def weighted(self) -> bool:
        """Whether a distance inside a cluster counts by what the cluster counts for both clients."""
        ...

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Rows {name: (B, ...)}; features (B, n, d) under the body that all clusters share, if they share one."""
        ...

    def server_pairwise(self, rows: Params) -> Floats:
        """Distances (a, a) from the rows of a clients."""
        ...


@dataclass(frozen=True)
class UpdateCosine:
    """1 - cos of what two clients changed. (CFL)"""

    name: ClassVar[str] = "update-cosine"
    needs: ClassVar[Literal["updates", "features", "labels"]] = "updates"
    weighted: ClassVar[bool] = False
    reveals: ClassVar[dict[str, str]] = {"change": "how it changed the models it trained"}

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        return {}

    def server_pairwise(self, rows: Params) -> Floats:
        return apart_by_angle(rows["own_change"])


@dataclass(frozen=True)
class Prototypes:
    """1 - cos of the mean features of a class, the largest over classes that both clients have. (HCFL+)

    Under `cscp` that is all: clients are apart if p(y|x) differs. Under `ascp` the mean feature of all samples counts
    as well, so that any shift sets clients apart.
    """

    principle: Literal["cscp", "ascp"] = "cscp"
    reduce: Literal["max", "mean"] = "max"
    """Over common classes."""
    weighted: bool = True
    name: ClassVar[str] = "prototypes"
    needs: ClassVar[Literal["updates", "features", "labels"]] = "features"
    reveals: ClassVar[dict[str, str]] = {
        "prototypes": "the mean feature of each of its classes",
        "class_counts": "how many samples of each class it has",
        "mean_feature": "the mean feature of all its samples",
    }

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        assert features is not None, "checked when the method is built"
        z = features.double()
        one_hot = torch.nn.functional.one_hot(block.y, classes or 0).double()
        if block.mask is not None:
            one_hot = one_hot * block.mask[..., None]
        counts = one_hot.sum(dim=1)
        sums = one_hot.transpose(1, 2) @ z
        means = sums / counts.clamp_min(1)[..., None]
        return {
            "prototypes": means,
            "class_counts": counts,
            "mean_feature": sums.sum(dim=1) / counts.sum(dim=1)[:, None],
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


def apart_by_angle(vectors: Tensor) -> Floats:
    """1 - cos between rows (a, P); a row of zeros is at 1 from everything."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return cleaned(1 - unit @ unit.T)


def cleaned(apart: Tensor) -> Floats:
    """Symmetric, within [0, 2], with an exact zero diagonal."""
    found: Floats = apart.double().cpu().numpy()
    found = np.clip((found + found.T) / 2, 0, 2)
    np.fill_diagonal(found, 0)
    return found


DISTANCES: dict[str, Callable[..., Distance]] = {m.name: m for m in (UpdateCosine, Prototypes)}
