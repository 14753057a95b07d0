"""A shard: the samples of one or many clients, ragged sizes, flat arrays with ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.keys import Words, hash_ids

ClientId = str
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """Samples of m clients. Client i owns rows `starts[i]:stops[i]` of `x` and `y`.

    Training ranges are disjoint. Test ranges may coincide, so that the clients of one group can share one
    held-out set without a copy each.
    """

    ids: tuple[ClientId, ...]
    hashes: Words
    """One 64-bit word a client, shape (m,): where its randomness comes from."""
    x: Tensor
    """Features, shape (N, ...)."""
    y: Tensor
    """Labels (int64) or targets (floating), shape (N,)."""
    starts: Positions
    stops: Positions

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sizes(self) -> Positions:
        """n_i, shape (m,)."""
        return self.stops - self.starts

    def take(self, positions: Positions) -> Shard:
        """The same arrays, only these clients."""
        row = len(positions) > 0 and bool((np.diff(positions) == 1).all())  # neighbours: no loop over their names
        return replace(
            self,
            ids=self.ids[positions[0] : positions[-1] + 1] if row else tuple(self.ids[i] for i in positions),
            hashes=self.hashes[positions],
            starts=self.starts[positions],
            stops=self.stops[positions],
        )

    def gather(self, rows: Positions, sizes: Positions) -> Shard:
        """The same clients with a copy of these rows of `x` and `y`: client i owns the next sizes[i] of them."""
        index = torch.from_numpy(rows).to(self.x.device)
        stops = np.cumsum(sizes)
        return replace(self, x=self.x[index], y=self.y[index], starts=stops - sizes, stops=stops)

    def pooled(self, groups: Positions) -> Shard:
        """One client for each group 0, 1, ... of `groups` (m,), with the samples of all its members; a copy."""
        order = np.argsort(groups, kind="stable")
        sizes = np.bincount(groups, weights=self.sizes).astype(np.int64)
        names = tuple(f"group-{k}" for k in range(len(sizes)))
        whole = self.gather(spans(self.starts[order], self.sizes[order]), self.sizes[order])
        stops = np.cumsum(sizes)
        return replace(whole, ids=names, hashes=hash_ids(names), starts=stops - sizes, stops=stops)

    def to(self, dtype: torch.dtype, device: torch.device) -> Shard:
        """Features, and targets if they are floating, in `dtype` on `device`; shares memory where it can."""
        y = self.y.to(device=device, dtype=dtype) if self.y.is_floating_point() else self.y.to(device)
        return replace(self, x=self.x.to(device=device, dtype=dtype), y=y)


def spans(starts: Positions, lengths: Positions) -> Positions:
    """starts[0], starts[0]+1, ... for lengths[0] numbers, then the same for the next: shape (sum of lengths,)."""
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.repeat(starts - before, lengths) + np.arange(int(lengths.sum())))
