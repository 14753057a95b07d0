"""PACFL: clients whose samples lie in similar subspaces are grouped once, then each group trains its model.

(Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin 2023)

paper                  here
U_p of client i        row `subspace`: the first p left singular vectors of its d x n matrix of samples (directions)
A_ij, (2) and (3)      degrees: the smallest principal angle, or the sum (angle), from the singular values of U_i^T U_j
beta                   beta: clusters merge while the nearest are at most that far apart; or clusters is given; by
                       default the tree is cut from its root down by tests on held-out halves (`tiers/tree_test.py`)
HC                     agglomeration by average or complete linkage (linkage)
federated averaging    then: the rounds of a method for one model, separately in every cluster, all from one model

Only p(x) separates groups: differences in how the same inputs are labelled (pure concept shift) are not seen, except by
per_class with angle=sum, which compares each class with itself. Angles grow if clients have few samples, and beta would
have to grow with them. Samples are not centred, so the first direction is close to their mean. The groups do not
change. A newcomer joins by the lowest loss, whereas the paper compares its subspace with stored ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from coterie.client.tasks.half_summaries import HALVES, HalfSummaries
from coterie.client.tasks.summary import Summary
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, positions_of
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.errors import ConfigError, TrainingError
from coterie.learners.base import Learner
from coterie.methods.exchanges import NO_CLUSTER, Cost, ask_all
from coterie.methods.initializers import RandomInit
from coterie.methods.one_shot import InsideClusters
from coterie.methods.run import BEFORE, FirstModels, Initializer, Run
from coterie.options import AUTO, Auto, option
from coterie.server.clustering.agglomerate import agglomerate, merges
from coterie.tiers.distance import Distance, PrincipalAngles
from coterie.tiers.landmarks import MAX_COMPARED, Floats, assign_to_nearest_part, lowest_keys
from coterie.tiers.split_test import SplitTest
from coterie.tiers.tree_test import cut_tree

MOST_HEIGHTS = 10
"""Number of last merge heights that are reported; they show where another limit would cut."""
FOUNDERS_EACH = 20
"""Number of clients per group that are compared with each other, if there are more than `MAX_COMPARED`."""


@register("pacfl")
@dataclass(frozen=True, kw_only=True)
class PACFL(InsideClusters, Initializer):
    """Clients are grouped once by the principal angles between their samples, then each group trains its model.

    A_ij <- principal angles between U_i and U_j; groups <- agglomeration of A; then FedAvg in each group.

    Example:
        >>> import coterie
        >>> from coterie.methods import PACFL
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, PACFL(clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    clusters: int | Auto = option(AUTO, "number of clusters (K); auto: by beta, or by tests if beta is not set", low=1)
    directions: int = option(3, "number of leading singular vectors of its samples that a client sends (p)", low=1)
    per_class: bool = option(False, "whether a client sends singular vectors for each class instead of for all samples")
    angle: Literal["least", "sum"] = option(
        "least", "distance of two clients in degrees: the smallest principal angle, or the sum of all"
    )
    linkage: Literal["average", "complete"] = option(
        "average", "distance of two clusters: the mean or the largest distance of their members"
    )
    beta: float | None = option(
        None,
        "clusters=auto: clusters merge while the nearest are at most this many degrees apart, which depends on the "
        "data; by default tests on held-out halves decide",
        low=0,
    )

    summary: ClassVar[str] = (
        "clients are grouped once by the directions of their samples, then each group trains its model"
    )
    citation: ClassVar[str] = (
        "Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin: Efficient Distribution Similarity Identification in "
        "Clustered Federated Learning via Principal Angles between Client Data Subspaces, 2023"
    )
    twin: ClassVar[str | None] = "fedavg"
    keeps: ClassVar[frozenset[str]] = frozenset({"clusters"})
    finds_count: ClassVar[bool] = True
    reveals_rows: ClassVar[Mapping[str, str]] = {
        **PrincipalAngles.reveals,
        "subspace_first": "the same for a random half of its samples, if tests find the number of clusters",
        "subspace_second": "the same for the other half",
    }

    @property
    def initializer(self) -> Initializer:
        return self

    def check(self, learner: Learner) -> None:
        if self.per_class and learner.classes is None:
            raise ConfigError("per_class needs labels that are classes, but this is a regression: leave it out")

    def first_models(self, run: Run) -> FirstModels:
        """Group the clients; the models of all groups start from FedAvg's initial model."""
        if not run.tiers.assignment.assigned:
            raise ConfigError(
                "init=pacfl finds groups but no models, and clients of this method choose clusters by models: use "
                "method pacfl, or another init"
            )
        K = run.tiers.K
        found = self.group(run, K)
        models = RandomInit().first_models(run.decided(K=found.K))
        return FirstModels(models.params, found.K, found.labels, {"grouping": found.facts})

    def group(self, run: Run, K: int | None, most: int = MAX_COMPARED) -> Grouping:
        """Agglomerate clients by their subspaces, into K groups or while the nearest are at most beta apart.

        If there are more than `most` clients, or 20 per group, only that many are compared; the others join the nearest
        group.

        Raises:
            TrainingError: if no client answers.
        """
        cost, federation = Cost(), run.federation
        distance = PrincipalAngles(self.directions, self.per_class, self.angle)
        empty = Broadcast(BEFORE, Clusters({}, K=1))
        answered, rows, _ = ask_all(federation, Summary(distance), empty, cost)
        if not len(answered):
            raise TrainingError(
                "no client answered the request for its subspace, so nothing was changed: check the clients"
            )
        chosen = founders(federation, answered, max(most, FOUNDERS_EACH * (K or 0)), run.seed)
        distances = _distances(distance, rows, chosen)
        found, heights, tests = self._grouped(run, K, answered, chosen, distances, cost)
        count = int(found.max()) + 1
        parts = assign_to_nearest_part(
            [chosen[found == k] for k in range(count)],
            np.arange(len(answered)),
            lambda places: _distances(distance, rows, places),
        )
        labels = torch.full((len(federation.clients),), NO_CLUSTER)
        for k, part in enumerate(parts):
            labels[torch.from_numpy(answered[part])] = k
        facts = {
            "by": distance.name,
            "clusters": count,
            "answered": len(answered),
            "founders": len(chosen),
            **_spread(distances[np.ix_(found >= 0, found >= 0)], found[found >= 0]),
            "last_unions": heights[-MOST_HEIGHTS:].tolist(),
            "tests": [test.statistic.plain() for test in tests],
            **asdict(cost),
        }
        return Grouping(labels, count, facts)

    def _grouped(
        self, run: Run, K: int | None, answered: Positions, chosen: Positions, distances: Floats, cost: Cost
    ) -> tuple[Positions, Floats, Sequence[SplitTest]]:
        """Return the group of each founder (-1 for those that join later), the heights of all merges, and the tests.

        Args:
            run: The run.
            K: Number of groups; None: by beta, or by tests.
            answered: Positions of the clients that answered.
            chosen: The founders, as indices of `answered`.
            apart: Distances between the founders.
            cost: Cost of the exchanges, to which this one is added.
        """
        if K is not None or self.beta is not None or len(chosen) < 2:
            merged = agglomerate(distances, self.linkage, K=K, limit=np.inf if self.beta is None else self.beta)
            return merged.labels, merged.heights, ()
        federation, distance = run.federation, PrincipalAngles(self.directions, self.per_class, self.angle)
        tried = chosen[federation.sizes[answered[chosen]] >= 2]
        if len(tried) < 2:
            return np.zeros(len(chosen), dtype=np.int64), np.zeros(0), ()
        broadcast = Broadcast(BEFORE, Clusters({}, K=1))
        asked = np.sort(answered[tried])
        reply = cost.count(federation.ask(HalfSummaries(distance, run.seed), broadcast, asked))
        row = {int(position): at for at, position in enumerate(positions_of(federation, reply.clients))}
        tried = np.array([place for place in tried if int(answered[place]) in row], dtype=np.int64)
        if len(tried) < 2:
            return np.zeros(len(chosen), dtype=np.int64), np.zeros(0), ()
        at = torch.tensor([row[int(answered[place])] for place in tried])
        first, second = (reply.rows[f"subspace_{half}"].double()[at] for half in HALVES)
        tree = merges(distance.server_pairwise({"subspace": first}), self.linkage)
        sizes = federation.sizes[answered[tried]].astype(np.float64)
        cut = cut_tree(tree, overlaps(first, first), overlaps(second, first), sizes)
        found = np.full(len(chosen), NO_CLUSTER)
        found[np.isin(chosen, tried)] = cut.labels
        return found, tree[:, 2], cut.tests


@dataclass(frozen=True)
class Grouping:
    """The groups of the clients."""

    labels: torch.Tensor
    """Cluster of each client, or `NO_CLUSTER`, (m,)."""
    K: int
    facts: dict[str, Any]
    """Figures for the report, ready for JSON."""


def founders(federation: Federation, answered: Positions, count: int, seed: int) -> Positions:
    """Return which of the clients that answered are compared, ascending: those with the lowest keys."""
    return lowest_keys(keys_for_clients(seed, Purpose.CLUSTERING, 0, federation.hashes[answered]), count)


def _distances(distance: Distance, rows: Params, places: Positions) -> Floats:
    """Return the distances (n, n) between the clients at n indices."""
    at = torch.from_numpy(places)
    return distance.server_pairwise({name: row[at] for name, row in rows.items()})


def overlaps(one: torch.Tensor, other: torch.Tensor) -> Floats:
    """Return the inner products (a, b) of the projectors onto subspaces (a, G, d, p) and (b, G, d, p).

    These are |U^T V|^2, summed over the G parts.
    """
    rows = [torch.einsum("gdp,bgdq->bgpq", basis, other).pow(2).sum(dim=(1, 2, 3)) for basis in one]
    return np.asarray(torch.stack(rows).numpy())


def _spread(distances: Floats, labels: Positions) -> dict[str, float | None]:
    """Return the largest distance inside a cluster and the smallest between two; None if there is no such pair."""
    together = labels[:, None] == labels
    inside, between = distances[together], distances[~together]
    return {
        "widest": float(inside.max()) if len(inside) > len(labels) else None,
        "nearest": float(between.min()) if len(between) else None,
    }
