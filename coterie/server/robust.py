"""Robust aggregation within clusters in the presence of attackers."""

from __future__ import annotations

import torch

from coterie.core.clusters import Clusters, unflat
from coterie.core.federation import Note
from coterie.core.messages import Reply, Slotted
from coterie.core.regroup import Changes
from coterie.server.combine import Combine


def robust_sums(combine: Combine, clusters: Clusters, changes: Changes) -> Slotted:
    """Return sums whose means are the robust averages of the changes.

    Changes that are not finite, as in a diverged restart, are ignored.

    Args:
        combine: Robust alternative to the mean.
        clusters: Models that the clients received.
        changes: Changes by single clients.
    """
    count = clusters.restarts * clusters.K
    by_id = torch.tensor(sorted(range(len(changes.clients)), key=lambda i: changes.clients[i]))
    slots, vectors = changes.slots[by_id].flatten(), changes.vectors[by_id].flatten(0, 1)
    finite = vectors.isfinite().all(dim=1)
    total = torch.zeros(count, vectors.shape[1], dtype=vectors.dtype)
    members = torch.bincount(slots[finite], minlength=count)
    for slot in members.nonzero().flatten().tolist():
        total[slot] = members[slot] * combine.server_centre(vectors[finite & (slots == slot)])
    arrays = {f"change/{name}": value for name, value in unflat(total, clusters.params).items()}
    return Slotted(torch.arange(count), arrays | {"mass": members.double()}, members)


def too_few(combine: Combine, clusters: Clusters, reply: Reply) -> tuple[Note, ...]:
    """Return a note for the record if clusters had too few members that replied.

    Args:
        combine: Robust alternative to the mean.
        clusters: Models that the clients received.
        reply: Merged reply of the clients.
    """
    if not combine.robust:
        return ()
    slots = reply.rows["cluster"].cpu() + torch.arange(clusters.restarts) * clusters.K
    members = torch.bincount(slots.flatten(), minlength=clusters.restarts * clusters.K).tolist()
    short = [f"{_named(slot, clusters)} ({count})" for slot, count in enumerate(members) if 0 < count < combine.least]
    if not short:
        return ()
    return (
        Note(
            f"combine={combine.name} needs at least {combine.least} members, so {combine.below} was used for "
            f"{', '.join(short)}"
        ),
    )


def _named(slot: int, clusters: Clusters) -> str:
    restart = f" of restart {slot // clusters.K}" if clusters.restarts > 1 else ""
    return f"cluster {slot % clusters.K}{restart}"
