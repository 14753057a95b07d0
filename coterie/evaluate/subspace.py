"""How far a learned subspace is from the true one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def subspace_distance(found: Floats, true: Floats) -> float:
    """The sine of the largest principal angle between the columns of `found` and `true` (d, c): 0 equal, 1 if some true
    direction is missing altogether. Definition B.1 of Guo, Tang, Lin 2025.

    It is the norm of what lies outside of `found`, and no root of 1 - cos^2, which would lose the digits below 1e-8.
    """
    inside, wanted = (np.linalg.qr(np.asarray(matrix, dtype=np.float64))[0] for matrix in (found, true))
    return float(np.linalg.norm(wanted - inside @ (inside.T @ wanted), ord=2))
