"""Figures about a finished run that are computed only when they are asked for: intervals, alternatives, profiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.federation import Federation
from coterie.evaluate.baselines import Baselines, applies, compare_with_alternatives
from coterie.evaluate.clients import Own
from coterie.evaluate.groups import Groups, ask_profiles
from coterie.evaluate.regression import Labels, regression_report
from coterie.learners.base import Learner
from coterie.learners.linear import Linear
from coterie.learners.local_training import LocalTraining
from coterie.learners.minimum import GeneralisedLinear
from coterie.training.divergence import overflow_refused

MOST_PRODUCTS = 2 * 10**10
"""Samples times squared coefficients up to which the coefficients' intervals are computed; a second or two."""
MOST_REPEATED = 10**9
"""The same for what takes several passes over the samples: logistic models and the alternatives to clusters."""


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """A finished run in memory, from which diagnostics can be computed; each is computed once.

    They need sums over the data of the clients, which are asked for them.
    """

    federation: Federation
    learner: Learner
    clusters: Clusters
    own: Tensor
    """(m,) the final cluster of each client, or -1."""
    round: int = field(kw_only=True)
    """Number of the last round."""
    lr: float | None = field(kw_only=True)
    """Learning rate of the last round; None for a method without rounds."""
    work: LocalTraining = field(kw_only=True)
    labels: Labels = field(kw_only=True)
    """Names of features and classes, and the scaling of the features."""
    remote: bool = field(kw_only=True)
    """Whether clients live on other machines, where an exchange takes seconds."""
    may_ask: bool = field(kw_only=True)
    """Whether clients may be asked for sums: not in a private run."""
    shares_models: bool = field(kw_only=True)
    """Whether clients share the models of clusters."""
    tested: Tensor | None = field(kw_only=True)
    """(m,) as `own`, with -1 for clients without held-out samples; None if nobody has any."""
    kept: Own | None = field(kw_only=True)
    """What clients keep and predict with; None: they predict with the model of their cluster."""

    @cached_property
    def coefficients(self) -> dict[str, Any] | None:
        """Coefficients with intervals and the guides of the theory; None where there are none or they cost too much."""
        if not self.may_ask or not self.shares_models or not isinstance(self.learner, GeneralisedLinear):
            return None
        if self._products > (MOST_PRODUCTS if isinstance(self.learner, Linear) else MOST_REPEATED):
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
                labels=self.labels,
            )

    @property
    def affords_coefficients(self) -> bool:
        """Whether intervals of coefficients are worth their exchanges without being asked for.

        Least squares take two exchanges, a logistic model a dozen. Remote clients are asked so often only if the
        features have names, so that somebody will read the coefficients.
        """
        return not self.remote or isinstance(self.learner, Linear) or self.labels.features is not None

    @cached_property
    def baselines(self) -> Baselines | None:
        """The held-out error beside that of alternatives; None where there is none or it costs too much."""
        if not self.may_ask or self.tested is None or not applies(self.learner, self.clusters):
            return None
        if self._products > MOST_REPEATED:
            return None
        with torch.no_grad(), overflow_refused():
            return compare_with_alternatives(
                self.federation,
                self.learner,
                self.clusters,
                self.own,
                self.tested,
                round_=self.round,
                by=self.kept,
            )

    @cached_property
    def groups(self) -> Groups | None:
        """Profiles of the groups; None where clients share no models or features have no names."""
        if not self.may_ask or not self.shares_models:
            return None
        with torch.no_grad():
            return ask_profiles(
                self.federation, self.own, self.clusters.K, self.learner.classes, self.labels, self.round
            )

    @property
    def _products(self) -> int:
        """Samples times squared coefficients."""
        assert isinstance(self.learner, GeneralisedLinear)
        _, p, q = self.learner.to_coefficients(self.clusters.all_models()).shape
        return int(self.federation.sizes.sum()) * (p * q) ** 2
