"""Facts about a run that the server sends to every node with every task, so that nodes need no set-up per method."""

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
    """The part of a run's settings that every client needs, whatever it is asked."""

    run: str
    """The run's own name: clients keep their state by it, whatever Flower calls a run."""
    learner: str
    """The text that builds the learner."""
    features: tuple[int, ...]
    """Shape of one sample."""
    classes: int | None
    """C over all clients, who may not have met every class; None for regression."""
    dtype: str
    validation: float | None
    """Which share of its training samples every client holds out."""
    seed: int
    keeps: bool
    """Whether clients keep something for themselves from round to round."""
    tests: bool = True
    """Whether clients look at their test samples, where they have some."""
    table: Schema | None = None
    """How nodes encode their tables; None where they do not have tables, or have encoded them themselves."""

    @property
    def profile(self) -> Profile:
        """Of all clients together."""
        return Profile(self.features, self.classes)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Floating type of the models."""
        return torch_dtype(self.dtype)

    @property
    def model_width(self) -> int | None:
        """Number of parameters of one model; None where only the nodes can build the learner."""
        try:
            model = make_learner(self.learner, self.profile).start([key_for(0, Purpose.START)], torch.float32)
        except CoterieError:
            return None
        return int(flat(model).shape[1])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(replace(self, table=None)), "table": None if self.table is None else self.table.plain()}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Terms:
        """The inverse of `plain`."""
        table = None if plain["table"] is None else Schema.of_plain(plain["table"])
        return cls(**{**plain, "features": tuple(plain["features"]), "table": table})
