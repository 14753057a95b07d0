"""The abstract bases of the tier members that run next to the data: objectives and distances.

Their members are in `coterie/tiers`. A member's methods start with the side that they run on: `client_` next to the
data, `server_` without it. The third such base, `ClientAlgorithm`, is in `coterie/client/round.py`.

Shapes: B clients, n samples, R restarts, K clusters; P components, K of them unless an objective has more, in which
case the last K-th part of them belongs to each cluster in turn (component p to cluster p mod K).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.expected import RunFacts, Spec, Specs
from coterie.core.registry import Registered
from coterie.core.state_array import StateArray
from coterie.learners.base import Learner

Floats = npt.NDArray[np.float64]
Needs = Literal["updates", "features", "labels", "inputs", "anchor"]


class Objective(Registered, ABC, family="objective"):
    """Tier 1: how badly a cluster explains a sample.

    The client turns losses into costs and may report counts, which the server keeps and combines into what all clients
    receive in the next round. The defaults are those of an objective that looks at labels only and has one component
    per cluster.
    """

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that clients report for it."""
    models_features: ClassVar[bool] = False
    """Whether a cluster also models what its samples look like, so that newcomers need no labels."""
    reveals: ClassVar[dict[str, str]] = {}
    """Counts that are sent as rows, and what each reveals to the server about a client."""
    summed: ClassVar[bool] = False
    """Whether counts are only ever added up; otherwise the server keeps those of every client."""

    def client_see(self, learner: Learner, block: Block) -> Tensor | None:
        """Return what it looks at besides the labels, (B, n, d), the same in every round; None: nothing."""
        return None

    @abstractmethod
    def client_cost(self, losses: Tensor, block: Block, z: Tensor | None, common: Params) -> Tensor:
        """Return -log L_p, (B, n, R, P), from -log p_k(y|x), (B, n, R, K); the same tensor where they agree."""

    def client_components(self, K: int) -> int:
        """Return the number of components P."""
        return K

    def client_by_cluster(self, shares: Tensor, K: int) -> Tensor:
        """Return shares of clusters, (..., K), from shares of components, (..., P)."""
        return shares

    def client_prior(self, weights: Tensor, z: Tensor | None, common: Params, K: int) -> Tensor:
        """Return the weight of each cluster before the label is known: (B, K), or (B, n, K) where z informs it.

        Args:
            weights: Weights of the components, (B, P), of one restart.
            z: What `client_see` returned for the samples to predict for.
            common: What all clients received, of that restart.
            K: Number of clusters.
        """
        return weights

    def client_counts(self, gamma: Tensor, block: Block, z: Tensor | None, classes: int | None) -> Params:
        """Return counts {name: (B, ...)} for the server, from responsibilities (B, n, R, P), 0 for padding."""
        return {}

    def server_with_seed(self, seed: int) -> Objective:
        """Return the objective with the seed of the run, from which it may draw; most draw nothing."""
        return self

    def server_keep(self, kept: Params, counts: Params, answered: Tensor, clients: int) -> Mapping[str, StateArray]:
        """Return the arrays to keep after a round; their declared axes say how they follow a change of the clusters.

        Args:
            kept: What it kept before.
            counts: Counts of those who answered, {name: (answered, ...)}, or their sum, {name: (...)}.
            answered: Positions of the clients that answered.
            clients: Number of all clients.
        """
        return {}

    def server_combine(self, kept: Params) -> Params:
        """Return what all clients receive, {name: (R, ...)}; nothing before the first counts."""
        return {}

    def server_expects(self, restarts: int, K: int, run: RunFacts) -> Specs:
        """Return the form of one client's counts by name."""
        return {name: Spec((restarts, None, None)) for name in self.counts}


class Distance(Registered, ABC, family="distance"):
    """Tier 4: how far apart two clients are. Symmetric, and zero for a client and itself."""

    needs: ClassVar[Needs]
    """What the distance is computed from. updates: each client's change is sent as a row; features: a body that all
    clusters share; labels: classes; inputs: samples as they are, so that clients can be asked before anything is
    trained; anchor: the change that a client makes to a model that nobody trains, sent once."""
    reveals: ClassVar[dict[str, str]]
    """The rows that it needs and what they reveal to the server about a client."""

    @property
    def round_rows(self) -> dict[str, str]:
        """Rows of `reveals` that clients send in a round; the changes are rows of the round anyway."""
        sent_once = ("change", "anchor")
        return {name: words for name, words in self.reveals.items() if name not in sent_once}

    @property
    def before_training(self) -> bool:
        """Whether clients are compared before anything is trained."""
        return self.needs == "inputs"

    @property
    def weighted(self) -> bool:
        """Whether a distance inside a cluster is weighted by the cluster's weights for both clients."""
        return False

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Return rows {name: (B, ...)} that clients send in addition to what they send anyway.

        Args:
            features: Features (B, n, d) under the body that all clusters share; None if they share none.
            block: Samples of B clients.
            classes: Number of classes; None for a regression.
        """
        return {}

    @abstractmethod
    def server_pairwise(self, rows: Params) -> Floats:
        """Return distances (a, a) from the rows of a clients."""

    def server_expects(self, run: RunFacts) -> Specs:
        """Return the form of the rows of `client_summary`; none for changes, which clients send anyway."""
        return {name: Spec((None,), None) for name in self.round_rows}
