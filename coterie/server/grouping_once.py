"""Groups that are found once, before the first round: by what clients' samples look like, or by their first updates.

(PACFL: Vahidian et al. 2023. FedGroup: Duan et al. 2021)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.tasks.summary import Summary
from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.federation import Federation
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.errors import TrainingError
from coterie.server.before import BEFORE, Cost, ask_everybody
from coterie.server.clustering.agglomerate import Linkage, agglomerate
from coterie.server.clustering.kmeans import kmeans
from coterie.server.one_shot import NOBODY, OneShot, Solver, averages, join_by_loss
from coterie.tiers.distance import CosineGaps, Distance, decomposed_cosines
from coterie.tiers.landmarks import MOST, Floats, drawn, with_the_rest

MOST_HEIGHTS = 10
"""Of the last unions; they show where another limit would cut."""
FOUNDERS_EACH = 20
"""Founders for each group, where nobody says how many there are."""


@dataclass(frozen=True)
class Grouping:
    """Who belongs together."""

    labels: Tensor
    """(m,) the cluster of each client, or `NOBODY`."""
    K: int
    told: dict[str, Any]
    """For the report, ready for JSON."""


def group_by_summaries(
    federation: Federation,
    distance: Distance,
    linkage: Linkage,
    *,
    K: int | None,
    limit: float,
    seed: int,
    most: int = MOST,
) -> Grouping:
    """Agglomerate clients by what they tell of their samples: into K, or while the nearest are at most `limit` apart.

    Of more than `most`, founders alone, or 20 for each of K; the others join the nearest group.
    """
    cost = Cost()
    answered, rows, _ = ask_everybody(federation, Summary(distance), Broadcast(BEFORE, Clusters({}, K=1)), cost)
    if not len(answered):
        raise TrainingError("none of the clients asked about their samples has answered; nothing was changed")
    chosen = _founders(federation, answered, max(most, FOUNDERS_EACH * (K or 0)), seed)
    apart = _apart(distance, rows, chosen)
    found = agglomerate(apart, linkage, K=K, limit=limit)
    founders = [chosen[found.labels == k] for k in range(found.K)]
    parts = with_the_rest(founders, np.arange(len(answered)), lambda places: _apart(distance, rows, places))
    labels = torch.full((len(federation.clients),), NOBODY)
    for k, part in enumerate(parts):
        labels[torch.from_numpy(answered[part])] = k
    told = {
        "by": distance.name,
        "clusters": found.K,
        "answered": len(answered),
        "founders": len(chosen),
        **_spread(apart, found.labels),
        "last_unions": found.heights[-MOST_HEIGHTS:].tolist(),
        **asdict(cost),
    }
    return Grouping(labels, found.K, told)


def _apart(distance: Distance, rows: Params, places: Positions) -> Floats:
    """Distances (n, n) between the clients at n places."""
    at = torch.from_numpy(places)
    return distance.server_pairwise({name: row[at] for name, row in rows.items()})


def _spread(apart: Floats, labels: Positions) -> dict[str, float | None]:
    """The largest distance inside a cluster and the least between two; None where there is no such pair."""
    together = labels[:, None] == labels
    inside, between = apart[together], apart[~together]
    return {
        "widest": float(inside.max()) if len(inside) > len(labels) else None,
        "nearest": float(between.min()) if len(between) else None,
    }


def group_by_updates(
    federation: Federation,
    pretraining: Solver,
    K: int,
    measure: str,
    founders: int | None,
    by_samples: bool,
    seed: int,
) -> OneShot:
    """Everybody pretrains from one model; founders are clustered by their updates, the others join the nearest group.

    measure: edc or madc. A group's model is the mean of its founders' pretrained ones, `by_samples` counting n_i times.
    Clients whose pretraining diverged join by least loss.
    """
    cost, start = Cost(), pretraining.start
    answered, rows, diverged = ask_everybody(federation, pretraining.task(seed), pretraining.broadcast, cost)
    if not len(answered):
        raise _nobody(len(diverged))
    updates = rows["model"].double() - flat(start).double().cpu()
    chosen = torch.from_numpy(
        _founders(federation, answered, FOUNDERS_EACH * K if founders is None else founders, seed)
    )
    found = _clustered(updates[chosen], K, measure, seed)
    mass = torch.from_numpy(federation.sizes[answered]) if by_samples else torch.ones(len(answered))
    means = averages(updates[chosen], found, mass[chosen], K)
    own = nearest_by_cosine(updates, means)
    own[chosen] = found
    labels = torch.full((len(federation.clients),), NOBODY)
    labels[torch.from_numpy(answered)] = own
    models = _moved(start, means)
    if len(diverged):
        labels = join_by_loss(federation, Clusters(models, K), labels, diverged, cost)
    told = {"by": measure, "clusters": K, "answered": len(answered), "founders": len(chosen), "diverged": len(diverged)}
    return OneShot(models, labels, told | asdict(cost))


def _founders(federation: Federation, answered: Positions, count: int, seed: int) -> Positions:
    """Which of those who answered are clustered, ascending: those with the least keys, so that no order matters."""
    return drawn(keys_for_clients(seed, Purpose.CLUSTERING, 0, federation.hashes[answered]), count)


def _clustered(updates: Tensor, K: int, measure: str, seed: int) -> Tensor:
    """Groups (n,) of updates (n, P)."""
    if measure == "madc":
        apart = CosineGaps().server_pairwise({"own_change": updates})
        return torch.from_numpy(agglomerate(apart, "complete", K=K).labels)
    return torch.from_numpy(kmeans(decomposed_cosines(updates, K).numpy(), K, seed).labels)


def nearest_by_cosine(updates: Tensor, means: Tensor) -> Tensor:
    """(n,) of the groups' mean updates (K, P) the one with the largest cosine to each of (n, P)."""
    return (updates @ torch.nn.functional.normalize(means, dim=1).T).argmax(dim=1)


def _moved(start: Params, updates: Tensor) -> Params:
    """Models {name: (K, ...)}: the start {name: (1, ...)} moved by each of (K, P)."""
    changes = unflat(updates, start)
    return {name: (p.double() + changes[name].to(p.device)).to(p.dtype) for name, p in start.items()}


def _nobody(diverged: int) -> TrainingError:
    if diverged:
        return TrainingError(f"pretraining diverged for all {diverged} clients that answered: use a smaller lr")
    return TrainingError("none of the clients asked to pretrain has answered; nothing was changed")
