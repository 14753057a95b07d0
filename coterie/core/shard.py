"""Shards: samples of one or several clients in flat arrays, with the range of rows of each client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.keys import Words, hash_ids

ClientId = str
"""Id of a client."""
Positions = npt.NDArray[np.int64]
"""Positions of clients or samples in an array."""


@dataclass(frozen=True)
class Shard:
    """Samples of m clients: client i has the rows `starts[i]:stops[i]` of `x` and `y`.

    Ranges of training samples are disjoint. Ranges of test samples may coincide, so that clients can share test samples
    without copies.
    """

    ids: tuple[ClientId, ...]
    """Ids of the m clients."""
    hashes: Words
    """64-bit hash of each client's id, (m,), from which its random numbers are derived."""
    x: Tensor
    """Features, (N, ...)."""
    y: Tensor
    """Class labels (int64) or regression targets (floating-point), (N,)."""
    starts: Positions
    """First row of each client, (m,)."""
    stops: Positions
    """End of each client's range of rows, exclusive, (m,)."""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sizes(self) -> Positions:
        """Number of samples of each client (n_i), (m,)."""
        return self.stops - self.starts

    def take(self, positions: Positions) -> Shard:
        """Return the shard of these clients; the arrays of samples are shared."""
        adjacent = len(positions) > 0 and bool((np.diff(positions) == 1).all())  # a slice is faster than a loop
        return replace(
            self,
            ids=self.ids[positions[0] : positions[-1] + 1] if adjacent else tuple(self.ids[i] for i in positions),
            hashes=self.hashes[positions],
            starts=self.starts[positions],
            stops=self.stops[positions],
        )

    def gather(self, rows: Positions, sizes: Positions) -> Shard:
        """Return the same clients with other samples, copied from rows of `x` and `y`.

        Args:
            rows: Rows of all clients, client after client.
            sizes: Number of rows of each client, (m,).
        """
        index = torch.from_numpy(rows).to(self.x.device)
        stops = np.cumsum(sizes)
        return replace(self, x=self.x[index], y=self.y[index], starts=stops - sizes, stops=stops)

    def pooled(self, groups: Positions) -> Shard:
        """Return one client for each group, with a copy of the samples of all its members.

        Args:
            groups: Group of each client, (m,), numbered from 0.
        """
        order = np.argsort(groups, kind="stable")
        sizes = np.bincount(groups, weights=self.sizes).astype(np.int64)
        names = tuple(f"group-{k}" for k in range(len(sizes)))
        whole = self.gather(spans(self.starts[order], self.sizes[order]), self.sizes[order])
        stops = np.cumsum(sizes)
        return replace(whole, ids=names, hashes=hash_ids(names), starts=stops - sizes, stops=stops)

    def alone(self) -> Shard:
        """Return the same clients with a copy of their samples only, in the same order and without unused rows."""
        used = np.zeros(len(self.y) + 1, dtype=np.int64)
        np.add.at(used, self.starts, 1)
        np.add.at(used, self.stops, -1)
        mask = np.cumsum(used)[:-1] > 0
        before = np.concatenate([[0], np.cumsum(mask)])  # number of used rows before each row
        rows = torch.from_numpy(np.flatnonzero(mask)).to(self.x.device)
        return replace(
            self,
            x=self.x.index_select(0, rows),
            y=self.y.index_select(0, rows),
            starts=before[self.starts],
            stops=before[self.stops],
        )

    def to(self, dtype: torch.dtype, device: torch.device) -> Shard:
        """Return the shard with features and regression targets in a dtype on a device; copies only if necessary."""
        y = self.y.to(device=device, dtype=dtype) if self.y.is_floating_point() else self.y.to(device)
        return replace(self, x=self.x.to(device=device, dtype=dtype), y=y)


def spans(starts: Positions, lengths: Positions) -> Positions:
    """Return the concatenated ranges `starts[i], ..., starts[i] + lengths[i] - 1`, (sum of lengths,).

    Example:
        >>> import numpy as np
        >>> spans(np.array([3, 10]), np.array([2, 3]))
        array([ 3,  4, 10, 11, 12])
    """
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.repeat(starts - before, lengths) + np.arange(int(lengths.sum())))
