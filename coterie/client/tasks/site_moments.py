"""Hessian and gradient of a generalised linear model with an intercept for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.baselines import with_intercept
from coterie.client.group import ClientGroup
from coterie.client.regression import Fitted, as_generalised_linear, fitted
from coterie.core.blocks import cut
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("site-moments")
@dataclass(frozen=True)
class SiteMoments(Task):
    """Derivatives of the loss of a model `theta` (p, q) with an `intercept` (q,) for each client, on training samples.

    Sums: `hessian` (q p, q p), `gradient` (q p,), `loss` and `samples`. Rows with the derivatives with respect to the
    client's intercept: `slope` (q,), `bend` (q, q), and `cross` (q, q p), the mixed second derivative with theta.
    """

    rows: bool = True
    """Whether to send rows; models without client intercepts need sums only."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, shard = as_generalised_linear(clients.learner), clients.train
        theta, intercept = broadcast.common["theta"], broadcast.each["intercept"]
        sums: Params = {}
        rows: Params = {}
        for block in cut(shard, shard.hashes, 0):
            problem = with_intercept(learner, block)
            places = torch.from_numpy(block.positions)
            found = fitted(problem, problem.phi @ theta.to(problem.phi) + intercept[places, None].to(problem.phi))
            part = {"hessian": found.hessian(), "gradient": found.gradient(), "loss": found.loss.sum()}
            for name, value in part.items():
                sums[name] = sums[name] + value.cpu() if name in sums else value.cpu()
            for name, value in (_of_intercepts(found, problem.counts) if self.rows else {}).items():
                rows.setdefault(name, value.new_zeros(len(shard), *value.shape[1:]).cpu())[places] = value.cpu()
        sums["samples"] = torch.tensor(float(shard.sizes.sum()), dtype=torch.float64)
        return Reply(clients=shard.ids, sums=sums, rows=rows)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        p, q = broadcast.common["theta"].shape
        sums = {
            "hessian": Spec((q * p, q * p)),
            "gradient": Spec((q * p,)),
            "loss": Spec((), low=0),
            "samples": Spec((), low=0, whole=True, total="samples"),
        }
        rows = {"slope": Spec((q,)), "bend": Spec((q, q)), "cross": Spec((q, q * p))}
        return Expected(sums=sums, rows=rows if self.rows else {})


def _of_intercepts(found: Fitted, counts: Tensor) -> Params:
    """Return the derivatives with respect to the intercept of each client."""
    slope = found.residual.sum(dim=1)
    if found.weight is None:
        return {"slope": slope, "bend": counts[:, None, None], "cross": found.x.sum(dim=1)[:, None]}
    cross = torch.einsum("bnac,bnp->bacp", found.weight, found.x)
    # the last feature is 1, or 0 for padding
    return {"slope": slope, "bend": cross[..., -1], "cross": cross.flatten(2)}
