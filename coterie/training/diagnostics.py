"""Figures about a finished run that are computed on demand: intervals, alternatives, profiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.federation import Federation
from coterie.evaluate.baselines import Baselines, applies, compare_with_alternatives
from coterie.evaluate.clients import Own, Tuning
from coterie.evaluate.groups import Groups, ask_profiles
from coterie.evaluate.regression import Labels, regression_report
from coterie.learners.base import Learner
from coterie.learners.linear import Linear
from coterie.learners.local_training import LocalTraining
from coterie.learners.minimum import GeneralisedLinear
from coterie.training.divergence import overflow_refused

MOST_PRODUCTS = 2 * 10**10
"""Largest product of samples and squared coefficients for intervals of linear models; they take a second or two."""
MOST_REPEATED = 10**9
"""The same limit for computations with several passes: logistic models and alternatives to clusters."""


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """A finished run in memory that computes diagnostics, each at most once.

    Diagnostics need sums over the data of the clients, which are asked for them.
    """

    federation: Federation
    learner: Learner
    clusters: Clusters
    own: Tensor
    """Final cluster of each client, or -1, (m,)."""
    round: int = field(kw_only=True)
    """Number of the last round."""
    lr: float | None = field(kw_only=True)
    """Learning rate of the last round; None for a method without rounds."""
    work: LocalTraining = field(kw_only=True)
    labels: Labels = field(kw_only=True)
    """Names of features and classes, and the scaling of the features."""
    remote: bool = field(kw_only=True)
    """Whether clients are on other machines, so that an exchange takes seconds."""
    may_ask: bool = field(kw_only=True)
    """Whether clients may be asked for sums; not in a private run."""
    shares_models: bool = field(kw_only=True)
    """Whether clients share the models of clusters."""
    tested: Tensor | None = field(kw_only=True)
    """As `own`, with -1 for clients without held-out samples, (m,); None if no client has any."""
    kept: Own | None = field(kw_only=True)
    """State that clients keep and predict with; None if they predict with the model of their cluster."""
    tuning: Tuning | None = field(kw_only=True)
    """Fine-tuning of the models of the clusters by each client; None if it was not asked for."""

    @cached_property
    def coefficients(self) -> dict[str, Any] | None:
        """Coefficients with intervals and theoretical guides; None if there are none or they cost too much."""
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
        """Whether intervals of coefficients are worth their exchanges even if the user does not ask for them.

        Least squares take two exchanges, a logistic model about twelve. Remote clients are asked that often only if the
        features have names, so that the coefficients can be interpreted.
        """
        return not self.remote or isinstance(self.learner, Linear) or self.labels.features is not None

    @cached_property
    def baselines(self) -> Baselines | None:
        """Held-out error compared with alternatives; None if there is none or it costs too much."""
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
                tuning=self.tuning,
            )

    @cached_property
    def groups(self) -> Groups | None:
        """Profiles of the groups; None if clients share no models or features have no names."""
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
