"""How many groups there are, by solutions of halves of the clients' samples, before anything is trained."""

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
    """Return how many groups these clients show; those with one sample are not asked.

    Args:
        run: The run.
        task: What all clients solve; here they solve it on halves of their samples.
        broadcast: The same as for all of their samples.
        asked: Positions of the clients.
        cost: What the exchanges have cost.
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
    order = np.argsort(federation.hashes[places], kind="stable")  # so that no other order matters
    at = torch.from_numpy(order)
    first, second = ((reply.rows[f"model_{half}"].double().cpu()[at] - start).numpy() for half in HALVES)
    return count_by_halves(first, second, federation.sizes[places[order]].astype(np.float64))
