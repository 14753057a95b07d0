"""Client side of one-shot methods: each client solves its local problem once."""

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
    """Solution of each client's local problem.

    Row: `model` (m, P), the solution as a vector (see `flat`). Clients without a solution are rejected. If the solver
    needs a common initial model, the broadcast contains it.
    """

    solver: LocalSolver
    """Solver of the local problems."""
    seed: int
    """Seed of the run."""

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
    """Solve the local problem of each client of a shard.

    Args:
        solver: Solver of the local problems.
        learner: Model family.
        shard: Training samples of the clients.
        keys: Random key of each client, (m,).
        broadcast: Message with the initial model, if the solver needs one.

    Returns:
        Solutions, (m, P), or None for an empty shard; and whether each client has a solution, (m,).
    """
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
