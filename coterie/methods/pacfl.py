"""PACFL: clients whose samples lie in like subspaces are grouped once, then each group trains its model.

(Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin 2023)

paper                  here
U_p of client i        row `subspace`: the first p left singular vectors of its d x n matrix of samples (directions)
A_ij, (2) and (3)      degrees: the least principal angle, or the sum (angle), from the singular values of U_i^T U_j
beta                   beta: clusters are united while the nearest are at most that far apart; or clusters is given
HC                     agglomeration by average or complete linkage (linkage)
federated averaging    then: the rounds of a method for one model, in every cluster apart, all from one start

Groups are told apart by p(x) alone: where the same inputs are labelled in another way (pure concept shift) it is blind.
Only per_class with angle=sum, which compares class with class, sees that. Angles grow where clients have few samples,
and beta must grow with them. Samples are taken as they are, so their mean is most of the first direction. The groups
stay; a newcomer joins by least loss, where the paper compares its subspace with those that the server has stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from coterie.client.tasks.summary import Summary
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.errors import ConfigError, TrainingError
from coterie.learners.base import Learner
from coterie.methods.asking import NOBODY, Cost, ask_everybody
from coterie.methods.initializers import RandomInit
from coterie.methods.one_shot import InsideClusters
from coterie.methods.run import BEFORE, FirstModels, Initializer, Run
from coterie.options import AUTO, Auto, option
from coterie.server.clustering.agglomerate import agglomerate
from coterie.tiers.distance import Distance, PrincipalAngles
from coterie.tiers.landmarks import MOST, Floats, drawn, with_the_rest

LEAST_ANGLE = 7.0
"""Default of beta in degrees: clients with digits of one rotation are united at up to 5, those of two from 9 on."""
MOST_HEIGHTS = 10
"""Heights of the last unions that are reported; they show where another limit would cut."""
FOUNDERS_EACH = 20
"""Clients for each group that are compared with each other, where there are more than `MOST`."""


@register("pacfl")
@dataclass(frozen=True, kw_only=True)
class PACFL(InsideClusters, Initializer):
    """Clients are grouped once by the principal angles between their samples, then each group trains its model."""

    clusters: int | Auto = option(AUTO, "number of clusters (K); auto: by beta", low=1)
    directions: int = option(3, "number of leading singular vectors of a client's samples that it sends (p)", low=1)
    per_class: bool = option(False, "singular vectors of the samples of each class, instead of all together")
    angle: Literal["least", "sum"] = option(
        "least", "how far two clients are apart, in degrees: the least principal angle, or the sum of all"
    )
    linkage: Literal["average", "complete"] = option("average", "distance of two clusters: the mean or the largest")
    beta: float | None = option(
        None,
        "clusters=auto: clusters are united while the nearest are at most this many degrees apart; by default 7 for "
        "the least angle, to be given for sums. It depends on the data: see last_unions of a first run",
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
    reveals_rows: ClassVar[Mapping[str, str]] = dict(PrincipalAngles.reveals)

    @property
    def initializer(self) -> Initializer:
        return self

    def check(self, learner: Learner) -> None:
        if self.per_class and learner.classes is None:
            raise ConfigError("per_class needs labels that are classes, but the targets are numbers: leave it out")

    def first_models(self, run: Run) -> FirstModels:
        """Group the clients; the models of all groups start where FedAvg's does."""
        if not run.tiers.assignment.assigned:
            raise ConfigError(
                "init=pacfl finds groups and no models, but clients of this method choose by models: use method pacfl, "
                "or another init"
            )
        K = run.tiers.K
        if self.beta is None and K is None and self.angle == "sum":
            raise ConfigError(
                "angle=sum needs beta, in degrees, or a number of clusters: sums depend on the data too much"
            )
        found = self.group(run, K)
        models = RandomInit().first_models(run.decided(K=found.K))
        return FirstModels(models.params, found.K, found.labels, {"grouping": found.facts})

    def group(self, run: Run, K: int | None, most: int = MOST) -> Grouping:
        """Agglomerate clients by their subspaces: into K, or while the nearest are at most beta apart.

        Of more than `most` clients, or 20 for each of K, only so many are compared; the others join the nearest group.
        """
        cost, federation = Cost(), run.federation
        distance = PrincipalAngles(self.directions, self.per_class, self.angle)
        empty = Broadcast(BEFORE, Clusters({}, K=1))
        answered, rows, _ = ask_everybody(federation, Summary(distance), empty, cost)
        if not len(answered):
            raise TrainingError("none of the clients asked about their samples has answered; nothing was changed")
        chosen = founders(federation, answered, max(most, FOUNDERS_EACH * (K or 0)), run.seed)
        apart = _apart(distance, rows, chosen)
        limit = LEAST_ANGLE if self.beta is None else self.beta
        merged = agglomerate(apart, self.linkage, K=K, limit=limit)
        parts = with_the_rest(
            [chosen[merged.labels == k] for k in range(merged.K)],
            np.arange(len(answered)),
            lambda places: _apart(distance, rows, places),
        )
        labels = torch.full((len(federation.clients),), NOBODY)
        for k, part in enumerate(parts):
            labels[torch.from_numpy(answered[part])] = k
        facts = {
            "by": distance.name,
            "clusters": merged.K,
            "answered": len(answered),
            "founders": len(chosen),
            **_spread(apart, merged.labels),
            "last_unions": merged.heights[-MOST_HEIGHTS:].tolist(),
            **asdict(cost),
        }
        return Grouping(labels, merged.K, facts)


@dataclass(frozen=True)
class Grouping:
    """Which clients belong together."""

    labels: torch.Tensor
    """(m,) the cluster of each client, or `NOBODY`."""
    K: int
    facts: dict[str, Any]
    """For the report, ready for JSON."""


def founders(federation: Federation, answered: Positions, count: int, seed: int) -> Positions:
    """Return which of those who answered are compared, ascending: those with the least keys, so no order matters."""
    return drawn(keys_for_clients(seed, Purpose.CLUSTERING, 0, federation.hashes[answered]), count)


def _apart(distance: Distance, rows: Params, places: Positions) -> Floats:
    """Distances (n, n) between the clients at n places."""
    at = torch.from_numpy(places)
    return distance.server_pairwise({name: row[at] for name, row in rows.items()})


def _spread(apart: Floats, labels: Positions) -> dict[str, float | None]:
    """The largest distance inside a cluster and the least between two; None where there is no such pair."""
    together = labels[:, None] == labels
    inside, between = apart[together], apart[~together]
    return {
        "widest": float(inside.max()) if len(inside) > len(labels) else None,
        "nearest": float(between.min()) if len(between) else None,
    }
