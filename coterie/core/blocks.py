"""Cutting a shard into blocks that a learner can work on at once.

Clients of like size are stacked into dense (B, n, ...) arrays. Sizes are rounded up to one of a few classes (at most a
quarter of padding, masked out). Classes are joined while the padding costs less than another block would.
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
"""Features of one block: small enough to stay in the cache between scoring and training."""

PADDING_BYTES = 1 << 20
"""Padding up to which classes are joined, counted as rows times the larger of a sample and a model.

A block costs about as much in calls as this much arithmetic on padding.
"""


@dataclass
class Memory:
    """What is computed from samples alone and so need not be computed again in the next round; bounded."""

    limit: int
    """Bytes that may be kept."""
    used: int = 0
    kept: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def recall(self, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
        """What `make` gave for this key before, else now."""
        if key in self.kept:
            return self.kept[key]
        made = make()
        size = made.numel() * made.element_size()
        if self.used + size <= self.limit:
            self.used += size
            self.kept[key] = made
        return made


@dataclass(frozen=True)
class Block:
    """B clients of like size."""

    positions: Positions
    """Their places in the shard, shape (B,)."""
    x: Tensor
    """(B, n, ...); rows past a client's size repeat its first sample and are masked."""
    y: Tensor
    """(B, n)."""
    sizes: Tensor
    """n_i, shape (B,), int64."""
    mask: Tensor | None
    """(B, n) True for real samples; None when there is no padding."""
    keys: Words
    """One key a client for what is drawn this round, shape (B,)."""
    focus: Tensor | None = None
    """(B, n) what each sample counts in training, on top of its share in the mean; None: 1."""
    shares: Tensor | None = None
    """(B, n, K) what each sample counts for each of several models that are trained at once."""
    memory: Memory | None = None
    """Where what a learner computes from these samples may be kept; None: nowhere."""
    name: tuple[object, ...] = ()
    """What tells these samples from others in the memory."""

    def recall(self, what: str, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives, which depends on nothing but the samples; kept if there is room."""
        return _recalled(self.memory, (*self.name, what), make)

    @property
    def counts(self) -> Tensor:
        """n_i in the floating type of the features: dividing by whole numbers would fall back to float32."""
        return self.sizes.to(self.x.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over each client's own samples: (B, n, ...) to (B, ...)."""
        if self.mask is None:
            return values.mean(dim=1)
        mask = self.mask.reshape(self.mask.shape + (1,) * (values.dim() - 2))
        total = torch.where(mask, values, 0).sum(dim=1)
        return total / self.counts.reshape(-1, *(1,) * (values.dim() - 2))

    def alone(self, b: int) -> Block:
        """One client of the block, without its padding."""
        row, size = slice(b, b + 1), int(self.sizes[b])
        return replace(
            self,
            positions=self.positions[row],
            x=self.x[row, :size],
            y=self.y[row, :size],
            sizes=self.sizes[row],
            mask=None,
            keys=self.keys[row],
            focus=None if self.focus is None else self.focus[row, :size],
            shares=None if self.shares is None else self.shares[row, :size],
        )


def size_class(sizes: Positions) -> Positions:
    """Round sizes up to multiples of a quarter of their leading power of two: padding stays under 25 %."""
    step = np.maximum(1, 2 ** np.maximum(0, np.floor(np.log2(sizes)).astype(np.int64) - 2))
    rounded: Positions = -(-sizes // step) * step
    return rounded


def cut(shard: Shard, keys: Words, model_bytes: int, memory: Memory | None = None) -> Iterator[Block]:
    """The shard's clients in blocks of like size; `model_bytes` is what one client's work copies of models.

    A memory belongs to one shard and the parts taken of it.
    """
    row = max(1, shard.x[:1].numel() * shard.x.element_size())
    for group in like_sizes(shard.sizes, row, model_bytes):
        width = int(shard.sizes[group].max())  # clients of one size need no padding, whatever their class
        count = _most_clients(width, row, model_bytes)
        for first in range(0, len(group), count):
            yield _block(shard, group[first : first + count], width, keys, memory)


def like_sizes(sizes: Positions, row_bytes: int, model_bytes: int) -> list[Positions]:
    """Return the positions of clients of like size: those of one class, or of several that fit in one small block."""
    classes = size_class(sizes)
    order = np.argsort(classes, kind="stable")
    borders = np.flatnonzero(np.diff(classes[order])) + 1
    found: list[list[Positions]] = []
    clients = samples = 0  # of the last of them
    for group in np.split(order, borders) if len(order) else ():
        own = sizes[group]
        width, many, total = int(own.max()), clients + len(group), samples + int(own.sum())
        padding = (width * many - total) * max(row_bytes, model_bytes)
        if found and padding <= PADDING_BYTES and many <= _most_clients(width, row_bytes, model_bytes):
            found[-1].append(group)
            clients, samples = many, total
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
    if exact and bool((np.diff(starts) == width).all()):  # neighbours in memory: a view, no copy
        rows = slice(int(starts[0]), int(starts[0]) + width * len(positions))
        x = shard.x[rows].reshape(len(positions), width, *shard.x.shape[1:])
        y = shard.y[rows].reshape(len(positions), width)
    else:
        columns = np.arange(width)
        inside = columns[None, :] < sizes[:, None]
        index = torch.from_numpy(np.where(inside, starts[:, None] + columns, starts[:, None])).flatten().to(device)
        # several times faster than indexing by a tensor
        y = shard.y.index_select(0, index).reshape(len(positions), width)
        x = _recalled(memory, (*name, "x"), lambda: shard.x.index_select(0, index))
        x = x.reshape(len(positions), width, *shard.x.shape[1:])
    mask = None
    if not exact:
        mask = torch.from_numpy(np.arange(width)[None, :] < sizes[:, None]).to(device)
    return Block(positions, x, y, torch.from_numpy(sizes).to(device), mask, keys[positions], memory=memory, name=name)


def _recalled(memory: Memory | None, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
    return make() if memory is None else memory.recall(key, make)
