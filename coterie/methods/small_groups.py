"""A warning about groups that are probably too small to be real, if the data decided how many groups there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MOST_MEMBERS = 2
"""A group with more members is never called small."""
SMALL = 0.2
"""A group is small if it has at most this share of the members of an average group."""


def small_groups(labels: npt.NDArray[np.int64], member: str, check: str) -> Iterator[str]:
    """Yield a warning if one or two members make up a group while the other groups are much larger.

    Args:
        labels: Group of each member, numbered from 0; negative for none.
        member: Name of a member, `anchor` or `client`.
        check: How to check whether such a group is real.
    """
    sizes = np.sort(np.bincount(labels[labels >= 0]))[::-1]
    few = sizes[(sizes <= MOST_MEMBERS) & (sizes <= SMALL * sizes.mean())]
    if len(few):
        listed = " + ".join(map(str, sizes))
        one = f"a group of {few[0]} {member}{'s' if few[0] > 1 else ''} is"
        what = one if len(few) == 1 else "such small groups are"
        yield (
            f"the {len(sizes)} groups have {listed} {member}s: {what} probably noise; set "
            f"clusters={len(sizes) - len(few)}, or {check}"
        )
