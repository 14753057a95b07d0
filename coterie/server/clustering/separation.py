"""How far a clustering can be trusted: the separation of definition 1, condition (13), and who is in doubt.

The paper's bounds on the samples that k-means needs have constants so large that they never hold: they are not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coterie.server.clustering.partition import Labels, Partition, Points

EXACT = 2000
"""Up to so many points diameters are exact; beyond, twice the radius stands for the diameter, as in (14)."""
BLOCK = 2**22
"""Distances held at a time."""
NAMED = 5
"""At most so many clusters or points are named in a sentence."""


@dataclass(frozen=True)
class Separation:
    """What the distances say about a partition of m points into K clusters."""

    sizes: Labels
    """(K,) points of each cluster."""
    radii: Points
    """(K,) the largest distance of a member from the cluster's mean."""
    nearest: tuple[int, int] | None
    """The two clusters whose centres are nearest to each other; None for K=1."""
    centre_distance: float
    """The distance of those centres; infinite for K=1."""
    lower: float
    """Lower end of (13): the largest of diameter / size."""
    upper: float
    """Upper end of (13): the least of centre distance / (2m - sizes of both); infinite for K=1."""
    exact_diameters: bool
    """False: diameters are bounded by twice the radius, so `lower` is an upper bound of the true end."""
    ambiguity: Points
    """(m,) distance to the own centre / to the nearest other one: 0 for K=1, above 1 if another is nearer."""

    @property
    def alpha(self) -> float:
        """Least distance of centres / largest radius: (4) holds for every alpha below it. Above 1: separable."""
        radius = float(self.radii.max())
        return self.centre_distance / radius if radius > 0 else math.inf

    @property
    def recoverable(self) -> bool | None:
        """Whether some lambda satisfies (13), so that convex clustering is proved to find this partition with it."""
        return self._told_by(self.lower < self.upper)

    def satisfied_by(self, lam: float) -> bool | None:
        """Whether this lambda satisfies (13)."""
        return self._told_by(self.lower <= lam < self.upper)

    def _told_by(self, proved: bool) -> bool | None:
        """None for K=1, where (13) says nothing, and where bounds of the diameters do not suffice for an answer."""
        if self.nearest is None:
            return None
        return proved if proved or self.exact_diameters else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Plain sentences on why the partition might be wrong or of little use."""
        if self.nearest is None:
            return ("there is one cluster, so there is nothing to compare: its separation is not defined",)
        return tuple(filter(None, (self._overlap(), self._misplaced(), self._alone())))

    def _overlap(self) -> str:
        if self.alpha > 1:
            return ""
        widest, (one, other) = int(self.radii.argmax()), self.nearest or (0, 0)
        return (
            f"clusters overlap: the radius of cluster {widest} is {self.radii[widest]:.3g}, but the centres of "
            f"clusters {one} and {other} are only {self.centre_distance:.3g} apart (separation {self.alpha:.2f}; above "
            "1 is separable): some clients may be in a wrong cluster; fewer clusters or more samples a client may help"
        )

    def _misplaced(self) -> str:
        count = int((self.ambiguity > 1).sum())
        if not count:
            return ""
        return f"{count} of {len(self.ambiguity)} clients are nearer to the centre of another cluster than to their own"

    def _alone(self) -> str:
        alone = np.flatnonzero(self.sizes == 1)
        if not len(alone):
            return ""
        names = ", ".join(map(str, alone[:NAMED])) + (", ..." if len(alone) > NAMED else "")
        if len(alone) == 1:
            return f"cluster {names} has a single client: its model is that client's own"
        return f"{len(alone)} clusters have a single client each ({names}): their models are those clients' own"

    def facts(self) -> dict[str, object]:
        """For a report, ready for JSON; what is infinite or not defined is null."""
        return {
            "alpha": _finite(self.alpha) if self.nearest else None,
            "separable": self.alpha > 1 if self.nearest else None,
            "sizes": self.sizes.tolist(),
            "radii": self.radii.tolist(),
            "nearest_clusters": self.nearest and list(self.nearest),
            "centre_distance": _finite(self.centre_distance),
            "interval_13": [self.lower, _finite(self.upper)],
            "recoverable_by_13": self.recoverable,
            "diameters": "exact" if self.exact_diameters else "at most twice the radius",
            "ambiguity": {
                "median": float(np.median(self.ambiguity)),
                "largest": float(self.ambiguity.max()),
                "nearer_to_another": int((self.ambiguity > 1).sum()),
            },
        }


def separation(points: Points, part: Partition) -> Separation:
    """Measure a partition of points (m, p): O(m K p), and O(m^2 p) for exact diameters up to 2000 points."""
    from coterie.server.clustering.convex import recovery_interval  # scikit-learn is slow to import

    own, other = own_and_other(points, part)
    sizes = np.bincount(part.labels)
    radii = np.zeros(part.K)
    np.maximum.at(radii, part.labels, own)
    exact = len(points) <= EXACT
    nearest, distance, upper = centre_gaps(part.centres, sizes)
    lower = recovery_interval(points, part.labels)[0] if exact else float((2 * radii / sizes).max())
    with np.errstate(divide="ignore", invalid="ignore"):
        ambiguity = np.where(own > 0, own / other, 0.0)
    return Separation(sizes, radii, nearest, distance, lower, upper, exact, ambiguity)


def own_and_other(points: Points, part: Partition) -> tuple[Points, Points]:
    """The distance of each point to its own centre and to the nearest other one, (m,) each; infinite if K=1."""
    from scipy.spatial.distance import cdist  # slow to import

    own, other = np.empty(len(points)), np.empty(len(points))
    rows = max(1, BLOCK // part.K)
    for start in range(0, len(points), rows):
        block = slice(start, start + rows)
        distance = cdist(points[block], part.centres)
        mine = (np.arange(len(distance)), part.labels[block])
        own[block] = distance[mine]
        distance[mine] = np.inf
        other[block] = distance.min(axis=1)
    return own, other


def centre_gaps(centres: Points, sizes: Labels) -> tuple[tuple[int, int] | None, float, float]:
    """The two nearest centres, their distance, and the upper end of (13)."""
    from scipy.spatial.distance import pdist  # slow to import

    if len(centres) == 1:
        return None, math.inf, math.inf
    distance = pdist(centres)
    one, other = np.triu_indices(len(centres), 1)
    least = int(distance.argmin())
    upper = distance / (2 * sizes.sum() - sizes[one] - sizes[other])
    return (int(one[least]), int(other[least])), float(distance[least]), float(upper.min())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
