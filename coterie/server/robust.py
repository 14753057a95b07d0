"""Robust means of what the members of a cluster changed: some of them may send anything.

n members, changes v_1 .. v_n in R^P, every client counting once.

median     coordinate by coordinate the middle value; of an even number the mean of the two middle ones
trimmed    coordinate by coordinate the mean of what is left without the g largest and the g smallest values,
           g = ceil(share n), or as many as leave one or two
krum       s(i) = sum of |v_i - v_j|^2 over the n - f - 2 others j nearest to i; v_i with the least s(i), or the mean of
           the `keep` of them with the least; for n < 2f + 3 the median

Median and trimmed mean stay between the values of the honest, in every coordinate, while less than half (at most g) of
the members lie. Ties go to the client whose id comes first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, unflat
from coterie.core.federation import Note
from coterie.core.messages import Reply, Slotted
from coterie.core.regroup import Changes
from coterie.tiers.combine import Combine, Krum, Mean, Median, Trimmed


def median(changes: Tensor) -> Tensor:
    """(n, P) to (P,)."""
    n = len(changes)
    return _middle(changes, (n - 1) // 2)


def trimmed_mean(changes: Tensor, share: float) -> Tensor:
    """(n, P) to (P,)."""
    n = len(changes)
    whole = math.ceil(share * n - 1e-9)  # 0.1 * 30 is a little more than 3
    return _middle(changes, min(whole, (n - 1) // 2))


def _middle(changes: Tensor, cut: int) -> Tensor:
    """(n, P) to (P,): the mean of the sorted values without `cut` of them at each end."""
    ordered = changes.sort(dim=0).values
    return ordered[cut : len(changes) - cut].mean(dim=0)


def krum_scores(changes: Tensor, liars: int) -> Tensor:
    """s(i), (n,), of changes (n, P)."""
    # by differences: through products the distances of long vectors near each other would drown in rounding
    apart = torch.cdist(changes.double(), changes.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    nearest = apart.fill_diagonal_(torch.inf).sort(dim=1).values
    return nearest[:, : len(changes) - liars - 2].sum(dim=1)


def krum(changes: Tensor, liars: int, keep: int) -> Tensor:
    """(n, P) to (P,); the first of equal scores."""
    n = len(changes)
    if n < 2 * liars + 3:
        return median(changes)
    best = krum_scores(changes, liars).sort(stable=True).indices[: min(keep, n - liars - 2)]
    return changes[best.sort().values].mean(dim=0)


def centre(combine: Combine, changes: Tensor) -> Tensor:
    """(n, P) to (P,), as `combine` says."""
    if isinstance(combine, Krum):
        return krum(changes, combine.liars, combine.keep)
    if isinstance(combine, Trimmed):
        return trimmed_mean(changes, combine.share)
    assert isinstance(combine, Median), f"{combine.name} is made of sums"
    return median(changes)


def robust_sums(combine: Combine, clusters: Clusters, changes: Changes) -> Slotted:
    """The sums that clients would have sent if every member had made the robust change; whose mean is that, then.

    What is not finite, in one of several restarts, counts for nothing.
    """
    count = clusters.restarts * clusters.K
    by_id = torch.tensor(sorted(range(len(changes.clients)), key=lambda i: changes.clients[i]))
    slots, vectors = changes.slots[by_id].flatten(), changes.vectors[by_id].flatten(0, 1)
    sound = vectors.isfinite().all(dim=1)
    total = torch.zeros(count, vectors.shape[1], dtype=vectors.dtype)
    members = torch.bincount(slots[sound], minlength=count)
    for slot in members.nonzero().flatten().tolist():
        total[slot] = members[slot] * centre(combine, vectors[sound & (slots == slot)])
    arrays = {f"change/{name}": value for name, value in unflat(total, clusters.params).items()}
    return Slotted(torch.arange(count), arrays | {"mass": members.double()}, members)


def too_few(combine: Combine, clusters: Clusters, reply: Reply) -> tuple[Note, ...]:
    """A note for the record where clusters had too few members that answered."""
    if isinstance(combine, Mean):
        return ()
    slots = reply.rows["cluster"].cpu() + torch.arange(clusters.restarts) * clusters.K
    members = torch.bincount(slots.flatten(), minlength=clusters.restarts * clusters.K).tolist()
    short = [f"{_named(slot, clusters)} ({count})" for slot, count in enumerate(members) if 0 < count < combine.least]
    if not short:
        return ()
    return (
        Note(
            f"combine={combine.name} takes {combine.least} members or more, so {combine.below} was taken for "
            f"{', '.join(short)}"
        ),
    )


def _named(slot: int, clusters: Clusters) -> str:
    start = f" of start {slot // clusters.K}" if clusters.restarts > 1 else ""
    return f"cluster {slot % clusters.K}{start}"
