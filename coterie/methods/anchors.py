"""Anchors: the few clients whose own models are estimated first. Who they are, and which of them belong together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.core.federation import Federation
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.shard import Positions
from coterie.errors import ConfigError

CLEAR = 1.8
"""A jump of the merge heights by at least this factor shows groups; without one there is a single group."""


def how_many(k: int) -> int:
    """n_H = ceil(3 k ln k) anchors, which hit all of k equal clusters with a chance of 95 % for k = 3; at least 2."""
    return max(math.ceil(3 * k * math.log(k)), k, 2)


def choose_anchors(federation: Federation, wanted: int | None, k: int, least: int | None, seed: int) -> Positions:
    """Positions of the anchors, clients with at least `least` samples, by keyed lot.

    As many as `wanted`; else `how_many(k)`, or all that fit if there are fewer. Without `least`: among the 2 x count
    largest clients, and all that are as large as the last of them.
    """
    count = wanted or how_many(k)
    sizes = federation.sizes
    if least is None:
        least = max(2, int(np.sort(sizes)[::-1][min(2 * count, len(sizes)) - 1]))
    fit, needed = np.flatnonzero(sizes >= max(2, least)), wanted or k
    if len(fit) < needed:
        raise ConfigError(
            f"moment descent wants {needed} anchors with at least {max(2, least)} samples, but only {len(fit)} clients "
            "have as many: set anchors or anchor_samples lower, or use another start"
        )
    lots = keys_for_clients(seed, Purpose.ANCHORS, 0, federation.hashes[fit])
    return np.asarray(fit[np.argsort(lots, kind="stable")[:count]])


@dataclass(frozen=True)
class Grouping:
    """Which anchors belong together."""

    k: int
    group: npt.NDArray[np.int64]
    """(A,) the group of each anchor, numbered by size, largest first."""
    threshold: float
    """Half of the separation Delta: anchors closer than this are in one group."""
    heights: npt.NDArray[np.float64]
    """(A - 1,) ascending: the distances at which average linkage merges."""
    notes: tuple[str, ...]
    """What the user has to know."""


def group_anchors(estimates: npt.NDArray[np.float64], k: int | None, most: int, delta: float | None) -> Grouping:
    """Group anchors by their estimates (A, p): into k groups, or as many (up to `most`) as the merge heights show.

    With `delta` given, anchors closer than delta/2 are connected, as in the paper; where that does not give k groups,
    and without delta, average linkage is cut at k. There are never fewer than k groups.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import

    tree = linkage(estimates, "average") if len(estimates) > 1 else np.zeros((0, 4))
    heights = tree[:, 2]
    shown = groups_shown(heights, most)
    wanted = shown if k is None else k
    notes = []
    if delta is not None:
        connected = _by_size(fcluster(linkage(estimates, "single"), delta / 2, "distance"))
        if k is None or connected.max() + 1 == k:
            return Grouping(int(connected.max()) + 1, connected, delta / 2, heights, ())
        notes.append(f"{connected.max() + 1} groups of anchors are closer than delta/2, not {k}: cut into {k} instead")
    elif k is not None and shown != k:
        notes.append(
            f"the anchors show {shown} group{'s' if shown != 1 else ''}, not {k}: cut into {k} all the same; more "
            "anchors may help, and clusters=auto takes what they show"
        )
    group = _by_size(fcluster(tree, wanted, "maxclust")) if len(estimates) > 1 else np.zeros(1, dtype=np.int64)
    if group.max() + 1 < wanted:  # estimates that coincide cannot be cut apart
        group = np.arange(len(estimates)) % wanted
        notes.append(f"anchors' estimates coincide: {wanted} centres were taken among them at random")
    return Grouping(wanted, group, _gap_midpoint(heights, wanted), heights, tuple(notes))


def groups_shown(heights: npt.NDArray[np.float64], most: int) -> int:
    """The number of groups at the largest ratio of successive merge heights; 1 where no jump is clear."""
    best, found = CLEAR, 1
    for k in range(2, min(most, len(heights)) + 1):
        below, above = heights[-k], heights[-k + 1]
        ratio = above / below if below > 0 else (math.inf if above > 0 else 1.0)
        if ratio > best:
            best, found = ratio, k
    return found


def _gap_midpoint(heights: npt.NDArray[np.float64], k: int) -> float:
    """Midway between the last merge inside groups and the first between them."""
    ends = np.concatenate([[0.0], heights])
    inside = ends[len(ends) - k]
    between = ends[len(ends) - k + 1] if k > 1 else inside
    return float((inside + between) / 2)


def _by_size(labels: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Numbered from 0 by falling size; ties by first appearance."""
    kinds, first, where, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(kinds), dtype=np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(kinds))
    return rank[where.reshape(-1)]
