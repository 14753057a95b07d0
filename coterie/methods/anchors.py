"""Anchors: the few clients whose own models are estimated first. Who they are, and which of them belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coterie.core.federation import Federation
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.shard import Positions
from coterie.errors import ConfigError

CLEAR = 1.8
"""A jump of the merge heights by at least this factor shows groups; without one there is a single group."""

SOME = 1.3
"""A jump of the merge heights by at least this factor makes a number of groups worth a look at the held-out loss."""
MISSED = 0.05
"""delta: the chance that a group has no anchor which is put up with."""
LARGER = 2.0
"""More groups must lower the held-out loss by this many standard errors of the difference."""

SLIGHT = 0.05
"""A fall of the held-out loss by a smaller share is no reason for another group."""


def how_many(k: int) -> int:
    """n_H = ceil(3 k ln k) anchors, which hit all of k equal clusters with a chance of 95 % for k = 3; at least 2."""
    return max(math.ceil(3 * k * math.log(k)), k, 2)


def recommended(k: int, share: float) -> int:
    """n_H = ln(k / delta) / p_min: with so many anchors no one of k groups is missed with a chance of 1 - delta.

    Args:
        k: Number of groups.
        share: Share of the clients that the smallest group has (p_min).
    """
    return math.ceil(math.log(k / MISSED) / share)


def missed(shares: npt.NDArray[np.float64], anchors: int) -> float:
    """Return a bound for the chance that some group with these shares of the clients has none of the anchors."""
    return float(min(1.0, ((1 - shares) ** anchors).sum()))


def choose_anchors(
    federation: Federation, wanted: int | None, k: int, least: int | None, seed: int, count: int | None = None
) -> Positions:
    """Positions of the anchors, clients with at least `least` samples, by keyed lot.

    As many as `wanted`; else `count` or `how_many(k)`, or all that fit if there are fewer. Without `least`: among the
    2 x count largest clients, and all that are as large as the last of them.
    """
    count = wanted or count or how_many(k)
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
    held_out: Mapping[int, float] = field(default_factory=dict)
    """Mean held-out loss of the other clients by number of groups, where that decided their number."""

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """(k,) the share of the anchors in each group."""
        return np.bincount(self.group, minlength=self.k) / max(len(self.group), 1)


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


def cuts(estimates: npt.NDArray[np.float64], most: int) -> list[npt.NDArray[np.int64]]:
    """Return groupings of the anchors worth a look, the coarsest first: one group, then up to `most`.

    They are cuts of average linkage where the merge heights rise by a factor of at least `SOME`.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import

    one = np.zeros(len(estimates), dtype=np.int64)
    if len(estimates) < 3:
        return [one]
    tree = linkage(estimates, "average")
    heights = tree[:, 2]
    jumps = [k for k in range(2, min(most, len(heights)) + 1) if heights[-k + 1] > SOME * heights[-k]]
    return [one, *(_by_size(fcluster(tree, k, "maxclust")) for k in jumps)]


def fewest_as_good(loss: npt.NDArray[np.float64], products: npt.NDArray[np.float64], clients: float) -> int:
    """Return the place of the first loss, from one group on, that is not clearly above the least one.

    Clearly: by more than `LARGER` standard errors of the mean difference over clients, and by more than the share
    `SLIGHT` of the least loss: an anchor with a poor estimate alone makes the others' mean a bit better.

    Args:
        loss: (G,) sums of the clients' losses.
        products: (G, G) sums of the products of these losses.
        clients: Number of clients.
    """
    means, best = loss / clients, int(loss.argmin())
    squares = products.diagonal() - 2 * products[:, best] + products[best, best]
    spread = np.maximum(squares / clients - (means - means[best]) ** 2, 0)
    by_chance = LARGER * np.sqrt(spread / max(clients - 1, 1))
    return int(np.argmax(means - means[best] <= np.maximum(by_chance, SLIGHT * means[best])))


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
