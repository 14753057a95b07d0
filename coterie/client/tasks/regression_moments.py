"""Cross-products of features and residuals by cluster."""

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


@register("regression-moments")
@dataclass(frozen=True)
class RegressionMoments(Task):
    """Slotted by own cluster: gram, sum of X^T X (p, p), score, sum of X^T r (p,), and samples."""

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        return sums_by_cluster(as_linear(clients.learner), clients.train, broadcast, _moments)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        p = parameter_count(broadcast.clusters.params)
        arrays = {"gram": Spec((p, p), missing="shared"), "score": Spec((p,), missing="shared")}
        return expected_by_cluster(broadcast, arrays)


def _moments(phi: Tensor, residual: Tensor) -> Params:
    x = phi.flatten(0, 1)
    return {"gram": x.T @ x, "score": residual.flatten() @ x}
