"""Division of a shard into blocks of clients that a learner processes at once.

Clients with similar numbers of samples are stacked into dense (B, n, ...) arrays. Sizes are rounded up to one of a few
size classes, so that padding, which is masked, stays below a quarter. Size classes are joined while the additional
padding costs less than an additional block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.keys import Words
from coterie.core.shard import Positions, Shard

BLOCK_BYTES = 8 << 20
"""Maximum size of the features of one block, small enough to stay in the CPU cache between scoring and training."""

PADDING_BYTES = 1 << 20
"""Maximum padding when size classes are joined: number of padded rows times the larger size of a sample and a model.

The overhead of an additional block is about the cost of computing on this much padding.
"""

MOST_DIVISIONS = 8
"""Number of divisions of clients into groups that are kept; their size depends on the number of clusters."""


@dataclass
class Memory:
    """Bounded cache of tensors that depend on the samples only, for reuse in later rounds."""

    limit: int
    """Maximum number of bytes in the cache."""
    used: int = 0
    kept: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    divisions: dict[tuple[object, ...], list[Positions]] = field(default_factory=dict)
    """Groups of clients of similar size, of the last few divisions; see `like_sizes`."""

    def recall(self, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
        """Return the cached tensor of this key; if there is none, call `make` and cache the result if it fits."""
        if key in self.kept:
            return self.kept[key]
        made = make()
        size = made.numel() * made.element_size()
        if self.used + size <= self.limit:
            self.used += size
            self.kept[key] = made
        return made

    def like_sizes(self, sizes: Positions, row_bytes: int, model_bytes: int) -> list[Positions]:
        """Return `like_sizes` of these arguments, computed only once for the same arguments."""
        key = (sizes.tobytes(), row_bytes, model_bytes)
        if key not in self.divisions:
            if len(self.divisions) == MOST_DIVISIONS:
                self.divisions.clear()
            self.divisions[key] = like_sizes(sizes, row_bytes, model_bytes)
        return self.divisions[key]


@dataclass(frozen=True)
class Block:
    """Samples of B clients of similar size, stacked into dense arrays."""

    positions: Positions
    """Positions of the clients in the shard, (B,)."""
    x: Tensor
    """Features, (B, n, ...). Rows beyond a client's size repeat its first sample and are masked."""
    y: Tensor
    """Labels or targets, (B, n)."""
    sizes: Tensor
    """Number of samples of each client (n_i), (B,), int64."""
    mask: Tensor | None
    """True for real samples, False for padding, (B, n); None if there is no padding."""
    keys: Words
    """Random key of each client for this round, (B,)."""
    focus: Tensor | None = None
    """Weight of each sample in training, in addition to its share in the mean, (B, n); None: all weights are 1."""
    shares: Tensor | None = None
    """Weight of each sample for each of K models that are trained at once, (B, n, K)."""
    memory: Memory | None = None
    """Cache for tensors that a learner computes from these samples; None: nothing is cached."""
    name: tuple[object, ...] = ()
    """Key that identifies these samples in the cache."""

    def recall(self, what: str, make: Callable[[], Tensor]) -> Tensor:
        """Return a tensor that depends on the samples only, from the cache if possible.

        Args:
            what: Name of the tensor.
            make: Function that computes the tensor.
        """
        return _recalled(self.memory, (*self.name, what), make)

    @property
    def counts(self) -> Tensor:
        """Sizes in the dtype of the features: division by an integer tensor would fall back to float32."""
        return self.sizes.to(self.x.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over each client's samples without padding: (B, n, ...) becomes (B, ...)."""
        if self.mask is None:
            return values.mean(dim=1)
        mask = self.mask.reshape(self.mask.shape + (1,) * (values.dim() - 2))
        total = torch.where(mask, values, 0).sum(dim=1)
        return total / self.counts.reshape(-1, *(1,) * (values.dim() - 2))

    def part(self, rows: slice) -> Block:
        """Return a block of some of the clients, without padding that none of them needs.

        Args:
            rows: Adjacent clients of this block.
        """
        sizes = self.sizes[rows]
        width = int(sizes.max())
        real = None if self.mask is None else self.mask[rows, :width]
        return replace(
            self,
            positions=self.positions[rows],
            x=self.x[rows, :width],
            y=self.y[rows, :width],
            sizes=sizes,
            mask=None if real is None or bool(real.all()) else real,
            keys=self.keys[rows],
            focus=None if self.focus is None else self.focus[rows, :width],
            shares=None if self.shares is None else self.shares[rows, :width],
            name=(*self.name, rows.start, rows.stop),
        )


def size_class(sizes: Positions) -> Positions:
    """Return sizes rounded up to a multiple of a quarter of their leading power of two, so padding is below 25 %."""
    step = np.maximum(1, 2 ** np.maximum(0, np.floor(np.log2(sizes)).astype(np.int64) - 2))
    rounded: Positions = -(-sizes // step) * step
    return rounded


def cut(shard: Shard, keys: Words, model_bytes: int, memory: Memory | None = None) -> Iterator[Block]:
    """Yield the clients of a shard in blocks of similar size.

    Args:
        shard: Samples of the clients.
        keys: Random key of each client, (m,).
        model_bytes: Number of bytes of model copies that the work for one client needs.
        memory: Cache for tensors that depend on the samples only. It belongs to one shard and the parts taken from it.
    """
    row = max(1, shard.x[:1].numel() * shard.x.element_size())
    groups = like_sizes if memory is None else memory.like_sizes
    for group in groups(shard.sizes, row, model_bytes):
        width = int(shard.sizes[group].max())  # clients of equal size need no padding
        count = _most_clients(width, row, model_bytes)
        for first in range(0, len(group), count):
            yield _block(shard, group[first : first + count], width, keys, memory)


def like_sizes(sizes: Positions, row_bytes: int, model_bytes: int) -> list[Positions]:
    """Return the positions of clients of similar size, group by group.

    A group consists of one size class, or of several small ones that fit into one block.

    Args:
        sizes: Number of samples of each client, (m,).
        row_bytes: Number of bytes of one sample.
        model_bytes: Number of bytes of model copies that the work for one client needs.
    """
    classes = size_class(sizes)
    order = np.argsort(classes, kind="stable")
    borders = np.flatnonzero(np.diff(classes[order])) + 1
    found: list[list[Positions]] = []
    clients = samples = 0  # in the last group
    for group in np.split(order, borders) if len(order) else ():
        added = sizes[group]
        width, count, total = int(added.max()), clients + len(group), samples + int(added.sum())
        padding = (width * count - total) * max(row_bytes, model_bytes)
        if found and padding <= PADDING_BYTES and count <= _most_clients(width, row_bytes, model_bytes):
            found[-1].append(group)
            clients, samples = count, total
        else:
            found.append([group])
            clients, samples = len(group), total - samples
    return [groups[0] if len(groups) == 1 else np.sort(np.concatenate(groups)) for groups in found]


def _most_clients(width: int, row_bytes: int, model_bytes: int) -> int:
    return max(1, BLOCK_BYTES // max(width * row_bytes, model_bytes // 4))


def _block(shard: Shard, positions: Positions, width: int, keys: Words, memory: Memory | None) -> Block:
    starts, sizes = shard.starts[positions], shard.sizes[positions]
    device = shard.x.device
    name = () if memory is None else (starts.tobytes(), sizes.tobytes())
    exact = bool((sizes == width).all())
    if exact and bool((np.diff(starts) == width).all()):  # adjacent in memory: a view, no copy
        rows = slice(int(starts[0]), int(starts[0]) + width * len(positions))
        x = shard.x[rows].reshape(len(positions), width, *shard.x.shape[1:])
        y = shard.y[rows].reshape(len(positions), width)
    else:
        columns = np.arange(width)
        inside = columns[None, :] < sizes[:, None]
        index = torch.from_numpy(np.where(inside, starts[:, None] + columns, starts[:, None])).flatten().to(device)
        # index_select is several times faster than indexing with a tensor
        y = shard.y.index_select(0, index).reshape(len(positions), width)
        x = _recalled(memory, (*name, "x"), lambda: shard.x.index_select(0, index))
        x = x.reshape(len(positions), width, *shard.x.shape[1:])
    mask = None
    if not exact:
        mask = torch.from_numpy(np.arange(width)[None, :] < sizes[:, None]).to(device)
    return Block(positions, x, y, torch.from_numpy(sizes).to(device), mask, keys[positions], memory=memory, name=name)


def _recalled(memory: Memory | None, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
    return make() if memory is None else memory.recall(key, make)
