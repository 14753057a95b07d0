"""Diagnostics of linear models that are computed only when they are asked for: intervals, guides and posteriors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.federation import Federation
from coterie.core.shard import Positions
from coterie.evaluate.regression import memberships, regression_report
from coterie.learners.linear import Linear
from coterie.learners.local_training import LocalTraining
from coterie.training.divergence import overflow_refused

MOST_PRODUCTS = 2 * 10**10
"""Samples times squared coefficients up to which the coefficients' intervals are computed; a second or two."""


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """A finished run of linear models in memory, from which diagnostics can be computed; each is computed once.

    Confidence intervals need sums over the data of the clients, which are asked for them.
    """

    federation: Federation
    learner: Linear
    clusters: Clusters
    own: Tensor
    """(m,) the final cluster of each client, or -1."""
    positions: Positions = field(kw_only=True)
    """Clients that answered."""
    training_losses: npt.NDArray[np.float64] | None = field(kw_only=True)
    """(answered, K) mean training losses; None if clients do not choose their cluster by them."""
    round: int = field(kw_only=True)
    """Number of the last round."""
    lr: float | None = field(kw_only=True)
    """Learning rate of the last round; None for a method without rounds."""
    work: LocalTraining = field(kw_only=True)
    feature_names: Sequence[str] | None = field(kw_only=True)
    may_ask: bool = field(kw_only=True)
    """Whether clients may be asked for sums: neither in a private run nor where each has a model of its own."""

    @cached_property
    def coefficients(self) -> dict[str, Any] | None:
        """Coefficients with intervals and the guides of the theory; None where there are none or they cost too much."""
        if not self.may_ask:
            return None
        if int(self.federation.sizes.sum()) * self.learner.coefficients**2 > MOST_PRODUCTS:
            warnings.warn("intervals of the coefficients are left out: with so much data they take long", stacklevel=3)
            return None
        with torch.no_grad(), overflow_refused():
            return regression_report(
                self.federation,
                self.learner,
                self.clusters,
                self.own,
                round_=self.round,
                lr=self.lr,
                steps=self.work.full_batch_steps,
                prox=self.work.implicit,
                names=self.feature_names,
            )

    @cached_property
    def posterior(self) -> npt.NDArray[np.float64] | None:
        """(answered, K) the probability of each cluster for each client; None if clients do not choose."""
        if self.training_losses is None:
            return None
        sizes, own = self.federation.sizes[self.positions], self.own.numpy()[self.positions]
        return memberships(self.training_losses, sizes, own, self.learner)
