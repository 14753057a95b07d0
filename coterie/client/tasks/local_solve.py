"""The clients' part of one-shot methods: each solves its own problem once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.solvers import LocalSolver
from coterie.core.blocks import cut
from coterie.core.clusters import flat
from coterie.core.expected import Expected, RunFacts, Spec, parameter_count
from coterie.core.keys import Purpose, Words, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Shard
from coterie.core.task import Task
from coterie.learners.base import Learner


@register("local-solve")
@dataclass(frozen=True)
class LocalSolve(Task):
    """Row `model`: each client's own solution, its arrays one after the other (`flat`), (m, P).

    A client without a solution is rejected. The broadcast holds the common first model, where the solver needs one.
    """

    solver: LocalSolver
    seed: int

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        keys = keys_for_clients(self.seed, Purpose.SOLVE, 0, shard.hashes)
        rows, solved = solutions(self.solver, clients.learner, shard, keys, broadcast)
        if rows is None:
            return Reply(clients=())
        return Reply(clients=shard.ids, rows={"model": rows}).only(solved)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        clusters = broadcast.clusters
        width = parameter_count(clusters.params) + parameter_count(clusters.shared)
        return Expected(rows={"model": Spec((width or run.model_width,), run.torch_dtype)})


def solutions(
    solver: LocalSolver, learner: Learner, shard: Shard, keys: Words, broadcast: Broadcast
) -> tuple[Tensor | None, Tensor]:
    """Return the solution of each client of a shard, (m, P), None without clients, and whether there is one, (m,)."""
    first = broadcast.clusters.all_models() if broadcast.clusters.params else {}
    rows: Tensor | None = None
    solved = torch.zeros(len(shard), dtype=torch.bool)
    for block in cut(shard, keys, broadcast.clusters.slot_bytes):
        models, found = solver.client_solve(learner, block, first, broadcast.scalars.get("lr", 1.0))
        places = torch.from_numpy(block.positions)
        solved[places] = found.cpu()
        vectors = flat(models).to("cpu", shard.x.dtype)
        rows = vectors.new_zeros(len(shard), vectors.shape[1]) if rows is None else rows
        rows[places] = vectors
    return rows, solved
