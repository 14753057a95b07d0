"""Base classes of tier members with a client side: objectives and distances.

The members are in `coterie/tiers`. The prefix of a method tells where it runs: `client_` next to the data, `server_` on
the server. A third base class, `ClientAlgorithm`, is in `coterie/client/round.py`.

Shapes: B clients, n samples, R restarts, K clusters, P components. There are K components unless an objective has more;
then component p belongs to cluster p mod K.
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
    """Base class of tier 1: the cost of assigning a sample to a cluster.

    The client converts losses to costs and may send counts. The server stores and combines these counts, and sends the
    result to all clients in the next round. By default, an objective depends on labels only and has one component for
    each cluster.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.tiers import Objective
        >>> from_text(Objective, "conditional")
        Conditional()
    """

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that clients send."""
    models_features: ClassVar[bool] = False
    """Whether clusters also model the distribution of the features, so that newcomers need no labels."""
    reveals: ClassVar[dict[str, str]] = {}
    """Counts that are sent as rows, with the information that each reveals to the server about a client."""
    plain: ClassVar[bool] = False
    """Whether the cost of a sample is its loss, and nothing is counted."""
    summed: ClassVar[bool] = False
    """Whether counts are summed over clients; otherwise the server stores the counts of each client."""

    def client_see(self, learner: Learner, block: Block) -> Tensor | None:
        """Return the representation of the samples on which the objective depends in addition to the labels.

        Args:
            learner: Model family of the run.
            block: Samples of B clients.

        Returns:
            Vectors, (B, n, d), which are the same in every round, or None if the objective depends on labels only.
        """
        return None

    @abstractmethod
    def client_cost(self, losses: Tensor, block: Block, z: Tensor | None, common: Params) -> Tensor:
        """Return the cost of assigning each sample to each component.

        Args:
            losses: Losses -log p_k(y|x) of all models, (B, n, R, K).
            block: Samples of B clients.
            z: Return value of `client_see`.
            common: Arrays that all clients received, {name: (R, ...)}.

        Returns:
            Costs -log L_p, (B, n, R, P); may be the tensor `losses` itself.
        """

    def client_components(self, K: int) -> int:
        """Return the number of components (P)."""
        return K

    def client_by_cluster(self, shares: Tensor, K: int) -> Tensor:
        """Return weights of clusters, (..., K), given weights of components, (..., P)."""
        return shares

    def client_prior(self, weights: Tensor, z: Tensor | None, common: Params, K: int) -> Tensor:
        """Return the weights of the clusters for samples whose labels are unknown.

        Args:
            weights: Weights of the components in one restart, (B, P).
            z: Return value of `client_see` for the samples.
            common: Arrays that all clients received, of the same restart.
            K: Number of clusters.

        Returns:
            Weights (B, K), or (B, n, K) if they depend on the sample.
        """
        return weights

    def client_counts(self, gamma: Tensor, block: Block, z: Tensor | None, classes: int | None) -> Params:
        """Return the counts that clients send to the server.

        Args:
            gamma: Responsibilities, (B, n, R, P), 0 for padding.
            block: Samples of B clients.
            z: Return value of `client_see`.
            classes: Number of classes; None for regression.

        Returns:
            Counts by name, {name: (B, ...)}.
        """
        return {}

    def server_with_seed(self, seed: int) -> Objective:
        """Return the objective with the seed of the run; by default, an objective uses no random numbers."""
        return self

    def server_keep(self, kept: Params, counts: Params, answered: Tensor, clients: int) -> Mapping[str, StateArray]:
        """Return the arrays that the server stores after a round, with declared axes.

        Args:
            kept: Arrays stored after the previous round.
            counts: Counts of the clients that replied, {name: (number of replies, ...)}, or their sums, {name: (...)}.
            answered: Positions of the clients that replied.
            clients: Number of all clients.
        """
        return {}

    def server_combine(self, kept: Params) -> Params:
        """Return the arrays that all clients receive in the next round.

        Args:
            kept: Arrays that the server stores; empty before the first counts.

        Returns:
            Arrays by name, {name: (R, ...)}.
        """
        return {}

    def server_expects(self, restarts: int, K: int, run: RunFacts) -> Specs:
        """Return the expected form of one client's counts by name."""
        return {name: Spec((restarts, None, None)) for name in self.counts}


class Distance(Registered, ABC, family="distance"):
    """Base class of tier 4: a symmetric distance between clients, which is zero between a client and itself.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.tiers import Distance
        >>> from_text(Distance, "label-histogram")
        LabelHistogram(weighted=True)
    """

    needs: ClassVar[Needs]
    """Basis of the distance: `updates`, each client's model change, sent as a row; `features`, computed with a body
    that all clusters share; `labels`, the classes of the samples; `inputs`, the raw samples, which can be compared
    before training; `anchor`, the change of a fixed random model by a client, sent once."""
    reveals: ClassVar[dict[str, str]]
    """Rows that the distance needs, with the information that each reveals to the server about a client."""

    @property
    def round_rows(self) -> dict[str, str]:
        """Rows of `reveals` that clients send in every round, in addition to model changes."""
        sent_once = ("change", "anchor")
        return {name: words for name, words in self.reveals.items() if name not in sent_once}

    @property
    def before_training(self) -> bool:
        """Whether clients are compared before training."""
        return self.needs == "inputs"

    @property
    def weighted(self) -> bool:
        """Whether distances within a cluster are weighted by the cluster's weights of both clients."""
        return False

    def client_summary(self, features: Tensor | None, block: Block, classes: int | None) -> Params:
        """Return additional rows that clients send for the distance.

        Args:
            features: Features computed with the shared body, (B, n, d); None without a shared body.
            block: Samples of B clients.
            classes: Number of classes; None for regression.

        Returns:
            Rows by name, {name: (B, ...)}.
        """
        return {}

    @abstractmethod
    def server_pairwise(self, rows: Params) -> Floats:
        """Return the matrix of distances between clients.

        Args:
            rows: Rows of a clients, {name: (a, ...)}.

        Returns:
            Distances, (a, a).
        """

    def server_expects(self, run: RunFacts) -> Specs:
        """Return the expected form of the rows of `client_summary`."""
        return {name: Spec((None,), None) for name in self.round_rows}
