"""Facts about a run that the server sends to nodes with every task, so that nodes need no settings for a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from coterie.core.clusters import flat
from coterie.core.dataset import Profile, torch_dtype
from coterie.core.keys import Purpose, key_for
from coterie.core.schema import Schema
from coterie.errors import CoterieError
from coterie.learners import make_learner


@dataclass(frozen=True)
class Terms:
    """Settings of a run that clients need for every task."""

    run: str
    """Name of the run, under which clients store their states; it is independent of Flower's run id."""
    learner: str
    """Text that names the learner and its settings."""
    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int | None
    """Number of classes C over all clients, of which a client may have seen only some; None for a regression."""
    dtype: str
    """Floating-point type of the models."""
    validation: float | None
    """Share of its training samples that every client holds out for validation; None: no validation split."""
    seed: int
    """Seed of the run."""
    keeps: bool
    """Whether clients keep a state from round to round."""
    tests: bool = True
    """Whether clients evaluate models on their test samples, if they have any."""
    table: Schema | None = None
    """Schema that nodes encode their tables by; None if they have no tables, or have encoded them themselves."""

    @property
    def profile(self) -> Profile:
        """Shape of a sample and number of classes over all clients."""
        return Profile(self.features, self.classes)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Floating-point type of the models."""
        return torch_dtype(self.dtype)

    @property
    def model_width(self) -> int | None:
        """Number of parameters of one model; None if only the nodes can build the learner."""
        try:
            model = make_learner(self.learner, self.profile).start([key_for(0, Purpose.START)], torch.float32)
        except CoterieError:
            return None
        return int(flat(model).shape[1])

    def plain(self) -> dict[str, Any]:
        """Return the terms as JSON values."""
        return {**asdict(replace(self, table=None)), "table": None if self.table is None else self.table.plain()}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Terms:
        """Return the terms that `plain` returned."""
        table = None if plain["table"] is None else Schema.of_plain(plain["table"])
        return cls(**{**plain, "features": tuple(plain["features"]), "table": table})
