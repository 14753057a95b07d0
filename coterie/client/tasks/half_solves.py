"""Solutions of each client's local problem on two halves of its samples, for a test of groups before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.client.group import ClientGroup
from coterie.client.resample import halves
from coterie.client.solvers import LocalSolver
from coterie.client.tasks.half_summaries import HALVES
from coterie.client.tasks.local_solve import solutions
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Spec, parameter_count
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("half-solves")
@dataclass(frozen=True)
class HalfSolves(Task):
    """Solutions of each client's local problem on two random halves of its samples.

    Rows: `model_first` and `model_second` (m, P). A client needs at least two samples; clients without a solution on
    both halves are rejected.
    """

    solver: LocalSolver
    """Solver of the local problems."""
    seed: int
    """Seed of the run."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        rows: Params = {}
        solved = torch.ones(len(clients.train), dtype=torch.bool)
        for which, shard in zip(HALVES, halves(clients.train, self.seed, 0), strict=True):
            keys = keys_for_clients(self.seed, Purpose.SOLVE, 0, shard.hashes)
            found, exists = solutions(self.solver, clients.learner, shard, keys, broadcast)
            if found is not None:
                rows[f"model_{which}"] = found
            solved &= exists
        return Reply(clients=clients.train.ids, rows=rows).only(solved) if rows else Reply(clients=())

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        clusters = broadcast.clusters
        width = parameter_count(clusters.params) + parameter_count(clusters.shared)
        own = Spec((width or run.model_width,), run.torch_dtype)
        return Expected(rows={f"model_{which}": own for which in HALVES})
