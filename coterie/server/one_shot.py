"""One round: clients solve their own problems, the server clusters the solutions and averages inside the clusters.

(Armacki, Bajovic, Jakovetic, Kar 2022, algorithm 1)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.solvers import LocalSolver
from coterie.client.tasks.local_solve import LocalSolve
from coterie.client.tasks.score import Score
from coterie.core.clusters import Clusters, Params, unflat
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.errors import TrainingError
from coterie.server.before import BEFORE, Cost, ask_everybody
from coterie.server.clustering.choose import ClusterSettings, cluster_points

NOBODY = -1
"""In `OneShot.labels`: this client has no cluster."""


@dataclass(frozen=True)
class Solver:
    """How clients solve their own problems; for `steps` with the common first model and the step size."""

    method: LocalSolver
    start: Params = field(default_factory=dict)
    lr: float = 1.0

    def task(self, seed: int) -> LocalSolve:
        """Return the task for the clients."""
        return LocalSolve(self.method, seed)

    @property
    def broadcast(self) -> Broadcast:
        scalars = {"lr": self.lr} if self.start else {}
        return Broadcast(BEFORE, Clusters(dict(self.start), K=1), scalars=scalars)


@dataclass(frozen=True)
class OneShot:
    """What came of it."""

    models: Params
    """{name: (K, ...)}."""
    labels: Tensor
    """(m,) the cluster of each client, or `NOBODY`."""
    told: dict[str, Any]
    """For the report, ready for JSON."""


def one_shot(
    federation: Federation,
    solver: Solver,
    like: Params,
    settings: ClusterSettings,
    by_samples: bool,
    seed: int,
    *,
    groups: Tensor | None = None,
    truth: np.ndarray | None = None,
) -> OneShot:
    """Solve, cluster, average. `groups` (m,), where they are given, are taken instead of a clustering.

    like: {name: (1, ...)}, one model of the learner, for shapes and types. by_samples: a client counts n_i times in
    the average, else once. truth: only for lam=oracle13. Clients that have no solution of their own join the cluster
    whose model fits them best; those who never answer have none.
    """
    cost = Cost()
    answered, replies, rejected = ask_everybody(federation, solver.task(seed), solver.broadcast, cost)
    if not len(answered):
        raise _nobody(len(rejected))
    rows = replies["model"]
    at = torch.from_numpy(answered)
    labels = torch.full((len(federation.clients),), NOBODY)
    told: dict[str, Any] = {}
    if groups is None:
        found = cluster_points(rows.double().numpy(), settings, seed, None if truth is None else truth[answered])
        told, labels[at] = found.told, torch.from_numpy(found.labels)
        if (path := (told["convex"] or {}).get("path")) is not None:
            path["clients"] = [federation.clients[i] for i in answered]
    else:
        labels[at] = groups[at]
    K = int(labels.max() if groups is None else groups.max()) + 1
    mass = torch.from_numpy(federation.sizes[answered]) if by_samples else torch.ones(len(answered))
    means = unflat(averages(rows, labels[at], mass, K), like)
    models = {name: p.to(like[name].device, like[name].dtype) for name, p in means.items()}
    if len(rejected) and groups is None:
        labels = join_by_loss(federation, Clusters(models, K), labels, rejected, cost)
    told |= {"solver": solver.method.name, "solved": len(answered), "without_solution": len(rejected), **asdict(cost)}
    return OneShot(models, labels, told)


def averages(rows: Tensor, labels: Tensor, mass: Tensor, K: int) -> Tensor:
    """(m, P) to (K, P), each the weighted mean of its members, in float64; of all, where a given group has nobody."""
    mass = mass.double()
    total = torch.zeros(K, dtype=torch.float64).index_add_(0, labels, mass)
    sums = torch.zeros(K, rows.shape[1], dtype=torch.float64).index_add_(0, labels, rows.double() * mass[:, None])
    everybody = sums.sum(dim=0) / total.sum()
    return torch.where(total[:, None] > 0, sums / total[:, None], everybody)


def join_by_loss(federation: Federation, clusters: Clusters, labels: Tensor, places: Positions, cost: Cost) -> Tensor:
    """The labels with these clients, by least training loss, if they answer."""
    reply = cost.count(federation.ask(Score(), Broadcast(BEFORE, clusters), np.sort(places)))
    joined = labels.clone()
    if reply.clients:
        losses = reply.rows["losses"].nan_to_num(nan=torch.inf)
        joined[torch.from_numpy(positions_of(federation, reply.clients))] = losses.argmin(dim=1)
    return joined


def _nobody(rejected: int) -> TrainingError:
    if rejected:
        return TrainingError(
            f"none of the {rejected} clients that answered has a solution of its own: their loss has no minimum "
            "(logistic regression on labels that a plane separates, or with a class missing), or it diverged; use "
            "learner=logistic:l2=0.01 (with bias=false where classes are missing), or solver=steps with a smaller lr"
        )
    return TrainingError("none of the clients asked to solve their own problem has answered; nothing was changed")
