"""Distance of a learned subspace from the true one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def subspace_distance(found: Floats, true: Floats) -> float:
    """Return the sine of the largest principal angle between two subspaces (Definition B.1 of Guo, Tang, Lin 2025).

    It is computed as the norm of the part of `true` outside `found`: the root of 1 - cos^2 would lose the digits below
    1e-8.

    Args:
        found: (d, c) a basis of the learned subspace in its columns.
        true: (d, c) a basis of the true subspace.

    Returns:
        0 if the subspaces are equal, 1 if a true direction is missing altogether.
    """
    inside, wanted = (np.linalg.qr(np.asarray(matrix, dtype=np.float64))[0] for matrix in (found, true))
    return float(np.linalg.norm(wanted - inside @ (inside.T @ wanted), ord=2))
