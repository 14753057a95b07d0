"""The number of groups before training: what the clients' solutions show, and whether they can form K groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from coterie.client.tasks.half_solves import HalfSolves
from coterie.client.tasks.half_summaries import HALVES
from coterie.client.tasks.local_solve import LocalSolve
from coterie.core.clusters import flat
from coterie.core.federation import positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.errors import TrainingError
from coterie.methods.exchanges import Cost
from coterie.methods.run import Run
from coterie.server.clustering.partition import places as distinct_points
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


def check_distinct(points: npt.NDArray[np.float64], K: int | None, name: str) -> None:
    """Raise TrainingError if the clients' models or updates, (n, P), are too similar for K groups.

    Args:
        points: One row per client.
        K: Number of clusters; None if the data decides.
        name: Name of the rows in the message, such as `solutions`.
    """
    distinct = len(points) if K is None or K < 2 else distinct_points(points)
    if K is not None and 1 < K <= len(points) and distinct < K:
        raise TrainingError(
            f"the {name} of {len(points)} clients are equal up to rounding ({distinct} distinct), so they do not form "
            f"{K} clusters: if features are constant, leave them out; if they are many orders of magnitude from 1, "
            "training hardly changes a model: standardise them (from_table does); otherwise choose fewer clusters"
        )
