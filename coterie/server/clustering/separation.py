"""Measures of the separation of clusters: definition 1, condition (13), and ambiguity of single points.

The bounds of the paper on the samples that k-means needs are not used, since their constants are too large in practice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coterie.server.clustering.partition import Labels, Partition, Points

EXACT = 2000
"""Maximum number of points for exact diameters; for more points, twice the radius is used, as in (14)."""
BLOCK = 2**22
"""Maximum number of distances in memory at once."""
NAMED = 5
"""Maximum number of clusters that are listed in a sentence."""


@dataclass(frozen=True)
class Separation:
    """Separation of a partition of m points into K clusters."""

    sizes: Labels
    """Number of points of each cluster, (K,)."""
    radii: Points
    """Largest distance of a member from the mean of each cluster, (K,)."""
    nearest: tuple[int, int] | None
    """The two clusters with the nearest centres; None for K=1."""
    centre_distance: float
    """Distance of these centres; infinite for K=1."""
    lower: float
    """Lower end of (13): largest ratio of diameter and size."""
    upper: float
    """Upper end of (13): smallest ratio of the distance of two centres and 2m minus both sizes; infinite for K=1."""
    exact_diameters: bool
    """Whether diameters are exact; otherwise they are bounded by twice the radius, and `lower` is an upper bound."""
    ambiguity: Points
    """Distance of each point to its centre divided by that to the nearest other centre, (m,): 0 for K=1, above 1 if
    another centre is nearer."""

    @property
    def alpha(self) -> float:
        """Smallest distance of centres divided by the largest radius; clusters are separable if it is above 1.

        Condition (4) holds for every smaller alpha.
        """
        radius = float(self.radii.max())
        return self.centre_distance / radius if radius > 0 else math.inf

    @property
    def recoverable(self) -> bool | None:
        """Whether some lambda satisfies (13), with which convex clustering recovers this partition; None if unknown."""
        return self._known(self.lower < self.upper)

    def satisfied_by(self, lam: float) -> bool | None:
        """Return whether a lambda satisfies (13), or None if unknown."""
        return self._known(self.lower <= lam < self.upper)

    def _known(self, proved: bool) -> bool | None:
        """Return None for K=1, to which (13) does not apply, and if bounds of the diameters do not decide."""
        if self.nearest is None:
            return None
        return proved if proved or self.exact_diameters else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that the partition may be wrong or of little use."""
        if self.nearest is None:
            return ("there is only one cluster, so its separation is not defined",)
        return tuple(filter(None, (self._overlap(), self._misplaced(), self._alone())))

    def _overlap(self) -> str:
        if self.alpha > 1:
            return ""
        widest, (one, other) = int(self.radii.argmax()), self.nearest or (0, 0)
        return (
            f"clusters overlap: the radius of cluster {widest} is {self.radii[widest]:.3g}, but the distance between "
            f"the centres of clusters {one} and {other} is only {self.centre_distance:.3g} "
            f"(separation {self.alpha:.2f}, above 1 is separable): some clients may be in a wrong cluster; fewer "
            "clusters or more samples for each client may help"
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
            return f"cluster {names} has a single client: its model is trained by this client only"
        return f"{len(alone)} clusters have a single client each ({names}): their models are trained by one client only"

    def facts(self) -> dict[str, object]:
        """Return facts for a report as JSON values, with None for infinite or undefined numbers."""
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
    """Return the separation of a partition of points (m, p), in O(m K p), or O(m^2 p) for up to 2000 points."""
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
    """Return the distance of each point to its centre and to the nearest other one (infinite for K=1), both (m,)."""
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
    """Return the two nearest centres, their distance, and the upper end of (13)."""
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
