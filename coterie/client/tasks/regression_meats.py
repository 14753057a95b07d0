"""Middle matrices of sandwich covariance estimators for each cluster."""

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


@register("regression-meats")
@dataclass(frozen=True)
class RegressionMeats(Task):
    """Middle matrices of two sandwich covariance estimators, and the residual sum of squares, for each cluster.

    Let s be the gradient of a sample's log-likelihood, which is r x for least squares. Slotted sums:

    - `by_client` (q p, q p): sum over clients of (sum of s)(sum of s)^T, for independent clients;
    - `by_sample` (q p, q p): sum over samples of s s^T, for independent samples;
    - `rss`: sum of r^2;
    - `samples`: number of samples.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        return sums_by_cluster(clients.learner, clients.train, broadcast, _meats)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        square = Spec((parameter_count(broadcast.clusters.params),) * 2, missing="shared")
        rss = Spec((), low=0, missing="shared")
        return expected_by_cluster(broadcast, {"by_client": square, "by_sample": square, "rss": rss})


def _meats(found: Fitted) -> Params:
    scores = found.scores()
    each, every = scores.sum(dim=1), scores.flatten(0, 1)
    return {"by_client": each.T @ each, "by_sample": every.T @ every, "rss": (found.residual**2).sum()}
