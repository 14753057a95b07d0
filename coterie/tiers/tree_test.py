"""Groups from a tree of clients, tested from the root down: a branch is cut if that predicts held-out halves better.

The tree is built from one half of every client's samples, with one point per client, such as the projector onto its
subspace. If two branches differ, the point of a client's other half is nearer to the mean point of the client's own
branch than to the mean point of both branches. The test is the one of `split_test.py`, with squared distances as
losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.core.shard import Positions
from coterie.tiers.landmarks import Floats
from coterie.tiers.split_test import ERROR_RATE, MIN_PART_SIZE, SplitTest, gain_test


@dataclass(frozen=True)
class TestedTree:
    """The groups that the tests found."""

    __test__ = False  # keeps pytest from collecting this class

    labels: npt.NDArray[np.int64]
    """Group of each client, (m,); -1 for single clients that were split off above a branch that was cut."""
    tests: tuple[SplitTest, ...]
    """Tests in the order in which they were made; `cluster` is the index of the test."""


def cut_tree(merges: Floats, within: Floats, across: Floats, samples: Floats, rate: float = ERROR_RATE) -> TestedTree:
    """Cut a tree from its root down, as long as this predicts held-out halves better.

    The j-th test has the level 6 / (pi^2 j^2) times `rate`, so that a federation without groups is cut with at most
    that probability. A branch of a single client is no group: the other branch is tested without it.

    Args:
        merges: (m - 1, 4) the tree, as `scipy.cluster.hierarchy.linkage` returns it.
        within: (m, m) inner products of the points of the first halves.
        across: (m, m) inner products of the points of the second halves, by row, with those of the first halves.
        samples: (m,) number of samples of each client.
        rate: Probability of a cut without groups, at most.
    """
    from scipy.cluster.hierarchy import to_tree  # slow to import

    labels, tests = np.full(len(within), -1), list[SplitTest]()
    waiting, groups = [to_tree(merges)], 0
    while waiting:
        whole = node = waiting.pop(0)
        while not node.is_leaf() and min(node.left.count, node.right.count) < MIN_PART_SIZE:
            node = node.left if node.left.count >= node.right.count else node.right
        if not node.is_leaf() and node.count >= 2 * MIN_PART_SIZE:
            parts = (np.array(node.left.pre_order()), np.array(node.right.pre_order()))
            level = rate * 6 / (math.pi * (len(tests) + 1)) ** 2
            tests.append(_tested(len(tests), parts, within, across, samples, level))
            if tests[-1].accepted:
                waiting += [node.left, node.right]
                continue
        labels[whole.pre_order()] = groups  # includes single clients that were split off above an uncut branch
        groups += 1
    return TestedTree(labels, tuple(tests))


def _tested(
    number: int, parts: tuple[Positions, Positions], within: Floats, across: Floats, samples: Floats, level: float
) -> SplitTest:
    """Return the test of a cut into these parts."""
    together = np.concatenate(parts)
    whole = _distances(together, within, across)
    own = np.concatenate([_distances(part, within, across) for part in parts])
    return gain_test(number, parts, np.stack([whole, own], axis=1), samples[together], level)


def _distances(members: Positions, within: Floats, across: Floats) -> Floats:
    """Return |b_i - mean of a_j|^2 - |b_i|^2 for each member i, the mean over all members but i itself, (n,)."""
    first, second = within[np.ix_(members, members)], across[np.ix_(members, members)]
    others = len(members) - 1
    squares = (first.sum() - 2 * first.sum(axis=1) + first.diagonal()) / others**2
    products = (second.sum(axis=1) - second.diagonal()) / others
    return np.asarray(squares - 2 * products)


@dataclass(frozen=True)
class CountedByHalves:
    """The number of groups that two halves of the clients' samples show."""

    K: int
    tests: tuple[SplitTest, ...]
    """Tests of the tree with more groups, in the order in which they were made."""


def count_by_halves(first: Floats, second: Floats, samples: Floats, rate: float = ERROR_RATE) -> CountedByHalves:
    """Return the number of groups of clients, from one vector for each half of their samples.

    Vectors are compared by direction. The halves change places, too: a tree of the second halves is tested on the
    first ones. Each tree has half of the rate, and the one that shows more groups counts.

    Args:
        first: (m, P) vectors of the first halves.
        second: (m, P) vectors of the second halves, of the same clients.
        samples: (m,) number of samples of each client.
        rate: Probability of more than one group without groups, at most.
    """
    from scipy.cluster.hierarchy import linkage  # slow to import

    if len(first) < 2 * MIN_PART_SIZE:
        return CountedByHalves(1, ())
    one, other = directions(first), directions(second)
    found = [cut_tree(linkage(a, "ward"), a @ a.T, b @ a.T, samples, rate / 2) for a, b in ((one, other), (other, one))]
    most = max(found, key=lambda tree: int(tree.labels.max()))
    return CountedByHalves(int(most.labels.max()) + 1, most.tests)


def directions(vectors: Floats) -> Floats:
    """Return vectors (m, P) with length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float64).tiny))
