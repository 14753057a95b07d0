"""Hessian and gradient of a generalised linear model for each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.client.group import ClientGroup
from coterie.client.regression import Fitted, expected_by_cluster, sums_by_cluster
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Spec, parameter_count
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("regression-moments")
@dataclass(frozen=True)
class RegressionMoments(Task):
    """Hessian and gradient of the loss of each cluster's model.

    Slotted sums: `gram` (q p, q p), the Hessian of the loss; `score` (q p,), its negative gradient; `loss`; `samples`.
    For least squares, the first three are X^T X, X^T r and half the residual sum of squares.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        return sums_by_cluster(clients.learner, clients.train, broadcast, _moments)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        size = parameter_count(broadcast.clusters.params)
        arrays = {
            "gram": Spec((size, size), missing="shared"),
            "score": Spec((size,), missing="shared"),
            "loss": Spec((), low=0, missing="shared"),
        }
        return expected_by_cluster(broadcast, arrays)


def _moments(found: Fitted) -> Params:
    return {"gram": found.hessian(), "score": found.gradient(), "loss": found.loss.sum()}
