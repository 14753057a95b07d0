"""The middle matrices of sandwich estimators by cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.regression import expected_by_cluster, sums_by_cluster
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Spec, parameter_count
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.linear import as_linear


@register("regression-meats")
@dataclass(frozen=True)
class RegressionMeats(Task):
    """Slotted by own cluster, the middle matrices of two sandwich estimators and the residual sum of squares.

    by_client: sum over clients of (X^T r)(X^T r)^T, (p, p), where clients are the independent units. by_sample: sum
    over samples of r^2 x x^T, (p, p), where samples are. rss: sum of r^2. And samples.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        return sums_by_cluster(as_linear(clients.learner), clients.train, broadcast, _meats)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        square = Spec((parameter_count(broadcast.clusters.params),) * 2, missing="shared")
        rss = Spec((), low=0, missing="shared")
        return expected_by_cluster(broadcast, {"by_client": square, "by_sample": square, "rss": rss})


def _meats(phi: Tensor, residual: Tensor) -> Params:
    weighted = phi * residual[..., None]
    each, every = weighted.sum(dim=1), weighted.flatten(0, 1)
    return {"by_client": each.T @ each, "by_sample": every.T @ every, "rss": (residual**2).sum()}
