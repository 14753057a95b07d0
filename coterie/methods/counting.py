"""The number of groups, from solutions of halves of the clients' samples, before training."""

from __future__ import annotations

import numpy as np
import torch

from coterie.client.tasks.half_solves import HalfSolves
from coterie.client.tasks.half_summaries import HALVES
from coterie.client.tasks.local_solve import LocalSolve
from coterie.core.clusters import flat
from coterie.core.federation import positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.methods.asking import Cost
from coterie.methods.run import Run
from coterie.tiers.tree_test import CountedByHalves, count_by_halves


def count_solved(run: Run, task: LocalSolve, broadcast: Broadcast, asked: Positions, cost: Cost) -> CountedByHalves:
    """Return the number of groups that these clients show; clients with a single sample are not asked.

    Args:
        run: The run.
        task: The problem that all clients solve, here on halves of their samples.
        broadcast: The same broadcast as for the whole samples.
        asked: Positions of the clients.
        cost: Cost of the exchanges, to which this one is added.
    """
    federation = run.federation
    asked = np.sort(asked[federation.sizes[asked] >= 2])
    if not len(asked):
        return CountedByHalves(1, ())
    reply = cost.count(federation.ask(HalfSolves(task.solver, task.seed), broadcast, asked))
    if not reply.clients:
        return CountedByHalves(1, ())
    start = flat(broadcast.clusters.params).double().cpu() if broadcast.clusters.params else 0.0
    places = positions_of(federation, reply.clients)
    order = np.argsort(federation.hashes[places], kind="stable")  # no other order influences the result
    at = torch.from_numpy(order)
    first, second = ((reply.rows[f"model_{half}"].double().cpu()[at] - start).numpy() for half in HALVES)
    return count_by_halves(first, second, federation.sizes[places[order]].astype(np.float64))
