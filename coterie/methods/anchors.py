"""Anchors of moment descent: the few clients whose own models are estimated first, and their groups."""

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

CLEAR_JUMP = 1.8
"""A jump of the merge heights by at least this factor separates groups; without such a jump there is one group."""

CANDIDATE_JUMP = 1.3
"""A jump of the merge heights by at least this factor makes a number of groups a candidate for the held-out loss."""
MISS_PROBABILITY = 0.05
"""delta: accepted probability that a group has no anchor."""
STANDARD_ERRORS = 2.0
"""More groups must lower the held-out loss by this many standard errors of the difference."""

SLIGHT = 0.05
"""Another group must lower the held-out loss by more than this share of it."""


def default_anchors(k: int) -> int:
    """Return n_H = ceil(3 k ln k), at least 2: with k = 3 equal clusters, all have an anchor with probability 95 %."""
    return max(math.ceil(3 * k * math.log(k)), k, 2)


def recommended(k: int, share: float) -> int:
    """Return n_H = ln(k / delta) / p_min anchors, with which no group is missed with probability 1 - delta.

    Args:
        k: Number of groups.
        share: Share of the clients in the smallest group (p_min).
    """
    return math.ceil(math.log(k / MISS_PROBABILITY) / share)


def miss_probability(shares: npt.NDArray[np.float64], anchors: int) -> float:
    """Return an upper bound of the probability that some group with these shares of the clients has no anchor."""
    return float(min(1.0, ((1 - shares) ** anchors).sum()))


def choose_anchors(
    federation: Federation, wanted: int | None, k: int, least: int | None, seed: int, count: int | None = None
) -> Positions:
    """Return the positions of the anchors, drawn by key among the clients with at least `least` samples.

    Args:
        federation: The clients.
        wanted: Number of anchors; an error if fewer clients are large enough. None: up to `count`.
        k: Number of groups, for the default number of anchors and the smallest allowed one.
        least: Smallest number of samples of an anchor. None: as many as the (2 x count)-th largest client has.
        seed: Seed of the run.
        count: Largest number of anchors if `wanted` is None; by default `default_anchors(k)`.

    Raises:
        ConfigError: if too few clients are large enough.
    """
    count = wanted or count or default_anchors(k)
    sizes = federation.sizes
    if least is None:
        least = max(2, int(np.sort(sizes)[::-1][min(2 * count, len(sizes)) - 1]))
    fit, needed = np.flatnonzero(sizes >= max(2, least)), wanted or k
    if len(fit) < needed:
        raise ConfigError(
            f"moment descent needs {needed} anchors with at least {max(2, least)} samples, but only {len(fit)} clients "
            "have that many: lower anchors or anchor_samples, or use another init"
        )
    keys = keys_for_clients(seed, Purpose.ANCHORS, 0, federation.hashes[fit])
    return np.asarray(fit[np.argsort(keys, kind="stable")[:count]])


@dataclass(frozen=True)
class Grouping:
    """Groups of the anchors."""

    k: int
    """Number of groups."""
    group: npt.NDArray[np.int64]
    """Group of each anchor, (A,); groups are numbered by size, the largest first."""
    threshold: float
    """Half of the separation Delta: anchors closer than this belong to one group."""
    heights: npt.NDArray[np.float64]
    """Distances at which average linkage merges, ascending, (A - 1,)."""
    notes: tuple[str, ...]
    """Warnings for the user."""
    held_out: Mapping[int, float] = field(default_factory=dict)
    """Mean held-out loss of the other clients by number of groups, if it decided their number."""

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Share of the anchors in each group, (k,)."""
        return np.bincount(self.group, minlength=self.k) / max(len(self.group), 1)


def group_anchors(estimates: npt.NDArray[np.float64], k: int | None, most: int, delta: float | None) -> Grouping:
    """Group anchors by their estimates (A, p).

    With `delta`, anchors closer than delta/2 are connected, as in the paper. Without it, or if this does not give k
    groups, the tree of average linkage is cut into k groups.

    Args:
        estimates: Estimated models of the anchors, (A, p).
        k: Number of groups; None: as many as the merge heights show, at most `most`.
        most: Largest number of groups if k is None.
        delta: Separation of the true models; None if unknown.
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
        notes.append(f"anchors closer than delta/2 form {connected.max() + 1} groups, not {k}: cut into {k} instead")
    elif k is not None and shown != k:
        notes.append(
            f"the anchors show {shown} group{'s' if shown != 1 else ''}, not {k}: cut into {k} nevertheless; more "
            "anchors may help, and clusters=auto uses the number that they show"
        )
    group = _by_size(fcluster(tree, wanted, "maxclust")) if len(estimates) > 1 else np.zeros(1, dtype=np.int64)
    if group.max() + 1 < wanted:  # equal estimates cannot be separated
        group = np.arange(len(estimates)) % wanted
        notes.append(f"the anchors' estimates coincide: {wanted} of them were chosen as centres at random")
    return Grouping(wanted, group, _gap_midpoint(heights, wanted), heights, tuple(notes))


def candidate_groupings(estimates: npt.NDArray[np.float64], most: int) -> list[npt.NDArray[np.int64]]:
    """Return candidate groupings of the anchors, the coarsest first: one group, then up to `most`.

    The candidates cut average linkage where the merge heights rise by a factor of at least `CANDIDATE_JUMP`.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import

    one = np.zeros(len(estimates), dtype=np.int64)
    if len(estimates) < 3:
        return [one]
    tree = linkage(estimates, "average")
    heights = tree[:, 2]
    jumps = [k for k in range(2, min(most, len(heights)) + 1) if heights[-k + 1] > CANDIDATE_JUMP * heights[-k]]
    return [one, *(_by_size(fcluster(tree, k, "maxclust")) for k in jumps)]


def fewest_as_good(loss: npt.NDArray[np.float64], products: npt.NDArray[np.float64], clients: float) -> int:
    """Return the index of the first loss, from one group on, that is not clearly above the lowest one.

    Clearly means by more than `STANDARD_ERRORS` standard errors of the mean difference over clients, and by more than
    the share `SLIGHT` of the lowest loss, because separating a single poor estimate always helps the others a little.

    Args:
        loss: (G,) sums of the clients' losses.
        products: (G, G) sums of the products of these losses.
        clients: Number of clients.
    """
    means, best = loss / clients, int(loss.argmin())
    squares = products.diagonal() - 2 * products[:, best] + products[best, best]
    spread = np.maximum(squares / clients - (means - means[best]) ** 2, 0)
    by_chance = STANDARD_ERRORS * np.sqrt(spread / max(clients - 1, 1))
    return int(np.argmax(means - means[best] <= np.maximum(by_chance, SLIGHT * means[best])))


def groups_shown(heights: npt.NDArray[np.float64], most: int) -> int:
    """Return the number of groups at the largest ratio of successive merge heights; 1 if no jump is clear."""
    best, found = CLEAR_JUMP, 1
    for k in range(2, min(most, len(heights)) + 1):
        below, above = heights[-k], heights[-k + 1]
        ratio = above / below if below > 0 else (math.inf if above > 0 else 1.0)
        if ratio > best:
            best, found = ratio, k
    return found


def _gap_midpoint(heights: npt.NDArray[np.float64], k: int) -> float:
    """Return the midpoint between the last merge inside groups and the first merge between groups."""
    ends = np.concatenate([[0.0], heights])
    inside = ends[len(ends) - k]
    between = ends[len(ends) - k + 1] if k > 1 else inside
    return float((inside + between) / 2)


def _by_size(labels: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return labels numbered from 0 by decreasing size; ties by first appearance."""
    kinds, first, where, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(kinds), dtype=np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(kinds))
    return rank[where.reshape(-1)]
